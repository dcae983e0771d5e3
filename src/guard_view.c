/*-------------------------------------------------------------------------
 *
 * guard_view.c
 *	  What view guards has to ask C code: is a guard's definition valid, and
 *	  which columns does its WHEN clause look at?
 *
 * Nothing is raised here: one table's mistake must not hide the others.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "access/transam.h"
#include "catalog/pg_trigger.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "compat.h"
#include "funcapi.h"
#include "guard_definition.h"
#include "nodes/nodeFuncs.h"
#include "nodes/primnodes.h"
#include "rewrite/prs2lock.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/typcache.h"

/* Columns of the result. */
enum
{
	DEFINITION_KEY_TEMPLATE,
	DEFINITION_STAMP,
	DEFINITION_COLUMNS,
	DEFINITION_PROBLEM,
	DEFINITION_COLUMN_COUNT
};

PG_FUNCTION_INFO_V1(fenced_lock_guard_definition);

/* The column that one side of a comparison is, of a row; 0 if it is more. */
static AttrNumber
column_of(Node *side, Index row)
{
	while (IsA(side, RelabelType) || IsA(side, CollateExpr))
		side = IsA(side, RelabelType) ? (Node *) ((RelabelType *) side)->arg :
			(Node *) ((CollateExpr *) side)->arg;
	if (!IsA(side, Var) || ((Var *) side)->varno != (int) row)
		return 0;
	return ((Var *) side)->varattno;
}

/*
 * Is a WHEN clause of the form that protect() makes, NEW.a IS DISTINCT FROM
 * OLD.a OR …?  If so, add its columns.  Operators that are not the type's own
 * equality and collations that take different texts for equal are not of that
 * form.
 */
static bool
add_compared_columns(Node *clause, Bitmapset **columns)
{
	DistinctExpr *distinct = (DistinctExpr *) clause;
	AttrNumber	column;
	ListCell   *cell;

	if (IsA(clause, BoolExpr) && ((BoolExpr *) clause)->boolop == OR_EXPR)
	{
		foreach(cell, ((BoolExpr *) clause)->args)
		{
			if (!add_compared_columns(lfirst(cell), columns))
				return false;
		}
		return true;
	}
	if (!IsA(clause, DistinctExpr) ||
		distinct->opno >= FirstNormalObjectId ||
		distinct->opno != lookup_type_cache(exprType(linitial(distinct->args)),
											TYPECACHE_EQ_OPR)->eq_opr ||
		(OidIsValid(distinct->inputcollid) &&
		 !get_collation_isdeterministic(distinct->inputcollid)))
		return false;
	column = column_of(linitial(distinct->args), PRS2_NEW_VARNO);
	if (column <= 0 ||
		column_of(lsecond(distinct->args), PRS2_OLD_VARNO) != column)
		return false;
	*columns = bms_add_member(*columns, column);
	return true;
}

static ArrayType *
column_names(Relation relation, Bitmapset *columns)
{
	Datum	   *names = palloc(bms_num_members(columns) * sizeof(Datum));
	int			count = 0;
	int			column = -1;

	while ((column = bms_next_member(columns, column)) >= 0)
		names[count++] = NameGetDatum(&TupleDescAttr(RelationGetDescr(relation),
													 column - 1)->attname);
	return construct_array(names, count, NAMEOID, NAMEDATALEN, false,
						   TYPALIGN_CHAR);
}

/* The first column of key or stamp that a WHEN clause does not look at, or 0. */
static AttrNumber
column_left_out(Relation relation, const FlGuardDefinition *definition,
				const Bitmapset *columns)
{
	for (AttrNumber i = 1; i <= RelationGetNumberOfAttributes(relation); i++)
	{
		if ((i == definition->stamp ||
			 fl_template_uses(definition->template, i)) &&
			!bms_is_member(i, columns))
			return i;
	}
	return 0;
}

/* What is wrong with a trigger's WHEN clause; NULL if nothing. */
static char *
check_condition(Relation relation, const Trigger *trigger,
				const FlGuardDefinition *definition, Bitmapset **columns)
{
	AttrNumber	missing;

	if (!add_compared_columns(stringToNode(trigger->tgqual), columns))
	{
		*columns = NULL;
		return "its WHEN clause is not one that protect() makes";
	}
	missing = column_left_out(relation, definition, *columns);
	if (missing == 0)
		return NULL;
	return psprintf("its WHEN clause leaves out column \"%s\"",
					NameStr(TupleDescAttr(RelationGetDescr(relation),
										  missing - 1)->attname));
}

/* What is wrong with a row trigger's arguments and WHEN clause. */
static char *
check_trigger(Relation relation, const Trigger *trigger, Bitmapset **columns)
{
	FlGuardDefinition definition;
	FlFault    *fault;

	if (trigger->tgnargs != 1 && trigger->tgnargs != 2)
		return psprintf("it has %d arguments", trigger->tgnargs);
	fault = fl_guard_definition(relation, trigger->tgargs[0],
								trigger->tgnargs == 2 ? trigger->tgargs[1] : NULL,
								&definition);
	if (fault != NULL)
		return fault->message;
	if (trigger->tgqual == NULL)
		return NULL;
	return check_condition(relation, trigger, &definition, columns);
}

static void
describe_trigger(Relation relation, const Trigger *trigger, Datum *values,
				 bool *nulls)
{
	char	   *problem = NULL;
	Bitmapset  *columns = NULL;

	if (TRIGGER_FOR_ROW(trigger->tgtype))
		problem = check_trigger(relation, trigger, &columns);
	else if (trigger->tgqual != NULL)
		problem = "it has a WHEN clause";

	if (trigger->tgnargs > 0)
	{
		values[DEFINITION_KEY_TEMPLATE] = CStringGetTextDatum(trigger->tgargs[0]);
		nulls[DEFINITION_KEY_TEMPLATE] = false;
	}
	if (trigger->tgnargs > 1)
	{
		values[DEFINITION_STAMP] = DirectFunctionCall1(namein, CStringGetDatum(trigger->tgargs[1]));
		nulls[DEFINITION_STAMP] = false;
	}
	if (columns != NULL)
	{
		values[DEFINITION_COLUMNS] = PointerGetDatum(column_names(relation, columns));
		nulls[DEFINITION_COLUMNS] = false;
	}
	if (problem != NULL)
	{
		values[DEFINITION_PROBLEM] = CStringGetTextDatum(problem);
		nulls[DEFINITION_PROBLEM] = false;
	}
}

/*
 * guard_definition(relation regclass, trigger oid, OUT key_template text, OUT
 * stamp name, OUT columns name[], OUT problem text): NULLs for a trigger that
 * was dropped meanwhile.
 */
Datum
fenced_lock_guard_definition(PG_FUNCTION_ARGS)
{
	Datum		values[DEFINITION_COLUMN_COUNT];
	bool		nulls[DEFINITION_COLUMN_COUNT];
	TupleDesc	desc;
	Relation	relation = NULL;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE ||
		desc->natts != DEFINITION_COLUMN_COUNT)
		elog(ERROR, "unexpected result type of guard_definition()");
	memset(nulls, true, sizeof(nulls));
	if (!PG_ARGISNULL(0) && !PG_ARGISNULL(1))
		relation = try_relation_open(PG_GETARG_OID(0), AccessShareLock);
	if (relation != NULL)
	{
		/* the relation cache's own may change at each look into a catalog */
		TriggerDesc *triggers = CopyTriggerDesc(relation->trigdesc);

		for (int i = 0; triggers != NULL && i < triggers->numtriggers; i++)
		{
			if (triggers->triggers[i].tgoid == PG_GETARG_OID(1))
				describe_trigger(relation, &triggers->triggers[i], values, nulls);
		}
		relation_close(relation, AccessShareLock);
	}
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls));
}
