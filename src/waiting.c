/*-------------------------------------------------------------------------
 *
 * waiting.c
 *	  Standing in line for a key, sleeping at its head, and being woken.
 *
 * Those who wait for a key stand in a line: a heavyweight lock of class 17997
 * in Exclusive, whose queue is the order, whose holder is the head.  Only the
 * head watches the key.  The lock manager wakes the next one when the head
 * leaves, whatever ends it, shows the line in pg_locks, and looks for
 * deadlocks.  Nothing of this needs shared memory of our own.
 *
 * What the head waits for is of two kinds.  An open transaction that is
 * deciding about the key, or has it pinned after the lease's end, holds the
 * key's lock: then the head waits on that lock, so that deadlocks are found
 * and the end of that transaction, from whichever backend it is committed,
 * wakes it.  A lease that lives is nobody's lock: then the head sleeps on its
 * latch until the lease's end, and whoever ends the lease before that sets
 * the latch.
 *
 * No wake-up is lost (test/model checks this).  Each time around, the head
 *	 1. resets its latch (fl_head_arm),
 *	 2. asks whether the key's lock is free of deciders, and looks at the row
 *		(acquire.c, take_turn),
 *	 3. sleeps if the row shows a living lease (fl_head_sleep).
 * Nothing after the look can block, as waits for buffers and locks reset the
 * latch too; what the waits of 2 have made of the latch is of no consequence,
 * since what it was set for before the look is seen by the look.  A
 * transaction that ends the lease early, by a release or by a renewal to a
 * shorter life,
 *	 a. writes the row, holding the key's lock,
 *	 b. commits, so that the row shows it to every look,
 *	 c. gives up the key's lock,
 *	 d. sets the latch of whoever is the head then (wake_all).
 * If b comes before the look in 2, the head sees it.  If b comes after, so
 * does d, and the latch it sets was reset before, so that 3 returns at once;
 * of a release, whose lock the question in 2 meets, the head need not even be
 * told, if it asks after a.  If d meets nobody, the next head is still to
 * look.  Rolling back restores the lease that the head sleeps behind, so
 * there is nothing to tell.  PREPARE TRANSACTION comes to d with neither b
 * nor c: it wakes the head, which finds the lock taken and waits on that, so
 * that COMMIT PREPARED from wherever it comes gives it the key.
 *
 * The head also looks once a second.  Two things need that: a release that is
 * written when the head is asleep already, in a transaction that then waits
 * for the head's own, is found to be a deadlock by the next question in 2;
 * and the end of a prepared transaction that has renewed to a shorter life
 * wakes nobody.  For all else it is a net.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "compat.h"
#include "datatype/timestamp.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "waiting.h"

/* Of libpq/libpq.h, which wants headers of GSSAPI that may not be there. */
extern bool pq_check_connection(void);

/* The head's look that needs no wake-up. */
#define LOOK_AT_LEAST_EVERY		USECS_PER_SEC

/* Keys whose heads are to be woken at the end of the transaction. */
typedef struct Wakings
{
	int			count;
	int			size;
	FlKeyId		ids[FLEXIBLE_ARRAY_MEMBER];
} Wakings;

/* Lives in TopTransactionContext; NULL while there is nobody to wake. */
static Wakings *wakings = NULL;

/* What waking allocates: a commit in a procedure would otherwise leak it. */
static MemoryContext waking_context = NULL;

static uint32 sleep_wait_event = 0;

/*
 * Begin to wait: the time runs from here, on a monotonic clock.  The caller's
 * own lock_timeout counts where it is shorter, for the whole of the wait; it
 * ends in an error (fl_wait_over).
 */
void
fl_wait_begin(FlWait *wait, FlKeyId id, int64 length, bool report_deadlock)
{
	int64		lock_timeout = LockTimeout * INT64CONST(1000);

	wait->id = id;
	wait->is_lock_timeout = (lock_timeout > 0 && lock_timeout < length);
	wait->length = wait->is_lock_timeout ? lock_timeout : length;
	wait->report_deadlock = report_deadlock;
	INSTR_TIME_SET_CURRENT(wait->since);
}

int64
fl_wait_elapsed(const FlWait *wait)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	INSTR_TIME_SUBTRACT(now, wait->since);
	return (int64) INSTR_TIME_GET_MICROSEC(now);
}

int64
fl_wait_left(const FlWait *wait)
{
	return wait->length - fl_wait_elapsed(wait);
}

/*
 * A client that has gone is not to be granted the key after its wait, to keep
 * it for a whole ttl.  PostgreSQL asks for it only every
 * client_connection_check_interval, which is off by default.  A connection
 * that has broken without a word is not noticed here either.
 */
static void
client_must_be_there(void)
{
	if (MyProcPort == NULL || !WaitEventSetCanReportClosed() ||
		pq_check_connection())
		return;
	ClientConnectionLost = true;
	InterruptPending = true;
	CHECK_FOR_INTERRUPTS();
}

/*
 * Wait for the key's lock, for what is left of the wait: by PostgreSQL's lock
 * timer, see fl_line_join().
 */
FlLockResult
fl_wait_for_key(const FlWait *wait, FlKeyMode mode)
{
	FlLockResult result = fl_key_lock_within(wait->id, mode, fl_wait_left(wait),
											 wait->report_deadlock);

	if (result == FL_LOCKED)
		client_must_be_there();
	return result;
}

/* The wait has ended without a grant: an error if lock_timeout has ended it. */
void
fl_wait_over(const FlWait *wait)
{
	if (wait->is_lock_timeout)
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("canceling statement due to lock timeout")));
}

/*
 * Line up, and be the head of the line when this returns FL_LOCKED.  Always
 * before the first look at the key, or a client that acquires and releases
 * in a loop would overtake the head again and again.
 *
 * A follower's wait is timed by PostgreSQL's lock timer, which goes by the
 * wall clock: a clock that is set back while it stands in line lengthens its
 * wait by as much, one that is set forward shortens it.  So it is for a head
 * that waits for an open transaction; one that sleeps is not affected.
 */
FlLockResult
fl_line_join(const FlWait *wait)
{
	if (fl_line_lock_try(wait->id))
		return FL_LOCKED;
	return fl_line_lock_within(wait->id, fl_wait_left(wait),
							   wait->report_deadlock);
}

void
fl_line_leave(const FlWait *wait)
{
	fl_line_unlock(wait->id);
}

/* Before each of the head's looks: what happens from here on wakes it. */
void
fl_head_arm(void)
{
	client_must_be_there();		/* this resets the latch, too */
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
}

/*
 * Sleep until woken, for so long at most, for no longer than the wait lasts,
 * and until it is time for the next look anyway.  What has woken us may be an
 * interrupt: fl_head_arm() comes next, and looks.
 */
void
fl_head_sleep(const FlWait *wait, int64 at_most)
{
	int64		microseconds = Min(at_most, LOOK_AT_LEAST_EVERY);

	if (sleep_wait_event == 0)
		sleep_wait_event = WaitEventExtensionNew("FencedLockWait");

	microseconds = Min(microseconds, fl_wait_left(wait));
	if (microseconds <= 0)
		return;
	(void) WaitLatch(MyLatch,
					 WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 (long) ((microseconds + 999) / 1000), sleep_wait_event);
}

/* This transaction ends a key's lease: its end will wake the line's head. */
void
fl_wake_at_end(FlKeyId id)
{
	const int	first_size = 8;

	if (wakings == NULL)
	{
		wakings = MemoryContextAlloc(TopTransactionContext,
									 offsetof(Wakings, ids) +
									 first_size * sizeof(FlKeyId));
		wakings->count = 0;
		wakings->size = first_size;
	}
	else if (wakings->count == wakings->size)
	{
		int			size = wakings->size * 2;

		wakings = repalloc(wakings,
						   offsetof(Wakings, ids) + size * sizeof(FlKeyId));
		wakings->size = size;
	}
	wakings->ids[wakings->count++] = id;
}

static int
compare_ids(const void *a, const void *b)
{
	FlKeyId		x = *(const FlKeyId *) a;
	FlKeyId		y = *(const FlKeyId *) b;

	return (x > y) - (x < y);
}

/*
 * At the top-level transaction's end, once its locks are gone.
 *
 * An error in here, at a commit, would be a PANIC.  So none gets out: a
 * wake-up that fails is dropped, and the head's next look makes up for it.
 */
static void
wake_all(void)
{
	Wakings    *all = wakings;
	MemoryContext saved = CurrentMemoryContext;
	uint32		interrupt_holdoff = InterruptHoldoffCount;
	uint32		cancel_holdoff = QueryCancelHoldoffCount;

	wakings = NULL;
	qsort(all->ids, all->count, sizeof(FlKeyId), compare_ids);
	PG_TRY();
	{
		MemoryContextSwitchTo(waking_context);
		for (int i = 0; i < all->count; i++)
		{
			if (i > 0 && all->ids[i] == all->ids[i - 1])
				continue;
			fl_line_wake_head(all->ids[i]);
			MemoryContextReset(waking_context);
		}
	}
	PG_CATCH();
	{
		FlushErrorState();

		/* An error zeroes these, and the end of the transaction counts down. */
		InterruptHoldoffCount = interrupt_holdoff;
		QueryCancelHoldoffCount = cancel_holdoff;
	}
	PG_END_TRY();
	MemoryContextSwitchTo(saved);
	MemoryContextReset(waking_context);
}

/*
 * PostgreSQL calls this for every resource owner that is released: also, with
 * isTopLevel false and isCommit true, at the end of every portal, when nothing
 * has been committed yet.
 */
static void
on_release(ResourceReleasePhase phase,
		   bool isCommit pg_attribute_unused(), bool isTopLevel,
		   void *arg pg_attribute_unused())
{
	if (phase == RESOURCE_RELEASE_AFTER_LOCKS && isTopLevel && wakings != NULL)
		wake_all();
}

/* Called once, when the library is loaded. */
void
fl_waiting_init(void)
{
	waking_context = AllocSetContextCreate(TopMemoryContext,
										   "fenced_lock wake-ups",
										   ALLOCSET_SMALL_SIZES);
	RegisterResourceReleaseCallback(on_release, NULL);
}
