/*-------------------------------------------------------------------------
 *
 * freshness.h
 *	  What a snapshot has seen.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FENCED_LOCK_FRESHNESS_H
#define FENCED_LOCK_FRESHNESS_H

#include "access/transam.h"
#include "utils/snapshot.h"

/* Is a grant good for a write whose reads are those of a snapshot? */
typedef enum FlFreshness
{
	FL_FRESH,
	FL_OLDER_THAN_GRANT,		/* granted elsewhere: a retry sees it */
	FL_GRANTED_HERE				/* by this transaction: a retry can't help */
} FlFreshness;

/* What a look at the present shows as finished, kept for comparison. */
typedef struct FlHorizon
{
	TransactionId xmax;
	uint32		count;
	TransactionId *running;		/* below xmax, not finished */
} FlHorizon;

extern void fl_horizon_take(FlHorizon *horizon);
extern void fl_horizon_free(FlHorizon *horizon);
extern bool fl_horizon_is_seen_by(const FlHorizon *horizon, Snapshot snapshot);

extern FullTransactionId fl_full_xid(TransactionId xid);
extern FlFreshness fl_grant_freshness(FullTransactionId granted_xid,
									  Snapshot snapshot);

#endif							/* FENCED_LOCK_FRESHNESS_H */
