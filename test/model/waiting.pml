/*
 * The line and the wake-up, as in src/waiting.c, src/acquire.c (take_turn,
 * wait_in_line), src/lease.c and src/key_lock.c. test/model/run checks it.
 *
 * One key. A holder with a lease that lives ends it in one of many ways, or
 * does not; waiters stand in line, and each may be ended at each of its waits;
 * one try barges. What a C function does in one step towards the others is one
 * statement or one atomic block here, and its comment names the function.
 *
 * What must hold:
 *  - Nobody is stuck: in no end state does anybody wait. Each lease ends at
 *    last, so a head that is asleep in an end state has lost its wake-up, or
 *    stands in a deadlock that the lock manager can't see. The look once a
 *    second is there only with LOOK_EVERY_SECOND.
 *  - No two hold the key (holders).
 *  - Whoever has ended is not in the line (left_the_line).
 *
 * A wait may be ended by a cancel or by its own time only where may_end was
 * chosen for that waiter, or nobody would ever be stuck.
 *
 * The look once a second comes only when nothing else can happen (timeout) and
 * only if something has happened since the last one: a head that looks and
 * finds nothing new would do so for ever, which is to be an error. A latch
 * that is set for nothing at any time is the stranger.
 *
 * Where several requests wait for the key's lock, any may be granted first;
 * PostgreSQL's order is one of these. A lock held for a moment, with nothing
 * in between that blocks (the probe), is not held at all here.
 *
 * The right model is chosen by
 *  WAITERS=n          2 unless told
 *  BARGE              somebody tries without waiting
 *  STRANGER           a latch is set for nothing
 *  LOOK_EVERY_SECOND  fl_head_sleep's LOOK_AT_LEAST_EVERY
 *  WAKE_MAY_FAIL      wake_all's PG_CATCH drops a wake-up
 *  HOLDER_NEEDS_WAITER  an open release waits for a waiter's transaction
 *  PREPARED_RENEWAL   a renewal to a shorter life may be a prepared transaction
 *  PLAIN              everybody only commits and releases
 * and the broken ones by one of these in addition
 *  WAKE_BEFORE_COMMIT    wake in the pre-commit callback
 *  WAKE_IN_CALLBACK      wake in the commit callback; see test/model/run
 *  NO_WAKE_AT_PREPARE    wake in no callback of PREPARE TRANSACTION
 *  RESET_AFTER_LOOK      the latch is reset between the look and the sleep
 *  NO_PROBE              the head does not ask for the key's lock in RowShare
 *  SLEEP_WHEN_BUSY       the head sleeps where it would wait for the key's lock
 *  NO_LOOK_UNDER_LOCK    decide() trusts the look before the lock
 *  STAY_IN_LINE          an error does not give up the line's lock
 */

#ifndef WAITERS
#define WAITERS 2
#endif

#define HOLDER	0				/* 1 .. WAITERS are the waiters */
#define BARGER	(WAITERS + 1)
#define NOBODY	255

#define FREE	0				/* View of acquire.c */
#define HELD	1

/* The lock of class 17997: its queue, the first of which has the lock. */
chan line = [WAITERS] of { byte };

/* Each waiter's MyLatch. */
bool latch[WAITERS + 1];

/* The lock of class 17996. */
byte decider = NOBODY;			/* has it in Exclusive (FL_DECIDE) */
bool renewing;					/* the holder, in ShareUpdateExclusive */
bool pinned;					/* the holder, in RowShare */
bool holder_queued;				/* its request for Exclusive waits */
bool head_queued;				/* the head's request for Exclusive waits */
byte key_waiter;				/* the head that waits, in whichever mode */

/* The row that a look sees: what is committed. */
byte owner = HOLDER;
bool expired;
bool endless;					/* the lease outlasts all else */

/* What the head that sleeps has seen; there is one head at most. */
bool fresh;						/* what it has seen is still the row */
bool its_end;					/* the lease that it has seen is at its end */

bool may_end[WAITERS + 1];		/* the waiter's waits may be ended */

byte holders = 1;				/* of a lease, also of an open grant */
byte needed;					/* the waiter that the holder waits for */
bool ended[WAITERS + 1];		/* the waiter's transaction */
bool looked;					/* once a second, and nothing new since */

#define KEY_IS_FREE		(owner == NOBODY || expired)

/* DeadLockCheck: holder -> needed -> (the line) -> head -> key lock -> holder */
#define DEADLOCK \
	(needed != 0 && key_waiter != 0 && decider == HOLDER && line??[eval(needed)])

/* What has changed is worth a new look. */
#define NEWS	looked = false

/* --- the end of a transaction that releases, or renews to a shorter life --- */

/* wake_all -> fl_line_wake_head */
inline wake()
{
	if
	:: line?<h> ->				/* GetLockConflicts */
		if
		:: atomic { latch[h] = true; h = 0 }	/* SetLatch; h may have left */
#ifdef WAKE_MAY_FAIL
		:: h = 0				/* wake_all: PG_CATCH */
#endif
		fi
	:: empty(line)
	fi
}

#define BEFORE_COMMIT			/* not in our code */
#define IN_CALLBACK				/* not in our code */
#define AFTER_LOCKS				/* on_release, RESOURCE_RELEASE_AFTER_LOCKS */
#if defined(WAKE_BEFORE_COMMIT)
#undef BEFORE_COMMIT
#define BEFORE_COMMIT	wake();
#elif defined(WAKE_IN_CALLBACK)
#undef IN_CALLBACK
#define IN_CALLBACK	wake();
#else
#undef AFTER_LOCKS
#define AFTER_LOCKS	wake();
#endif
#ifdef NO_WAKE_AT_PREPARE
#define AT_PREPARE
#else
#define AT_PREPARE	wake();		/* PrepareTransaction calls on_release, too */
#endif

/* ProcArrayEndTransaction: fl_row_release's row is what everybody sees. */
inline release_visible(who)
{
	atomic {
		assert(owner == who);
		holders = (expired -> holders : holders - 1);
		owner = NOBODY; expired = false; endless = false;
		fresh = false; NEWS
	}
}

inline locks_gone(who)			/* ResourceOwnerRelease, ..._LOCKS */
{
	atomic {
		decider = (decider == who -> NOBODY : decider);
		renewing = (who == HOLDER -> false : renewing);
		pinned = (who == HOLDER -> false : pinned);
		NEWS
	}
}

inline commit_release(who)		/* CommitTransaction */
{
	BEFORE_COMMIT
	release_visible(who);
	IN_CALLBACK
	locks_gone(who);
	AFTER_LOCKS
	skip
}

/* --- the holder --- */

/*
 * fl_lease_release up to the row that is written: find_owned, then
 * fl_key_lock(FL_DECIDE), then find_writable. "mine" tells whether the row was
 * still the holder's. An expired one is tried for without waiting, unless this
 * transaction has pinned the key; that upgrade passes the queue.
 */
inline write_release()
{
	mine = false;
	if
	:: atomic { owner != HOLDER -> skip }
	:: atomic { owner == HOLDER && (!expired || pinned) -> holder_queued = true };
		atomic { decider == NOBODY && (pinned || !head_queued) ->
			decider = HOLDER; holder_queued = false; mine = (owner == HOLDER) }
	:: atomic { owner == HOLDER && expired && !pinned ->
		if
		:: decider == NOBODY && !head_queued -> decider = HOLDER; mine = true
		:: else
		fi }
	fi;
	if
	:: mine
	:: !mine -> locks_gone(HOLDER)	/* fl_key_unlock, or nothing to undo */
	fi
}

proctype holder()
{
	byte h;
	bool mine;
	bool last;

	do
	:: write_release();			/* release(); COMMIT */
		if
		:: mine -> commit_release(HOLDER)
		:: else
		fi;
		break

#ifndef PLAIN
	:: !endless -> break		/* lets it expire; or disconnects */

	:: !last -> last = true;	/* release(); ROLLBACK, or a terminate */
		write_release();
		if
		:: mine -> locks_gone(HOLDER);	/* AbortTransaction */
			AFTER_LOCKS	/* on_release, isCommit or not */
		:: else
		fi

	:: !last -> last = true;	/* SAVEPOINT; release(); ROLLBACK TO; COMMIT */
		write_release();
		if
		:: mine -> locks_gone(HOLDER);	/* AbortSubTransaction; not top level */
			AFTER_LOCKS	/* wakings was kept: for nothing */
		:: else
		fi

	:: write_release();			/* release(); PREPARE; COMMIT PREPARED elsewhere */
		if
		:: mine -> AT_PREPARE
			release_visible(HOLDER);	/* FinishPreparedTransaction */
			locks_gone(HOLDER)	/* lock_twophase_postcommit; wakes nobody of ours */
		:: else
		fi;
		break

	:: !last -> last = true;	/* the same and ROLLBACK PREPARED */
		write_release();
		if
		:: mine -> AT_PREPARE
			locks_gone(HOLDER)
		:: else
		fi

	:: atomic { owner == HOLDER && !expired -> skip };	/* renew, to a shorter life */
		atomic { decider == NOBODY && !head_queued ->	/* fl_key_lock(FL_RENEW) */
			renewing = true; mine = (owner == HOLDER && !expired) };
		if
		:: mine ->				/* fl_row_renew, fl_wake_at_end */
			if
			:: BEFORE_COMMIT
				atomic { endless = false; fresh = false; NEWS };	/* visible */
				IN_CALLBACK
				locks_gone(HOLDER);
				AFTER_LOCKS
#ifdef PREPARED_RENEWAL
			:: AT_PREPARE
				atomic { endless = false; fresh = false; NEWS };	/* COMMIT PREPARED */
				locks_gone(HOLDER)
#endif
			fi
		:: else -> locks_gone(HOLDER)
		fi;
		break

	:: !last -> last = true;	/* pin(); COMMIT, the lease may have ended before */
		if
		:: atomic { owner != HOLDER || expired -> skip }
		:: atomic { owner == HOLDER && !expired -> skip };
			atomic { decider == NOBODY && !head_queued ->	/* fl_key_lock(FL_PIN) */
				pinned = (owner == HOLDER && !expired) };
			locks_gone(HOLDER)
		fi

	:: atomic { owner == HOLDER && !expired -> skip };	/* pin(); release(); COMMIT */
		atomic { decider == NOBODY && !head_queued ->
			pinned = (owner == HOLDER && !expired) };
		write_release();
		if
		:: mine -> commit_release(HOLDER)
		:: else
		fi;
		break
#endif

#ifdef HOLDER_NEEDS_WAITER
	:: !last -> last = true;	/* release(); UPDATE of a row that a waiter has */
		write_release();
		if
		:: mine ->
			if				/* XactLockTableWait */
			:: needed = 1
			:: needed = WAITERS
			fi;
			if
			:: atomic { ended[needed] -> needed = 0 };
				commit_release(HOLDER);
				break
			:: atomic { DEADLOCK -> needed = 0 };	/* 40P01: rolled back */
				locks_gone(HOLDER);
				AFTER_LOCKS
			fi
		:: else
		fi
#endif
	od
}

/* Leases end; endless ones when their holder has made something else of them. */
proctype clock()
{
end:
	do
	:: atomic { owner != NOBODY && !expired && !endless ->
		expired = true; holders--; its_end = (its_end || fresh); NEWS }
	od
}

/* A latch is set for many a reason. */
#ifdef STRANGER
proctype stranger()
{
	byte h;

	if
	:: line?<h> -> latch[h] = true
	:: skip
	fi
}
#endif

/* --- whoever is granted the key --- */

/* grant(), under the lock in Exclusive */
#define GRANT	holders++; assert(holders == 1)

/* The end of a transaction with a grant, and of the lease. */
inline after_grant(who)
{
	if
	:: atomic { owner = who; expired = false; endless = false;	/* CommitTransaction */
			fresh = false; NEWS };
		locks_gone(who);
		if
		:: atomic { owner == who -> skip };		/* fl_lease_release, as above */
			if
			:: atomic { decider == NOBODY && !head_queued -> decider = who };
				if
				:: atomic { owner == who -> skip };
					commit_release(who)
				:: atomic { owner != who -> skip };
					locks_gone(who)		/* fl_key_unlock */
				fi
			:: owner != who
			fi
		:: owner != who			/* taken over */
#ifndef PLAIN
		:: true					/* lets it expire */
#endif
		fi
#ifndef PLAIN
	:: atomic { holders--; skip };		/* AbortTransaction: no wake-up is due */
		locks_gone(who)
#endif
	fi
}

/* try_once(): wait => '0' barges */
#ifdef BARGE
proctype barger()
{
	byte h;
	byte view;

	view = (KEY_IS_FREE -> FREE : HELD);		/* look() */
	if
	:: view == HELD -> goto out
	:: else
	fi;
	atomic {					/* fl_key_lock_try(FL_DECIDE) */
		if
		:: decider == NOBODY && !pinned && !renewing &&
			!head_queued && !holder_queued -> decider = BARGER
		:: else -> goto out		/* busy */
		fi
	};
	atomic {					/* decide() */
		if
		:: KEY_IS_FREE -> GRANT
		:: else -> decider = NOBODY; NEWS; goto out
		fi
	};
	after_grant(BARGER);
out:
	skip
}
#endif

/* --- the waiters --- */

/*
 * A wait has ended without a grant: by its own time or as a deadlock's victim
 * that is told so in a row, where wait_in_line and watch return and
 * fl_line_leave gives up the line's lock; or by an error, where AbortTransaction
 * or AbortSubTransaction do, as the lock was charged to that transaction. If
 * it waited for a lock, RemoveFromWaitQueue has taken it out there.
 */
#ifdef STAY_IN_LINE
#define LEAVE	if :: line??eval(me) :: true fi
#else
#define LEAVE	line??eval(me)
#endif
#define GIVE_UP \
	LEAVE; \
	key_waiter = (key_waiter == me -> 0 : key_waiter); \
	head_queued = (queued -> false : head_queued); \
	queued = false; NEWS; goto out

proctype waiter(byte me)
{
	byte h;
	byte view;
	bool queued;

	line!me;					/* fl_line_join: get the lock, or queue for it */
	if
	:: atomic { line?[eval(me)] -> latch[me] = false }	/* ProcSleep resets it */
	:: atomic { may_end[me] -> GIVE_UP }
	:: atomic { DEADLOCK && needed == me -> GIVE_UP }
	fi;

	do							/* take_turn() */
	::
#ifndef RESET_AFTER_LOOK
		latch[me] = false;		/* fl_head_arm */
#endif

#ifndef NO_PROBE
		atomic {				/* fl_key_lock_try(FL_PIN), fl_key_unlock */
			if
			:: decider == NOBODY && !holder_queued -> view = FREE
			:: else -> view = HELD
			fi
		};
		if
		:: view == FREE
		:: else ->
#ifdef SLEEP_WHEN_BUSY
			if
			:: latch[me]
			:: atomic { may_end[me] -> GIVE_UP }
			fi;
			goto again
#else
			atomic { key_waiter = me; NEWS };	/* fl_wait_for_key(FL_PIN) */
			if
			:: atomic { decider == NOBODY ->
				key_waiter = 0; latch[me] = false }	/* fl_key_unlock */
			:: atomic { may_end[me] -> GIVE_UP }
			:: atomic { DEADLOCK -> GIVE_UP }
			fi					/* and looks */
#endif
		fi;
#endif

		atomic {				/* look() */
			view = (KEY_IS_FREE -> FREE : HELD);
			fresh = (view == HELD);
			its_end = false
		};
		if
		:: view == HELD ->
#ifdef RESET_AFTER_LOOK
			latch[me] = false;
#endif
			if					/* fl_head_sleep */
			:: latch[me]
			:: its_end				/* at_most is over */
#ifdef LOOK_EVERY_SECOND
			:: atomic { timeout && !looked -> looked = true }
#endif
			:: atomic { may_end[me] -> GIVE_UP }
			fi;
			goto again
		:: else
		fi;

		atomic {				/* fl_key_lock_try(FL_DECIDE) */
			if
			:: decider == NOBODY && !pinned && !renewing && !holder_queued ->
				decider = me
			:: else
			fi
		};
		if
		:: decider == me
		:: else ->
#ifdef SLEEP_WHEN_BUSY
			if
			:: latch[me]
			:: atomic { may_end[me] -> GIVE_UP }
			fi;
			goto again
#else
			atomic { key_waiter = me; NEWS };	/* wait_to_decide: in FL_RENEW */
			if
			:: atomic { decider == NOBODY && !renewing ->	/* look(), fl_key_unlock */
				key_waiter = 0; latch[me] = false;
				view = (KEY_IS_FREE -> FREE : HELD) }
			:: atomic { may_end[me] -> GIVE_UP }
			:: atomic { DEADLOCK -> GIVE_UP }
			fi;
			if
			:: view == HELD -> goto again
			:: else
			fi;
			atomic { key_waiter = me; queued = true; head_queued = true; NEWS };
			if					/* fl_wait_for_key(FL_DECIDE) */
			:: atomic { decider == NOBODY && !pinned && !renewing ->
				decider = me; key_waiter = 0; queued = false;
				head_queued = false; latch[me] = false }
			:: atomic { may_end[me] -> GIVE_UP }
			:: atomic { DEADLOCK -> GIVE_UP }
			fi
#endif
		fi;

		atomic {				/* decide() */
			if
#ifdef NO_LOOK_UNDER_LOCK
			:: true -> GRANT; view = FREE
#else
			:: KEY_IS_FREE -> GRANT; view = FREE
			:: else -> decider = NOBODY; NEWS; view = HELD	/* fl_key_unlock */
#endif
			fi
		};
		if
		:: view == FREE -> break
		:: else
		fi;
again:
		atomic { view = 0; fresh = false; its_end = false }
	od;

	atomic { line??eval(me); NEWS };	/* fl_line_leave */
	after_grant(me);
out:
	/* left_the_line */
	atomic { ended[me] = true; assert(!(line??[eval(me)])); NEWS }
}

init
{
	atomic {
		/* A lease that ends only by the holder's hand, or by its time. */
		if
		:: endless = true
		:: endless = false
		fi;
		byte i;
		for (i : 1 .. WAITERS) {
			if
			:: may_end[i] = true
			:: may_end[i] = false
			fi
		}
		i = 0;
		run clock();
		run holder();
#ifdef STRANGER
		run stranger();
#endif
#ifdef BARGE
		run barger();
#endif
		run waiter(1);
#if WAITERS >= 2
		run waiter(2);
#endif
#if WAITERS >= 3
		run waiter(3)
#endif
	}
}
