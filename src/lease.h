/*-------------------------------------------------------------------------
 *
 * lease.h
 *	  Who may renew and release a lease.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FENCED_LOCK_LEASE_H
#define FENCED_LOCK_LEASE_H

#include "datatype/timestamp.h"
#include "utils/uuid.h"

extern bool fl_lease_renew(const text *key, const pg_uuid_t *owner_token,
						   int64 ttl, TimestampTz *expires_at);
extern bool fl_lease_release(const text *key, const pg_uuid_t *owner_token);

#endif							/* FENCED_LOCK_LEASE_H */
