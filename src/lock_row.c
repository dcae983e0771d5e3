/*-------------------------------------------------------------------------
 *
 * lock_row.c
 *	  The only door to table fenced_lock.lock_row.
 *
 * Rows are read and written straight on the heap: a lock has to look at the
 * present, also for a REPEATABLE READ caller, and SQL would show it its
 * snapshot.  What the executor does for a SQL statement is therefore our
 * callers' job: rights, READ ONLY, and serializing the work on one key (the
 * key lock is what makes a key unique; the index is not).
 *
 * A key keeps one row.  A grant gives it a higher fencing token, so the index
 * on (key, fencing_token), read from its end, meets the newest version first
 * however many dead ones an old snapshot keeps alive.  Renew and release
 * change no indexed column, so that they can be HOT updates.
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
#include "lock_row.h"
#include "miscadmin.h"
#include "restart_grace.h"
#include "schema.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/xid8.h"

/* Columns are only ever appended: an older library meets newer tables. */
enum
{
	COL_KEY = 1,
	COL_FENCING_TOKEN,
	COL_OWNER_DIGEST,
	COL_TTL,
	COL_GRANTED_XID,
	COL_ACQUIRED_AT,
	COL_RENEWED_AT,
	COL_EXPIRES_AT,
	COL_ROLE,
	COL_PID,
	COL_APPLICATION_NAME,
	COL_CLIENT_ADDRESS,
	COL_METADATA
};

/* The columns of a new version of a row, by column number. */
typedef struct NewRow
{
	Datum	   *values;
	bool	   *nulls;
	bool	   *replaces;
} NewRow;

/* Is this the index to find the newest version of a key's row with? */
static bool
is_newest_first(Relation index)
{
	Form_pg_index form = index->rd_index;

	return form->indisvalid &&
		index->rd_rel->relam == BTREE_AM_OID &&
		form->indnkeyatts == 2 &&
		form->indkey.values[0] == COL_KEY &&
		form->indkey.values[1] == COL_FENCING_TOKEN &&
		index->rd_indcollation[0] == C_COLLATION_OID &&
		index->rd_indoption[0] == 0 && index->rd_indoption[1] == 0;
}

/*
 * The functions that keep a catalog's indexes, which write our table, know
 * plain indexes only.  An index of another kind, which an administrator may
 * have made for a query of his own, would crash the server.
 */
static void
refuse_fancy_index(Relation index)
{
	if (!heap_attisnull(index->rd_indextuple, Anum_pg_index_indexprs, NULL) ||
		!heap_attisnull(index->rd_indextuple, Anum_pg_index_indpred, NULL) ||
		index->rd_index->indisexclusion)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("index \"%s\" on table \"%s.lock_row\" has an expression, a predicate or an exclusion constraint",
						RelationGetRelationName(index), FL_SCHEMA),
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

		refuse_fancy_index(index);
		if (found == NULL && is_newest_first(index))
			found = index;
		else
			index_close(index, AccessShareLock);
	}
	if (found == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("table \"%s.lock_row\" has no valid index on (key, fencing_token)",
						FL_SCHEMA)));
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
fl_table_open(FlTable *table, LOCKMODE mode)
{
	Oid			relid = fl_relation_oid("lock_row");
	ResourceOwner saved = CurrentResourceOwner;

	CurrentResourceOwner = CurTransactionResourceOwner;
	LockRelationOid(relid, mode);
	CurrentResourceOwner = saved;

	table->heap = try_table_open(relid, NoLock);
	if (table->heap == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("table \"%s.lock_row\" was dropped meanwhile",
						FL_SCHEMA)));
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

/* Take a row apart.  The tuple is copied, so it outlives the scan. */
static void
read_row(Relation heap, HeapTuple tuple, FlRow *row)
{
	TupleDesc	desc = RelationGetDescr(heap);
	Datum	   *values = palloc(desc->natts * sizeof(Datum));
	bool	   *nulls = palloc(desc->natts * sizeof(bool));

	memset(row, 0, sizeof(*row));
	row->tuple = heap_copytuple(tuple);
	heap_deform_tuple(row->tuple, desc, values, nulls);

	row->fencing_token = DatumGetInt64(values[COL_FENCING_TOKEN - 1]);
	if (!nulls[COL_OWNER_DIGEST - 1])
	{
		bytea	   *digest = DatumGetByteaPP(values[COL_OWNER_DIGEST - 1]);

		/* A hand may have written anything there; it then owns nothing. */
		if (VARSIZE_ANY_EXHDR(digest) == PG_SHA256_DIGEST_LENGTH)
		{
			row->owned = true;
			memcpy(row->owner_digest, VARDATA_ANY(digest),
				   PG_SHA256_DIGEST_LENGTH);
		}
	}
	row->ttl = DatumGetIntervalP(values[COL_TTL - 1])->time;
	row->granted_xid = DatumGetFullTransactionId(values[COL_GRANTED_XID - 1]);
	row->acquired_at = DatumGetTimestampTz(values[COL_ACQUIRED_AT - 1]);
	row->renewed_at = DatumGetTimestampTz(values[COL_RENEWED_AT - 1]);
	row->expires_at = DatumGetTimestampTz(values[COL_EXPIRES_AT - 1]);
	row->longest_life = row->ttl;
	if (row->owned)
	{
		TimestampTz end = fl_lease_end(row->expires_at, row->renewed_at);

		if (end != row->expires_at)
			row->longest_life = Max(row->ttl, fl_restart_grace * INT64CONST(1000));
		row->expires_at = end;
	}

	pfree(values);
	pfree(nulls);
}

/*
 * Find the newest row of a key as it is now, whatever the caller's snapshot.
 *
 * FL_LOOK_SELF sees what is committed and what this transaction did.  It is
 * exact while the caller holds the key lock in a mode that excludes writers.
 * Without that it can be trusted when it finds a live lease, not when it
 * finds none: while a renew moves the row to another page, a look may meet
 * the new version before and the old one after that commit, and see neither.
 *
 * FL_LOOK_LATEST judges all versions at one moment, so it is what a refusal
 * of a holder must rest on.  The scan itself sees every version, and each is
 * judged by itself: a scan with an MVCC snapshot would leave predicate locks
 * under SERIALIZABLE, with which strangers' keys fail each other.
 */
bool
fl_row_find(FlTable *table, const text *key, FlLook look, FlRow *row)
{
	Snapshot	latest = NULL;
	ScanKeyData scankey;
	SysScanDesc scan;
	HeapTuple	tuple;

	if (look == FL_LOOK_LATEST)
		latest = RegisterSnapshot(GetLatestSnapshot());

	/* ScanKeyInit() sets the C collation, which is the column's. */
	ScanKeyInit(&scankey, COL_KEY, BTEqualStrategyNumber, F_TEXTEQ,
				PointerGetDatum(key));
	scan = systable_beginscan_ordered(table->heap, table->index,
									  latest ? SnapshotAny : SnapshotSelf,
									  1, &scankey);
	do
		tuple = systable_getnext_ordered(scan, BackwardScanDirection);
	while (HeapTupleIsValid(tuple) && latest != NULL &&
		   !table_tuple_satisfies_snapshot(table->heap, scan->slot, latest));
	if (HeapTupleIsValid(tuple))
		read_row(table->heap, tuple, row);
	systable_endscan_ordered(scan);

	if (latest != NULL)
		UnregisterSnapshot(latest);
	return HeapTupleIsValid(tuple);
}

/* The same as a look of its own, keeping no lock on the table. */
bool
fl_row_find_once(const text *key, FlLook look, FlRow *row)
{
	FlTable		table;
	bool		found;

	fl_table_open(&table, AccessShareLock);
	found = fl_row_find(&table, key, look, row);
	fl_table_close(&table, AccessShareLock);
	return found;
}

/*
 * Could the row be written now without waiting?  Only a hand (SELECT … FOR
 * UPDATE, UPDATE by the table's owner) makes the answer no, since our own
 * writers hold the key lock.  A hand that comes between this question and
 * the write can still make it wait.
 */
bool
fl_row_is_free(FlTable *table, const FlRow *row)
{
	Buffer		buffer;
	Page		page;
	ItemId		item;
	HeapTupleData present;
	TM_Result	result;

	buffer = ReadBuffer(table->heap,
						ItemPointerGetBlockNumber(&row->tuple->t_self));
	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	page = BufferGetPage(buffer);
	item = PageGetItemId(page,
						 ItemPointerGetOffsetNumber(&row->tuple->t_self));

	/* The caller's snapshot is older than the look, so nothing was pruned. */
	if (!ItemIdIsNormal(item))
		elog(ERROR, "version (%u,%u) of a lock row vanished while it was read",
			 ItemPointerGetBlockNumber(&row->tuple->t_self),
			 ItemPointerGetOffsetNumber(&row->tuple->t_self));
	present.t_data = (HeapTupleHeader) PageGetItem(page, item);
	present.t_len = ItemIdGetLength(item);
	present.t_self = row->tuple->t_self;
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
fl_row_wait(FlTable *table, const FlRow *row)
{
	HeapTupleData tuple;
	Buffer		buffer;
	TM_FailureData failure;
	TM_Result	result;

	tuple.t_self = row->tuple->t_self;
	tuple.t_tableOid = RelationGetRelid(table->heap);
	result = heap_lock_tuple(table->heap, &tuple, GetCurrentCommandId(true),
							 LockTupleNoKeyExclusive, LockWaitBlock, false,
							 &buffer, &failure);
	ReleaseBuffer(buffer);
	if (result == TM_Invisible || result == TM_SelfModified)
		ereport(ERROR,
				(errcode(ERRCODE_TRIGGERED_DATA_CHANGE_VIOLATION),
				 errmsg("row of table \"%s.lock_row\" was modified by the statement that is to change it",
						FL_SCHEMA)));
	return result == TM_Ok;
}

static void
new_row_init(NewRow *new, int natts)
{
	new->values = palloc0(natts * sizeof(Datum));
	new->nulls = palloc(natts * sizeof(bool));
	new->replaces = palloc0(natts * sizeof(bool));
	memset(new->nulls, true, natts * sizeof(bool));
}

static void
new_row_set(NewRow *new, int column, Datum value)
{
	new->values[column - 1] = value;
	new->nulls[column - 1] = false;
	new->replaces[column - 1] = true;
}

static void
new_row_set_null(NewRow *new, int column)
{
	new->nulls[column - 1] = true;
	new->replaces[column - 1] = true;
}

static Datum
interval_datum(int64 microseconds)
{
	Interval   *interval = palloc0(sizeof(Interval));

	interval->time = microseconds;
	return IntervalPGetDatum(interval);
}

/* Who is calling, for people who look at view locks. */
static void
set_holder(NewRow *new)
{
	LOCAL_FCINFO(fcinfo, 0);
	Datum		address;

	new_row_set(new, COL_ROLE, ObjectIdGetDatum(GetUserId()));
	new_row_set(new, COL_PID, Int32GetDatum(MyProcPid));
	if (application_name != NULL && application_name[0] != '\0')
		new_row_set(new, COL_APPLICATION_NAME,
					CStringGetTextDatum(application_name));
	else
		new_row_set_null(new, COL_APPLICATION_NAME);

	/* inet_client_addr() is NULL for a unix socket: DirectFunctionCall can't */
	InitFunctionCallInfoData(*fcinfo, NULL, 0, InvalidOid, NULL, NULL);
	address = inet_client_addr(fcinfo);
	if (fcinfo->isnull)
		new_row_set_null(new, COL_CLIENT_ADDRESS);
	else
		new_row_set(new, COL_CLIENT_ADDRESS, address);
}

/* Write "new" in place of "old", or as a first row where "old" is NULL. */
static void
write_row(FlTable *table, const FlRow *old, NewRow *new)
{
	TupleDesc	desc = RelationGetDescr(table->heap);

	if (old == NULL)
		CatalogTupleInsert(table->heap,
						   heap_form_tuple(desc, new->values, new->nulls));
	else
		CatalogTupleUpdate(table->heap, &old->tuple->t_self,
						   heap_modify_tuple(old->tuple, desc, new->values,
											 new->nulls, new->replaces));

	/* A second call in the same statement must find this version. */
	CommandCounterIncrement();
}

/*
 * Write a grant: fencing token, owner digest, ttl and times are those of
 * "grant"; "old" is the key's present row or NULL.  The caller holds the key
 * lock in Exclusive and has asked fl_row_is_free().
 */
void
fl_row_grant(FlTable *table, const FlRow *old, const text *key,
			 const FlRow *grant, const Jsonb *metadata)
{
	NewRow		new;
	bytea	   *digest = palloc(VARHDRSZ + PG_SHA256_DIGEST_LENGTH);

	SET_VARSIZE(digest, VARHDRSZ + PG_SHA256_DIGEST_LENGTH);
	memcpy(VARDATA(digest), grant->owner_digest, PG_SHA256_DIGEST_LENGTH);

	new_row_init(&new, RelationGetDescr(table->heap)->natts);
	new_row_set(&new, COL_KEY, PointerGetDatum(key));
	new_row_set(&new, COL_FENCING_TOKEN, Int64GetDatum(grant->fencing_token));
	new_row_set(&new, COL_OWNER_DIGEST, PointerGetDatum(digest));
	new_row_set(&new, COL_TTL, interval_datum(grant->ttl));
	new_row_set(&new, COL_GRANTED_XID,
				FullTransactionIdGetDatum(grant->granted_xid));
	new_row_set(&new, COL_ACQUIRED_AT, TimestampTzGetDatum(grant->acquired_at));
	new_row_set(&new, COL_RENEWED_AT, TimestampTzGetDatum(grant->renewed_at));
	new_row_set(&new, COL_EXPIRES_AT, TimestampTzGetDatum(grant->expires_at));
	set_holder(&new);
	if (metadata == NULL)
		new_row_set_null(&new, COL_METADATA);
	else
		new_row_set(&new, COL_METADATA, JsonbPGetDatum(metadata));
	write_row(table, old, &new);
}

/* The lease lives for another ttl from now.  The caller holds the key lock. */
void
fl_row_renew(FlTable *table, const FlRow *row, int64 ttl, TimestampTz now)
{
	NewRow		new;

	new_row_init(&new, RelationGetDescr(table->heap)->natts);
	new_row_set(&new, COL_TTL, interval_datum(ttl));
	new_row_set(&new, COL_RENEWED_AT, TimestampTzGetDatum(now));
	new_row_set(&new, COL_EXPIRES_AT, TimestampTzGetDatum(now + ttl));
	write_row(table, row, &new);
}

/*
 * The lease is over: it has no owner any more.  The caller holds the key lock
 * in Exclusive.
 */
void
fl_row_release(FlTable *table, const FlRow *row, TimestampTz now)
{
	NewRow		new;

	new_row_init(&new, RelationGetDescr(table->heap)->natts);
	new_row_set_null(&new, COL_OWNER_DIGEST);
	new_row_set(&new, COL_EXPIRES_AT, TimestampTzGetDatum(now));
	write_row(table, row, &new);
}

/* Nothing is left of the key.  The caller holds the key lock in Exclusive. */
void
fl_row_delete(FlTable *table, const FlRow *row)
{
	CatalogTupleDelete(table->heap, &row->tuple->t_self);
	CommandCounterIncrement();
}

/*
 * Walk through all rows in the order of the table, as they are at the moment
 * of each, without any key lock.
 */
FlScan
fl_scan_begin(FlTable *table)
{
	return systable_beginscan(table->heap, InvalidOid, false, SnapshotSelf,
							  0, NULL);
}

/* The next row and its key, in the current context; false at the end. */
bool
fl_scan_next(FlScan scan, text **key, FlRow *row)
{
	HeapTuple	tuple = systable_getnext(scan);
	bool		isnull;

	if (!HeapTupleIsValid(tuple))
		return false;
	read_row(scan->heap_rel, tuple, row);
	*key = DatumGetTextPP(heap_getattr(row->tuple, COL_KEY,
									   RelationGetDescr(scan->heap_rel), &isnull));
	return true;
}

void
fl_scan_end(FlScan scan)
{
	systable_endscan(scan);
}
