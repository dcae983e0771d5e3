/*-------------------------------------------------------------------------
 *
 * fenced_lock.c
 *	  The module: what PostgreSQL loads, the settings, the callbacks.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "arguments.h"
#include "compat.h"
#include "durability.h"
#include "held.h"
#include "idle_timeout.h"
#include "restart_grace.h"
#include "utils/guc.h"
#include "waiting.h"

PG_MODULE_MAGIC_EXT(
					.name = "fenced_lock",
					.version = "1.0"
);

PGDLLEXPORT void _PG_init(void);

void
_PG_init(void)
{
	/*
	 * An administrator sets this so that no application can keep a key for
	 * long after its death, and so that '30000', which is 8 hours, is noticed
	 * where '30 s' was meant.
	 */
	DefineCustomIntVariable("fenced_lock.max_ttl",
							"Longest ttl that a lease may have.",
							NULL,
							&fl_max_ttl,
							60 * 60 * 1000, 1, PG_INT32_MAX,
							PGC_SUSET, GUC_UNIT_MS,
							NULL, NULL, NULL);

	/*
	 * An administrator sets this where a restart takes longer than holders
	 * can do without renewing.
	 */
	DefineCustomIntVariable("fenced_lock.restart_grace",
							"How long after a start of the server leases that were alive before it still count.",
							"A lease that had ended by no more than this before the start counts, too.",
							&fl_restart_grace,
							0, 0, 24 * 60 * 60 * 1000,
							PGC_SIGHUP, GUC_UNIT_MS,
							NULL, NULL, NULL);

	/*
	 * An application that can bear to lose a grant in a crash of the server
	 * turns this off, together with synchronous_commit, for speed.
	 */
	DefineCustomBoolVariable("fenced_lock.durable_grants",
							 "Makes grants, renewals and new marks wait for the disk also when synchronous_commit is off.",
							 NULL,
							 &fl_durable_grants,
							 true,
							 PGC_USERSET, 0,
							 NULL, NULL, NULL);

	/*
	 * An application whose transactions sit idle for long with good reason
	 * turns this off, and answers for its successors' wait.
	 */
	DefineCustomBoolVariable("fenced_lock.pin_idle_timeout",
							 "Lets a pin lower idle_in_transaction_session_timeout to the lease's ttl.",
							 NULL,
							 &fl_pin_idle_timeout,
							 true,
							 PGC_USERSET, 0,
							 NULL, NULL, NULL);
	MarkGUCPrefixReserved("fenced_lock");

	fl_held_init();
	fl_durability_init();
	fl_waiting_init();
}
