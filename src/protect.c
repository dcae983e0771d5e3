/*-------------------------------------------------------------------------
 *
 * protect.c
 *	  Putting guards on a table and all that belongs to it, and taking them
 *	  away.
 *
 * One trigger for each kind of write, so that one can be made conditional or
 * be disabled without the others.  Their names begin with a tilde, which
 * sorts after all letters, digits and signs of ASCII: a guard has to see what
 * the other triggers of the table have made of a row.
 *
 * PostgreSQL clones row triggers to partitions, also to later ones; those for
 * TRUNCATE it does not, and to inheritance children none.
 *
 * All is done by SQL commands with the caller's rights.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "arguments.h"
#include "catalog/catalog.h"
#include "catalog/namespace.h"
#include "catalog/objectaddress.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_type.h"
#include "command.h"
#include "commands/trigger.h"
#include "compat.h"
#include "errors.h"
#include "guard_definition.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "parser/parse_func.h"
#include "parser/parse_oper.h"
#include "schema.h"
#include "storage/lmgr.h"
#include "utils/array.h"
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

/* What protect() was asked for. */
typedef struct Protection
{
	Oid			relid;
	const char *template;
	const char *stamp;			/* NULL: none */
	List	   *columns;		/* names; NIL: all */
	bool		on_insert;
	bool		on_truncate;
	bool		add_stamp;
} Protection;

PG_FUNCTION_INFO_V1(fenced_lock_protect);
PG_FUNCTION_INFO_V1(fenced_lock_unprotect);

static List *
columns_argument(FunctionCallInfo fcinfo, int n)
{
	ArrayType  *array;
	Datum	   *values;
	bool	   *nulls;
	int			count;
	List	   *columns = NIL;

	if (PG_ARGISNULL(n))
		return NIL;
	array = PG_GETARG_ARRAYTYPE_P(n);
	if (ARR_NDIM(array) > 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("columns must be a one-dimensional array")));
	deconstruct_array(array, NAMEOID, NAMEDATALEN, false, TYPALIGN_CHAR,
					  &values, &nulls, &count);
	if (count == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("columns must not be empty"),
				 errhint("Leave columns out, or NULL, to guard all of them.")));
	for (int i = 0; i < count; i++)
	{
		if (nulls[i])
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("columns must not contain a null")));
		columns = lappend(columns, NameStr(*DatumGetName(values[i])));
	}
	return columns;
}

static Protection
protection_arguments(FunctionCallInfo fcinfo)
{
	Protection	wanted;

	fl_require_arg(fcinfo, 0, "relation");
	fl_require_arg(fcinfo, 1, "key template");
	wanted.relid = PG_GETARG_OID(0);
	wanted.template = text_to_cstring(PG_GETARG_TEXT_PP(1));
	wanted.stamp = PG_ARGISNULL(2) ? NULL : NameStr(*PG_GETARG_NAME(2));
	wanted.columns = columns_argument(fcinfo, 3);
	wanted.on_insert = PG_ARGISNULL(4) ? false : PG_GETARG_BOOL(4);
	wanted.on_truncate = PG_ARGISNULL(5) ? true : PG_GETARG_BOOL(5);
	wanted.add_stamp = PG_ARGISNULL(6) ? false : PG_GETARG_BOOL(6);
	if (wanted.add_stamp && wanted.stamp == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("add_stamp takes the name of the stamp column, in argument stamp")));
	return wanted;
}

/* Tables only: writes elsewhere can't be guarded, or are not for users. */
static void
check_is_table(Oid relid)
{
	Relation	relation = relation_open(relid, NoLock);

	if (IsSystemRelation(relation))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied: \"%s\" is a system catalog",
						RelationGetRelationName(relation))));
	if (RelationGetNamespace(relation) == fl_schema_oid())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied: %s belongs to extension fenced_lock",
						fl_relation_in_message(relation))));
	if (RELATION_IS_OTHER_TEMP(relation))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("%s can't be guarded: it is a temporary table of another session",
						fl_relation_in_message(relation))));
	if (relation->rd_rel->relkind != RELKIND_RELATION &&
		relation->rd_rel->relkind != RELKIND_PARTITIONED_TABLE)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("%s can't be guarded: it is not an ordinary or partitioned table",
						fl_relation_in_message(relation)),
				 relation->rd_rel->relkind == RELKIND_FOREIGN_TABLE ?
				 errdetail("The server of a foreign table knows nothing of the locks that are held here.") : 0));
	relation_close(relation, NoLock);
}

/*
 * The OIDs of a table and of all its partitions and inheritance children, the
 * table's first, locked; the caller must own the table.
 */
static List *
lock_tree(Oid relid, LOCKMODE mode)
{
	/* before the lock: who may not protect it may not block it either */
	if (!relation_ownercheck(relid, GetUserId()))
		aclcheck_error(ACLCHECK_NOT_OWNER,
					   get_relkind_objtype(get_rel_relkind(relid)),
					   get_rel_name(relid));
	LockRelationOid(relid, mode);
	if (!SearchSysCacheExists1(RELOID, ObjectIdGetDatum(relid)))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation with OID %u does not exist", relid)));
	check_is_table(relid);
	return find_all_inheritors(relid, mode, NULL);
}

static void
check_definition(Oid relid, const char *template, const char *stamp)
{
	Relation	relation = relation_open(relid, NoLock);
	FlGuardDefinition definition;
	FlFault    *fault = fl_guard_definition(relation, template, stamp,
											&definition);

	if (fault != NULL)
		fl_raise(fault, relation);
	relation_close(relation, NoLock);
}

/* A stamp column that is there already is left as it is, and checked later. */
static void
add_stamp(const Protection *wanted)
{
	Relation	relation = relation_open(wanted->relid, NoLock);
	bool		exists = fl_column_number(relation, wanted->stamp) != 0;
	char	   *command = psprintf("ALTER TABLE %s ADD COLUMN %s pg_catalog.int8",
								   fl_relation_in_message(relation),
								   quote_identifier(wanted->stamp));

	relation_close(relation, NoLock);
	if (exists)
		return;
	check_definition(wanted->relid, wanted->template, NULL);
	fl_command(command);
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
guarded_columns(Relation relation, const Protection *wanted)
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
update_condition(Relation relation, const Protection *wanted)
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
create_trigger(Relation relation, const Protection *wanted, const char *name,
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

static void
guard_table(Oid relid, const Protection *wanted)
{
	Relation	relation = relation_open(relid, NoLock);
	List	   *commands = NIL;
	ListCell   *cell;

	if (relid == wanted->relid || !relation->rd_rel->relispartition)
	{
		if (wanted->on_insert)
			commands = lappend(commands, create_trigger(relation, wanted, INSERT_TRIGGER, "INSERT", ""));
		commands = lappend(commands, create_trigger(relation, wanted, UPDATE_TRIGGER, "UPDATE",
													update_condition(relation, wanted)));
		commands = lappend(commands, create_trigger(relation, wanted, DELETE_TRIGGER, "DELETE", ""));
	}
	if (wanted->on_truncate)
		commands = lappend(commands, create_trigger(relation, wanted, TRUNCATE_TRIGGER, "TRUNCATE", ""));
	relation_close(relation, NoLock);

	foreach(cell, commands)
		fl_command(lfirst(cell));
}

static void
refuse_second(Oid relid)
{
	Relation	relation = relation_open(relid, NoLock);

	for (size_t i = 0; i < lengthof(trigger_names); i++)
	{
		if (OidIsValid(get_trigger_oid(relid, trigger_names[i], true)))
			ereport(ERROR,
					(errcode(ERRCODE_DUPLICATE_OBJECT),
					 errmsg("table %s has a trigger \"%s\" already",
							fl_relation_in_message(relation),
							trigger_names[i]),
					 errhint("To protect it in another way call fenced_lock.unprotect() first."),
					 errtable(relation)));
	}
	relation_close(relation, NoLock);
}

/*
 * protect(relation regclass, key_template text, stamp name, columns name[],
 * on_insert boolean, on_truncate boolean, add_stamp boolean)
 */
Datum
fenced_lock_protect(PG_FUNCTION_ARGS)
{
	Protection	wanted = protection_arguments(fcinfo);
	List	   *tree;
	ListCell   *cell;
	int			settings;

	fl_forbid_read_only("fenced_lock.protect()");
	/* What ALTER TABLE needs is taken at once: an upgrade invites deadlocks. */
	tree = lock_tree(wanted.relid,
					 wanted.add_stamp ? AccessExclusiveLock : ShareRowExclusiveLock);
	foreach(cell, tree)
	{
		check_is_table(lfirst_oid(cell));
		refuse_second(lfirst_oid(cell));
	}

	settings = fl_commands_begin();
	if (wanted.add_stamp)
		add_stamp(&wanted);
	foreach(cell, tree)
		check_definition(lfirst_oid(cell), wanted.template, wanted.stamp);
	foreach(cell, tree)
		guard_table(lfirst_oid(cell), &wanted);
	fl_commands_end(settings);
	PG_RETURN_BOOL(true);
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

/* The commands that take protect()'s triggers from a table. */
static List *
drop_commands(Relation relation, bool is_root)
{
	TriggerDesc *triggers = relation->trigdesc;
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

/* unprotect(relation regclass) */
Datum
fenced_lock_unprotect(PG_FUNCTION_ARGS)
{
	Oid			relid;
	List	   *commands = NIL;
	ListCell   *cell;
	int			settings;

	fl_require_arg(fcinfo, 0, "relation");
	relid = PG_GETARG_OID(0);
	fl_forbid_read_only("fenced_lock.unprotect()");
	foreach(cell, lock_tree(relid, AccessExclusiveLock))
	{
		Oid			member = lfirst_oid(cell);
		Relation	relation = relation_open(member, NoLock);

		commands = list_concat(commands, drop_commands(relation, member == relid));
		relation_close(relation, NoLock);
	}
	settings = fl_commands_begin();
	foreach(cell, commands)
		fl_command(lfirst(cell));
	fl_commands_end(settings);
	PG_RETURN_BOOL(commands != NIL);
}
