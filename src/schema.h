/*-------------------------------------------------------------------------
 *
 * schema.h
 *	  Finding our relations by name.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FENCED_LOCK_SCHEMA_H
#define FENCED_LOCK_SCHEMA_H

#define FL_SCHEMA "fenced_lock"

extern Oid	fl_schema_oid(void);
extern Oid	fl_relation_oid(const char *name);
extern void fl_table_vanished(const char *name);

#endif							/* FENCED_LOCK_SCHEMA_H */
