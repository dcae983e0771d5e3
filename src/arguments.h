/*-------------------------------------------------------------------------
 *
 * arguments.h
 *	  What the SQL calls accept: every argument is checked before anything
 *	  is touched.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FENCED_LOCK_ARGUMENTS_H
#define FENCED_LOCK_ARGUMENTS_H

#include "datatype/timestamp.h"
#include "fmgr.h"

#define FL_MAX_KEY_LENGTH	1024
#define FL_MAX_KEYS			1000

/* What a ttl of NULL stands for, in microseconds. */
#define FL_DEFAULT_TTL		(30 * USECS_PER_SEC)
#define FL_DEFAULT_WAIT		(10 * USECS_PER_SEC)
#define FL_DEFAULT_IDLE		USECS_PER_HOUR
#define FL_LEASE_TTL		0	/* that of the lease, whichever it is */
#define FL_MAX_IDLE			(100 * 366 * USECS_PER_DAY)

extern int	fl_max_ttl;

extern void fl_forbid_read_only(const char *function);

extern text *fl_arg_key(FunctionCallInfo fcinfo, int n);
extern text **fl_arg_keys(FunctionCallInfo fcinfo, int n, int *count);
extern int64 fl_arg_token(FunctionCallInfo fcinfo, int n);
extern int64 fl_arg_ttl(FunctionCallInfo fcinfo, int n, int64 standard);
extern int64 fl_arg_wait(FunctionCallInfo fcinfo, int n, int64 standard);
extern int64 fl_arg_idle(FunctionCallInfo fcinfo, int n, int64 standard);
extern int32 fl_arg_count(FunctionCallInfo fcinfo, int n, const char *name,
						  int32 most, int32 standard);
extern void fl_require_arg(FunctionCallInfo fcinfo, int n, const char *name);

extern void fl_check_key_length(Size length, const char *what);

#endif							/* FENCED_LOCK_ARGUMENTS_H */
