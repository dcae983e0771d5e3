/*-------------------------------------------------------------------------
 *
 * admit.h
 *	  Which tokens from elsewhere are admitted.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FENCED_LOCK_ADMIT_H
#define FENCED_LOCK_ADMIT_H

extern void fl_admit(const text *key, int64 token);

#endif							/* FENCED_LOCK_ADMIT_H */
