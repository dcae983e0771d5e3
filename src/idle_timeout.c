/*-------------------------------------------------------------------------
 *
 * idle_timeout.c
 *	  How long a transaction that has pinned a key may sit idle.
 *
 * A pin keeps the successor out until its transaction ends.  So that a client
 * that froze with an open transaction does not do so for hours, the pin
 * lowers idle_in_transaction_session_timeout for its transaction to the
 * lease's whole ttl.
 *
 * It does so as SET LOCAL does, so the end of the transaction or of the
 * savepoint undoes it.  Inside a function that has a SET clause, the end of
 * that function undoes it too: PostgreSQL gives us no way past that.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "datatype/timestamp.h"
#include "idle_timeout.h"
#include "storage/proc.h"
#include "utils/guc.h"

/* A shorter timeout would hit clients that merely work. */
#define SHORTEST_TIMEOUT	INT64CONST(1000)

/* fenced_lock.pin_idle_timeout */
bool		fl_pin_idle_timeout = true;

/* This transaction has pinned a key of a lease of "ttl" microseconds. */
void
fl_idle_timeout_lower(int64 ttl)
{
	int64		milliseconds = Max(ttl / 1000, SHORTEST_TIMEOUT);
	char		value[32];

	/* A transaction that is one statement is never idle. */
	if (!fl_pin_idle_timeout || !IsTransactionBlock())
		return;
	if (IdleInTransactionSessionTimeout > 0 &&
		IdleInTransactionSessionTimeout <= milliseconds)
		return;

	snprintf(value, sizeof(value), INT64_FORMAT,
			 Min(milliseconds, (int64) PG_INT32_MAX));
	set_config_option("idle_in_transaction_session_timeout", value,
					  PGC_USERSET, PGC_S_SESSION, GUC_ACTION_LOCAL,
					  true, 0, false);
}
