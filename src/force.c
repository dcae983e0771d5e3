/*-------------------------------------------------------------------------
 *
 * force.c
 *	  Ending the lease of somebody else, as an operator may.
 *
 * The operator shows the fencing token that he has seen, not an owner token:
 * if the lease has changed hands since, nothing is ended.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "durability.h"
#include "errors.h"
#include "force.h"
#include "held.h"
#include "key_lock.h"
#include "lock_row.h"
#include "miscadmin.h"
#include "utils/timestamp.h"
#include "waiting.h"

static bool
is_current(bool found, const FlRow *row, int64 token)
{
	return found && row->owned && row->fencing_token == token;
}

static bool
seems_current(const text *key, int64 token, FlLook look)
{
	FlRow		row;
	bool		found = fl_row_find_once(key, look, &row);

	return is_current(found, &row, token);
}

static void
warn_in_the_way(const text *key, const char *who)
{
	ereport(WARNING,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("could not force the release of the lock on key \"%s\": %s",
					fl_text_key_in_message(key), who),
			 errhint("Call it with a wait, or end what is in the way with pg_terminate_backend().")));
}

/*
 * Lock the key, waiting for so long at most.  Whoever has it pinned in this
 * very transaction gets there by a request that would wait, for as short as
 * that is: one that does not wait is refused if anybody else waits.
 */
static bool
lock_within(FlKeyId id, int64 wait)
{
	const bool	report_deadlock = false;

	if (wait == 0 && !fl_key_locked_by_me(id))
		return fl_key_lock_try(id, FL_DECIDE);
	return fl_key_lock_within(id, FL_DECIDE, Max(wait, 1000),
							  report_deadlock) == FL_LOCKED;
}

/*
 * End the lease that has the token, whoever owns it.  False if the token is
 * not current; also, with a warning, if the key could not be had in time.
 */
bool
fl_force_release(const text *key, int64 token, int64 wait)
{
	FlTable		table;
	FlRow		row;
	FlKeyId		id;
	bool		released = false;

	if (!seems_current(key, token, FL_LOOK_SELF) &&
		!seems_current(key, token, FL_LOOK_LATEST))
		return false;

	id = fl_key_id(key);
	if (!lock_within(id, wait))
	{
		warn_in_the_way(key, fl_key_lock_holders(id));
		return false;
	}

	fl_lock_rows_open(&table, RowExclusiveLock);
	if (is_current(fl_row_find(&table, key, FL_LOOK_SELF, &row), &row, token))
	{
		if (fl_row_is_free(&table, &row))
		{
			fl_row_release(&table, &row, GetCurrentTimestamp());
			fl_durable_write();
			fl_held_drop(key);
			fl_wake_at_end(id);
			released = true;
			ereport(LOG,
					(errmsg("role \"%s\" forced the release of the lock on key \"%s\", fencing token %lld",
							GetUserNameFromId(GetUserId(), false),
							fl_text_key_in_message(key), (long long) token)));
		}
		else
			warn_in_the_way(key, "somebody has locked or changed its row by hand");
	}
	fl_table_close(&table, released ? NoLock : RowExclusiveLock);
	if (!released)
		fl_key_unlock(id, FL_DECIDE);
	return released;
}
