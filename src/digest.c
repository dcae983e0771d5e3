/*-------------------------------------------------------------------------
 *
 * digest.c
 *	  SHA-256, as PostgreSQL's own library computes it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/cryptohash.h"
#include "digest.h"

/* The digest of "salt" followed by "data". */
void
fl_digest(const void *salt, size_t salt_length,
		  const void *data, size_t data_length,
		  uint8 digest[PG_SHA256_DIGEST_LENGTH])
{
	pg_cryptohash_ctx *context = pg_cryptohash_create(PG_SHA256);

	if (context == NULL ||
		pg_cryptohash_init(context) < 0 ||
		pg_cryptohash_update(context, salt, salt_length) < 0 ||
		pg_cryptohash_update(context, data, data_length) < 0 ||
		pg_cryptohash_final(context, digest, PG_SHA256_DIGEST_LENGTH) < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not compute %s hash: %s", "SHA256",
						pg_cryptohash_error(context))));
	pg_cryptohash_free(context);
}
