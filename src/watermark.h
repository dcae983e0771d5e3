/*-------------------------------------------------------------------------
 *
 * watermark.h
 *	  The rows of fenced_lock.watermark: one key's mark each, the highest
 *	  token from elsewhere that was admitted for it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FENCED_LOCK_WATERMARK_H
#define FENCED_LOCK_WATERMARK_H

#include "access/transam.h"
#include "keyed_table.h"

typedef struct FlMark
{
	HeapTuple	tuple;			/* what was read, and its place */
	int64		fencing_token;
	FullTransactionId raised_xid;	/* the (sub)transaction that wrote it */
} FlMark;

extern void fl_marks_open(FlTable *table, LOCKMODE mode);
extern bool fl_mark_find(FlTable *table, const text *key, FlMark *mark);
extern bool fl_mark_find_once(const text *key, FlMark *mark);
extern bool fl_mark_is_writable(FlTable *table, const FlMark *mark);
extern void fl_mark_raise(FlTable *table, const FlMark *old, const text *key,
						  int64 token);

#endif							/* FENCED_LOCK_WATERMARK_H */
