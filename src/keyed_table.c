/*-------------------------------------------------------------------------
 *
 * keyed_table.c
 *	  A table of ours whose rows have a key and a fencing token: how it is
 *	  opened, looked up in the present, and written.
 *
 * Rows are read and written straight on the heap: a lock has to look at the
 * present, also for a REPEATABLE READ caller, and SQL would show it its
 * snapshot.  What the executor does for a SQL statement is therefore our
 * callers' job: rights, READ ONLY, and serializing the work on one key (the
 * key's lock is what makes a key unique; the index is not).
 *
 * A key keeps one row, and its token only rises, so the index on (key,
 * fencing_token), read from its end, meets the newest version first however
 * many dead ones an old snapshot keeps alive.
 *
 * This is what the doors to one such table each have in common; others only
 * close through it what a door has opened for them.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/relscan.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "catalog/pg_am_d.h"
#include "catalog/pg_collation_d.h"
#include "catalog/pg_index.h"
#include "compat.h"
#include "keyed_table.h"
#include "schema.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"

/* Is this the index to find the newest version of a key's row with? */
static bool
is_newest_first(Relation index)
{
	Form_pg_index form = index->rd_index;

	return form->indisvalid &&
		index->rd_rel->relam == BTREE_AM_OID &&
		form->indnkeyatts == 2 &&
		form->indkey.values[0] == FL_COL_KEY &&
		form->indkey.values[1] == FL_COL_FENCING_TOKEN &&
		index->rd_indcollation[0] == C_COLLATION_OID &&
		index->rd_indoption[0] == 0 && index->rd_indoption[1] == 0;
}

/*
 * The functions that keep a catalog's indexes, which write our table, know
 * plain indexes only.  An index of another kind, which an administrator may
 * have made for a query of his own, would crash the server.
 */
static void
refuse_fancy_index(Relation heap, Relation index)
{
	if (!heap_attisnull(index->rd_indextuple, Anum_pg_index_indexprs, NULL) ||
		!heap_attisnull(index->rd_indextuple, Anum_pg_index_indpred, NULL) ||
		index->rd_index->indisexclusion)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("index \"%s\" on table \"%s.%s\" has an expression, a predicate or an exclusion constraint",
						RelationGetRelationName(index), FL_SCHEMA,
						RelationGetRelationName(heap)),
				 errhint("Drop the index: only plain columns of this table can be indexed.")));
}

/*
 * Not by its name: REINDEX CONCURRENTLY swaps names under us, while the lock
 * on the table keeps the old index until we are done.
 */
static Relation
open_newest_first_index(Relation heap)
{
	List	   *indexes = RelationGetIndexList(heap);
	ListCell   *cell;
	Relation	found = NULL;

	foreach(cell, indexes)
	{
		Relation	index = index_open(lfirst_oid(cell), AccessShareLock);

		refuse_fancy_index(heap, index);
		if (found == NULL && is_newest_first(index))
			found = index;
		else
			index_close(index, AccessShareLock);
	}
	if (found == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("table \"%s.%s\" has no valid index on (key, fencing_token)",
						FL_SCHEMA, RelationGetRelationName(heap))));
	return found;
}

/*
 * Open the table for reading (AccessShareLock) or writing (RowExclusiveLock).
 *
 * The lock is charged as the key lock is, see key_lock.c: were it the
 * portal's, a portal that fails would leave what was written without it, and
 * ALTER TABLE could rewrite the table without the row.
 */
void
fl_table_open(FlTable *table, const char *name, LOCKMODE mode)
{
	Oid			relid = fl_relation_oid(name);
	ResourceOwner saved = CurrentResourceOwner;

	CurrentResourceOwner = CurTransactionResourceOwner;
	LockRelationOid(relid, mode);
	CurrentResourceOwner = saved;

	table->heap = try_table_open(relid, NoLock);
	if (table->heap == NULL)
		fl_table_vanished(name);
	table->index = open_newest_first_index(table->heap);
}

/*
 * Close the table.  "mode" is the mode it was opened with, or NoLock to keep
 * the lock to the end of the transaction, as after every write.
 */
void
fl_table_close(FlTable *table, LOCKMODE mode)
{
	Oid			relid = RelationGetRelid(table->heap);
	ResourceOwner saved = CurrentResourceOwner;

	index_close(table->index, AccessShareLock);
	table_close(table->heap, NoLock);
	if (mode == NoLock)
		return;
	CurrentResourceOwner = CurTransactionResourceOwner;
	UnlockRelationOid(relid, mode);
	CurrentResourceOwner = saved;
}

/*
 * Find the newest row of a key as it is now, whatever the caller's snapshot.
 * Returns a copy, which outlives the scan and whose t_self is the row's place,
 * or NULL.
 *
 * FL_LOOK_SELF sees what is committed and what this transaction did.  It is
 * exact while the caller holds the key's lock in a mode that excludes writers.
 * Without that it can be trusted for what it finds, not when it finds nothing:
 * while a writer moves the row to another page, a look may meet the new
 * version before and the old one after that commit, and see neither.
 *
 * FL_LOOK_LATEST judges all versions at one moment, so it is what a refusal
 * of a holder must rest on.  The scan itself sees every version, and each is
 * judged by itself: a scan with an MVCC snapshot would leave predicate locks
 * under SERIALIZABLE, with which strangers' keys fail each other.
 */
HeapTuple
fl_table_find(FlTable *table, const text *key, FlLook look)
{
	Snapshot	latest = NULL;
	ScanKeyData scankey;
	SysScanDesc scan;
	HeapTuple	tuple;

	if (look == FL_LOOK_LATEST)
		latest = RegisterSnapshot(GetLatestSnapshot());

	/* ScanKeyInit() sets the C collation, which is the column's. */
	ScanKeyInit(&scankey, FL_COL_KEY, BTEqualStrategyNumber, F_TEXTEQ,
				PointerGetDatum(key));
	scan = systable_beginscan_ordered(table->heap, table->index,
									  latest ? SnapshotAny : SnapshotSelf,
									  1, &scankey);
	do
		tuple = systable_getnext_ordered(scan, BackwardScanDirection);
	while (HeapTupleIsValid(tuple) && latest != NULL &&
		   !table_tuple_satisfies_snapshot(table->heap, scan->slot, latest));
	if (HeapTupleIsValid(tuple))
		tuple = heap_copytuple(tuple);
	systable_endscan_ordered(scan);

	if (latest != NULL)
		UnregisterSnapshot(latest);
	return tuple;
}

/*
 * Could the row be written now without waiting?  Only a hand (SELECT … FOR
 * UPDATE, UPDATE by the table's owner) makes the answer no, since our own
 * writers hold the key's lock.  A hand that comes between this question and
 * the write can still make it wait.
 */
bool
fl_table_row_is_free(FlTable *table, HeapTuple row)
{
	Buffer		buffer;
	Page		page;
	ItemId		item;
	HeapTupleData present;
	TM_Result	result;

	buffer = ReadBuffer(table->heap,
						ItemPointerGetBlockNumber(&row->t_self));
	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	page = BufferGetPage(buffer);
	item = PageGetItemId(page,
						 ItemPointerGetOffsetNumber(&row->t_self));

	/* The caller's snapshot is older than the look, so nothing was pruned. */
	if (!ItemIdIsNormal(item))
		elog(ERROR, "version (%u,%u) of a row of \"%s\" vanished while it was read",
			 ItemPointerGetBlockNumber(&row->t_self),
			 ItemPointerGetOffsetNumber(&row->t_self),
			 RelationGetRelationName(table->heap));
	present.t_data = (HeapTupleHeader) PageGetItem(page, item);
	present.t_len = ItemIdGetLength(item);
	present.t_self = row->t_self;
	present.t_tableOid = RelationGetRelid(table->heap);
	result = HeapTupleSatisfiesUpdate(&present, GetCurrentCommandId(false),
									  buffer);
	UnlockReleaseBuffer(buffer);
	return result == TM_Ok;
}

/*
 * Wait for the hand that keeps a row, with PostgreSQL's own wait for a row
 * lock, so that lock_timeout, cancel and the deadlock detector work.  Returns
 * true if the row is unchanged and now locked by us, false if it has a newer
 * version or is gone and must be looked for again.  A hand in this very
 * statement can't be waited for: 27000.
 */
bool
fl_table_row_wait(FlTable *table, HeapTuple row)
{
	HeapTupleData tuple;
	Buffer		buffer;
	TM_FailureData failure;
	TM_Result	result;

	tuple.t_self = row->t_self;
	tuple.t_tableOid = RelationGetRelid(table->heap);
	result = heap_lock_tuple(table->heap, &tuple, GetCurrentCommandId(true),
							 LockTupleNoKeyExclusive, LockWaitBlock, false,
							 &buffer, &failure);
	ReleaseBuffer(buffer);
	if (result == TM_Invisible || result == TM_SelfModified)
		ereport(ERROR,
				(errcode(ERRCODE_TRIGGERED_DATA_CHANGE_VIOLATION),
				 errmsg("row of table \"%s.%s\" was modified by the statement that is to change it",
						FL_SCHEMA, RelationGetRelationName(table->heap))));
	return result == TM_Ok;
}

/* A row without any value: all columns NULL, or left as they are. */
void
fl_new_row_init(FlNewRow *new, const FlTable *table)
{
	int			natts = RelationGetDescr(table->heap)->natts;

	new->values = palloc0(natts * sizeof(Datum));
	new->nulls = palloc(natts * sizeof(bool));
	new->replaces = palloc0(natts * sizeof(bool));
	memset(new->nulls, true, natts * sizeof(bool));
}

void
fl_new_row_set(FlNewRow *new, int column, Datum value)
{
	new->values[column - 1] = value;
	new->nulls[column - 1] = false;
	new->replaces[column - 1] = true;
}

void
fl_new_row_set_null(FlNewRow *new, int column)
{
	new->nulls[column - 1] = true;
	new->replaces[column - 1] = true;
}

/* Write "new" in place of "old", or as a first row where "old" is NULL. */
void
fl_table_write(FlTable *table, HeapTuple old, FlNewRow *new)
{
	TupleDesc	desc = RelationGetDescr(table->heap);

	if (old == NULL)
		CatalogTupleInsert(table->heap,
						   heap_form_tuple(desc, new->values, new->nulls));
	else
		CatalogTupleUpdate(table->heap, &old->t_self,
						   heap_modify_tuple(old, desc, new->values, new->nulls,
											 new->replaces));

	/* A second call in the same statement must find this version. */
	CommandCounterIncrement();
}

void
fl_table_delete(FlTable *table, HeapTuple row)
{
	CatalogTupleDelete(table->heap, &row->t_self);
	CommandCounterIncrement();
}
