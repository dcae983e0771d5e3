/*-------------------------------------------------------------------------
 *
 * arguments.c
 *	  What the SQL calls accept.
 *
 * No function is STRICT: a NULL argument must not read as "not acquired".
 * NULL for a required argument is 22004, NULL for an optional one means its
 * default, since wrappers pass NULL for "not given".  Any other bad value is
 * 22023.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "arguments.h"
#include "catalog/pg_type_d.h"
#include "common/int.h"
#include "compat.h"
#include "datatype/timestamp.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

/* fenced_lock.max_ttl, in milliseconds */
int			fl_max_ttl = 60 * 60 * 1000;

/*
 * Our calls write (pins are for writing), and they write past the executor,
 * whose checks would have been these.
 */
void
fl_forbid_read_only(const char *function)
{
	PreventCommandIfReadOnly(function);
	PreventCommandIfParallelMode(function);
	PreventCommandDuringRecovery(function);
}

void
fl_require_arg(FunctionCallInfo fcinfo, int n, const char *name)
{
	if (PG_ARGISNULL(n))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("%s must not be null", name)));
}

/* "what" is where the key comes from, for the message. */
void
fl_check_key_length(Size length, const char *what)
{
	if (length == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must not be empty", what)));
	if (length > FL_MAX_KEY_LENGTH)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s is too long: %zu bytes, at most %d are allowed",
						what, length, FL_MAX_KEY_LENGTH)));
}

/* A key: exact text, 1 to 1024 bytes, neither cut nor folded nor trimmed. */
text *
fl_arg_key(FunctionCallInfo fcinfo, int n)
{
	text	   *key;

	fl_require_arg(fcinfo, n, "key");
	key = PG_GETARG_TEXT_PP(n);
	fl_check_key_length(VARSIZE_ANY_EXHDR(key), "key");
	return key;
}

static int
compare_keys(const void *a, const void *b)
{
	const text *ka = *(text *const *) a;
	const text *kb = *(text *const *) b;
	Size		la = VARSIZE_ANY_EXHDR(ka);
	Size		lb = VARSIZE_ANY_EXHDR(kb);
	int			result = memcmp(VARDATA_ANY(ka), VARDATA_ANY(kb), Min(la, lb));

	if (result != 0)
		return result;
	return (la > lb) - (la < lb);
}

/*
 * A set of keys: sorted, so that two calls with overlapping sets lock them in
 * one order, each once.
 */
text **
fl_arg_keys(FunctionCallInfo fcinfo, int n, int *count)
{
	ArrayType  *array;
	Datum	   *values;
	bool	   *nulls;
	text	  **keys;
	int			given;

	fl_require_arg(fcinfo, n, "keys");
	array = PG_GETARG_ARRAYTYPE_P(n);
	if (ARR_NDIM(array) > 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("keys must be a one-dimensional array")));
	deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT,
					  &values, &nulls, &given);
	if (given == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("keys must not be empty")));
	if (given > FL_MAX_KEYS)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("too many keys: %d, at most %d are allowed in one call",
						given, FL_MAX_KEYS)));

	keys = palloc(given * sizeof(text *));
	for (int i = 0; i < given; i++)
	{
		if (nulls[i])
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("keys must not contain a null")));
		keys[i] = DatumGetTextPP(values[i]);
		fl_check_key_length(VARSIZE_ANY_EXHDR(keys[i]), "key");
	}
	qsort(keys, given, sizeof(text *), compare_keys);

	*count = 1;
	for (int i = 1; i < given; i++)
	{
		if (compare_keys(&keys[i], &keys[*count - 1]) != 0)
			keys[(*count)++] = keys[i];
	}
	return keys;
}

int64
fl_arg_token(FunctionCallInfo fcinfo, int n)
{
	int64		token;

	fl_require_arg(fcinfo, n, "fencing token");
	token = PG_GETARG_INT64(n);
	if (token < 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("fencing token must be positive, not %lld",
						(long long) token)));
	return token;
}

/*
 * A length of time in microseconds.  A day is 24 hours whatever the session's
 * time zone; months have no fixed length and are refused.
 */
static int64
interval_microseconds(const Interval *interval, const char *name)
{
	int64		result;
	int64		days;

	/* 17 keeps infinity in the extremes of all three fields */
	if (interval->month != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must be a finite interval without months or years",
						name)));
	if (pg_mul_s64_overflow(interval->day, USECS_PER_DAY, &days) ||
		pg_add_s64_overflow(days, interval->time, &result))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s is out of range", name)));
	return result;
}

/* A ttl in microseconds; "standard" is what NULL means. */
int64
fl_arg_ttl(FunctionCallInfo fcinfo, int n, int64 standard)
{
	int64		longest = fl_max_ttl * INT64CONST(1000);
	int64		ttl = standard;

	if (PG_ARGISNULL(n))
	{
		if (standard == FL_LEASE_TTL)
			return FL_LEASE_TTL;
	}
	else
		ttl = interval_microseconds(PG_GETARG_INTERVAL_P(n), "ttl");

	if (ttl < 1000)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("ttl must be at least one millisecond")));
	if (ttl > longest)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("ttl is too long: %lld ms, fenced_lock.max_ttl allows %d ms",
						(long long) (ttl / 1000), fl_max_ttl),
				 errhint("A bare number means seconds: '30000' is more than 8 hours. A superuser can raise fenced_lock.max_ttl.")));
	return ttl;
}

/* A wait in microseconds; "standard" is what NULL means. */
int64
fl_arg_wait(FunctionCallInfo fcinfo, int n, int64 standard)
{
	int64		longest = PG_INT32_MAX * INT64CONST(1000);
	int64		wait;

	if (PG_ARGISNULL(n))
		return standard;

	wait = interval_microseconds(PG_GETARG_INTERVAL_P(n), "wait");
	if (wait < 0 || (wait > 0 && wait < 1000))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("wait must be 0 or at least one millisecond")));
	if (wait > longest)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("wait is too long: %lld ms, at most %d ms are possible",
						(long long) (wait / 1000), PG_INT32_MAX)));
	return wait;
}

/* How long a key has been free, in microseconds; "standard" is what NULL means. */
int64
fl_arg_idle(FunctionCallInfo fcinfo, int n, int64 standard)
{
	int64		idle;

	if (PG_ARGISNULL(n))
		return standard;

	idle = interval_microseconds(PG_GETARG_INTERVAL_P(n), "idle");
	if (idle < 0 || idle > FL_MAX_IDLE)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("idle must be 0 or longer, and at most 100 years")));
	return idle;
}

/* A number from 1 to "most"; "standard" is what NULL means. */
int32
fl_arg_count(FunctionCallInfo fcinfo, int n, const char *name, int32 most,
			 int32 standard)
{
	int32		count;

	if (PG_ARGISNULL(n))
		return standard;

	count = PG_GETARG_INT32(n);
	if (count < 1 || count > most)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must be from 1 to %d, not %d", name, most, count)));
	return count;
}
