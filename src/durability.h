/*-------------------------------------------------------------------------
 *
 * durability.h
 *	  When a transaction of ours waits for the disk.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FENCED_LOCK_DURABILITY_H
#define FENCED_LOCK_DURABILITY_H

extern bool fl_durable_grants;

extern void fl_durable_write(void);
extern void fl_quiet_write_begin(void);
extern void fl_quiet_write_end(int64 life_left);

extern void fl_durability_init(void);

#endif							/* FENCED_LOCK_DURABILITY_H */
