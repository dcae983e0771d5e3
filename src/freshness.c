/*-------------------------------------------------------------------------
 *
 * freshness.c
 *	  What a snapshot has seen: is it younger than a grant?
 *
 * Reads that are older than the grant may show what the former holder has
 * overwritten since, so a write that rests on them is stale however current
 * its token is.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "freshness.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

/* What is finished now.  It is kept to the end of the transaction. */
void
fl_horizon_take(FlHorizon *horizon)
{
	Snapshot	latest = GetLatestSnapshot();

	horizon->xmax = latest->xmax;
	horizon->count = latest->xcnt;
	if (latest->xcnt > 0)
	{
		Size		size = latest->xcnt * sizeof(TransactionId);

		horizon->running = MemoryContextAlloc(TopTransactionContext, size);
		memcpy(horizon->running, latest->xip, size);
	}
}

void
fl_horizon_free(FlHorizon *horizon)
{
	if (horizon->running != NULL)
		pfree(horizon->running);
	horizon->running = NULL;
}

static bool
horizon_has_running(const FlHorizon *horizon, TransactionId xid)
{
	if (TransactionIdFollowsOrEquals(xid, horizon->xmax))
		return true;
	for (uint32 i = 0; i < horizon->count; i++)
	{
		if (TransactionIdEquals(xid, horizon->running[i]))
			return true;
	}
	return false;
}

/*
 * Does a snapshot see as finished all that was finished at the horizon?  It
 * does unless something that it has as running had finished by then.
 */
bool
fl_horizon_is_seen_by(const FlHorizon *horizon, Snapshot snapshot)
{
	if (TransactionIdPrecedes(snapshot->xmax, horizon->xmax))
		return false;
	for (uint32 i = 0; i < snapshot->xcnt; i++)
	{
		if (!horizon_has_running(horizon, snapshot->xip[i]))
			return false;
	}
	return true;
}

/*
 * The full id of a transaction that stands in a row or in a snapshot.  That
 * of a frozen row comes out as old as any in a snapshot, or as the special id
 * that it is, which every snapshot has seen.
 */
FullTransactionId
fl_full_xid(TransactionId xid)
{
	FullTransactionId next = ReadNextFullTransactionId();
	uint32		epoch = EpochFromFullTransactionId(next);

	if (xid > XidFromFullTransactionId(next))
		epoch--;
	return FullTransactionIdFromEpochAndXid(epoch, xid);
}

/*
 * Was the grant made by a transaction that a snapshot sees as committed?
 * (The granting transaction did commit, or its row would not be there.)
 *
 * This asks the snapshot about a transaction id and does not look for the row
 * through it, since that would leave predicate locks on the index, with which
 * disjoint keys fail each other under SERIALIZABLE.  Ids are compared in full
 * first: a lease may be kept alive for longer than 2^31 transactions.
 *
 * An id that this server has not come to yet is another server's, of whose
 * database this one was a logical subscriber: what it has applied is older
 * than any snapshot of those who use it now.
 */
FlFreshness
fl_grant_freshness(FullTransactionId granted_xid, Snapshot snapshot)
{
	if (FullTransactionIdEquals(granted_xid, GetTopFullTransactionIdIfAny()))
		return FL_GRANTED_HERE;
	if (FullTransactionIdPrecedes(granted_xid, fl_full_xid(snapshot->xmin)))
		return FL_FRESH;
	if (FullTransactionIdFollowsOrEquals(granted_xid, ReadNextFullTransactionId()))
		return FL_FRESH;
	if (XidInMVCCSnapshot(XidFromFullTransactionId(granted_xid), snapshot))
		return FL_OLDER_THAN_GRANT;
	return FL_FRESH;
}
