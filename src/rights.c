/*-------------------------------------------------------------------------
 *
 * rights.c
 *	  The one grant that an application role needs.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "arguments.h"
#include "catalog/pg_extension.h"
#include "commands/extension.h"
#include "compat.h"
#include "executor/spi.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "schema.h"
#include "utils/builtins.h"

/*
 * All functions and views of the schema but what administers it.  Functions
 * are named without their arguments, as GRANT allows where a name is unique:
 * a type's name could mean somebody else's type.
 */
#define GRANTABLE \
	"SELECT 'FUNCTION', pg_catalog.string_agg(pg_catalog.format('%I.%I', n.nspname, p.proname), ', ')" \
	"  FROM pg_catalog.pg_proc p" \
	"  JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) p.pronamespace" \
	" WHERE n.nspname OPERATOR(pg_catalog.=) '" FL_SCHEMA "'" \
	"   AND p.proname OPERATOR(pg_catalog.<>) ALL ('{allow,disallow}')" \
	"UNION ALL " \
	"SELECT 'TABLE', pg_catalog.string_agg(pg_catalog.format('%I.%I', n.nspname, c.relname), ', ')" \
	"  FROM pg_catalog.pg_class c" \
	"  JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace" \
	" WHERE n.nspname OPERATOR(pg_catalog.=) '" FL_SCHEMA "'" \
	"   AND c.relkind OPERATOR(pg_catalog.=) 'v'"

PG_FUNCTION_INFO_V1(fenced_lock_allow);
PG_FUNCTION_INFO_V1(fenced_lock_disallow);

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

static Oid
role_argument(FunctionCallInfo fcinfo)
{
	fl_require_arg(fcinfo, 0, "role");
	return PG_GETARG_OID(0);
}

/* "GRANT EXECUTE ON %s %s TO %s" and the like, for functions and views. */
static void
for_all_grantable(const char *functions, const char *views, Oid role)
{
	const char *name = quote_identifier(GetUserNameFromId(role, false));

	SPI_connect();
	if (SPI_execute(GRANTABLE, true, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not list the functions of fenced_lock");
	for (uint64 i = 0, rows = SPI_processed; i < rows; i++)
	{
		SPITupleTable *list = SPI_tuptable;
		char	   *kind = SPI_getvalue(list->vals[i], list->tupdesc, 1);
		char	   *objects = SPI_getvalue(list->vals[i], list->tupdesc, 2);
		StringInfoData command;

		initStringInfo(&command);
		appendStringInfo(&command,
						 strcmp(kind, "TABLE") == 0 ? views : functions,
						 objects, name);
		if (SPI_execute(command.data, false, 0) != SPI_OK_UTILITY)
			elog(ERROR, "could not execute \"%s\"", command.data);
		SPI_tuptable = list;
	}
	SPI_finish();
}

/* allow(role regrole) */
Datum
fenced_lock_allow(PG_FUNCTION_ARGS)
{
	Oid			role = role_argument(fcinfo);

	fl_forbid_read_only("fenced_lock.allow()");
	require_owner("allow");
	for_all_grantable("GRANT EXECUTE ON FUNCTION %s TO %s",
					  "GRANT SELECT ON TABLE %s TO %s", role);
	PG_RETURN_BOOL(true);
}

/* disallow(role regrole) */
Datum
fenced_lock_disallow(PG_FUNCTION_ARGS)
{
	Oid			role = role_argument(fcinfo);

	fl_forbid_read_only("fenced_lock.disallow()");
	require_owner("disallow");
	for_all_grantable("REVOKE EXECUTE ON FUNCTION %s FROM %s",
					  "REVOKE SELECT ON TABLE %s FROM %s", role);
	PG_RETURN_BOOL(true);
}
