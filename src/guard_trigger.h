/*-------------------------------------------------------------------------
 *
 * guard_trigger.h
 *	  The triggers that protect() makes.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FENCED_LOCK_GUARD_TRIGGER_H
#define FENCED_LOCK_GUARD_TRIGGER_H

#include "nodes/pg_list.h"
#include "utils/relcache.h"

/* What protect() was asked for. */
typedef struct FlProtection
{
	Oid			relid;
	const char *template;
	const char *stamp;			/* NULL: none */
	List	   *columns;		/* names; NIL: all */
	bool		on_insert;
	bool		on_truncate;
	bool		add_stamp;
} FlProtection;

extern void fl_guard_triggers_refuse(Relation relation);
extern List *fl_guard_triggers_create(Relation relation,
									  const FlProtection *wanted,
									  bool for_rows);
extern List *fl_guard_triggers_drop(Relation relation, bool is_root);

#endif							/* FENCED_LOCK_GUARD_TRIGGER_H */
