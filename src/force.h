/*-------------------------------------------------------------------------
 *
 * force.h
 *	  Ending the lease of somebody else.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FENCED_LOCK_FORCE_H
#define FENCED_LOCK_FORCE_H

extern bool fl_force_release(const text *key, int64 token, int64 wait);

#endif							/* FENCED_LOCK_FORCE_H */
