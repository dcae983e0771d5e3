/*-------------------------------------------------------------------------
 *
 * key_lock.h
 *	  The heavyweight locks that serialize all work on one key.
 *
 * They are advisory locks of classes of our own, in field 4 of the tag
 * (pg_locks.objsubid), which no ordinary pg_advisory_lock call can reach:
 * 1 and 2 are PostgreSQL's, 4 to 16 Citus's, 10 and 11 pg_auto_failover's,
 * 20, 21, 101 and 102 pg_lake's, 100 to 102 DocumentDB's.
 *
 *	17996	one key: database OID, 64 bits of a keyed hash of the key
 *	17997	the line of those who wait for the key: the same
 *	17998	the token sequence: database OID, the sequence's OID
 *	17999	the key's mark, of tokens from elsewhere: as 17996.  It has nothing
 *			to do with the key's lock, and has one mode
 *
 * Three modes of the key's lock do the whole protocol:
 *
 *	FL_DECIDE	acquire, take over, release: excludes everybody
 *	FL_RENEW	renew: excludes deciders and other renewals, not pins, so
 *				that a heartbeat is never stalled by the holder's own write
 *	FL_PIN		pin: excludes deciders until the end of the transaction,
 *				which is what keeps a successor out of an open write
 *
 *-------------------------------------------------------------------------
 */
#ifndef FENCED_LOCK_KEY_LOCK_H
#define FENCED_LOCK_KEY_LOCK_H

#include "storage/lockdefs.h"

/* Which of all key locks: its place in the lock manager. */
typedef uint64 FlKeyId;

typedef enum FlKeyMode
{
	FL_PIN = RowShareLock,
	FL_RENEW = ShareUpdateExclusiveLock,
	FL_DECIDE = ExclusiveLock
} FlKeyMode;

/* How a wait that is bounded in time has ended. */
typedef enum FlLockResult
{
	FL_LOCKED,
	FL_LOCK_TIMED_OUT,
	FL_LOCK_DEADLOCK
} FlLockResult;

extern FlKeyId fl_key_id(const text *key);

extern bool fl_key_lock_try(FlKeyId id, FlKeyMode mode);
extern void fl_key_lock(FlKeyId id, FlKeyMode mode);
extern FlLockResult fl_key_lock_within(FlKeyId id, FlKeyMode mode,
									   int64 microseconds,
									   bool report_deadlock);
extern bool fl_key_locked_by_me(FlKeyId id);
extern void fl_key_unlock(FlKeyId id, FlKeyMode mode);
extern char *fl_key_lock_holders(FlKeyId id);

extern bool fl_line_lock_try(FlKeyId id);
extern FlLockResult fl_line_lock_within(FlKeyId id, int64 microseconds,
										bool report_deadlock);
extern void fl_line_unlock(FlKeyId id);
extern void fl_line_wake_head(FlKeyId id);

extern void fl_mark_lock(FlKeyId id);

extern void fl_sequence_lock(Oid sequence, LOCKMODE mode);
extern void fl_sequence_unlock(Oid sequence, LOCKMODE mode);

#endif							/* FENCED_LOCK_KEY_LOCK_H */
