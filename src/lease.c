/*-------------------------------------------------------------------------
 *
 * lease.c
 *	  Who may renew and release a lease.
 *
 * As in acquire.c every call looks first without any lock, so that whoever
 * has lost its lease is told so by a plain read, and looks again under the
 * key lock.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "arguments.h"
#include "compat.h"
#include "durability.h"
#include "held.h"
#include "key_lock.h"
#include "lease.h"
#include "lock_row.h"
#include "miscadmin.h"
#include "owner.h"
#include "utils/timestamp.h"
#include "waiting.h"

/*
 * A look without the key lock: has the owner a lease, and does it live?
 *
 * This may become the answer to a holder, so it must not be mistaken.  A row
 * not found is looked for once more at one moment (see fl_row_find), and the
 * clock is read before the look: a version that was current when it was seen
 * and had ended before that can't have been renewed.
 */
static bool
find_owned(const text *key, const FlOwner *owner, bool *live)
{
	FlRow		row;
	TimestampTz now = GetCurrentTimestamp();

	if (!(fl_row_find_once(key, FL_LOOK_SELF, &row) && fl_owner_has(owner, &row)) &&
		!(fl_row_find_once(key, FL_LOOK_LATEST, &row) && fl_owner_has(owner, &row)))
		return false;
	*live = row.expires_at > now;
	return true;
}

/*
 * With the key locked: find the owner's row and wait until it can be written.
 * False if it is not the owner's any more.
 */
static bool
find_writable(FlTable *table, const text *key, const FlOwner *owner, FlRow *row)
{
	while (fl_row_find(table, key, FL_LOOK_SELF, row) && fl_owner_has(owner, row))
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
	FlOwner		owner;
	FlTable		table;
	FlRow		row;
	FlKeyId		id;
	TimestampTz now;
	bool		live;
	bool		renewed = false;

	fl_owner_set(&owner, owner_token);
	if (!find_owned(key, &owner, &live) || !live)
		return false;

	id = fl_key_id(key);
	if (!fl_key_lock_try(id, FL_RENEW))
	{
		/* It may have ended since, and a successor be in the way: see fl_pin() */
		if (!find_owned(key, &owner, &live) || !live)
			return false;
		fl_key_lock(id, FL_RENEW);
	}
	fl_lock_rows_open(&table, RowExclusiveLock);
	if (find_writable(&table, key, &owner, &row) &&
		row.expires_at > (now = GetCurrentTimestamp()))
	{
		if (ttl == FL_LEASE_TTL)
			ttl = row.ttl;
		fl_row_renew(&table, &row, ttl, now);
		fl_durable_write();
		if (now + ttl < row.expires_at)
			fl_wake_at_end(id);
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
	FlOwner		owner;
	FlTable		table;
	FlRow		row;
	FlKeyId		id;
	TimestampTz now;
	bool		live;
	bool		released = false;

	fl_owner_set(&owner, owner_token);
	fl_quiet_write_begin();
	if (!find_owned(key, &owner, &live))
		return false;

	/*
	 * What has expired, be it since that look, is not worth a wait for a
	 * stranger.  Not so if this transaction has the key locked, by a pin, say,
	 * which is to go.  Its way from that lock to the stronger one must be a
	 * blocking request, since one that does not wait is refused if anybody
	 * else waits.
	 */
	id = fl_key_id(key);
	if (fl_key_locked_by_me(id))
		fl_key_lock(id, FL_DECIDE);
	else if (!fl_key_lock_try(id, FL_DECIDE))
	{
		if (!find_owned(key, &owner, &live))
			return false;
		if (live)
			fl_key_lock(id, FL_DECIDE);
		else
		{
			/* Is it being taken over, or has the owner pinned it elsewhere? */
			if (!fl_key_lock_try(id, FL_PIN))
				return false;
			fl_key_unlock(id, FL_PIN);
			return true;
		}
	}

	fl_lock_rows_open(&table, RowExclusiveLock);
	if (find_writable(&table, key, &owner, &row))
	{
		now = GetCurrentTimestamp();
		fl_row_release(&table, &row, now);
		fl_quiet_write_end(row.expires_at - now);
		fl_held_drop(key);
		fl_wake_at_end(id);
		released = true;
	}
	fl_table_close(&table, released ? NoLock : RowExclusiveLock);
	if (!released)
		fl_key_unlock(id, FL_DECIDE);
	return released;
}
