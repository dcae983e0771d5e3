/*-------------------------------------------------------------------------
 *
 * pin.c
 *	  Who may pin a key: whoever has its current fencing token, while the
 *	  lease is neither expired nor released.
 *
 * The pin is the key lock in FL_PIN, kept to the end of the transaction.
 * While it lasts nobody else can be granted the key, whether the lease ends
 * or not, so that a write needs no further check.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "compat.h"
#include "errors.h"
#include "held.h"
#include "idle_timeout.h"
#include "key_lock.h"
#include "lock_row.h"
#include "pin.h"
#include "token.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

typedef enum Verdict
{
	CURRENT,
	NO_ROW,
	SUPERSEDED,
	NEVER_ISSUED,
	RELEASED,
	EXPIRED
} Verdict;

static Verdict
judge_look(const text *key, int64 token, FlLook look, FlRow *row)
{
	/* Before the look: a version seen to have ended then was not renewed. */
	TimestampTz now = GetCurrentTimestamp();

	if (!fl_row_find_once(key, look, row))
		return NO_ROW;
	if (row->fencing_token > token)
		return SUPERSEDED;
	if (row->fencing_token < token)
		return NEVER_ISSUED;
	if (!row->owned)
		return RELEASED;
	if (row->expires_at <= now)
		return EXPIRED;
	return CURRENT;
}

/* What is true of a token; a refusal rests on a look at one moment. */
static Verdict
judge(const text *key, int64 token, FlRow *row)
{
	Verdict		verdict = judge_look(key, token, FL_LOOK_SELF, row);

	if (verdict != CURRENT)
		verdict = judge_look(key, token, FL_LOOK_LATEST, row);
	return verdict;
}

static void
refuse(Verdict verdict, const text *key, int64 token, const FlRow *row)
{
	const char *name = fl_text_key_in_message(key);

	switch (verdict)
	{
		case CURRENT:
			break;
		case SUPERSEDED:
			ereport(ERROR,
					(errcode(ERRCODE_STALE_FENCING_TOKEN),
					 errmsg("stale fencing token %lld for key \"%s\": the current token is %lld",
							(long long) token, name,
							(long long) row->fencing_token)));
			break;
		case NEVER_ISSUED:
			ereport(ERROR,
					(errcode(ERRCODE_UNKNOWN_FENCING_TOKEN),
					 errmsg("fencing token %lld was never issued for key \"%s\": the current token is %lld",
							(long long) token, name,
							(long long) row->fencing_token)));
			break;
		case NO_ROW:
			if (token > fl_token_last())
				ereport(ERROR,
						(errcode(ERRCODE_UNKNOWN_FENCING_TOKEN),
						 errmsg("fencing token %lld was never issued for key \"%s\": it is above every token of this database",
								(long long) token, name)));
			ereport(ERROR,
					(errcode(ERRCODE_LOCK_NOT_HELD),
					 errmsg("lock on key \"%s\" with fencing token %lld is not held: there is no trace of the key",
							name, (long long) token)));
			break;
		case RELEASED:
			ereport(ERROR,
					(errcode(ERRCODE_LOCK_NOT_HELD),
					 errmsg("lock on key \"%s\" with fencing token %lld is not held: it was released",
							name, (long long) token)));
			break;
		case EXPIRED:
			ereport(ERROR,
					(errcode(ERRCODE_LOCK_NOT_HELD),
					 errmsg("lock on key \"%s\" with fencing token %lld is not held: it expired at %s",
							name, (long long) token,
							timestamptz_to_str(row->expires_at))));
			break;
	}
}

/*
 * From REPEATABLE READ on, what the transaction reads must not be older than
 * the lease.  In READ COMMITTED each statement has reads of its own, and the
 * guard asks the same question there.
 */
static void
refuse_old_snapshot(const text *key, int64 token, const FlRow *row)
{
	if (!IsolationUsesXactSnapshot())
		return;

	switch (fl_grant_freshness(row->granted_xid, GetActiveSnapshot()))
	{
		case FL_FRESH:
			break;
		case FL_OLDER_THAN_GRANT:
			ereport(ERROR,
					(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
					 errmsg("could not pin key \"%s\" with fencing token %lld: this transaction's snapshot is older than the lease",
							fl_text_key_in_message(key), (long long) token),
					 errhint("Retry the transaction.")));
			break;
		case FL_GRANTED_HERE:
			/* the guard tells, should it come to a write */
			break;
	}
}

/*
 * Pin a key to the end of the transaction, or fail with an error of class LF.
 * Waits for whoever is deciding about the key, but not on behalf of a token
 * that is dead already.
 */
void
fl_pin(const text *key, int64 token)
{
	FlPin	   *pin = fl_held_find_text(FL_LEASE, key);
	FlKeyId		id;
	FlRow		row;

	if (pin != NULL && fl_pin_token(pin) == token)
		return;

	refuse(judge(key, token, &row), key, token, &row);

	/*
	 * If somebody is in the way, the lease may have ended since that look, and
	 * it may be a successor: who might in turn wait for a row of ours.
	 *
	 * An error lets go of the lock, with the subtransaction that it ends.
	 */
	id = fl_key_id(key);
	if (!fl_key_lock_try(id, FL_PIN))
	{
		refuse(judge(key, token, &row), key, token, &row);
		fl_key_lock(id, FL_PIN);
	}
	refuse(judge(key, token, &row), key, token, &row);
	refuse_old_snapshot(key, token, &row);

	fl_held_pin(FL_LEASE, key, token, row.granted_xid);
	fl_idle_timeout_lower(row.ttl);
}
