/*-------------------------------------------------------------------------
 *
 * watermark.c
 *	  The only door to table fenced_lock.watermark.
 *
 * A key keeps one row, its mark, which is only ever raised: so whatever a look
 * finds, the present mark is at least that.  Rows are never removed.  Should
 * there be several of a key, since a dump was restored beside them, the
 * highest is found, and is the mark.
 *
 * How the table is read and written is keyed_table.c's affair.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "compat.h"
#include "freshness.h"
#include "utils/rel.h"
#include "utils/timestamp.h"
#include "watermark.h"

/* Columns are only ever appended: an older library meets newer tables. */
enum
{
	COL_KEY = FL_COL_KEY,
	COL_FENCING_TOKEN = FL_COL_FENCING_TOKEN,
	COL_ADMITTED_AT
};

/* Open the table for reading (AccessShareLock) or writing (RowExclusiveLock). */
void
fl_marks_open(FlTable *table, LOCKMODE mode)
{
	fl_table_open(table, "watermark", mode);
}

/*
 * The mark of a key as it is now, whatever the caller's snapshot.  Exact while
 * the caller holds the key's mark lock; without, it may be missed or lower
 * than it is by now.
 *
 * Who has raised it is told by the row itself: each write is a rise.
 */
bool
fl_mark_find(FlTable *table, const text *key, FlMark *mark)
{
	HeapTuple	tuple = fl_table_find(table, key, FL_LOOK_SELF);
	bool		isnull;

	if (tuple == NULL)
		return false;
	mark->tuple = tuple;
	mark->fencing_token =
		DatumGetInt64(heap_getattr(tuple, COL_FENCING_TOKEN,
								   RelationGetDescr(table->heap), &isnull));
	mark->raised_xid = fl_full_xid(HeapTupleHeaderGetXmin(tuple->t_data));
	return true;
}

/* The same as a look of its own, keeping no lock on the table. */
bool
fl_mark_find_once(const text *key, FlMark *mark)
{
	FlTable		table;
	bool		found;

	fl_marks_open(&table, AccessShareLock);
	found = fl_mark_find(&table, key, mark);
	fl_table_close(&table, AccessShareLock);
	return found;
}

/*
 * Wait until the mark can be written.  Only a hand can be in the way, since
 * the caller holds the key's mark lock.  False if the hand has changed it, and
 * it must be looked for again.
 */
bool
fl_mark_is_writable(FlTable *table, const FlMark *mark)
{
	return fl_table_row_is_free(table, mark->tuple) ||
		fl_table_row_wait(table, mark->tuple);
}

/*
 * Raise a key's mark; "old" is the present one or NULL.  The caller holds the
 * key's mark lock and has asked fl_mark_is_writable().
 */
void
fl_mark_raise(FlTable *table, const FlMark *old, const text *key, int64 token)
{
	FlNewRow	new;

	fl_new_row_init(&new, table);
	fl_new_row_set(&new, COL_KEY, PointerGetDatum(key));
	fl_new_row_set(&new, COL_FENCING_TOKEN, Int64GetDatum(token));
	fl_new_row_set(&new, COL_ADMITTED_AT,
				   TimestampTzGetDatum(GetCurrentTimestamp()));
	fl_table_write(table, old ? old->tuple : NULL, &new);
}
