/*-------------------------------------------------------------------------
 *
 * held.h
 *	  What this transaction holds: the keys that it has pinned.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FENCED_LOCK_HELD_H
#define FENCED_LOCK_HELD_H

#include "datatype/timestamp.h"
#include "freshness.h"
#include "lib/stringinfo.h"
#include "utils/uuid.h"

/* What a call to acquire answers, and what a repeated one answers again. */
typedef struct FlLease
{
	bool		acquired;
	bool		already_held;	/* the same owner asked again */
	int64		ttl;			/* microseconds */
	int64		fencing_token;
	pg_uuid_t	owner_token;
	TimestampTz expires_at;
	int32		retry_after_ms; /* of a refusal */
} FlLease;

/* What a pin stands for. */
typedef enum FlPinKind
{
	FL_LEASE,					/* pin(), or a grant */
	FL_MARK						/* admit() */
} FlPinKind;

typedef struct FlPin FlPin;

extern FlPin *fl_held_find(FlPinKind kind, const char *key, Size length);
extern FlPin *fl_held_find_text(FlPinKind kind, const text *key);
extern uint64 fl_held_version(void);
extern int64 fl_pin_token(const FlPin *pin);
extern FlFreshness fl_pin_freshness(const FlPin *pin, Snapshot snapshot);
extern const FlLease *fl_held_same_statement(const text *key, int64 ttl);

extern void fl_held_pin(FlPinKind kind, const text *key, int64 token,
						FullTransactionId granted_xid);
extern void fl_held_grant(const text *key, const FlLease *lease);
extern void fl_held_raise(const text *key, int64 token);
extern void fl_held_drop(const text *key);
extern void fl_held_describe(FlPinKind kind, StringInfo into);

extern void fl_held_init(void);

#endif							/* FENCED_LOCK_HELD_H */
