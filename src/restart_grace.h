/*-------------------------------------------------------------------------
 *
 * restart_grace.h
 *	  A little more life for leases that ended while the server was down.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FENCED_LOCK_RESTART_GRACE_H
#define FENCED_LOCK_RESTART_GRACE_H

#include "datatype/timestamp.h"

extern int	fl_restart_grace;

extern TimestampTz fl_lease_end(TimestampTz expires_at, TimestampTz renewed_at);

#endif							/* FENCED_LOCK_RESTART_GRACE_H */
