/*-------------------------------------------------------------------------
 *
 * waiting.h
 *	  Standing in line for a key, sleeping at its head, and being woken.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FENCED_LOCK_WAITING_H
#define FENCED_LOCK_WAITING_H

#include "key_lock.h"
#include "portability/instr_time.h"

/* A wait for a key, bounded by a monotonic clock. */
typedef struct FlWait
{
	FlKeyId		id;
	instr_time	since;
	int64		length;			/* microseconds */
	bool		is_lock_timeout;	/* the caller's lock_timeout is shorter */
	bool		report_deadlock;	/* as an error */
} FlWait;

extern void fl_wait_begin(FlWait *wait, FlKeyId id, int64 length,
						  bool report_deadlock);
extern int64 fl_wait_elapsed(const FlWait *wait);
extern int64 fl_wait_left(const FlWait *wait);
extern FlLockResult fl_wait_for_key(const FlWait *wait, FlKeyMode mode);
extern void fl_wait_over(const FlWait *wait);

extern FlLockResult fl_line_join(const FlWait *wait);
extern void fl_line_leave(const FlWait *wait);
extern void fl_head_arm(void);
extern void fl_head_sleep(const FlWait *wait, int64 at_most);

extern void fl_wake_at_end(FlKeyId id);

extern void fl_waiting_init(void);

#endif							/* FENCED_LOCK_WAITING_H */
