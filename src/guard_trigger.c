/*-------------------------------------------------------------------------
 *
 * guard_trigger.c
 *	  The triggers that protect() makes: their names, and the commands that
 *	  create and drop them.
 *
 * One trigger for each kind of write, so that one can be made conditional or
 * be disabled without the others.  Their names begin with a tilde, which
 * sorts after all letters, digits and other signs of ASCII: a guard has to
 * see what the other triggers of the table have made of a row.
 *
 * Commands name and quote everything in full, and are to be run in the
 * search_path of command.c: IS DISTINCT FROM takes the "=" that it finds.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/trigger.h"
#include "compat.h"
#include "errors.h"
#include "guard_definition.h"
#include "guard_trigger.h"
#include "lib/stringinfo.h"
#include "parser/parse_func.h"
#include "parser/parse_oper.h"
#include "schema.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "utils/typcache.h"

#define INSERT_TRIGGER		"~fenced_lock_insert"
#define UPDATE_TRIGGER		"~fenced_lock_update"
#define DELETE_TRIGGER		"~fenced_lock_delete"
#define TRUNCATE_TRIGGER	"~fenced_lock_truncate"

static const char *const trigger_names[] = {
	INSERT_TRIGGER, UPDATE_TRIGGER, DELETE_TRIGGER, TRUNCATE_TRIGGER
};

/* 42710 if a table has a trigger of one of these names already. */
void
fl_guard_triggers_refuse(Relation relation)
{
	for (size_t i = 0; i < lengthof(trigger_names); i++)
	{
		if (OidIsValid(get_trigger_oid(RelationGetRelid(relation), trigger_names[i], true)))
			ereport(ERROR,
					(errcode(ERRCODE_DUPLICATE_OBJECT),
					 errmsg("table %s has a trigger \"%s\" already",
							fl_relation_in_message(relation),
							trigger_names[i]),
					 errhint("To protect it in another way call fenced_lock.unprotect() first."),
					 errtable(relation)));
	}
}

/*
 * IS DISTINCT FROM is to compare values by the type's own notion, and by
 * nobody else's operator that happens to be called "=".
 */
static void
check_comparable(Relation relation, Form_pg_attribute attribute)
{
	TypeCacheEntry *type = lookup_type_cache(attribute->atttypid,
											 TYPECACHE_EQ_OPR);
	Operator	found = oper(NULL, list_make1(makeString("=")),
							 attribute->atttypid, attribute->atttypid,
							 true, -1);

	if (attribute->attgenerated != '\0')
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_OBJECT_DEFINITION),
				 errmsg("generated column \"%s\" of table %s can't be one of the guarded columns",
						NameStr(attribute->attname),
						fl_relation_in_message(relation)),
				 errdetail("It is computed after the guard has seen the row."),
				 errtablecol(relation, attribute->attnum)));
	if (!OidIsValid(type->eq_opr) || found == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_FUNCTION),
				 errmsg("column \"%s\" of table %s can't be one of the guarded columns: type %s has no equality operator in pg_catalog",
						NameStr(attribute->attname),
						fl_relation_in_message(relation),
						format_type_be(attribute->atttypid)),
				 errtablecol(relation, attribute->attnum)));
	ReleaseSysCache(found);
}

/* The columns that matter: those asked for, the template's and the stamp. */
static Bitmapset *
guarded_columns(Relation relation, const FlProtection *wanted)
{
	FlGuardDefinition definition;
	Bitmapset  *columns = NULL;
	ListCell   *cell;
	FlFault    *fault = fl_guard_definition(relation, wanted->template,
											wanted->stamp, &definition);

	if (fault != NULL)
		fl_raise(fault, relation);
	if (definition.stamp != 0)
		columns = bms_add_member(columns, definition.stamp);
	for (AttrNumber i = 1; i <= RelationGetNumberOfAttributes(relation); i++)
	{
		if (fl_template_uses(definition.template, i))
			columns = bms_add_member(columns, i);
	}
	foreach(cell, wanted->columns)
	{
		AttrNumber	column = fl_column_number(relation, lfirst(cell));

		if (column == 0)
			fl_raise(fl_no_such_column(relation, lfirst(cell)), relation);
		check_comparable(relation, TupleDescAttr(RelationGetDescr(relation), column - 1));
		columns = bms_add_member(columns, column);
	}
	return columns;
}

/*
 * " WHEN (…)" of the trigger for UPDATE.  Where a collation takes different
 * texts for equal, which are different keys, it is passed over.
 */
static char *
update_condition(Relation relation, const FlProtection *wanted)
{
	StringInfoData condition;
	Bitmapset  *columns;
	int			column = -1;
	const char *separator = " WHEN (";

	if (wanted->columns == NIL)
		return "";
	columns = guarded_columns(relation, wanted);
	initStringInfo(&condition);
	while ((column = bms_next_member(columns, column)) > 0)
	{
		Form_pg_attribute attribute = TupleDescAttr(RelationGetDescr(relation),
													column - 1);
		const char *name = quote_identifier(NameStr(attribute->attname));
		const char *collate = "";

		if (OidIsValid(attribute->attcollation) &&
			!get_collation_isdeterministic(attribute->attcollation))
			collate = " COLLATE pg_catalog.\"C\"";
		appendStringInfo(&condition, "%sNEW.%s%s IS DISTINCT FROM OLD.%s%s",
						 separator, name, collate, name, collate);
		separator = " OR ";
	}
	appendStringInfoChar(&condition, ')');
	return condition.data;
}

static char *
create_trigger(Relation relation, const FlProtection *wanted, const char *name,
			   const char *event, const char *condition)
{
	StringInfoData command;

	initStringInfo(&command);
	appendStringInfo(&command,
					 "CREATE TRIGGER %s BEFORE %s ON %s FOR EACH %s%s EXECUTE FUNCTION " FL_SCHEMA ".guard(%s",
					 quote_identifier(name), event,
					 fl_relation_in_message(relation),
					 strcmp(event, "TRUNCATE") == 0 ? "STATEMENT" : "ROW",
					 condition, quote_literal_cstr(wanted->template));
	if (wanted->stamp != NULL)
		appendStringInfo(&command, ", %s", quote_literal_cstr(wanted->stamp));
	appendStringInfoChar(&command, ')');
	return command.data;
}

/*
 * The commands that put guards on one table.  for_rows: or is it a partition,
 * which has clones of its table's row triggers?
 */
List *
fl_guard_triggers_create(Relation relation, const FlProtection *wanted,
						 bool for_rows)
{
	List	   *commands = NIL;

	if (for_rows && wanted->on_insert)
		commands = lappend(commands, create_trigger(relation, wanted, INSERT_TRIGGER, "INSERT", ""));
	if (for_rows)
	{
		commands = lappend(commands, create_trigger(relation, wanted, UPDATE_TRIGGER, "UPDATE",
													update_condition(relation, wanted)));
		commands = lappend(commands, create_trigger(relation, wanted, DELETE_TRIGGER, "DELETE", ""));
	}
	if (wanted->on_truncate)
		commands = lappend(commands, create_trigger(relation, wanted, TRUNCATE_TRIGGER, "TRUNCATE", ""));
	return commands;
}

static bool
is_ours(const Trigger *trigger, Oid guard)
{
	if (trigger->tgfoid != guard)
		return false;
	for (size_t i = 0; i < lengthof(trigger_names); i++)
	{
		if (strcmp(trigger->tgname, trigger_names[i]) == 0)
			return true;
	}
	return false;
}

/*
 * The commands that take protect()'s triggers from a table.  Clones go with
 * the triggers that they were made from; alone they can't, which is an error
 * if it is this table that was asked for.
 */
List *
fl_guard_triggers_drop(Relation relation, bool is_root)
{
	/* the relation cache's own may change at each look into a catalog */
	TriggerDesc *triggers = CopyTriggerDesc(relation->trigdesc);
	Oid			guard = LookupFuncName(list_make2(makeString(FL_SCHEMA), makeString("guard")),
									   0, NULL, false);
	List	   *commands = NIL;

	for (int i = 0; triggers != NULL && i < triggers->numtriggers; i++)
	{
		const Trigger *trigger = &triggers->triggers[i];

		if (!is_ours(trigger, guard))
			continue;
		if (!trigger->tgisclone)
			commands = lappend(commands,
							   psprintf("DROP TRIGGER %s ON %s",
										quote_identifier(trigger->tgname),
										fl_relation_in_message(relation)));
		else if (is_root)
			ereport(ERROR,
					(errcode(ERRCODE_DEPENDENT_OBJECTS_STILL_EXIST),
					 errmsg("partition %s is protected through its table",
							fl_relation_in_message(relation)),
					 errhint("Call fenced_lock.unprotect() for the table, or detach the partition first."),
					 errtable(relation)));
	}
	return commands;
}
