/*-------------------------------------------------------------------------
 *
 * owner.h
 *	  Who a caller says to be.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FENCED_LOCK_OWNER_H
#define FENCED_LOCK_OWNER_H

#include "lock_row.h"
#include "utils/uuid.h"

typedef struct FlOwner
{
	pg_uuid_t	token;
	uint8		digest[PG_SHA256_DIGEST_LENGTH];
} FlOwner;

extern void fl_owner_set(FlOwner *owner, const pg_uuid_t *token);
extern bool fl_owner_has(const FlOwner *owner, const FlRow *row);

#endif							/* FENCED_LOCK_OWNER_H */
