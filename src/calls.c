/*-------------------------------------------------------------------------
 *
 * calls.c
 *	  The SQL calls: arguments in, rows out, no rules.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "acquire.h"
#include "admit.h"
#include "arguments.h"
#include "compat.h"
#include "errors.h"
#include "force.h"
#include "funcapi.h"
#include "key_lock.h"
#include "lease.h"
#include "pin.h"
#include "purge.h"
#include "token.h"
#include "utils/timestamp.h"

/* Beyond this raise_fence() would bring the end of the numbers near. */
#define HIGHEST_FENCE		(INT64CONST(1) << 62)

/* Columns of type lease; they are only ever appended. */
enum
{
	LEASE_ACQUIRED,
	LEASE_FENCING_TOKEN,
	LEASE_OWNER_TOKEN,
	LEASE_EXPIRES_AT,
	LEASE_ALREADY_HELD,
	LEASE_RETRY_AFTER_MS,
	LEASE_BLOCKED_KEY,
	LEASE_COLUMNS
};

PG_FUNCTION_INFO_V1(fenced_lock_try_acquire);
PG_FUNCTION_INFO_V1(fenced_lock_acquire);
PG_FUNCTION_INFO_V1(fenced_lock_renew);
PG_FUNCTION_INFO_V1(fenced_lock_release);
PG_FUNCTION_INFO_V1(fenced_lock_pin);
PG_FUNCTION_INFO_V1(fenced_lock_pin_all);
PG_FUNCTION_INFO_V1(fenced_lock_admit);
PG_FUNCTION_INFO_V1(fenced_lock_force_release);
PG_FUNCTION_INFO_V1(fenced_lock_purge);
PG_FUNCTION_INFO_V1(fenced_lock_raise_fence);
PG_FUNCTION_INFO_V1(fenced_lock_lock_id);

/*
 * In a transaction whose snapshot is taken once, what is read after the grant
 * may be older than the lock.
 */
static void
forbid_old_snapshot(const char *function)
{
	if (IsolationUsesXactSnapshot() && IsTransactionBlock())
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("%s cannot run inside a transaction block at isolation level REPEATABLE READ or SERIALIZABLE",
						function),
				 errdetail("What the transaction reads may be older than the lock."),
				 errhint("Acquire in a transaction of its own, before the one that writes.")));
}

static Datum
lease_datum(FunctionCallInfo fcinfo, const FlLease *lease)
{
	TupleDesc	desc;
	Datum	   *values;
	bool	   *nulls;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE ||
		desc->natts < LEASE_COLUMNS)
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("result must be of type fenced_lock.lease")));
	BlessTupleDesc(desc);
	values = palloc0(desc->natts * sizeof(Datum));
	nulls = palloc(desc->natts * sizeof(bool));
	memset(nulls, true, desc->natts * sizeof(bool));

	values[LEASE_ACQUIRED] = BoolGetDatum(lease->acquired);
	nulls[LEASE_ACQUIRED] = false;
	if (lease->acquired)
	{
		values[LEASE_FENCING_TOKEN] = Int64GetDatum(lease->fencing_token);
		values[LEASE_OWNER_TOKEN] = UUIDPGetDatum(&lease->owner_token);
		values[LEASE_EXPIRES_AT] = TimestampTzGetDatum(lease->expires_at);
		values[LEASE_ALREADY_HELD] = BoolGetDatum(lease->already_held);
		nulls[LEASE_FENCING_TOKEN] = false;
		nulls[LEASE_OWNER_TOKEN] = false;
		nulls[LEASE_EXPIRES_AT] = false;
		nulls[LEASE_ALREADY_HELD] = false;
	}
	else
	{
		values[LEASE_RETRY_AFTER_MS] = Int32GetDatum(lease->retry_after_ms);
		nulls[LEASE_RETRY_AFTER_MS] = false;
	}
	return HeapTupleGetDatum(heap_form_tuple(desc, values, nulls));
}

static const pg_uuid_t *
required_owner(FunctionCallInfo fcinfo, int n)
{
	fl_require_arg(fcinfo, n, "owner token");
	return PG_GETARG_UUID_P(n);
}

static FlRequest
lease_request(FunctionCallInfo fcinfo, int64 standard_wait)
{
	FlRequest	request;

	request.key = fl_arg_key(fcinfo, 0);
	request.ttl = fl_arg_ttl(fcinfo, 1, FL_DEFAULT_TTL);
	request.owner_token = PG_ARGISNULL(2) ? NULL : PG_GETARG_UUID_P(2);
	request.metadata = PG_ARGISNULL(3) ? NULL : PG_GETARG_JSONB_P(3);
	request.wait = fl_arg_wait(fcinfo, 4, standard_wait);
	return request;
}

/*
 * try_acquire(key text, ttl interval, owner_token uuid, metadata jsonb,
 * wait interval)
 */
Datum
fenced_lock_try_acquire(PG_FUNCTION_ARGS)
{
	FlRequest	request = lease_request(fcinfo, 0);
	FlLease		lease;

	fl_forbid_read_only("fenced_lock.try_acquire()");
	forbid_old_snapshot("fenced_lock.try_acquire()");
	request.report_deadlock = false;
	fl_lease_acquire(&request, &lease);
	return lease_datum(fcinfo, &lease);
}

/* acquire, with the same arguments: granted, or an error */
Datum
fenced_lock_acquire(PG_FUNCTION_ARGS)
{
	FlRequest	request = lease_request(fcinfo, FL_DEFAULT_WAIT);
	FlLease		lease;

	fl_forbid_read_only("fenced_lock.acquire()");
	forbid_old_snapshot("fenced_lock.acquire()");
	request.report_deadlock = true;
	fl_lease_acquire(&request, &lease);
	if (!lease.acquired)
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("could not acquire lock on key \"%s\" within %lld ms",
						fl_text_key_in_message(request.key),
						(long long) (request.wait / 1000)),
				 errhint("Views fenced_lock.locks and fenced_lock.waiters show who is in the way.")));
	return lease_datum(fcinfo, &lease);
}

/* renew(key text, owner_token uuid, ttl interval) */
Datum
fenced_lock_renew(PG_FUNCTION_ARGS)
{
	const text *key = fl_arg_key(fcinfo, 0);
	const pg_uuid_t *owner = required_owner(fcinfo, 1);
	int64		ttl = fl_arg_ttl(fcinfo, 2, FL_LEASE_TTL);
	TimestampTz expires_at;

	fl_forbid_read_only("fenced_lock.renew()");
	if (!fl_lease_renew(key, owner, ttl, &expires_at))
		PG_RETURN_NULL();
	PG_RETURN_TIMESTAMPTZ(expires_at);
}

/* release(key text, owner_token uuid) */
Datum
fenced_lock_release(PG_FUNCTION_ARGS)
{
	const text *key = fl_arg_key(fcinfo, 0);
	const pg_uuid_t *owner = required_owner(fcinfo, 1);
	bool		released;

	fl_forbid_read_only("fenced_lock.release()");
	released = fl_lease_release(key, owner);
	if (!released)
		ereport(WARNING,
				(errcode(ERRCODE_LOCK_NOT_HELD),
				 errmsg("lock on key \"%s\" is not held by this owner token: it expired, or was released before",
						fl_text_key_in_message(key))));
	PG_RETURN_BOOL(released);
}

/* pin(key text, fencing_token bigint) */
Datum
fenced_lock_pin(PG_FUNCTION_ARGS)
{
	const text *key = fl_arg_key(fcinfo, 0);
	int64		token = fl_arg_token(fcinfo, 1);

	fl_forbid_read_only("fenced_lock.pin()");
	fl_pin(key, token);
	PG_RETURN_BOOL(true);
}

/* pin_all(keys text[], fencing_token bigint) */
Datum
fenced_lock_pin_all(PG_FUNCTION_ARGS)
{
	int			count;
	text	  **keys = fl_arg_keys(fcinfo, 0, &count);
	int64		token = fl_arg_token(fcinfo, 1);

	fl_forbid_read_only("fenced_lock.pin_all()");
	for (int i = 0; i < count; i++)
		fl_pin(keys[i], token);
	PG_RETURN_BOOL(true);
}

/* admit(key text, fencing_token bigint) */
Datum
fenced_lock_admit(PG_FUNCTION_ARGS)
{
	const text *key = fl_arg_key(fcinfo, 0);
	int64		token = fl_arg_token(fcinfo, 1);

	fl_forbid_read_only("fenced_lock.admit()");
	fl_admit(key, token);
	PG_RETURN_BOOL(true);
}

/* force_release(key text, fencing_token bigint, wait interval) */
Datum
fenced_lock_force_release(PG_FUNCTION_ARGS)
{
	const text *key = fl_arg_key(fcinfo, 0);
	int64		token = fl_arg_token(fcinfo, 1);
	int64		wait = fl_arg_wait(fcinfo, 2, 0);

	fl_forbid_read_only("fenced_lock.force_release()");
	PG_RETURN_BOOL(fl_force_release(key, token, wait));
}

/* purge(idle interval, max_rows integer) */
Datum
fenced_lock_purge(PG_FUNCTION_ARGS)
{
	int64		idle = fl_arg_idle(fcinfo, 0, FL_DEFAULT_IDLE);
	int32		max_rows = fl_arg_count(fcinfo, 1, "max_rows",
										FL_MAX_PURGED_ROWS, FL_MAX_PURGED_ROWS);

	fl_forbid_read_only("fenced_lock.purge()");
	PG_RETURN_INT64(fl_purge(idle, max_rows));
}

/* raise_fence(at_least bigint) */
Datum
fenced_lock_raise_fence(PG_FUNCTION_ARGS)
{
	int64		at_least;

	fl_require_arg(fcinfo, 0, "at_least");
	at_least = PG_GETARG_INT64(0);
	if (at_least < 1 || at_least > HIGHEST_FENCE)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("at_least must be from 1 to %lld, not %lld",
						(long long) HIGHEST_FENCE, (long long) at_least)));
	fl_forbid_read_only("fenced_lock.raise_fence()");
	PG_RETURN_INT64(fl_token_raise(at_least));
}

/* lock_id(key text): where pg_locks shows the key's lock */
Datum
fenced_lock_lock_id(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT64((int64) fl_key_id(fl_arg_key(fcinfo, 0)));
}
