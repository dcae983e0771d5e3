/*-------------------------------------------------------------------------
 *
 * key_template.h
 *	  From a row to its key: 'wallet:{id}'.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FENCED_LOCK_KEY_TEMPLATE_H
#define FENCED_LOCK_KEY_TEMPLATE_H

#include "access/htup.h"
#include "errors.h"
#include "lib/stringinfo.h"
#include "utils/relcache.h"

typedef struct FlTemplate FlTemplate;

extern FlFault *fl_template_parse(const char *source, Relation relation,
								  FlTemplate **result);
extern bool fl_template_uses(const FlTemplate *template, AttrNumber column);
extern bool fl_template_is_readable(const FlTemplate *template,
									Relation relation);
extern StringInfo fl_template_key(FlTemplate *template, Relation relation,
								  HeapTuple row, bool *same);

extern AttrNumber fl_column_number(Relation relation, const char *name);
extern FlFault *fl_no_such_column(Relation relation, const char *name);

#endif							/* FENCED_LOCK_KEY_TEMPLATE_H */
