/*-------------------------------------------------------------------------
 *
 * token.c
 *	  Drawing fencing tokens, and moving their sequence past every relative.
 *
 * A token that a client has seen is never issued again.  Two things could
 * break that:
 *
 * A crash.  A sequence logs 32 values ahead, and that record may not be on
 * disk when the number is in the client's hands already; the grant's commit
 * would see to it, but a number can be used before COMMIT.  So every draw
 * flushes WAL up to the sequence page's LSN: one flush for 32 draws.  (After a
 * start of the server the move described below hides that; not so after the
 * crash of a single backend, which the server survives, nor where the sequence
 * is ahead of the clock.)
 *
 * A server that lost the tail of its WAL: promoted, restored from a backup or
 * a dump, cloned.  Neither the system identifier nor the timeline tells all
 * these apart, so the first draw after every start of the server, in each
 * database, moves the sequence to the clock, in microseconds since 2000.
 * Nobody draws a token per microsecond, hence that is above whatever any
 * relative of this server has issued before now.  A relative that was
 * promoted within the difference of their clocks, and a machine resumed from
 * a memory snapshot, are the limits.  Only where the clock is not above the
 * last value does it become last + 2^32; it is never added to the clock's
 * value, or two siblings that are ahead of the clock would meet.  (Two that
 * were both copied from a server whose clock had been ahead still do.)
 *
 * Which start was the last to move the sequence is kept in a second sequence,
 * because like the first it is immediate and not rolled back: a row would
 * make a draw wait for a stranger's transaction.
 *
 * A setval() to a lower value.  A dump carries one, and may be loaded where
 * tokens have been issued since.  So a third sequence, which no dump carries,
 * keeps the highest value that the first has logged; it changes with each
 * 33rd draw.  A sequence that comes to the end of what it has logged is there;
 * one that was set, which leaves nothing logged ahead, is below it, and is
 * moved forward again.
 *
 * Draws and moves are ordered by a lock of their own, held for microseconds.
 * The sequence's relation lock would not do: nextval() keeps it to the end of
 * its transaction.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/xlog.h"
#include "catalog/pg_sequence.h"
#include "commands/sequence.h"
#include "common/hashfn.h"
#include "key_lock.h"
#include "miscadmin.h"
#include "schema.h"
#include "storage/bufmgr.h"
#include "token.h"
#include "utils/fmgrprotos.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#define STEP_ABOVE_LAST		(INT64CONST(1) << 32)

/* What a sequence's page tells. */
typedef struct Sequence
{
	int64		last;
	int64		logged_ahead;	/* values, after the last */
	XLogRecPtr	lsn;			/* none if it is not logged yet */
} Sequence;

/* The sequence that this backend knows to have been moved since the start. */
static Oid	moved_sequence = InvalidOid;

/*
 * A sequence that was made by this transaction under wal_level = minimal has
 * no LSN, since nothing is logged until the commit writes it all.
 */
static void
read_sequence(Oid relid, Sequence *result)
{
	Relation	sequence = relation_open(relid, AccessShareLock);
	Buffer		buffer = ReadBuffer(sequence, 0);
	Page		page = BufferGetPage(buffer);
	Form_pg_sequence_data data;
	ItemId		item;

	if (sequence->rd_rel->relpersistence != RELPERSISTENCE_PERMANENT)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("sequence \"%s.%s\" is unlogged", FL_SCHEMA,
						RelationGetRelationName(sequence)),
				 errdetail("A crash would set it back, and tokens with it.")));

	/* Without checksums an LSN is not read atomically: hence the lock. */
	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	item = PageGetItemId(page, FirstOffsetNumber);
	data = (Form_pg_sequence_data)
		((char *) PageGetItem(page, item) +
		 ((HeapTupleHeader) PageGetItem(page, item))->t_hoff);
	result->last = data->last_value;
	result->logged_ahead = data->log_cnt;
	result->lsn = RelationNeedsWAL(sequence) ? PageGetLSN(page) : InvalidXLogRecPtr;
	UnlockReleaseBuffer(buffer);
	relation_close(sequence, AccessShareLock);
}

static int64
last_value(Oid relid)
{
	Sequence	sequence;

	read_sequence(relid, &sequence);
	return sequence.last;
}

/* setval() checks the caller's rights, and callers have none here. */
static void
set_sequence(Oid relid, int64 value)
{
	Relation	sequence = relation_open(relid, AccessShareLock);
	Oid			owner = sequence->rd_rel->relowner;
	Oid			saved_user;
	int			saved_context;

	relation_close(sequence, AccessShareLock);

	GetUserIdAndSecContext(&saved_user, &saved_context);
	SetUserIdAndSecContext(owner, saved_context | SECURITY_LOCAL_USERID_CHANGE);
	DirectFunctionCall2(setval_oid, ObjectIdGetDatum(relid),
						Int64GetDatum(value));
	SetUserIdAndSecContext(saved_user, saved_context);
}

/* This start of the server, this database, this sequence, as one number. */
static int64
incarnation(Oid sequence)
{
	struct
	{
		TimestampTz server_start;
		Oid			database;
		Oid			sequence;
	}			identity = {PgStartTime, MyDatabaseId, sequence};

	/* a positive number, as sequences have them */
	return (int64) (hash_bytes_extended((unsigned char *) &identity,
										sizeof(identity), 0) >> 1) | 1;
}

/* No token from now on is below this. */
static int64
floor_value(void)
{
	return last_value(fl_relation_oid("floor_seq"));
}

/*
 * Move the sequence above what it has issued, to the clock if that is above,
 * and tell why.  The caller holds the sequence's lock in Exclusive, as for all
 * that follows and sets a sequence.
 */
static void
move_forward(Oid sequence, int64 issued, const char *why)
{
	int64		next = GetCurrentTimestamp();

	if (next > issued)
		ereport(LOG,
				(errmsg("fencing tokens of this database go on from %lld, the clock, after %s",
						(long long) next, why)));
	else
	{
		if (issued > PG_INT64_MAX - STEP_ABOVE_LAST)
			ereport(ERROR,
					(errcode(ERRCODE_SEQUENCE_GENERATOR_LIMIT_EXCEEDED),
					 errmsg("sequence \"%s.token_seq\" is exhausted",
							FL_SCHEMA)));
		next = issued + STEP_ABOVE_LAST;
		ereport(LOG,
				(errmsg("fencing tokens of this database go on from %lld after %s: the last one, %lld, is ahead of the clock",
						(long long) next, why, (long long) issued)));
	}
	set_sequence(sequence, next);
}

/* To the clock, if nobody has moved the sequence since the server's start. */
static void
move_after_start(Oid sequence)
{
	Oid			incarnation_seq = fl_relation_oid("incarnation_seq");
	int64		present = incarnation(sequence);

	if (last_value(incarnation_seq) == present)
		return;
	move_forward(sequence,
				 Max(last_value(sequence), floor_value()),
				 "a start of the server");
	set_sequence(incarnation_seq, present);
}

/* Was the token sequence set to less than what it has issued? */
static bool
is_set_back(const Sequence *now)
{
	return now->logged_ahead == 0 && now->last < floor_value();
}

/* The highest value that is logged. */
static int64
logged(const Sequence *now)
{
	return now->last + now->logged_ahead;
}

/* The floor follows what is logged. */
static void
raise_floor(Oid sequence)
{
	Sequence	now;

	read_sequence(sequence, &now);
	if (logged(&now) > floor_value())
		set_sequence(fl_relation_oid("floor_seq"), logged(&now));
}

/* An altered sequence could give the same token twice, or a lower one. */
static void
check_definition(Oid sequence)
{
	HeapTuple	tuple = SearchSysCache1(SEQRELID, ObjectIdGetDatum(sequence));
	Form_pg_sequence form;
	bool		is_ours;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for sequence %u", sequence);
	form = (Form_pg_sequence) GETSTRUCT(tuple);
	is_ours = form->seqcache == 1 && form->seqincrement == 1 &&
		form->seqmax == PG_INT64_MAX && !form->seqcycle;
	ReleaseSysCache(tuple);
	if (!is_ours)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("sequence \"%s.token_seq\" was altered", FL_SCHEMA),
				 errdetail("With a cache, another increment, a lower maximum or a cycle, tokens would not rise in the order of grants for ever."),
				 errhint("ALTER SEQUENCE %s.token_seq INCREMENT 1 NO MAXVALUE CACHE 1 NO CYCLE.",
						 FL_SCHEMA)));
}

/* See to it that the next draw is above all that was ever issued. */
static void
prepare_draw(Oid sequence)
{
	Sequence	now;

	move_after_start(sequence);
	read_sequence(sequence, &now);
	if (is_set_back(&now))
		move_forward(sequence, floor_value(), "their sequence was set back");
	raise_floor(sequence);
	moved_sequence = sequence;
}

/*
 * Draw a token that is above all that were ever issued.  The caller holds the
 * key lock in Exclusive and is certain to grant; the transaction gets an id.
 *
 * nextval() logs the first draw after a checkpoint.  If the checkpoint slipped
 * in between its looking at the redo pointer and its change of the page,
 * neither the checkpoint nor WAL after it holds the number, and it could come
 * back: draw again, which is logged now.  So with a number that this backend
 * has cached from a time when the sequence had a cache.
 */
int64
fl_token_draw(void)
{
	Oid			sequence = fl_relation_oid("token_seq");
	const bool	check_permissions = false;

	check_definition(sequence);
	for (;;)
	{
		Sequence	before;
		Sequence	after;
		int64		token;

		CHECK_FOR_INTERRUPTS();
		fl_sequence_lock(sequence, ShareLock);
		read_sequence(sequence, &before);
		if (sequence != moved_sequence || is_set_back(&before))
		{
			fl_sequence_unlock(sequence, ShareLock);
			fl_sequence_lock(sequence, ExclusiveLock);
			prepare_draw(sequence);
			fl_sequence_unlock(sequence, ExclusiveLock);
			continue;
		}
		token = nextval_internal(sequence, check_permissions);
		read_sequence(sequence, &after);
		fl_sequence_unlock(sequence, ShareLock);

		if (logged(&after) != logged(&before))
		{
			fl_sequence_lock(sequence, ExclusiveLock);
			raise_floor(sequence);
			fl_sequence_unlock(sequence, ExclusiveLock);
		}
		XLogFlush(after.lsn);
		if (token > before.last &&
			(after.lsn == InvalidXLogRecPtr || after.lsn > GetRedoRecPtr()))
			return token;
	}
}

/*
 * Lift the sequence, so that every token from now on is above "at_least".
 * Never lowers it.  Returns the highest token that counts as issued then.
 */
int64
fl_token_raise(int64 at_least)
{
	Oid			sequence = fl_relation_oid("token_seq");
	Sequence	now;

	check_definition(sequence);
	fl_sequence_lock(sequence, ExclusiveLock);
	prepare_draw(sequence);
	if (last_value(sequence) < at_least)
	{
		set_sequence(sequence, at_least);
		raise_floor(sequence);
	}
	read_sequence(sequence, &now);
	fl_sequence_unlock(sequence, ExclusiveLock);
	XLogFlush(now.lsn);
	return now.last;
}

/* The highest token that was ever drawn in this database. */
int64
fl_token_last(void)
{
	return last_value(fl_relation_oid("token_seq"));
}
