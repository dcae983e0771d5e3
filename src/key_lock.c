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

#include "key_lock.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/resowner.h"

#define KEY_CLASS		17996
#define SEQUENCE_CLASS	17998

static void
key_tag(LOCKTAG *tag, FlKeyId id)
{
	SET_LOCKTAG_ADVISORY(*tag, MyDatabaseId, (uint32) (id >> 32), (uint32) id,
						 KEY_CLASS);
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
