/*-------------------------------------------------------------------------
 *
 * restart_grace.c
 *	  A little more life for leases that ended while the server was down.
 *
 * A holder can't renew while the server restarts.  With a grace, a lease that
 * was alive a short while before the start goes on until a short while after
 * it, so that its holder can come back before anybody else is granted the key.
 *
 * The start is this server's: after a promotion it is the standby's, long
 * ago, and the grace does not help there.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "restart_grace.h"
#include "utils/timestamp.h"

/* fenced_lock.restart_grace, in milliseconds */
int			fl_restart_grace = 0;

PG_FUNCTION_INFO_V1(fenced_lock_lease_end);

/*
 * When a lease that was not released is over.  Each look at a row takes its
 * end from here, so that all are of one opinion; that is also why the setting
 * is the server's, and not a session's.
 *
 * The grace is for all leases of before the start that had not been over for
 * as long as it is, those that ended right after the start among them: it
 * would be odd to let one that has ended outlive one that has not.
 */
TimestampTz
fl_lease_end(TimestampTz expires_at, TimestampTz renewed_at)
{
	int64		grace = fl_restart_grace * INT64CONST(1000);

	if (grace == 0 || renewed_at >= PgStartTime ||
		expires_at <= PgStartTime - grace)
		return expires_at;
	return Max(expires_at, PgStartTime + grace);
}

/* lease_end(expires_at timestamptz, renewed_at timestamptz): for view locks */
Datum
fenced_lock_lease_end(PG_FUNCTION_ARGS)
{
	if (PG_ARGISNULL(0) || PG_ARGISNULL(1))
		PG_RETURN_NULL();
	PG_RETURN_TIMESTAMPTZ(fl_lease_end(PG_GETARG_TIMESTAMPTZ(0),
									   PG_GETARG_TIMESTAMPTZ(1)));
}
