/*-------------------------------------------------------------------------
 *
 * keyed_table.h
 *	  A table of ours whose rows have a key and a fencing token.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FENCED_LOCK_KEYED_TABLE_H
#define FENCED_LOCK_KEYED_TABLE_H

#include "access/htup.h"
#include "storage/lockdefs.h"
#include "utils/relcache.h"

/* The first columns of each. */
enum
{
	FL_COL_KEY = 1,
	FL_COL_FENCING_TOKEN
};

/* The table, opened. */
typedef struct FlTable
{
	Relation	heap;
	Relation	index;			/* on (key, fencing_token) */
} FlTable;

/* Which present a look sees; see fl_table_find(). */
typedef enum FlLook
{
	FL_LOOK_SELF,
	FL_LOOK_LATEST
} FlLook;

/* The columns of a new version of a row, by column number. */
typedef struct FlNewRow
{
	Datum	   *values;
	bool	   *nulls;
	bool	   *replaces;
} FlNewRow;

extern void fl_table_open(FlTable *table, const char *name, LOCKMODE mode);
extern void fl_table_close(FlTable *table, LOCKMODE mode);

extern HeapTuple fl_table_find(FlTable *table, const text *key, FlLook look);
extern bool fl_table_row_is_free(FlTable *table, HeapTuple row);
extern bool fl_table_row_wait(FlTable *table, HeapTuple row);

extern void fl_new_row_init(FlNewRow *new, const FlTable *table);
extern void fl_new_row_set(FlNewRow *new, int column, Datum value);
extern void fl_new_row_set_null(FlNewRow *new, int column);
extern void fl_table_write(FlTable *table, HeapTuple old, FlNewRow *new);
extern void fl_table_delete(FlTable *table, HeapTuple row);

#endif							/* FENCED_LOCK_KEYED_TABLE_H */
