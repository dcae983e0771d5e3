/*-------------------------------------------------------------------------
 *
 * schema.c
 *	  Finding our relations by name.
 *
 * Names are looked up at every call (two system cache hits).  An OID kept in
 * a static variable would outlive DROP EXTENSION and CREATE EXTENSION in one
 * session.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/namespace.h"
#include "schema.h"
#include "utils/lsyscache.h"

/* The OID of our schema; 3F000 when the extension is not installed. */
Oid
fl_schema_oid(void)
{
	return get_namespace_oid(FL_SCHEMA, false);
}

/*
 * The OID of one of our relations; 42P01 when the extension is not installed
 * (a leftover function of ours, called after a hand dropped the table).
 */
Oid
fl_relation_oid(const char *name)
{
	Oid			relid = get_relname_relid(name, fl_schema_oid());

	if (!OidIsValid(relid))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation \"%s.%s\" does not exist", FL_SCHEMA, name),
				 errhint("Extension fenced_lock is not installed in this database, or not completely.")));
	return relid;
}

/* A table was there when its name was looked up, and not once it was locked. */
void
fl_table_vanished(const char *name)
{
	ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_TABLE),
			 errmsg("table \"%s.%s\" was dropped meanwhile",
					FL_SCHEMA, name)));
}
