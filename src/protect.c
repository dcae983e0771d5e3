/*-------------------------------------------------------------------------
 *
 * protect.c
 *	  Putting guards on a table and all that belongs to it, and taking them
 *	  away.
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
#include "compat.h"
#include "errors.h"
#include "guard_definition.h"
#include "guard_trigger.h"
#include "miscadmin.h"
#include "schema.h"
#include "storage/lmgr.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

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

static FlProtection
protection_arguments(FunctionCallInfo fcinfo)
{
	FlProtection wanted;

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
check_is_table(Relation relation)
{
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
}

static void
check_exists(Oid relid)
{
	if (!SearchSysCacheExists1(RELOID, ObjectIdGetDatum(relid)))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation with OID %u does not exist", relid)));
}

/*
 * The OIDs of a table and of all its partitions and inheritance children, the
 * table's first, locked; the caller must own the table.
 */
static List *
lock_tree(Oid relid, LOCKMODE mode)
{
	Relation	relation;

	/* before the lock: who may not protect it may not block it either */
	check_exists(relid);
	if (!relation_ownercheck(relid, GetUserId()))
		aclcheck_error(ACLCHECK_NOT_OWNER,
					   get_relkind_objtype(get_rel_relkind(relid)),
					   get_rel_name(relid));
	LockRelationOid(relid, mode);
	check_exists(relid);		/* it may be gone by now */
	relation = relation_open(relid, NoLock);
	check_is_table(relation);
	relation_close(relation, NoLock);
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
add_stamp(const FlProtection *wanted)
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

/* Row triggers on partitions are clones of the table's. */
static void
guard_table(Oid relid, const FlProtection *wanted)
{
	Relation	relation = relation_open(relid, NoLock);
	List	   *commands = fl_guard_triggers_create(relation, wanted,
													relid == wanted->relid ||
													!relation->rd_rel->relispartition);

	relation_close(relation, NoLock);
	fl_commands(commands);
}

/*
 * protect(relation regclass, key_template text, stamp name, columns name[],
 * on_insert boolean, on_truncate boolean, add_stamp boolean)
 */
Datum
fenced_lock_protect(PG_FUNCTION_ARGS)
{
	FlProtection wanted = protection_arguments(fcinfo);
	List	   *tree;
	ListCell   *cell;
	int			settings;

	fl_forbid_read_only("fenced_lock.protect()");
	/* What ALTER TABLE needs is taken at once: an upgrade invites deadlocks. */
	tree = lock_tree(wanted.relid,
					 wanted.add_stamp ? AccessExclusiveLock : ShareRowExclusiveLock);
	foreach(cell, tree)
	{
		Relation	relation = relation_open(lfirst_oid(cell), NoLock);

		check_is_table(relation);
		fl_guard_triggers_refuse(relation);
		relation_close(relation, NoLock);
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

		commands = list_concat(commands,
							   fl_guard_triggers_drop(relation, member == relid));
		relation_close(relation, NoLock);
	}
	settings = fl_commands_begin();
	fl_commands(commands);
	fl_commands_end(settings);
	PG_RETURN_BOOL(commands != NIL);
}
