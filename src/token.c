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
 * flushes WAL up to the sequence page's LSN: one flush for 32 draws.
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
#include "commands/sequence.h"
#include "common/hashfn.h"
#include "key_lock.h"
#include "miscadmin.h"
#include "schema.h"
#include "storage/bufmgr.h"
#include "token.h"
#include "utils/fmgrprotos.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#define STEP_ABOVE_LAST		(INT64CONST(1) << 32)

/* The sequence that this backend knows to have been moved since the start. */
static Oid	moved_sequence = InvalidOid;

/*
 * A sequence's last value, and the LSN of its page; no LSN if the sequence
 * was made by this transaction under wal_level = minimal, since then nothing
 * is logged until the commit writes it all.
 */
static int64
read_sequence(Oid relid, XLogRecPtr *lsn)
{
	Relation	sequence = relation_open(relid, AccessShareLock);
	Buffer		buffer = ReadBuffer(sequence, 0);
	Page		page = BufferGetPage(buffer);
	Form_pg_sequence_data data;
	ItemId		item;
	int64		last;

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
	last = data->last_value;
	*lsn = RelationNeedsWAL(sequence) ? PageGetLSN(page) : InvalidXLogRecPtr;
	UnlockReleaseBuffer(buffer);
	relation_close(sequence, AccessShareLock);
	return last;
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

/*
 * Move the sequence to the clock if nobody has since the server's start.  The
 * caller holds the sequence's lock in Exclusive.
 */
static void
move_to_clock(Oid sequence)
{
	Oid			incarnation_seq = fl_relation_oid("incarnation_seq");
	int64		present = incarnation(sequence);
	XLogRecPtr	lsn;
	int64		last;
	int64		next;

	if (read_sequence(incarnation_seq, &lsn) == present)
		return;

	last = read_sequence(sequence, &lsn);
	next = GetCurrentTimestamp();
	if (next > last)
		ereport(LOG,
				(errmsg("fencing tokens of this database go on from %lld, the clock, after a start of the server",
						(long long) next)));
	else
	{
		if (last > PG_INT64_MAX - STEP_ABOVE_LAST)
			ereport(ERROR,
					(errcode(ERRCODE_SEQUENCE_GENERATOR_LIMIT_EXCEEDED),
					 errmsg("sequence \"%s.token_seq\" is exhausted",
							FL_SCHEMA)));
		next = last + STEP_ABOVE_LAST;
		ereport(LOG,
				(errmsg("fencing tokens of this database go on from %lld after a start of the server: the last one, %lld, is ahead of the clock",
						(long long) next, (long long) last)));
	}
	set_sequence(sequence, next);
	set_sequence(incarnation_seq, present);
}

/*
 * Draw a token that is above all that were ever issued.  The caller holds the
 * key lock in Exclusive and is certain to grant; the transaction gets an id.
 */
int64
fl_token_draw(void)
{
	Oid			sequence = fl_relation_oid("token_seq");
	XLogRecPtr	lsn;
	int64		token;

	if (sequence != moved_sequence)
	{
		fl_sequence_lock(sequence, ExclusiveLock);
		move_to_clock(sequence);
		fl_sequence_unlock(sequence, ExclusiveLock);
		moved_sequence = sequence;
	}

	fl_sequence_lock(sequence, ShareLock);

	/*
	 * nextval() logs the first draw after a checkpoint.  If the checkpoint
	 * slipped in between its looking at the redo pointer and its change of
	 * the page, neither the checkpoint nor WAL after it holds the number, and
	 * it could come back: draw again, which is logged now.
	 */
	do
	{
		const bool	check_permissions = false;

		CHECK_FOR_INTERRUPTS();
		token = nextval_internal(sequence, check_permissions);
		read_sequence(sequence, &lsn);
		XLogFlush(lsn);
	} while (lsn != InvalidXLogRecPtr && lsn <= GetRedoRecPtr());
	fl_sequence_unlock(sequence, ShareLock);
	return token;
}

/* The highest token that was ever drawn in this database. */
int64
fl_token_last(void)
{
	XLogRecPtr	lsn;

	return read_sequence(fl_relation_oid("token_seq"), &lsn);
}
