/*-------------------------------------------------------------------------
 *
 * admit.c
 *	  Which tokens from elsewhere are admitted: all that are not below the
 *	  highest one that was admitted for the key before, its mark.
 *
 * Whoever issues these tokens can't tell us of a new one, so a token is stale
 * once a higher one has come by.  From then on, and until the transaction
 * ends, the mark lock makes everybody else who admits the key wait: so a
 * transaction that has admitted a token has it as the highest to its end.
 *
 * What an admit has read must be no older than the rise of the mark to its
 * token.  When that has committed, every transaction with a lower token had
 * ended before, and none can follow; so a snapshot that sees the rise as
 * committed sees all that former holders have written.  It is what a grant is
 * for leases, and the rules are those of pin.c and guard.c:
 *
 * - raised by another transaction that the snapshot does not see: 40001, for
 *	 a retry sees it;
 * - raised by this transaction: good in READ COMMITTED for the statements that
 *	 begin after it.  From REPEATABLE READ on never, since the snapshot is
 *	 older than the lock: 25001, for a retry would raise it again.
 *
 * It would not do to ask whether the snapshot sees the mark's last change
 * *before* this transaction's: that is the former holder's first admit, and it
 * may have written at any time after, since an admit of an equal token leaves
 * no trace in the mark.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "admit.h"
#include "compat.h"
#include "durability.h"
#include "errors.h"
#include "held.h"
#include "key_lock.h"
#include "miscadmin.h"
#include "utils/snapmgr.h"
#include "watermark.h"

static void
refuse_stale(const text *key, int64 token, int64 mark)
{
	if (token < mark)
		ereport(ERROR,
				(errcode(ERRCODE_STALE_FENCING_TOKEN),
				 errmsg("stale fencing token %lld for key \"%s\": token %lld was admitted before",
						(long long) token, fl_text_key_in_message(key),
						(long long) mark)));
}

/* From REPEATABLE READ on; in READ COMMITTED the guard asks the same. */
static void
refuse_old_snapshot(const text *key, int64 token, const FlMark *mark)
{
	if (IsolationUsesXactSnapshot() &&
		fl_grant_freshness(mark->raised_xid, GetActiveSnapshot()) == FL_OLDER_THAN_GRANT)
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("could not admit fencing token %lld for key \"%s\": it was first admitted after this transaction's snapshot was taken",
						(long long) token, fl_text_key_in_message(key)),
				 errhint("Retry the transaction.")));
}

static void
refuse_raise_in_block(const text *key, int64 token)
{
	if (IsolationUsesXactSnapshot() && IsTransactionBlock())
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("could not admit fencing token %lld for key \"%s\": it is not admitted yet, and this transaction block is REPEATABLE READ or SERIALIZABLE",
						(long long) token, fl_text_key_in_message(key)),
				 errdetail("What the transaction reads may be older than the admission."),
				 errhint("Admit the token in a transaction of its own first, before the one that reads and writes.")));
}

/*
 * Admit a token for a key to the end of the transaction, or fail.  Waits for
 * other transactions that have admitted the key, but not on behalf of a token
 * that is stale already.
 */
void
fl_admit(const text *key, int64 token)
{
	FlPin	   *pin = fl_held_find_text(FL_MARK, key);
	FlTable		table;
	FlMark		mark;
	bool		found;

	if (pin != NULL && fl_pin_token(pin) == token)
		return;

	if (fl_mark_find_once(key, &mark))
		refuse_stale(key, token, mark.fencing_token);

	/* An error lets go of the lock, with the subtransaction that it ends. */
	fl_mark_lock(fl_key_id(key));
	fl_marks_open(&table, RowExclusiveLock);
	while ((found = fl_mark_find(&table, key, &mark)))
	{
		refuse_stale(key, token, mark.fencing_token);
		if (mark.fencing_token == token)
		{
			fl_table_close(&table, RowExclusiveLock);
			refuse_old_snapshot(key, token, &mark);
			fl_held_pin(FL_MARK, key, token, mark.raised_xid);
			return;
		}
		if (fl_mark_is_writable(&table, &mark))
			break;
		CHECK_FOR_INTERRUPTS();
	}
	refuse_raise_in_block(key, token);
	fl_mark_raise(&table, found ? &mark : NULL, key, token);
	fl_table_close(&table, NoLock);
	fl_durable_write();
	fl_held_raise(key, token);
}
