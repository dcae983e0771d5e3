/*-------------------------------------------------------------------------
 *
 * guard_definition.h
 *	  What a guard's arguments say of a relation.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FENCED_LOCK_GUARD_DEFINITION_H
#define FENCED_LOCK_GUARD_DEFINITION_H

#include "key_template.h"
#include "utils/relcache.h"

typedef struct FlGuardDefinition
{
	FlTemplate *template;
	AttrNumber	stamp;			/* 0: no stamp column */
} FlGuardDefinition;

extern FlFault *fl_guard_definition(Relation relation, const char *template,
									const char *stamp,
									FlGuardDefinition *definition);

#endif							/* FENCED_LOCK_GUARD_DEFINITION_H */
