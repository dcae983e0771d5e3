/*-------------------------------------------------------------------------
 *
 * guard.c
 *	  The triggers that refuse writes of whoever has not pinned the row's key:
 *	  guard() wants a lease of ours pinned, guard_watermark() an admitted token
 *	  from elsewhere.
 *
 * The proof is never taken from a column or a setting: a column that shows
 * the token is replayed by every ORM that saves full rows, and a setting
 * leaks to the next client of a pooler.  What counts is what this transaction
 * has pinned (held.c); the stamp column only tells which grant wrote a row
 * last, and is written by nobody but us.
 *
 * The guard takes no lock.  A statement has its key lock, from its pin, before
 * it locks rows; taking it from in here, behind the row's lock, would make
 * deadlocks whose victim is the successor.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/tupmacs.h"
#include "access/xact.h"
#include "commands/trigger.h"
#include "compat.h"
#include "errors.h"
#include "guard_definition.h"
#include "held.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

/* What one statement knows of a guarded relation. */
typedef struct Guard
{
	FlPinKind	kind;
	FlGuardDefinition definition;

	/* What was found for the last row, and while which pins were in force. */
	FlPin	   *pin;
	uint64		held_version;
} Guard;

PG_FUNCTION_INFO_V1(fenced_lock_guard);
PG_FUNCTION_INFO_V1(fenced_lock_guard_watermark);

static const char *
function_name(FlPinKind kind)
{
	return kind == FL_LEASE ? "guard" : "guard_watermark";
}

/* A misuse of the trigger function is an error that names table and trigger. */
static void
check_attachment(FlPinKind kind, TriggerData *trigdata)
{
	Relation	relation = trigdata->tg_relation;
	TriggerEvent event = trigdata->tg_event;
	int			nargs = trigdata->tg_trigger->tgnargs;

	if (TRIGGER_FIRED_BY_TRUNCATE(event))
	{
		if (!TRIGGER_FIRED_BEFORE(event))
			ereport(ERROR,
					(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
					 errmsg("trigger \"%s\" on table %s must fire BEFORE TRUNCATE",
							trigdata->tg_trigger->tgname,
							fl_relation_in_message(relation))));
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot truncate guarded table %s",
						fl_relation_in_message(relation)),
				 kind == FL_LEASE ?
				 errdetail("TRUNCATE removes rows whose keys nobody has pinned.") :
				 errdetail("TRUNCATE removes rows for whose keys nobody has admitted a token."),
				 errtable(relation)));
	}
	if (!TRIGGER_FIRED_FOR_ROW(event) || !TRIGGER_FIRED_BEFORE(event))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("trigger \"%s\" on table %s must be BEFORE INSERT OR UPDATE OR DELETE … FOR EACH ROW",
						trigdata->tg_trigger->tgname,
						fl_relation_in_message(relation))));
	if (nargs != 1 && nargs != 2)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("trigger \"%s\" on table %s has %d arguments for %s(), which takes a key template and at most a stamp column",
						trigdata->tg_trigger->tgname,
						fl_relation_in_message(relation), nargs,
						function_name(kind))));
}

/* Read the trigger's arguments, once per statement and relation. */
static Guard *
get_guard(FlPinKind kind, FunctionCallInfo fcinfo, TriggerData *trigdata)
{
	Guard	   *guard = fcinfo->flinfo->fn_extra;
	char	  **args = trigdata->tg_trigger->tgargs;
	FlFault    *fault;
	MemoryContext saved;

	if (guard != NULL)
		return guard;

	saved = MemoryContextSwitchTo(fcinfo->flinfo->fn_mcxt);
	guard = palloc0(sizeof(Guard));
	guard->kind = kind;
	fault = fl_guard_definition(trigdata->tg_relation, args[0],
								trigdata->tg_trigger->tgnargs == 2 ? args[1] : NULL,
								&guard->definition);
	if (fault != NULL)
		fl_raise(fault, trigdata->tg_relation);
	MemoryContextSwitchTo(saved);
	fcinfo->flinfo->fn_extra = guard;
	return guard;
}

/*
 * A row's key as a message shows it: to whoever may not read its columns only
 * the template, as PostgreSQL does with the values of a constraint's error.
 * What an INSERT brings is no secret to its author.
 */
static const char *
shown_key(const Guard *guard, const TriggerData *trigdata, StringInfo key)
{
	if (TRIGGER_FIRED_BY_INSERT(trigdata->tg_event) ||
		fl_template_is_readable(guard->definition.template,
								trigdata->tg_relation))
		return fl_key_in_message(key->data, key->len);
	return trigdata->tg_trigger->tgargs[0];
}

static void
refuse_unpinned(FlPinKind kind, Relation relation, const char *name)
{
	const char *table = fl_relation_in_message(relation);
	StringInfoData pinned;

	initStringInfo(&pinned);
	fl_held_describe(kind, &pinned);
	if (kind == FL_MARK)
		ereport(ERROR,
				(errcode(ERRCODE_WRITE_WITHOUT_PIN),
				 errmsg("write to table %s without an admitted token for key \"%s\"; this transaction has admitted: %s",
						table, name, pinned.data),
				 errhint("Call fenced_lock.admit(key, fencing_token) in the writing transaction."),
				 errtable(relation)));
	ereport(ERROR,
			(errcode(ERRCODE_WRITE_WITHOUT_PIN),
			 errmsg("write to table %s without a pin of key \"%s\"; this transaction has pinned: %s",
					table, name, pinned.data),
			 errhint("Call fenced_lock.pin(key, fencing_token) in the writing transaction."),
			 errtable(relation)));
}

/* The granting was elsewhere, and a retry sees it. */
static void
refuse_older_reads(FlPinKind kind, Relation relation, const char *name)
{
	const char *table = fl_relation_in_message(relation);

	ereport(ERROR,
			(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
			 kind == FL_LEASE ?
			 errmsg("could not write to table %s: the statement's snapshot is older than the lease on key \"%s\"",
					table, name) :
			 errmsg("could not write to table %s: the statement's snapshot is older than the admission of the token for key \"%s\"",
					table, name),
			 errhint("Retry the transaction."),
			 errtable(relation)));
}

/* The granting was here, and a retry would do the same. */
static void
refuse_own_grant(FlPinKind kind, Relation relation, const char *name)
{
	const char *table = fl_relation_in_message(relation);

	if (kind == FL_MARK)
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("could not write to table %s: the token for key \"%s\" was first admitted within the reach of the write's own snapshot",
						table, name),
				 errdetail("What the write has read may be older than the admission."),
				 errhint("Admit the token in a statement or transaction of its own first, before the one that reads and writes."),
				 errtable(relation)));
	ereport(ERROR,
			(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
			 errmsg("could not write to table %s: key \"%s\" was acquired within the reach of the write's own snapshot",
					table, name),
			 errdetail("What the write has read may be older than the lock."),
			 errhint("Acquire in a transaction of its own, before the one that writes."),
			 errtable(relation)));
}

/*
 * The pin that a row's write rests on, or an error.  What was found for the
 * row before holds for one of the same key, as long as no pin has come or
 * gone: all rows of a statement are written under one snapshot.
 */
static FlPin *
require_pin(Guard *guard, const TriggerData *trigdata, HeapTuple row)
{
	Relation	relation = trigdata->tg_relation;
	FlPinKind	kind = guard->kind;
	bool		same;
	StringInfo	key = fl_template_key(guard->definition.template, relation,
									  row, &same);
	FlPin	   *pin;

	if (same && guard->pin != NULL && guard->held_version == fl_held_version())
		return guard->pin;

	pin = fl_held_find(kind, key->data, key->len);
	if (pin == NULL)
		refuse_unpinned(kind, relation, shown_key(guard, trigdata, key));
	switch (fl_pin_freshness(pin, GetActiveSnapshot()))
	{
		case FL_FRESH:
			break;
		case FL_OLDER_THAN_GRANT:
			refuse_older_reads(kind, relation, shown_key(guard, trigdata, key));
			break;
		case FL_GRANTED_HERE:
			refuse_own_grant(kind, relation, shown_key(guard, trigdata, key));
			break;
	}
	guard->pin = pin;
	guard->held_version = fl_held_version();
	return pin;
}

/* A row that a later token has stamped is not for this pin to change. */
static void
check_stamp(const Guard *guard, const TriggerData *trigdata, const FlPin *pin)
{
	Relation	relation = trigdata->tg_relation;
	HeapTuple	row = trigdata->tg_trigtuple;
	AttrNumber	column = guard->definition.stamp;
	bool		isnull;
	bool		same;
	int64		stamp;

	if (column == 0)
		return;
	stamp = DatumGetInt64(heap_getattr(row, column,
									   RelationGetDescr(relation), &isnull));
	if (!isnull && stamp > fl_pin_token(pin))
		ereport(ERROR,
				(errcode(ERRCODE_STALE_FENCING_TOKEN),
				 errmsg("stale fencing token %lld for key \"%s\": the row of table %s was last written under fencing token %lld",
						(long long) fl_pin_token(pin),
						shown_key(guard, trigdata,
								  fl_template_key(guard->definition.template,
												  relation, row, &same)),
						fl_relation_in_message(relation), (long long) stamp),
				 guard->kind == FL_LEASE ?
				 errdetail("The pinned token is current, so the row's stamp was not issued by this database.") :
				 errdetail("The admitted token is the highest that was seen for the key, so the row's stamp is a token of another kind, or the key's mark was lost."),
				 guard->kind == FL_LEASE ?
				 errhint("An operator lifts the tokens above it: SELECT fenced_lock.raise_fence(%lld).",
						 (long long) stamp) : 0,
				 errtablecol(relation, column)));
}

/* Where a row has its stamp, which must not be null. */
static char *
stamp_place(HeapTuple row, TupleDesc desc, AttrNumber column)
{
	HeapTupleHeader header = row->t_data;
	char	   *data = (char *) header + header->t_hoff;
	uint32		offset = 0;

	for (int i = 0; i < column - 1; i++)
	{
		Form_pg_attribute attribute = TupleDescAttr(desc, i);

		if (HeapTupleHasNulls(row) && att_isnull(i, header->t_bits))
			continue;
		offset = att_align_pointer(offset, attribute->attalign,
								   attribute->attlen, data + offset);
		offset = att_addlength_pointer(offset, attribute->attlen,
									   data + offset);
	}
	return data + att_align_nominal(offset, TYPALIGN_DOUBLE);
}

/*
 * Stamp a row.  Most rows have a stamp already; to write over it in a copy
 * costs a fraction of taking the row apart and forming it anew.
 */
static HeapTuple
set_stamp(const Guard *guard, Relation relation, HeapTuple row,
		  const FlPin *pin)
{
	TupleDesc	desc = RelationGetDescr(relation);
	int			column = guard->definition.stamp;
	int64		token = fl_pin_token(pin);
	Datum		value = Int64GetDatum(token);
	bool		isnull = false;

	if (column == 0)
		return row;
	if (heap_attisnull(row, column, NULL))
		return heap_modify_tuple_by_cols(row, desc, 1, &column, &value,
										 &isnull);
	row = heap_copytuple(row);
	memcpy(stamp_place(row, desc, column), &token, sizeof(token));
	return row;
}

static Datum
guard_write(FlPinKind kind, FunctionCallInfo fcinfo)
{
	TriggerData *trigdata = (TriggerData *) fcinfo->context;
	Relation	relation;
	HeapTuple	row;
	Guard	   *guard;
	FlPin	   *pin;
	FlPin	   *new_pin;

	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function %s() can only be called as a trigger",
						function_name(kind))));
	check_attachment(kind, trigdata);
	guard = get_guard(kind, fcinfo, trigdata);
	relation = trigdata->tg_relation;
	row = trigdata->tg_trigtuple;
	pin = require_pin(guard, trigdata, row);

	if (TRIGGER_FIRED_BY_INSERT(trigdata->tg_event))
		return PointerGetDatum(set_stamp(guard, relation, row, pin));

	if (TRIGGER_FIRED_BY_DELETE(trigdata->tg_event))
	{
		check_stamp(guard, trigdata, pin);
		return PointerGetDatum(row);
	}

	/*
	 * UPDATE.  The row may change its key: then both are to be pinned.  Its
	 * old stamp is compared with the old key's pin, since the stamps of two
	 * keys have nothing to do with each other.
	 */
	new_pin = require_pin(guard, trigdata, trigdata->tg_newtuple);
	check_stamp(guard, trigdata, pin);
	return PointerGetDatum(set_stamp(guard, relation, trigdata->tg_newtuple,
									 new_pin));
}

/*
 * guard('key template' [, 'stamp column']): BEFORE INSERT OR UPDATE OR DELETE
 * FOR EACH ROW, or BEFORE TRUNCATE FOR EACH STATEMENT.
 */
Datum
fenced_lock_guard(PG_FUNCTION_ARGS)
{
	return guard_write(FL_LEASE, fcinfo);
}

/* guard_watermark('key template' [, 'stamp column']): attached likewise */
Datum
fenced_lock_guard_watermark(PG_FUNCTION_ARGS)
{
	return guard_write(FL_MARK, fcinfo);
}
