/*-------------------------------------------------------------------------
 *
 * lease.c
 *	  Who may acquire, renew and release a lease.
 *
 * Every call looks first without any lock: a held key is refused, a lost one
 * answered, by a plain read that assigns no transaction id and writes nothing
 * (like any read it may prune a page).
 * Whoever gets past that takes the key lock and looks again.  The clock is
 * read after the key lock is held, never from the start of the transaction,
 * or leases would be born expired.  At expires_at exactly a lease is over.
 *
 * An owner is known by the digest of its token; the token itself is nowhere
 * stored.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "arguments.h"
#include "compat.h"
#include "digest.h"
#include "durability.h"
#include "errors.h"
#include "idle_timeout.h"
#include "key_lock.h"
#include "lease.h"
#include "lock_row.h"
#include "miscadmin.h"
#include "token.h"
#include "utils/fmgrprotos.h"
#include "utils/timestamp.h"

/* When to come again if an open transaction is in the way. */
#define RETRY_AFTER_BUSY_MS		100

typedef struct Owner
{
	pg_uuid_t	token;
	uint8		digest[PG_SHA256_DIGEST_LENGTH];
} Owner;

/* The owner that a caller says to be, or a new one. */
static void
set_owner(Owner *owner, const pg_uuid_t *token)
{
	if (token == NULL)
		token = DatumGetUUIDP(DirectFunctionCall1(gen_random_uuid, (Datum) 0));
	owner->token = *token;
	fl_digest("", 0, token->data, UUID_LEN, owner->digest);
}

static bool
is_owner(const Owner *owner, const FlRow *row)
{
	return row->owned &&
		memcmp(owner->digest, row->owner_digest, PG_SHA256_DIGEST_LENGTH) == 0;
}

static bool
is_live(const FlRow *row, TimestampTz now)
{
	return row->owned && row->expires_at > now;
}

static void
refuse(FlLease *lease, int32 retry_after_ms)
{
	memset(lease, 0, sizeof(*lease));
	lease->retry_after_ms = retry_after_ms;
}

/*
 * What is left of the lease that is in the way, rounded up.  Never more than
 * its own ttl, or a clock that was set back would send the caller away for as
 * long as it was set back.
 */
static void
refuse_until_end(FlLease *lease, const FlRow *row, TimestampTz now)
{
	int64		left = Min(row->expires_at - now, row->ttl);
	int64		milliseconds = (left + 999) / 1000;

	refuse(lease, (int32) Min(Max(milliseconds, 1), PG_INT32_MAX));
}

/* The key is free and locked: write the grant. */
static void
grant(FlTable *table, const FlRow *old, const text *key, int64 ttl,
	  const Owner *owner, const Jsonb *metadata, FlLease *lease)
{
	FlRow		row;
	int64		token = fl_token_draw();

	if (old != NULL && token <= old->fencing_token)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("fencing token %lld drawn for key \"%s\" is not above its last one, %lld",
						(long long) token,
						fl_key_in_message(VARDATA_ANY(key),
										  VARSIZE_ANY_EXHDR(key)),
						(long long) old->fencing_token),
				 errdetail("Sequence \"fenced_lock.token_seq\" was set back.")));

	/* The draw may have waited for the disk: the lease's life begins now. */
	memset(&row, 0, sizeof(row));
	row.fencing_token = token;
	row.owned = true;
	memcpy(row.owner_digest, owner->digest, PG_SHA256_DIGEST_LENGTH);
	row.ttl = ttl;
	row.granted_xid = GetTopFullTransactionId();
	row.acquired_at = GetCurrentTimestamp();
	row.renewed_at = row.acquired_at;
	row.expires_at = row.acquired_at + ttl;
	fl_row_grant(table, old, key, &row, metadata);
	fl_durable_write();

	memset(lease, 0, sizeof(*lease));
	lease->acquired = true;
	lease->ttl = ttl;
	lease->fencing_token = token;
	lease->owner_token = owner->token;
	lease->expires_at = row.expires_at;
	fl_held_drop(key);			/* of a lease of before, if it was pinned */
	fl_held_grant(key, lease);
	fl_idle_timeout_lower(ttl);
}

/* The same owner asked again: its reply was lost, say. */
static void
grant_again(FlTable *table, const FlRow *row, const text *key, int64 ttl,
			const Owner *owner, TimestampTz now, FlLease *lease)
{
	fl_row_renew(table, row, ttl, now);
	fl_durable_write();

	memset(lease, 0, sizeof(*lease));
	lease->acquired = true;
	lease->already_held = true;
	lease->fencing_token = row->fencing_token;
	lease->owner_token = owner->token;
	lease->expires_at = now + ttl;
	if (fl_held_find(VARDATA_ANY(key), VARSIZE_ANY_EXHDR(key)) == NULL)
		fl_held_pin(key, row->fencing_token, row->granted_xid);
	fl_idle_timeout_lower(ttl);
}

/*
 * With the key locked in "mode": grant, grant again, or refuse.  Returns
 * false if the mode does not serve any more, since the caller's own lease,
 * which was to be renewed, has ended.
 */
static bool
decide(const text *key, FlKeyMode mode, int64 ttl, const Owner *owner,
	   const Jsonb *metadata, FlLease *lease)
{
	FlTable		table;
	FlRow		row;
	bool		found;
	bool		live;
	TimestampTz now;

	fl_table_open(&table, RowExclusiveLock);
	found = fl_row_find(&table, key, FL_LOOK_SELF, &row);
	now = GetCurrentTimestamp();
	live = found && is_live(&row, now);

	if (live && !is_owner(owner, &row))
		refuse_until_end(lease, &row, now);
	else if (!live && mode != FL_DECIDE)
	{
		fl_table_close(&table, RowExclusiveLock);
		return false;
	}
	else if (found && !fl_row_is_free(&table, &row))
		refuse(lease, RETRY_AFTER_BUSY_MS);
	else if (live)
		grant_again(&table, &row, key, ttl, owner, now, lease);
	else
		grant(&table, found ? &row : NULL, key, ttl, owner, metadata, lease);

	fl_table_close(&table, lease->acquired ? NoLock : RowExclusiveLock);
	return true;
}

/*
 * Acquire a key, or tell that it is not to be had now.  Never waits, neither
 * for the lease's end nor for somebody's open transaction.
 *
 * "owner_token" NULL means a new one; "metadata" NULL means none.
 */
void
fl_lease_try_acquire(const text *key, int64 ttl, const pg_uuid_t *owner_token,
					 const Jsonb *metadata, FlLease *lease)
{
	const FlLease *same = fl_held_same_statement(key, ttl);
	Owner		owner;
	FlRow		row;
	TimestampTz now;
	FlKeyMode	mode = FL_DECIDE;
	FlKeyId		id;

	if (same != NULL &&
		(owner_token == NULL ||
		 memcmp(owner_token, &same->owner_token, sizeof(pg_uuid_t)) == 0))
	{
		*lease = *same;
		return;
	}

	set_owner(&owner, owner_token);
	if (fl_row_find_once(key, FL_LOOK_SELF, &row) &&
		is_live(&row, now = GetCurrentTimestamp()))
	{
		if (!is_owner(&owner, &row))
		{
			refuse_until_end(lease, &row, now);
			return;
		}

		/* The weaker mode, or the holder's own open write would be in the way */
		mode = FL_RENEW;
	}

	id = fl_key_id(key);
	for (;;)
	{
		if (!fl_key_lock_try(id, mode))
		{
			refuse(lease, RETRY_AFTER_BUSY_MS);
			return;
		}
		if (decide(key, mode, ttl, &owner, metadata, lease))
			break;
		fl_key_unlock(id, mode);
		mode = FL_DECIDE;
	}
	if (!lease->acquired)
		fl_key_unlock(id, mode);
}

/*
 * A look without the key lock: has the owner a lease, and does it live?
 *
 * This may become the answer to a holder, so it must not be mistaken.  A row
 * not found is looked for once more at one moment (see fl_row_find), and the
 * clock is read before the look: a version that was current when it was seen
 * and had ended before that can't have been renewed.
 */
static bool
find_owned(const text *key, const Owner *owner, bool *live)
{
	FlRow		row;
	TimestampTz now = GetCurrentTimestamp();

	if (!(fl_row_find_once(key, FL_LOOK_SELF, &row) && is_owner(owner, &row)) &&
		!(fl_row_find_once(key, FL_LOOK_LATEST, &row) && is_owner(owner, &row)))
		return false;
	*live = is_live(&row, now);
	return true;
}

/*
 * With the key locked: find the owner's row and wait until it can be written.
 * False if it is not the owner's any more.
 */
static bool
find_writable(FlTable *table, const text *key, const Owner *owner, FlRow *row)
{
	while (fl_row_find(table, key, FL_LOOK_SELF, row) && is_owner(owner, row))
	{
		if (fl_row_is_free(table, row) || fl_row_wait(table, row))
			return true;
		CHECK_FOR_INTERRUPTS();
	}
	return false;
}

/*
 * Renew a lease.  False if it is lost: expired, released, taken over, never
 * granted.  "ttl" may be FL_LEASE_TTL.  Waits for whoever is deciding, so
 * that false always means lost.
 */
bool
fl_lease_renew(const text *key, const pg_uuid_t *owner_token, int64 ttl,
			   TimestampTz *expires_at)
{
	Owner		owner;
	FlTable		table;
	FlRow		row;
	FlKeyId		id;
	TimestampTz now;
	bool		live;
	bool		renewed = false;

	set_owner(&owner, owner_token);
	if (!find_owned(key, &owner, &live) || !live)
		return false;

	id = fl_key_id(key);
	fl_key_lock(id, FL_RENEW);
	fl_table_open(&table, RowExclusiveLock);
	if (find_writable(&table, key, &owner, &row) &&
		is_live(&row, now = GetCurrentTimestamp()))
	{
		if (ttl == FL_LEASE_TTL)
			ttl = row.ttl;
		fl_row_renew(&table, &row, ttl, now);
		fl_durable_write();
		*expires_at = now + ttl;
		renewed = true;
	}
	fl_table_close(&table, renewed ? NoLock : RowExclusiveLock);
	if (!renewed)
		fl_key_unlock(id, FL_RENEW);
	return renewed;
}

/*
 * Release a lease.  False if it is not this owner's any more; true also if it
 * has expired and nobody has taken it over.
 */
bool
fl_lease_release(const text *key, const pg_uuid_t *owner_token)
{
	Owner		owner;
	FlTable		table;
	FlRow		row;
	FlKeyId		id;
	TimestampTz now;
	bool		live;
	bool		released = false;

	set_owner(&owner, owner_token);
	fl_quiet_write_begin();
	if (!find_owned(key, &owner, &live))
		return false;

	/*
	 * What has expired is not worth a wait for a stranger.  Not so if this
	 * transaction has pinned the key, and its pin is to go.  Its way from that
	 * lock to the stronger one must be a blocking request, since one that does
	 * not wait is refused if anybody else waits.
	 */
	id = fl_key_id(key);
	if (live || fl_held_find(VARDATA_ANY(key), VARSIZE_ANY_EXHDR(key)) != NULL)
		fl_key_lock(id, FL_DECIDE);
	else if (!fl_key_lock_try(id, FL_DECIDE))
	{
		/* Is it being taken over, or has the owner pinned it elsewhere? */
		if (!fl_key_lock_try(id, FL_PIN))
			return false;
		fl_key_unlock(id, FL_PIN);
		return true;
	}

	fl_table_open(&table, RowExclusiveLock);
	if (find_writable(&table, key, &owner, &row))
	{
		now = GetCurrentTimestamp();
		fl_row_release(&table, &row, now);
		fl_quiet_write_end(row.expires_at - now);
		fl_held_drop(key);
		released = true;
	}
	fl_table_close(&table, released ? NoLock : RowExclusiveLock);
	if (!released)
		fl_key_unlock(id, FL_DECIDE);
	return released;
}
