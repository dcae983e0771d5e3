/*-------------------------------------------------------------------------
 *
 * held.c
 *	  What this transaction holds: the keys that it has pinned.
 *
 * A pin is recorded after the key lock that it stands for was taken and the
 * lease was found current; from then on a guard need only look here.  Nothing
 * outlives the transaction, so a pooler has nothing to reset.
 *
 * There are two kinds, which know nothing of each other: FL_LEASE pins stand
 * for a lease, FL_MARK pins for the mark of tokens from elsewhere (admit()).
 * What is "granted" by the latter is the rise of the mark to the token.
 *
 * A pin belongs to the subtransaction that took it and goes with its
 * rollback.  So does the dropping of a pin (by one's own release): a key has
 * a stack of pins, newest first, and one that was dropped stays in it until
 * it is certain that the dropping stays.
 *
 * A pin also tells which reads it is good for; see freshness.c.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "common/hashfn.h"
#include "compat.h"
#include "errors.h"
#include "held.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

typedef struct HeldKey
{
	FlPinKind	kind;
	const char *data;
	Size		length;
} HeldKey;

struct FlPin
{
	int64		token;
	FullTransactionId granted_xid;
	SubTransactionId pinned_in;
	SubTransactionId dropped_in;	/* invalid while the pin is in force */
	struct FlPin *older;

	/* of a grant made by this transaction */
	bool		granted_here;
	CommandId	granted_command;	/* the statement, by its snapshot's curcid */
	FlHorizon	granted_horizon;
	FlLease		lease;
};

typedef struct HeldEntry
{
	HeldKey		key;			/* must be first */
	FlPin	   *newest;
} HeldEntry;

/* Lives in TopTransactionContext; NULL while nothing was pinned. */
static HTAB *held = NULL;

/* Another one whenever a pin comes or goes. */
static uint64 held_version = 0;

static uint32
held_key_hash(const void *key, Size keysize pg_attribute_unused())
{
	const HeldKey *k = key;

	return hash_bytes((const unsigned char *) k->data, (int) k->length) ^ k->kind;
}

static int
held_key_match(const void *a, const void *b, Size keysize pg_attribute_unused())
{
	const HeldKey *ka = a;
	const HeldKey *kb = b;

	return ka->kind == kb->kind && ka->length == kb->length ?
		memcmp(ka->data, kb->data, ka->length) : 1;
}

static void
held_create(void)
{
	HASHCTL		ctl = {0};

	ctl.keysize = sizeof(HeldKey);
	ctl.entrysize = sizeof(HeldEntry);
	ctl.hash = held_key_hash;
	ctl.match = held_key_match;
	ctl.hcxt = TopTransactionContext;
	held = hash_create("fenced_lock pinned keys", 16, &ctl,
					   HASH_ELEM | HASH_FUNCTION | HASH_COMPARE | HASH_CONTEXT);
}

/* The pin in force for a key, or NULL. */
FlPin *
fl_held_find(FlPinKind kind, const char *key, Size length)
{
	HeldKey		k = {kind, key, length};
	HeldEntry  *entry;

	if (held == NULL)
		return NULL;
	entry = hash_search(held, &k, HASH_FIND, NULL);
	if (entry == NULL || entry->newest == NULL ||
		entry->newest->dropped_in != InvalidSubTransactionId)
		return NULL;
	return entry->newest;
}

FlPin *
fl_held_find_text(FlPinKind kind, const text *key)
{
	return fl_held_find(kind, VARDATA_ANY(key), VARSIZE_ANY_EXHDR(key));
}

/* While this is the same, so is each answer of fl_held_find(). */
uint64
fl_held_version(void)
{
	return held_version;
}

int64
fl_pin_token(const FlPin *pin)
{
	return pin->token;
}

static FlPin *
push_pin(FlPinKind kind, const text *key)
{
	HeldKey		k = {kind, VARDATA_ANY(key), VARSIZE_ANY_EXHDR(key)};
	HeldEntry  *entry;
	FlPin	   *pin;
	bool		found;

	if (held == NULL)
		held_create();

	/* Allocate first: an entry must never be left half made. */
	pin = MemoryContextAllocZero(TopTransactionContext, sizeof(FlPin));
	entry = hash_search(held, &k, HASH_FIND, NULL);
	if (entry == NULL)
	{
		char	   *copy = MemoryContextAlloc(TopTransactionContext, k.length);

		memcpy(copy, k.data, k.length);
		k.data = copy;
		entry = hash_search(held, &k, HASH_ENTER, &found);
		entry->newest = NULL;
	}
	held_version++;
	pin->pinned_in = GetCurrentSubTransactionId();
	pin->dropped_in = InvalidSubTransactionId;
	pin->older = entry->newest;
	entry->newest = pin;
	return pin;
}

/*
 * The key is pinned with a token that another transaction was granted.  The
 * caller has taken the lock of that kind and found the token current under it.
 */
void
fl_held_pin(FlPinKind kind, const text *key, int64 token,
			FullTransactionId granted_xid)
{
	FlPin	   *pin = push_pin(kind, key);

	pin->token = token;
	pin->granted_xid = granted_xid;
}

static FlPin *
push_own_grant(FlPinKind kind, const text *key, int64 token)
{
	FlPin	   *pin = push_pin(kind, key);

	pin->token = token;
	pin->granted_xid = GetTopFullTransactionId();
	pin->granted_here = true;
	pin->granted_command = GetActiveSnapshot()->curcid;
	fl_horizon_take(&pin->granted_horizon);
	return pin;
}

/* The key was granted to this transaction just now. */
void
fl_held_grant(const text *key, const FlLease *lease)
{
	FlPin	   *pin = push_own_grant(FL_LEASE, key, lease->fencing_token);

	pin->lease = *lease;
}

/* The key's mark was raised by this transaction just now. */
void
fl_held_raise(const text *key, int64 token)
{
	push_own_grant(FL_MARK, key, token);
}

/*
 * The lease that this very statement was granted for a key and a ttl, while
 * it lives, or NULL: then SELECT (try_acquire(…)).*, which calls once per
 * column, answers with one lease.
 *
 * The statement is known by its snapshot's command id, which rises with every
 * write, a grant being one.  A refusal writes nothing: should a lease end
 * between two columns, that row may still mix a refusal with a grant.  That
 * costs a ttl, no safety.
 */
const FlLease *
fl_held_same_statement(const text *key, int64 ttl)
{
	FlPin	   *pin = fl_held_find_text(FL_LEASE, key);

	if (pin == NULL || !pin->granted_here || pin->lease.ttl != ttl ||
		GetActiveSnapshot()->curcid != pin->granted_command ||
		pin->lease.expires_at <= GetCurrentTimestamp())
		return NULL;
	return &pin->lease;
}

/* Free the newest pin of a stack; returns the rest. */
static FlPin *
pop_pin(FlPin *pin)
{
	FlPin	   *older = pin->older;

	fl_horizon_free(&pin->granted_horizon);
	pfree(pin);
	return older;
}

/* Free the pins whose taking and dropping are undone together, if at all. */
static FlPin *
forget_dropped(FlPin *pin)
{
	while (pin != NULL && pin->dropped_in == pin->pinned_in)
		pin = pop_pin(pin);
	return pin;
}

/* The key is not pinned any more: the lease was released or granted anew. */
void
fl_held_drop(const text *key)
{
	HeldKey		k = {FL_LEASE, VARDATA_ANY(key), VARSIZE_ANY_EXHDR(key)};
	FlPin	   *pin = fl_held_find(k.kind, k.data, k.length);
	HeldEntry  *entry;

	if (pin == NULL)
		return;
	held_version++;
	pin->dropped_in = GetCurrentSubTransactionId();
	entry = hash_search(held, &k, HASH_FIND, NULL);
	entry->newest = forget_dropped(entry->newest);
}

/*
 * Is a pin good for a write that rests on what a snapshot shows?
 *
 * For a grant of this transaction's own the command id decides whether the
 * snapshot belongs to the granting statement.  That is not enough: the queries
 * that a rule makes of one statement share one snapshot and only raise its
 * command id.  So the snapshot must also see whatever was finished at the
 * grant.  From REPEATABLE READ on it is always the transaction's first.
 */
FlFreshness
fl_pin_freshness(const FlPin *pin, Snapshot snapshot)
{
	if (!pin->granted_here)
		return fl_grant_freshness(pin->granted_xid, snapshot);
	if (IsolationUsesXactSnapshot() ||
		snapshot->curcid <= pin->granted_command ||
		!fl_horizon_is_seen_by(&pin->granted_horizon, snapshot))
		return FL_GRANTED_HERE;
	return FL_FRESH;
}

/* Append the keys pinned in that way, some of them, for an error message. */
void
fl_held_describe(FlPinKind kind, StringInfo into)
{
	const int	most = 5;
	HASH_SEQ_STATUS status;
	HeldEntry  *entry;
	int			count = 0;

	if (held != NULL)
	{
		hash_seq_init(&status, held);
		while ((entry = hash_seq_search(&status)) != NULL)
		{
			if (entry->key.kind != kind || entry->newest == NULL ||
				entry->newest->dropped_in != InvalidSubTransactionId)
				continue;
			if (count++ >= most)
				continue;
			appendStringInfo(into, "%s\"%s\"", count > 1 ? ", " : "",
							 fl_key_in_message(entry->key.data,
											   entry->key.length));
		}
	}
	if (count == 0)
		appendStringInfoString(into, "none");
	else if (count > most)
		appendStringInfo(into, " and %d more", count - most);
}

/*
 * Top-level callback.  At every end of a transaction, PREPARE among them (the
 * prepared transaction keeps the locks, and its writes have been checked),
 * nothing is held any more; the memory goes with TopTransactionContext.
 */
static void
forget_all(XactEvent event, void *arg pg_attribute_unused())
{
	switch (event)
	{
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			held = NULL;
			held_version++;
			break;
		case XACT_EVENT_PRE_COMMIT:
		case XACT_EVENT_PRE_PREPARE:
			/* another extension may still write in its own callback */
			break;
		case XACT_EVENT_PARALLEL_COMMIT:
		case XACT_EVENT_PARALLEL_ABORT:
		case XACT_EVENT_PARALLEL_PRE_COMMIT:
			/* a parallel worker pins nothing */
			break;
	}
}

static void
subxact_commit(FlPin *pin, SubTransactionId from, SubTransactionId to)
{
	for (; pin != NULL; pin = pin->older)
	{
		if (pin->pinned_in == from)
			pin->pinned_in = to;
		if (pin->dropped_in == from)
			pin->dropped_in = to;
	}
}

/* Pins of one subtransaction are on top of its parent's. */
static FlPin *
subxact_abort(FlPin *pin, SubTransactionId aborted)
{
	while (pin != NULL && pin->pinned_in == aborted)
		pin = pop_pin(pin);
	for (FlPin *p = pin; p != NULL; p = p->older)
	{
		if (p->dropped_in == aborted)
			p->dropped_in = InvalidSubTransactionId;
	}
	return pin;
}

static void
subxact_end(SubXactEvent event, SubTransactionId me, SubTransactionId parent,
			void *arg pg_attribute_unused())
{
	HASH_SEQ_STATUS status;
	HeldEntry  *entry;

	if (held == NULL)
		return;

	switch (event)
	{
		case SUBXACT_EVENT_START_SUB:
		case SUBXACT_EVENT_PRE_COMMIT_SUB:
			return;
		case SUBXACT_EVENT_COMMIT_SUB:
		case SUBXACT_EVENT_ABORT_SUB:
			break;
	}

	held_version++;
	hash_seq_init(&status, held);
	while ((entry = hash_seq_search(&status)) != NULL)
	{
		if (event == SUBXACT_EVENT_COMMIT_SUB)
		{
			subxact_commit(entry->newest, me, parent);
			entry->newest = forget_dropped(entry->newest);
		}
		else
			entry->newest = subxact_abort(entry->newest, me);
	}
}

/* Called once, when the library is loaded. */
void
fl_held_init(void)
{
	RegisterXactCallback(forget_all, NULL);
	RegisterSubXactCallback(subxact_end, NULL);
}
