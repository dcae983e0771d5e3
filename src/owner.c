/*-------------------------------------------------------------------------
 *
 * owner.c
 *	  Who a caller says to be.
 *
 * An owner is known by the digest of its token; the token itself is nowhere
 * stored, so that whoever reads the table, a dump or a backup learns none.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "digest.h"
#include "owner.h"
#include "utils/fmgrprotos.h"

/* The owner with a token, or with a new random one where that is NULL. */
void
fl_owner_set(FlOwner *owner, const pg_uuid_t *token)
{
	if (token == NULL)
		token = DatumGetUUIDP(DirectFunctionCall1(gen_random_uuid, (Datum) 0));
	owner->token = *token;
	fl_digest("", 0, token->data, UUID_LEN, owner->digest);
}

/* Is a row's last lease this owner's, and not released? */
bool
fl_owner_has(const FlOwner *owner, const FlRow *row)
{
	return row->owned &&
		memcmp(owner->digest, row->owner_digest, PG_SHA256_DIGEST_LENGTH) == 0;
}
