/*-------------------------------------------------------------------------
 *
 * durability.c
 *	  When a transaction of ours waits for the disk.
 *
 * A grant, a renewal and the rise of a mark are counted on by a client from the
 * moment it is told, so they are committed durably also under
 * synchronous_commit = off.
 *
 * A release need not wait: if a crash loses it, the lease runs to its ttl and
 * nothing else happens.  That saves half the flushes of a cycle of acquire
 * and release.  It must never weaken somebody's own writes, so it is done
 * only where releases are all that the transaction has written, told from
 * XactLastRecEnd, the end of this transaction's latest WAL record; only for
 * leases that are nearly over, or they would come back after a crash and stay
 * for long; and not against a synchronous_commit that was set inside this
 * transaction.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "compat.h"
#include "datatype/timestamp.h"
#include "durability.h"

/* A lease that has longer to live is released durably. */
#define QUIET_LIFE_LEFT		USECS_PER_MINUTE

/* fenced_lock.durable_grants */
bool		fl_durable_grants = true;

/* Was this transaction's WAL, at the last look, from quiet releases alone? */
static bool quiet = false;

/* End of the WAL of this transaction's quiet releases; 0 without any. */
static XLogRecPtr quiet_end = InvalidXLogRecPtr;

/* The transaction has written what a client will count on. */
void
fl_durable_write(void)
{
	if (fl_durable_grants)
		ForceSyncCommit();
}

/*
 * Between these two a release is written.  All WAL in between is its own:
 * the look for the row may prune a page.
 */
void
fl_quiet_write_begin(void)
{
	quiet = (XactLastRecEnd == quiet_end);
}

void
fl_quiet_write_end(int64 life_left)
{
	if (quiet && life_left < QUIET_LIFE_LEFT)
		quiet_end = XactLastRecEnd;
}

/* Was synchronous_commit set inside this transaction? */
static bool
synchronous_commit_was_set(void)
{
	static struct config_generic *setting = NULL;

	if (setting == NULL)
		setting = find_option("synchronous_commit", false, false, ERROR);
	return setting->stack != NULL;
}

static void
before_commit(void)
{
	if (quiet_end == InvalidXLogRecPtr || XactLastRecEnd != quiet_end ||
		synchronous_commit <= SYNCHRONOUS_COMMIT_OFF ||
		synchronous_commit_was_set())
		return;

	/* as SET LOCAL: the end of this transaction undoes it */
	set_config_option("synchronous_commit", "off",
					  PGC_USERSET, PGC_S_SESSION, GUC_ACTION_LOCAL,
					  true, 0, false);
}

static void
on_transaction_event(XactEvent event, void *arg pg_attribute_unused())
{
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			before_commit();
			break;
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			quiet = false;
			quiet_end = InvalidXLogRecPtr;
			break;
		case XACT_EVENT_PRE_PREPARE:
			/* PREPARE always waits for the disk */
			break;
		case XACT_EVENT_PARALLEL_COMMIT:
		case XACT_EVENT_PARALLEL_ABORT:
		case XACT_EVENT_PARALLEL_PRE_COMMIT:
			/* a parallel worker writes nothing of ours */
			break;
	}
}

/* Called once, when the library is loaded. */
void
fl_durability_init(void)
{
	RegisterXactCallback(on_transaction_event, NULL);
}
