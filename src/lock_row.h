/*-------------------------------------------------------------------------
 *
 * lock_row.h
 *	  The rows of fenced_lock.lock_row: one key's present or last lease each.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FENCED_LOCK_LOCK_ROW_H
#define FENCED_LOCK_LOCK_ROW_H

#include "access/transam.h"
#include "common/sha2.h"
#include "datatype/timestamp.h"
#include "keyed_table.h"
#include "utils/jsonb.h"

typedef struct FlRow
{
	HeapTuple	tuple;			/* what was read, and its place */
	int64		fencing_token;
	bool		owned;			/* false once released: no digest is left */
	uint8		owner_digest[PG_SHA256_DIGEST_LENGTH];
	int64		ttl;			/* microseconds */
	int64		longest_life;	/* from any sight of it: the ttl, or a grace */
	FullTransactionId granted_xid;	/* top-level transaction of the grant */
	TimestampTz acquired_at;
	TimestampTz renewed_at;
	TimestampTz expires_at;		/* with the grace after a restart */
} FlRow;

/* A walk through all rows. */
typedef struct SysScanDescData *FlScan;

extern void fl_lock_rows_open(FlTable *table, LOCKMODE mode);

extern bool fl_row_find(FlTable *table, const text *key, FlLook look,
						FlRow *row);
extern bool fl_row_find_once(const text *key, FlLook look, FlRow *row);
extern bool fl_row_is_free(FlTable *table, const FlRow *row);
extern bool fl_row_wait(FlTable *table, const FlRow *row);

extern void fl_row_grant(FlTable *table, const FlRow *old, const text *key,
						 const FlRow *grant, const Jsonb *metadata);
extern void fl_row_renew(FlTable *table, const FlRow *row, int64 ttl,
						 TimestampTz now);
extern void fl_row_release(FlTable *table, const FlRow *row, TimestampTz now);
extern void fl_row_delete(FlTable *table, const FlRow *row);

extern FlScan fl_scan_begin(FlTable *table);
extern bool fl_scan_next(FlScan scan, text **key, FlRow *row);
extern void fl_scan_end(FlScan scan);

#endif							/* FENCED_LOCK_LOCK_ROW_H */
