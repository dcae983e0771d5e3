/*-------------------------------------------------------------------------
 *
 * purge.h
 *	  Removing the rows of keys that are not used any more.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FENCED_LOCK_PURGE_H
#define FENCED_LOCK_PURGE_H

/* Each row takes a lock to the end of the transaction. */
#define FL_MAX_PURGED_ROWS	1000

extern int64 fl_purge(int64 idle, int max_rows);

#endif							/* FENCED_LOCK_PURGE_H */
