/*-------------------------------------------------------------------------
 *
 * acquire.h
 *	  Who may acquire a lease, at once or after a wait.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FENCED_LOCK_ACQUIRE_H
#define FENCED_LOCK_ACQUIRE_H

#include "held.h"
#include "utils/jsonb.h"

typedef struct FlRequest
{
	const text *key;
	int64		ttl;			/* microseconds */
	const pg_uuid_t *owner_token;	/* NULL: a new one */
	const Jsonb *metadata;		/* NULL: none */
	int64		wait;			/* microseconds; 0: a try */
	bool		report_deadlock;	/* as an error, else it is a refusal */
} FlRequest;

extern void fl_lease_acquire(const FlRequest *request, FlLease *lease);

#endif							/* FENCED_LOCK_ACQUIRE_H */
