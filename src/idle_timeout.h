/*-------------------------------------------------------------------------
 *
 * idle_timeout.h
 *	  How long a transaction that has pinned a key may sit idle.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FENCED_LOCK_IDLE_TIMEOUT_H
#define FENCED_LOCK_IDLE_TIMEOUT_H

extern bool fl_pin_idle_timeout;

extern void fl_idle_timeout_lower(int64 ttl);

#endif							/* FENCED_LOCK_IDLE_TIMEOUT_H */
