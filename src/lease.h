/*-------------------------------------------------------------------------
 *
 * lease.h
 *	  Who may acquire, renew and release a lease.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FENCED_LOCK_LEASE_H
#define FENCED_LOCK_LEASE_H

#include "held.h"
#include "utils/jsonb.h"

extern void fl_lease_try_acquire(const text *key, int64 ttl,
								 const pg_uuid_t *owner_token,
								 const Jsonb *metadata, FlLease *lease);
extern bool fl_lease_renew(const text *key, const pg_uuid_t *owner_token,
						   int64 ttl, TimestampTz *expires_at);
extern bool fl_lease_release(const text *key, const pg_uuid_t *owner_token);

#endif							/* FENCED_LOCK_LEASE_H */
