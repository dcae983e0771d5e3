/*-------------------------------------------------------------------------
 *
 * acquire.c
 *	  Who may acquire a lease, at once or after a wait.
 *
 * A call looks first without any lock: a held key is refused by a plain read,
 * which assigns no transaction id and writes nothing (like any read it may
 * prune a page).  Whoever gets past that takes the key lock and looks again.
 * The clock is read after the key lock is held, never from the start of the
 * transaction or of a wait, or leases would be born expired.  At expires_at
 * exactly a lease is over.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "acquire.h"
#include "compat.h"
#include "durability.h"
#include "errors.h"
#include "idle_timeout.h"
#include "key_lock.h"
#include "lock_row.h"
#include "owner.h"
#include "token.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "waiting.h"

/* When to come again if an open transaction is in the way. */
#define RETRY_AFTER_BUSY_MS		100

/* How long a head sleeps if a hand on the row is in its way. */
#define HAND_SLEEP				(50 * INT64CONST(1000))

/* One call's way to its answer. */
typedef struct Attempt
{
	const FlRequest *request;
	FlOwner		owner;
	FlKeyId		id;
	FlWait		wait;

	/* The version of the row that the head sleeps behind, and since when. */
	int64		seen_token;
	TimestampTz seen_renewed_at;
	TimestampTz seen_expires_at;
	int64		seen_at;		/* by the wait's clock; -1: none seen yet */

	FlLease    *lease;			/* the answer */
} Attempt;

/* What a look has shown. */
typedef enum View
{
	KEY_FREE,
	KEY_HELD,					/* by a lease of somebody else that lives */
	KEY_OURS					/* by a lease of this owner that lives */
} View;

static void
refuse(Attempt *attempt, int64 microseconds)
{
	int64		milliseconds = (microseconds + 999) / 1000;

	memset(attempt->lease, 0, sizeof(FlLease));
	attempt->lease->retry_after_ms =
		(int32) Min(Max(milliseconds, 1), PG_INT32_MAX);
}

static void
refuse_busy(Attempt *attempt)
{
	refuse(attempt, RETRY_AFTER_BUSY_MS * INT64CONST(1000));
}

/*
 * How long a living lease has left.  Never more than its own ttl from now (or
 * the grace after a restart), or a clock that was set back would send a caller
 * away for as long as it was set back; and never more than that from a waiting
 * head's first sight of it, which a monotonic clock tells.
 */
static int64
life_left(Attempt *attempt, const FlRow *row, TimestampTz now)
{
	int64		left = Min(row->expires_at - now, row->longest_life);

	if (attempt->request->wait == 0)
		return left;
	if (attempt->seen_at < 0 ||
		attempt->seen_token != row->fencing_token ||
		attempt->seen_renewed_at != row->renewed_at ||
		attempt->seen_expires_at != row->expires_at)
	{
		attempt->seen_token = row->fencing_token;
		attempt->seen_renewed_at = row->renewed_at;
		attempt->seen_expires_at = row->expires_at;
		attempt->seen_at = fl_wait_elapsed(&attempt->wait);
	}
	return Min(left,
			   attempt->seen_at + row->longest_life - fl_wait_elapsed(&attempt->wait));
}

/* Judge what was found now; a key that is held has its refusal prepared. */
static View
judge(Attempt *attempt, bool found, const FlRow *row)
{
	TimestampTz now = GetCurrentTimestamp();
	int64		left;

	if (!found || !row->owned || row->expires_at <= now)
		return KEY_FREE;
	if (fl_owner_has(&attempt->owner, row))
		return KEY_OURS;
	left = life_left(attempt, row, now);
	if (left <= 0)
		return KEY_FREE;
	refuse(attempt, left);
	return KEY_HELD;
}

static View
look(Attempt *attempt, FlLook how)
{
	FlRow		row;
	bool		found = fl_row_find_once(attempt->request->key, how, &row);

	return judge(attempt, found, &row);
}

/* The key is free and locked: write the grant. */
static void
grant(Attempt *attempt, FlTable *table, const FlRow *old)
{
	const FlRequest *request = attempt->request;
	FlLease    *lease = attempt->lease;
	FlRow		row;
	int64		token = fl_token_draw();

	if (old != NULL && token <= old->fencing_token)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("fencing token %lld drawn for key \"%s\" is not above its last one, %lld",
						(long long) token,
						fl_text_key_in_message(request->key),
						(long long) old->fencing_token),
				 errdetail("The key's row was written by hand, or the sequences of fencing tokens were."),
				 errhint("SELECT fenced_lock.raise_fence(%lld).",
						 (long long) old->fencing_token)));

	/* The draw may have waited for the disk: the lease's life begins now. */
	memset(&row, 0, sizeof(row));
	row.fencing_token = token;
	row.owned = true;
	memcpy(row.owner_digest, attempt->owner.digest, PG_SHA256_DIGEST_LENGTH);
	row.ttl = request->ttl;
	row.granted_xid = GetTopFullTransactionId();
	row.acquired_at = GetCurrentTimestamp();
	row.renewed_at = row.acquired_at;
	row.expires_at = row.acquired_at + request->ttl;
	fl_row_grant(table, old, request->key, &row, request->metadata);
	fl_durable_write();

	memset(lease, 0, sizeof(*lease));
	lease->acquired = true;
	lease->ttl = request->ttl;
	lease->fencing_token = token;
	lease->owner_token = attempt->owner.token;
	lease->expires_at = row.expires_at;
	fl_held_drop(request->key); /* of a lease of before, if it was pinned */
	fl_held_grant(request->key, lease);
	fl_idle_timeout_lower(request->ttl);
}

/* The same owner asked again: its reply was lost, say. */
static void
grant_again(Attempt *attempt, FlTable *table, const FlRow *row)
{
	const FlRequest *request = attempt->request;
	FlLease    *lease = attempt->lease;
	TimestampTz now = GetCurrentTimestamp();

	fl_row_renew(table, row, request->ttl, now);
	fl_durable_write();
	fl_wake_at_end(attempt->id);	/* its life may have become shorter */

	memset(lease, 0, sizeof(*lease));
	lease->acquired = true;
	lease->already_held = true;
	lease->fencing_token = row->fencing_token;
	lease->owner_token = attempt->owner.token;
	lease->expires_at = now + request->ttl;
	if (fl_held_find_text(FL_LEASE, request->key) == NULL)
		fl_held_pin(FL_LEASE, request->key, row->fencing_token,
					row->granted_xid);
	fl_idle_timeout_lower(request->ttl);
}

/*
 * With the key locked in FL_DECIDE, or in FL_RENEW to grant again: do it, or
 * prepare the refusal and let go of the key.  Returns what was found.
 */
static View
decide(Attempt *attempt, FlKeyMode mode)
{
	FlTable		table;
	FlRow		row;
	bool		found;
	View		view;

	memset(attempt->lease, 0, sizeof(FlLease));
	fl_lock_rows_open(&table, RowExclusiveLock);
	found = fl_row_find(&table, attempt->request->key, FL_LOOK_SELF, &row);
	view = judge(attempt, found, &row);
	if (view == KEY_OURS && mode == FL_DECIDE)
	{
		/*
		 * Renewed since it was seen to have ended.  The weaker mode serves,
		 * and lets the holder's pins pass; one who has the stronger gets it
		 * at once, but by a request that would wait.
		 */
		fl_key_lock(attempt->id, FL_RENEW);
		fl_key_unlock(attempt->id, FL_DECIDE);
		mode = FL_RENEW;
	}
	if (view != KEY_HELD)
	{
		if (found && !fl_row_is_free(&table, &row))
			refuse_busy(attempt);
		else if (view == KEY_OURS)
			grant_again(attempt, &table, &row);
		else if (mode == FL_DECIDE)
			grant(attempt, &table, found ? &row : NULL);
	}
	fl_table_close(&table,
				   attempt->lease->acquired ? NoLock : RowExclusiveLock);
	if (!attempt->lease->acquired)
		fl_key_unlock(attempt->id, mode);
	return view;
}

/* One try, without a wait. */
static void
try_once(Attempt *attempt)
{
	View		view = look(attempt, FL_LOOK_SELF);

	if (view == KEY_HELD)
		return;

	attempt->id = fl_key_id(attempt->request->key);
	if (view == KEY_OURS)
	{
		/* The weaker mode, or the holder's own open write is in the way. */
		if (!fl_key_lock_try(attempt->id, FL_RENEW))
		{
			refuse_busy(attempt);
			return;
		}
		if (decide(attempt, FL_RENEW) != KEY_FREE)
			return;
		/* It has ended since the look. */
	}
	if (fl_key_lock_try(attempt->id, FL_DECIDE))
		(void) decide(attempt, FL_DECIDE);
	else
		refuse_busy(attempt);
}

/*
 * Wait for the key's lock in FL_DECIDE, where a look has found the key free.
 * A request that waits in that mode stops the renewals and pins that come
 * after it, so nobody may have a right to them: neither may a renewal be
 * under way, which only its lock tells, nor the look have been mistaken.
 * False if the lease lives after all.
 */
static bool
wait_to_decide(Attempt *attempt, FlLockResult *result)
{
	View		view;

	*result = fl_wait_for_key(&attempt->wait, FL_RENEW);
	if (*result != FL_LOCKED)
		return true;
	view = look(attempt, FL_LOOK_LATEST);
	fl_key_unlock(attempt->id, FL_RENEW);
	if (view != KEY_FREE)
		return false;
	*result = fl_wait_for_key(&attempt->wait, FL_DECIDE);
	return true;
}

/*
 * Once around at the head of the line: look, and grant, or wait for whatever
 * is in the way.  True when there is an answer, or when the wait has ended
 * otherwise.  The order of things matters; see waiting.c.
 */
static bool
take_turn(Attempt *attempt, FlLockResult *result)
{
	const FlWait *wait = &attempt->wait;
	FlKeyMode	mode;
	View		view;

	fl_head_arm();
	*result = FL_LOCK_TIMED_OUT;
	if (attempt->lease->retry_after_ms > 0 && fl_wait_left(wait) <= 0)
		return true;			/* and was refused before */

	/*
	 * Whoever is deciding about the key is waited for on its lock, also while
	 * a lease lives: an open release is nothing to sleep behind, since its
	 * transaction may be waiting for us.  Then look all the same, since one
	 * that only stands in the queue for that lock is passed by.
	 */
	if (!fl_key_lock_try(attempt->id, FL_PIN))
	{
		refuse_busy(attempt);
		*result = fl_wait_for_key(wait, FL_PIN);
		if (*result != FL_LOCKED)
			return true;
	}
	fl_key_unlock(attempt->id, FL_PIN);

	view = look(attempt, FL_LOOK_SELF);
	if (view == KEY_HELD)
	{
		fl_head_sleep(wait, attempt->lease->retry_after_ms * INT64CONST(1000));
		return false;
	}

	mode = (view == KEY_OURS) ? FL_RENEW : FL_DECIDE;
	*result = FL_LOCKED;
	if (!fl_key_lock_try(attempt->id, mode))
	{
		refuse_busy(attempt);
		if (mode == FL_RENEW)
			*result = fl_wait_for_key(wait, mode);
		else if (!wait_to_decide(attempt, result))
			return false;
		if (*result != FL_LOCKED)
			return true;
	}
	if (decide(attempt, mode) == view && !attempt->lease->acquired)
		fl_head_sleep(wait, HAND_SLEEP);
	return attempt->lease->acquired;
}

/*
 * At the head of the line, until the key is granted or the wait is over.  A
 * long wait has many turns, and must not pile up what each allocates.
 */
static FlLockResult
watch(Attempt *attempt)
{
	MemoryContext one_turn = AllocSetContextCreate(CurrentMemoryContext,
												   "fenced_lock turn",
												   ALLOCSET_SMALL_SIZES);
	MemoryContext saved = MemoryContextSwitchTo(one_turn);
	FlLockResult result;

	while (!take_turn(attempt, &result))
		MemoryContextReset(one_turn);
	MemoryContextSwitchTo(saved);
	MemoryContextDelete(one_turn);
	return result;
}

/* Wait in line.  What has ended the wait otherwise than by a grant is told. */
static FlLockResult
wait_in_line(Attempt *attempt)
{
	FlLockResult result;

	/*
	 * Whoever has pinned or released the key in this transaction is what the
	 * head of the line waits for, and would wait for ever behind it.
	 */
	if (fl_key_locked_by_me(attempt->id))
		return watch(attempt);

	result = fl_line_join(&attempt->wait);
	if (result == FL_LOCKED)
	{
		result = watch(attempt);
		fl_line_leave(&attempt->wait);
	}
	else if (look(attempt, FL_LOOK_SELF) != KEY_HELD)
		refuse_busy(attempt);
	return result;
}

/* Has the lease that this statement was granted been left as it was? */
static bool
still_stands(const text *key, const FlLease *lease)
{
	FlRow		row;

	return fl_row_find_once(key, FL_LOOK_SELF, &row) && row.owned &&
		row.fencing_token == lease->fencing_token &&
		row.expires_at == lease->expires_at;
}

/* The owner's own lease, if it has one, is not waited for in line. */
static bool
try_own_lease(Attempt *attempt, FlLockResult *result)
{
	if (attempt->request->owner_token == NULL ||
		look(attempt, FL_LOOK_SELF) != KEY_OURS)
		return false;
	refuse_busy(attempt);
	*result = fl_wait_for_key(&attempt->wait, FL_RENEW);
	if (*result != FL_LOCKED)
		return true;
	return decide(attempt, FL_RENEW) == KEY_OURS && attempt->lease->acquired;
}

/*
 * Acquire a key, or tell that it was not to be had.  Without a wait this
 * never waits, neither for the lease's end nor for somebody's open
 * transaction.
 */
void
fl_lease_acquire(const FlRequest *request, FlLease *lease)
{
	const FlLease *same = fl_held_same_statement(request->key, request->ttl);
	Attempt		attempt;
	FlLockResult result;

	if (same != NULL &&
		(request->owner_token == NULL ||
		 memcmp(request->owner_token, &same->owner_token,
				sizeof(pg_uuid_t)) == 0) &&
		still_stands(request->key, same))
	{
		*lease = *same;
		return;
	}

	memset(lease, 0, sizeof(*lease));	/* neither granted nor refused yet */
	memset(&attempt, 0, sizeof(attempt));
	attempt.request = request;
	attempt.lease = lease;
	attempt.seen_at = -1;
	fl_owner_set(&attempt.owner, request->owner_token);

	if (request->wait == 0)
	{
		try_once(&attempt);
		return;
	}

	attempt.id = fl_key_id(request->key);
	fl_wait_begin(&attempt.wait, attempt.id, request->wait,
				  request->report_deadlock);

	if (!try_own_lease(&attempt, &result))
		result = wait_in_line(&attempt);
	if (result == FL_LOCK_TIMED_OUT)
		fl_wait_over(&attempt.wait);
}
