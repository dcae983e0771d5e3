/*-------------------------------------------------------------------------
 *
 * rights.c
 *	  The one grant that an application role needs, and that there be no other.
 *
 * GRANT and REVOKE are put together by a query.  Functions are named without
 * their arguments, as GRANT allows where a name is unique.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "arguments.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_type_d.h"
#include "command.h"
#include "commands/extension.h"
#include "compat.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "schema.h"
#include "utils/builtins.h"

/* Objects of the schema: how GRANT names each, its rights and its owner. */
#define OBJECTS \
	"(SELECT 'TABLE ' || c.oid::regclass AS object," \
	"        c.relname AS name, c.relkind AS kind, c.relacl AS acl, c.relowner AS owner" \
	"   FROM pg_class c" \
	"  WHERE c.relnamespace = $1 AND c.relkind IN ('r', 'v', 'S')" \
	" UNION ALL" \
	" SELECT format('FUNCTION %I.%I', '" FL_SCHEMA "', p.proname), p.proname, 'f'," \
	"        coalesce(p.proacl, acldefault('f', p.proowner)), p.proowner" \
	"   FROM pg_proc p" \
	"  WHERE p.pronamespace = $1" \
	" UNION ALL" \
	" SELECT format('SCHEMA %I', n.nspname), n.nspname, 'n', n.nspacl, n.nspowner" \
	"   FROM pg_namespace n" \
	"  WHERE n.oid = $1) o"

/* What allow() gives: all functions and views but what administers them. */
#define GRANTABLE \
	OBJECTS \
	" WHERE o.kind IN ('f', 'v')" \
	"   AND o.name NOT IN ('allow', 'disallow', 'force_release', 'purge'," \
	"                      'raise_fence', 'take_back_rights')"

#define RIGHT_OF_KIND \
	"CASE o.kind WHEN 'f' THEN 'EXECUTE' ELSE 'SELECT' END"

PG_FUNCTION_INFO_V1(fenced_lock_allow);
PG_FUNCTION_INFO_V1(fenced_lock_disallow);
PG_FUNCTION_INFO_V1(fenced_lock_take_back_rights);

/*
 * GRANT by somebody without the right to is a warning only, and one that a
 * driver hides: so ask first.
 */
static void
require_owner(const char *function)
{
	Oid			extension = get_extension_oid("fenced_lock", false);

	if (!extension_ownercheck(extension, GetUserId()))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for function %s", function),
				 errdetail("Only the owner of extension fenced_lock may call it.")));
}

/*
 * Run the commands that a query makes.  $1 is our schema's OID, $2 the name of
 * a role, quoted.
 */
static void
run_commands(const char *query, const char *role)
{
	Oid			types[2] = {OIDOID, TEXTOID};
	Datum		values[2];
	SPITupleTable *commands;
	uint64		count;
	int			settings = fl_commands_begin();

	values[0] = ObjectIdGetDatum(fl_schema_oid());
	values[1] = CStringGetTextDatum(role);
	if (SPI_execute_with_args(query, 2, types, values, NULL, true, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not list the objects of fenced_lock");
	commands = SPI_tuptable;
	count = SPI_processed;
	for (uint64 i = 0; i < count; i++)
		fl_command(SPI_getvalue(commands->vals[i], commands->tupdesc, 1));
	fl_commands_end(settings);
}

static const char *
role_argument(FunctionCallInfo fcinfo)
{
	fl_require_arg(fcinfo, 0, "role");
	return quote_identifier(GetUserNameFromId(PG_GETARG_OID(0), false));
}

/* allow(role regrole) */
Datum
fenced_lock_allow(PG_FUNCTION_ARGS)
{
	const char *role = role_argument(fcinfo);

	fl_forbid_read_only("fenced_lock.allow()");
	require_owner("allow");
	run_commands("SELECT 'GRANT ' || " RIGHT_OF_KIND " || ' ON ' || o.object || ' TO ' || $2"
				 "  FROM " GRANTABLE, role);
	PG_RETURN_BOOL(true);
}

/* disallow(role regrole) */
Datum
fenced_lock_disallow(PG_FUNCTION_ARGS)
{
	const char *role = role_argument(fcinfo);

	fl_forbid_read_only("fenced_lock.disallow()");
	require_owner("disallow");
	run_commands("SELECT 'REVOKE ' || " RIGHT_OF_KIND " || ' ON ' || o.object || ' FROM ' || $2"
				 "  FROM " GRANTABLE, role);
	PG_RETURN_BOOL(true);
}

/*
 * take_back_rights(): for the extension's script, before it grants what it
 * means to.  Default privileges (ALTER DEFAULT PRIVILEGES) have given others
 * what CREATE EXTENSION has made, and PUBLIC has every new function.
 */
Datum
fenced_lock_take_back_rights(PG_FUNCTION_ARGS)
{
	fl_forbid_read_only("fenced_lock.take_back_rights()");
	run_commands("SELECT DISTINCT 'REVOKE ALL ON ' || o.object || ' FROM ' ||"
				 "       CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END"
				 "  FROM " OBJECTS ", aclexplode(o.acl) a"
				 " WHERE a.grantee <> o.owner AND $2 IS NOT NULL", "");
	PG_RETURN_BOOL(true);
}
