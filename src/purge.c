/*-------------------------------------------------------------------------
 *
 * purge.c
 *	  Removing the rows of keys that are not used any more.
 *
 * Tokens do not suffer: they come from one sequence for all keys.  A row is
 * removed under its key's lock, which is never waited for, so a purge is part
 * of no deadlock, and looked at again under it, so a lease that was granted
 * or renewed meanwhile stays.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "key_lock.h"
#include "lock_row.h"
#include "miscadmin.h"
#include "purge.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

static bool
is_idle(const FlRow *row, int64 idle)
{
	return row->expires_at <= GetCurrentTimestamp() - idle;
}

/* Remove a key's row unless somebody is using it. */
static bool
purge_key(FlTable *table, const text *key, int64 idle)
{
	FlKeyId		id = fl_key_id(key);
	FlRow		row;

	if (!fl_key_lock_try(id, FL_DECIDE))
		return false;
	if (fl_row_find(table, key, FL_LOOK_SELF, &row) &&
		is_idle(&row, idle) && fl_row_is_free(table, &row))
	{
		fl_row_delete(table, &row);
		return true;
	}
	fl_key_unlock(id, FL_DECIDE);
	return false;
}

/*
 * Remove rows of keys that have been free for so long, up to a number of
 * them; tells how many were removed.
 */
int64
fl_purge(int64 idle, int max_rows)
{
	MemoryContext one_row = AllocSetContextCreate(CurrentMemoryContext,
												  "fenced_lock purge",
												  ALLOCSET_SMALL_SIZES);
	MemoryContext saved;
	FlTable		table;
	FlScan		scan;
	FlRow		row;
	text	   *key;
	int			count = 0;

	fl_lock_rows_open(&table, RowExclusiveLock);
	scan = fl_scan_begin(&table);
	saved = MemoryContextSwitchTo(one_row);
	while (count < max_rows && fl_scan_next(scan, &key, &row))
	{
		CHECK_FOR_INTERRUPTS();
		if (is_idle(&row, idle) && purge_key(&table, key, idle))
			count++;
		MemoryContextReset(one_row);
	}
	MemoryContextSwitchTo(saved);
	fl_scan_end(scan);
	fl_table_close(&table, count > 0 ? NoLock : RowExclusiveLock);
	MemoryContextDelete(one_row);
	return count;
}
