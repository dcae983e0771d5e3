/*-------------------------------------------------------------------------
 *
 * lock_row.c
 *	  The only door to table fenced_lock.lock_row.
 *
 * A key keeps one row, to which a grant gives a higher fencing token.  Renew
 * and release change no indexed column, so that they can be HOT updates.  How
 * the table is read and written is keyed_table.c's affair.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relscan.h"
#include "compat.h"
#include "lock_row.h"
#include "miscadmin.h"
#include "restart_grace.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/xid8.h"

/* Columns are only ever appended: an older library meets newer tables. */
enum
{
	COL_KEY = FL_COL_KEY,
	COL_FENCING_TOKEN = FL_COL_FENCING_TOKEN,
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

/* Open the table for reading (AccessShareLock) or writing (RowExclusiveLock). */
void
fl_lock_rows_open(FlTable *table, LOCKMODE mode)
{
	fl_table_open(table, "lock_row", mode);
}

/* Take a row apart. */
static void
read_row(Relation heap, HeapTuple tuple, FlRow *row)
{
	TupleDesc	desc = RelationGetDescr(heap);
	Datum	   *values = palloc(desc->natts * sizeof(Datum));
	bool	   *nulls = palloc(desc->natts * sizeof(bool));

	memset(row, 0, sizeof(*row));
	row->tuple = tuple;
	heap_deform_tuple(tuple, desc, values, nulls);

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

/* The newest row of a key; see fl_table_find(). */
bool
fl_row_find(FlTable *table, const text *key, FlLook look, FlRow *row)
{
	HeapTuple	tuple = fl_table_find(table, key, look);

	if (tuple == NULL)
		return false;
	read_row(table->heap, tuple, row);
	return true;
}

/* The same as a look of its own, keeping no lock on the table. */
bool
fl_row_find_once(const text *key, FlLook look, FlRow *row)
{
	FlTable		table;
	bool		found;

	fl_lock_rows_open(&table, AccessShareLock);
	found = fl_row_find(&table, key, look, row);
	fl_table_close(&table, AccessShareLock);
	return found;
}

/* Could the row be written now without waiting? */
bool
fl_row_is_free(FlTable *table, const FlRow *row)
{
	return fl_table_row_is_free(table, row->tuple);
}

/* Wait for the hand that keeps a row; see fl_table_row_wait(). */
bool
fl_row_wait(FlTable *table, const FlRow *row)
{
	return fl_table_row_wait(table, row->tuple);
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
set_holder(FlNewRow *new)
{
	LOCAL_FCINFO(fcinfo, 0);
	Datum		address;

	fl_new_row_set(new, COL_ROLE, ObjectIdGetDatum(GetUserId()));
	fl_new_row_set(new, COL_PID, Int32GetDatum(MyProcPid));
	if (application_name != NULL && application_name[0] != '\0')
		fl_new_row_set(new, COL_APPLICATION_NAME,
					   CStringGetTextDatum(application_name));
	else
		fl_new_row_set_null(new, COL_APPLICATION_NAME);

	/* inet_client_addr() is NULL for a unix socket: DirectFunctionCall can't */
	InitFunctionCallInfoData(*fcinfo, NULL, 0, InvalidOid, NULL, NULL);
	address = inet_client_addr(fcinfo);
	if (fcinfo->isnull)
		fl_new_row_set_null(new, COL_CLIENT_ADDRESS);
	else
		fl_new_row_set(new, COL_CLIENT_ADDRESS, address);
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
	FlNewRow	new;
	bytea	   *digest = palloc(VARHDRSZ + PG_SHA256_DIGEST_LENGTH);

	SET_VARSIZE(digest, VARHDRSZ + PG_SHA256_DIGEST_LENGTH);
	memcpy(VARDATA(digest), grant->owner_digest, PG_SHA256_DIGEST_LENGTH);

	fl_new_row_init(&new, table);
	fl_new_row_set(&new, COL_KEY, PointerGetDatum(key));
	fl_new_row_set(&new, COL_FENCING_TOKEN, Int64GetDatum(grant->fencing_token));
	fl_new_row_set(&new, COL_OWNER_DIGEST, PointerGetDatum(digest));
	fl_new_row_set(&new, COL_TTL, interval_datum(grant->ttl));
	fl_new_row_set(&new, COL_GRANTED_XID,
				   FullTransactionIdGetDatum(grant->granted_xid));
	fl_new_row_set(&new, COL_ACQUIRED_AT, TimestampTzGetDatum(grant->acquired_at));
	fl_new_row_set(&new, COL_RENEWED_AT, TimestampTzGetDatum(grant->renewed_at));
	fl_new_row_set(&new, COL_EXPIRES_AT, TimestampTzGetDatum(grant->expires_at));
	set_holder(&new);
	if (metadata == NULL)
		fl_new_row_set_null(&new, COL_METADATA);
	else
		fl_new_row_set(&new, COL_METADATA, JsonbPGetDatum(metadata));
	fl_table_write(table, old ? old->tuple : NULL, &new);
}

/* The lease lives for another ttl from now.  The caller holds the key lock. */
void
fl_row_renew(FlTable *table, const FlRow *row, int64 ttl, TimestampTz now)
{
	FlNewRow	new;

	fl_new_row_init(&new, table);
	fl_new_row_set(&new, COL_TTL, interval_datum(ttl));
	fl_new_row_set(&new, COL_RENEWED_AT, TimestampTzGetDatum(now));
	fl_new_row_set(&new, COL_EXPIRES_AT, TimestampTzGetDatum(now + ttl));
	fl_table_write(table, row->tuple, &new);
}

/*
 * The lease is over: it has no owner any more.  The caller holds the key lock
 * in Exclusive.
 */
void
fl_row_release(FlTable *table, const FlRow *row, TimestampTz now)
{
	FlNewRow	new;

	fl_new_row_init(&new, table);
	fl_new_row_set_null(&new, COL_OWNER_DIGEST);
	fl_new_row_set(&new, COL_EXPIRES_AT, TimestampTzGetDatum(now));
	fl_table_write(table, row->tuple, &new);
}

/* Nothing is left of the key.  The caller holds the key lock in Exclusive. */
void
fl_row_delete(FlTable *table, const FlRow *row)
{
	fl_table_delete(table, row->tuple);
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
