/*-------------------------------------------------------------------------
 *
 * key_lock.c
 *	  The only door to heavyweight locks of ours.
 *
 * Every lock is charged to the resource owner of the current subtransaction,
 * never to CurrentResourceOwner, which inside a query is the portal's.  A
 * cursor opened outside a savepoint that fails inside it takes all locks of
 * its portal with it, although the row written before the savepoint stays:
 * two live leases for one key would be the result.
 *
 * A lock goes with the subtransaction that took it, like the row it stands
 * for, is handed over by PREPARE TRANSACTION, and is never held by a session.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "compat.h"
#include "key_lock.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "utils/resowner.h"

#define KEY_CLASS		17996
#define LINE_CLASS		17997
#define SEQUENCE_CLASS	17998
#define MARK_CLASS		17999

static void
key_tag(LOCKTAG *tag, FlKeyId id)
{
	SET_LOCKTAG_ADVISORY(*tag, MyDatabaseId, (uint32) (id >> 32), (uint32) id,
						 KEY_CLASS);
}

static void
line_tag(LOCKTAG *tag, FlKeyId id)
{
	SET_LOCKTAG_ADVISORY(*tag, MyDatabaseId, (uint32) (id >> 32), (uint32) id,
						 LINE_CLASS);
}

static bool
lock_tag(const LOCKTAG *tag, LOCKMODE mode, bool dont_wait)
{
	const bool	session_lock = false;
	ResourceOwner saved = CurrentResourceOwner;
	LockAcquireResult result;

	/*
	 * No PG_TRY: whoever catches an error aborts a subtransaction or the
	 * transaction first, and that sets the owner anew.
	 */
	CurrentResourceOwner = CurTransactionResourceOwner;
	result = LockAcquire(tag, mode, session_lock, dont_wait);
	CurrentResourceOwner = saved;
	return result != LOCKACQUIRE_NOT_AVAIL;
}

static void
unlock_tag(const LOCKTAG *tag, LOCKMODE mode)
{
	const bool	session_lock = false;
	ResourceOwner saved = CurrentResourceOwner;

	CurrentResourceOwner = CurTransactionResourceOwner;
	LockRelease(tag, mode, session_lock);
	CurrentResourceOwner = saved;
}

/*
 * Lock a tag, waiting for so long at most.
 *
 * The wait is PostgreSQL's own, under a lock_timeout of ours, in a
 * subtransaction that takes its error; the caller's own lock_timeout counts
 * where it is the shorter one, and is an error then.  So are statement
 * timeout and cancel.  The lock passes to the subtransaction's parent.
 *
 * A transaction that was chosen to resolve a deadlock waits no more; unless
 * that is to be reported as an error, it goes on without the lock.
 */
static FlLockResult
lock_tag_within(const LOCKTAG *tag, LOCKMODE mode, int64 microseconds,
				bool report_deadlock)
{
	int64		milliseconds = Max((microseconds + 999) / 1000, 1);
	int			callers_timeout = LockTimeout;
	bool		ours = callers_timeout <= 0 || milliseconds <= callers_timeout;

	/* volatile: they are read after PG_CATCH's longjmp */
	volatile MemoryContext context = CurrentMemoryContext;
	volatile ResourceOwner owner = CurrentResourceOwner;
	volatile FlLockResult result = FL_LOCKED;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	if (ours)
		LockTimeout = (int) Min(milliseconds, PG_INT32_MAX);
	PG_TRY();
	{
		lock_tag(tag, mode, false);

		/* The timer may have gone off just when the lock was granted. */
		CHECK_FOR_INTERRUPTS();
		LockTimeout = callers_timeout;
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		ErrorData  *error;

		LockTimeout = callers_timeout;
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		if (error->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE && ours)
			result = FL_LOCK_TIMED_OUT;
		else if (error->sqlerrcode == ERRCODE_T_R_DEADLOCK_DETECTED &&
				 !report_deadlock)
			result = FL_LOCK_DEADLOCK;
		else
			ReThrowError(error);
		FreeErrorData(error);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	return result;
}

/* Lock a key if nobody is in the way; false if somebody is. */
bool
fl_key_lock_try(FlKeyId id, FlKeyMode mode)
{
	LOCKTAG		tag;

	key_tag(&tag, id);
	return lock_tag(&tag, mode, true);
}

/*
 * Lock a key, waiting for whoever is in the way.  lock_timeout, cancel and
 * the deadlock detector work as for every lock.
 */
void
fl_key_lock(FlKeyId id, FlKeyMode mode)
{
	LOCKTAG		tag;

	key_tag(&tag, id);
	lock_tag(&tag, mode, false);
}

/* Lock a key, waiting for so long at most; see lock_tag_within(). */
FlLockResult
fl_key_lock_within(FlKeyId id, FlKeyMode mode, int64 microseconds,
				   bool report_deadlock)
{
	LOCKTAG		tag;

	key_tag(&tag, id);
	return lock_tag_within(&tag, mode, microseconds, report_deadlock);
}

/*
 * Let go of a key that this very call has locked and found nothing to do
 * for.  Where something was written or pinned the lock stays to the end of
 * the transaction.
 */
void
fl_key_unlock(FlKeyId id, FlKeyMode mode)
{
	LOCKTAG		tag;

	key_tag(&tag, id);
	unlock_tag(&tag, mode);
}

/* Does this transaction have the key locked, in whichever mode? */
bool
fl_key_locked_by_me(FlKeyId id)
{
	LOCKTAG		tag;

	key_tag(&tag, id);
	return fl_lock_held_by_me(&tag, FL_PIN) ||
		fl_lock_held_by_me(&tag, FL_RENEW) ||
		fl_lock_held_by_me(&tag, FL_DECIDE);
}

/*
 * Who keeps a key from being decided about, for a message.  A prepared
 * transaction goes by the virtual id that it had in the session that prepared
 * it, which may be gone, or do something else by now.
 */
char *
fl_key_lock_holders(FlKeyId id)
{
	LOCKTAG		tag;
	VirtualTransactionId *holders;
	StringInfoData shown;

	key_tag(&tag, id);
	initStringInfo(&shown);
	holders = GetLockConflicts(&tag, FL_DECIDE, NULL);
	for (; VirtualTransactionIdIsValid(*holders); holders++)
	{
		PGPROC	   *proc = fl_vxid_proc(*holders);

		if (shown.len > 0)
			appendStringInfoString(&shown, ", ");
		if (proc != NULL && fl_proc_lxid(proc) == holders->localTransactionId)
			appendStringInfo(&shown, "process %d has it pinned or is deciding about it", proc->pid);
		else
			appendStringInfoString(&shown, "a prepared transaction keeps it");
	}
	if (shown.len == 0)
		appendStringInfoString(&shown, "whoever was in the way has just gone");
	return shown.data;
}

/* Become the head of a key's line if there is none. */
bool
fl_line_lock_try(FlKeyId id)
{
	LOCKTAG		tag;

	line_tag(&tag, id);
	return lock_tag(&tag, ExclusiveLock, true);
}

/* Stand in a key's line until we are its head, for so long at most. */
FlLockResult
fl_line_lock_within(FlKeyId id, int64 microseconds, bool report_deadlock)
{
	LOCKTAG		tag;

	line_tag(&tag, id);
	return lock_tag_within(&tag, ExclusiveLock, microseconds, report_deadlock);
}

/* Leave the line, which the next one then is the head of. */
void
fl_line_unlock(FlKeyId id)
{
	LOCKTAG		tag;

	line_tag(&tag, id);
	unlock_tag(&tag, ExclusiveLock);
}

/*
 * Set the latch of the head of a key's line, if there is one.  A head that
 * has just left is woken for nothing, and does not mind.  Allocates in the
 * current context, and does not touch a resource owner.
 */
void
fl_line_wake_head(FlKeyId id)
{
	LOCKTAG		tag;
	VirtualTransactionId *heads;

	line_tag(&tag, id);
	heads = GetLockConflicts(&tag, ExclusiveLock, NULL);
	for (; VirtualTransactionIdIsValid(*heads); heads++)
	{
		PGPROC	   *proc = fl_vxid_proc(*heads);

		if (proc != NULL)
			SetLatch(&proc->procLatch);
	}
}

/*
 * Keep everybody else from admitting a key to the end of the transaction,
 * waiting for whoever does so already.
 */
void
fl_mark_lock(FlKeyId id)
{
	LOCKTAG		tag;

	SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, (uint32) (id >> 32), (uint32) id,
						 MARK_CLASS);
	lock_tag(&tag, ExclusiveLock, false);
}

/* Order the moves of the token sequence (Exclusive) against draws (Share). */
void
fl_sequence_lock(Oid sequence, LOCKMODE mode)
{
	LOCKTAG		tag;

	SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, 0, sequence, SEQUENCE_CLASS);
	lock_tag(&tag, mode, false);
}

void
fl_sequence_unlock(Oid sequence, LOCKMODE mode)
{
	LOCKTAG		tag;

	SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, 0, sequence, SEQUENCE_CLASS);
	unlock_tag(&tag, mode);
}
