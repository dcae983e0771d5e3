/*-------------------------------------------------------------------------
 *
 * key_id.c
 *	  From a key to its place in the lock manager.
 *
 * Two keys with the same id would block each other.  The hash is seeded with
 * a random number that CREATE EXTENSION made and only this file reads, so
 * that nobody can choose a key that collides with somebody else's; SHA-256
 * rather than PostgreSQL's seeded hash_bytes_extended(), which was not made
 * to withstand a search for collisions, and pg_locks shows the outcome to
 * everybody.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "compat.h"
#include "digest.h"
#include "key_lock.h"
#include "port/pg_bswap.h"
#include "schema.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/uuid.h"

/* The seed, and the table that it was read from: see schema.c on why. */
static Oid	seed_table = InvalidOid;
static pg_uuid_t seed;

static void
read_seed(Oid relid)
{
	Relation	table = try_table_open(relid, AccessShareLock);
	SysScanDesc scan;
	HeapTuple	tuple;
	bool		isnull = true;

	if (table == NULL)
		fl_table_vanished("hash_seed");
	/* The first row: a logical subscriber has the publisher's behind its own. */
	scan = systable_beginscan(table, InvalidOid, false, SnapshotSelf, 0, NULL);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
	{
		Datum		value = heap_getattr(tuple, 1, RelationGetDescr(table),
										 &isnull);

		if (!isnull)
			seed = *DatumGetUUIDP(value);
	}
	if (isnull)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("table \"%s.hash_seed\" has no row", FL_SCHEMA)));
	systable_endscan(scan);
	table_close(table, AccessShareLock);
	seed_table = relid;
}

/* The id of a key's lock; see key_lock.h. */
FlKeyId
fl_key_id(const text *key)
{
	Oid			relid = fl_relation_oid("hash_seed");
	uint8		digest[PG_SHA256_DIGEST_LENGTH];
	FlKeyId		id;

	if (relid != seed_table)
		read_seed(relid);
	fl_digest(&seed, sizeof(seed), VARDATA_ANY(key), VARSIZE_ANY_EXHDR(key),
			  digest);
	memcpy(&id, digest, sizeof(id));
	return pg_ntoh64(id);
}
