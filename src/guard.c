/*-------------------------------------------------------------------------
 *
 * guard.c
 *	  The trigger that refuses writes of whoever has not pinned the row's key.
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
#include "access/relation.h"
#include "access/xact.h"
#include "catalog/partition.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "compat.h"
#include "errors.h"
#include "held.h"
#include "key_template.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

/* What one statement needs to know of a guarded relation. */
typedef struct Guard
{
	FlTemplate *template;
	AttrNumber	stamp;			/* 0: no stamp column */
} Guard;

PG_FUNCTION_INFO_V1(fenced_lock_guard);

static char *
qualified_name(Relation relation)
{
	return quote_qualified_identifier(get_namespace_name(RelationGetNamespace(relation)),
									  RelationGetRelationName(relation));
}

/* A misuse of the trigger function is an error that names table and trigger. */
static void
check_attachment(TriggerData *trigdata)
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
							qualified_name(relation))));
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot truncate guarded table %s",
						qualified_name(relation)),
				 errdetail("TRUNCATE removes rows whose keys nobody has pinned."),
				 errtable(relation)));
	}
	if (!TRIGGER_FIRED_FOR_ROW(event) || !TRIGGER_FIRED_BEFORE(event))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("trigger \"%s\" on table %s must be BEFORE INSERT OR UPDATE OR DELETE … FOR EACH ROW",
						trigdata->tg_trigger->tgname,
						qualified_name(relation))));
	if (nargs != 1 && nargs != 2)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("trigger \"%s\" on table %s has %d arguments for guard(), which takes a key template and at most a stamp column",
						trigdata->tg_trigger->tgname,
						qualified_name(relation), nargs)));
}

/*
 * A stamp in a partition key would move the row while a trigger writes it.
 * What the partition's ancestors are partitioned by counts.
 */
static bool
is_in_partition_key(Relation relation, const char *column)
{
	List	   *ancestors;
	ListCell   *cell;
	bool		found = false;

	if (!relation->rd_rel->relispartition)
		return false;
	ancestors = get_partition_ancestors(RelationGetRelid(relation));
	foreach(cell, ancestors)
	{
		Relation	ancestor = relation_open(lfirst_oid(cell), AccessShareLock);
		AttrNumber	number = fl_column_number(ancestor, column);
		Bitmapset  *columns = bms_make_singleton(number - FirstLowInvalidHeapAttributeNumber);
		bool		in_expression;

		found |= has_partition_attrs(ancestor, columns, &in_expression);
		relation_close(ancestor, AccessShareLock);
	}
	return found;
}

static AttrNumber
stamp_column(Relation relation, const char *name, const FlTemplate *template)
{
	AttrNumber	column = fl_column_number(relation, name);
	Form_pg_attribute attribute = TupleDescAttr(RelationGetDescr(relation),
												column - 1);

	if (attribute->atttypid != INT8OID)
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("stamp column \"%s\" of table %s must be of type bigint, not %s",
						name, qualified_name(relation),
						format_type_be(attribute->atttypid)),
				 errtablecol(relation, column)));
	if (attribute->attgenerated != '\0' ||
		fl_template_uses(template, column) ||
		is_in_partition_key(relation, name))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_OBJECT_DEFINITION),
				 errmsg("stamp column \"%s\" of table %s must be neither generated, nor part of the key template or of a partition key",
						name, qualified_name(relation)),
				 errtablecol(relation, column)));
	return column;
}

/* Read the trigger's arguments, once per statement and relation. */
static Guard *
get_guard(FunctionCallInfo fcinfo, TriggerData *trigdata)
{
	Guard	   *guard = fcinfo->flinfo->fn_extra;
	char	  **args = trigdata->tg_trigger->tgargs;
	MemoryContext saved;

	if (guard != NULL)
		return guard;

	saved = MemoryContextSwitchTo(fcinfo->flinfo->fn_mcxt);
	guard = palloc0(sizeof(Guard));
	guard->template = fl_template_parse(args[0], trigdata->tg_relation);
	if (trigdata->tg_trigger->tgnargs == 2)
		guard->stamp = stamp_column(trigdata->tg_relation, args[1],
									guard->template);
	MemoryContextSwitchTo(saved);
	fcinfo->flinfo->fn_extra = guard;
	return guard;
}

static void
refuse_unpinned(Relation relation, const char *key)
{
	StringInfoData pinned;

	initStringInfo(&pinned);
	fl_held_describe(&pinned);
	ereport(ERROR,
			(errcode(ERRCODE_WRITE_WITHOUT_PIN),
			 errmsg("write to table %s without a pin of key \"%s\"; this transaction has pinned: %s",
					qualified_name(relation),
					fl_key_in_message(key, strlen(key)), pinned.data),
			 errhint("Call fenced_lock.pin(key, fencing_token) in the writing transaction."),
			 errtable(relation)));
}

static void
refuse_stale_reads(Relation relation, const char *key, FlFreshness freshness)
{
	if (freshness == FL_OLDER_THAN_GRANT)
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("could not write to table %s: the statement's snapshot is older than the lease on key \"%s\"",
						qualified_name(relation),
						fl_key_in_message(key, strlen(key))),
				 errhint("Retry the transaction."),
				 errtable(relation)));
	ereport(ERROR,
			(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
			 errmsg("could not write to table %s: key \"%s\" was acquired within the reach of the write's own snapshot",
					qualified_name(relation),
					fl_key_in_message(key, strlen(key))),
			 errdetail("What the write has read may be older than the lock."),
			 errhint("Acquire in a transaction of its own, before the one that writes."),
			 errtable(relation)));
}

/* The pin that a row's write rests on, or an error. */
static FlPin *
require_pin(const Guard *guard, Relation relation, HeapTuple row)
{
	StringInfoData key;
	FlPin	   *pin;
	FlFreshness freshness;

	initStringInfo(&key);
	fl_template_key(guard->template, relation, row, &key);
	pin = fl_held_find(key.data, key.len);
	if (pin == NULL)
		refuse_unpinned(relation, key.data);
	freshness = fl_pin_freshness(pin, GetActiveSnapshot());
	if (freshness != FL_FRESH)
		refuse_stale_reads(relation, key.data, freshness);
	pfree(key.data);
	return pin;
}

/* A row that a later token has stamped is not for this pin to change. */
static void
check_stamp(const Guard *guard, Relation relation, HeapTuple row,
			const FlPin *pin)
{
	bool		isnull;
	int64		stamp;

	if (guard->stamp == 0)
		return;
	stamp = DatumGetInt64(heap_getattr(row, guard->stamp,
									   RelationGetDescr(relation), &isnull));
	if (!isnull && stamp > fl_pin_token(pin))
		ereport(ERROR,
				(errcode(ERRCODE_STALE_FENCING_TOKEN),
				 errmsg("stale fencing token %lld: the row of table %s was last written under fencing token %lld",
						(long long) fl_pin_token(pin),
						qualified_name(relation), (long long) stamp),
				 errdetail("The pinned token is current, so the row's stamp was not issued by this database."),
				 errhint("An operator lifts the tokens above it: SELECT fenced_lock.raise_fence(%lld).",
						 (long long) stamp),
				 errtablecol(relation, guard->stamp)));
}

static HeapTuple
set_stamp(const Guard *guard, Relation relation, HeapTuple row,
		  const FlPin *pin)
{
	int			column = guard->stamp;
	Datum		value = Int64GetDatum(fl_pin_token(pin));
	bool		isnull = false;

	if (guard->stamp == 0)
		return row;
	return heap_modify_tuple_by_cols(row, RelationGetDescr(relation),
									 1, &column, &value, &isnull);
}

/*
 * guard('key template' [, 'stamp column']): BEFORE INSERT OR UPDATE OR DELETE
 * FOR EACH ROW, or BEFORE TRUNCATE FOR EACH STATEMENT.
 */
Datum
fenced_lock_guard(PG_FUNCTION_ARGS)
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
				 errmsg("function guard() can only be called as a trigger")));
	check_attachment(trigdata);
	guard = get_guard(fcinfo, trigdata);
	relation = trigdata->tg_relation;
	row = trigdata->tg_trigtuple;
	pin = require_pin(guard, relation, row);

	if (TRIGGER_FIRED_BY_INSERT(trigdata->tg_event))
		return PointerGetDatum(set_stamp(guard, relation, row, pin));

	if (TRIGGER_FIRED_BY_DELETE(trigdata->tg_event))
	{
		check_stamp(guard, relation, row, pin);
		return PointerGetDatum(row);
	}

	/*
	 * UPDATE.  The row may change its key: then both are to be pinned, and
	 * the stamps of two keys have nothing to do with each other.
	 */
	new_pin = require_pin(guard, relation, trigdata->tg_newtuple);
	if (new_pin == pin)
		check_stamp(guard, relation, row, pin);
	return PointerGetDatum(set_stamp(guard, relation, trigdata->tg_newtuple,
									 new_pin));
}
