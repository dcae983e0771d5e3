/*-------------------------------------------------------------------------
 *
 * guard_definition.c
 *	  What a guard's arguments say of a relation: the key template and the
 *	  stamp column, checked.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "catalog/partition.h"
#include "catalog/pg_type.h"
#include "compat.h"
#include "errors.h"
#include "guard_definition.h"
#include "utils/builtins.h"
#include "utils/rel.h"

/*
 * A stamp in a partition key would move the row while a trigger writes it.
 * What the partition's ancestors are partitioned by counts.
 */
static bool
is_in_partition_key(Relation relation, const char *column)
{
	List	   *ancestors;
	ListCell   *cell;
	bool		found = false;

	if (!relation->rd_rel->relispartition)
		return false;
	ancestors = get_partition_ancestors(RelationGetRelid(relation));
	foreach(cell, ancestors)
	{
		Relation	ancestor = relation_open(lfirst_oid(cell), AccessShareLock);
		AttrNumber	number = fl_column_number(ancestor, column);
		Bitmapset  *columns = bms_make_singleton(number - FirstLowInvalidHeapAttributeNumber);
		bool		in_expression;

		found |= has_partition_attrs(ancestor, columns, &in_expression);
		relation_close(ancestor, AccessShareLock);
	}
	return found;
}

static AttrNumber
stamp_column(Relation relation, const char *name, const FlTemplate *template)
{
	AttrNumber	column = fl_column_number(relation, name);
	Form_pg_attribute attribute = TupleDescAttr(RelationGetDescr(relation),
												column - 1);

	if (attribute->atttypid != INT8OID)
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("stamp column \"%s\" of table %s must be of type bigint, not %s",
						name, fl_relation_in_message(relation),
						format_type_be(attribute->atttypid)),
				 errtablecol(relation, column)));
	if (attribute->attgenerated != '\0' ||
		fl_template_uses(template, column) ||
		is_in_partition_key(relation, name))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_OBJECT_DEFINITION),
				 errmsg("stamp column \"%s\" of table %s must be neither generated, nor part of the key template or of a partition key",
						name, fl_relation_in_message(relation)),
				 errtablecol(relation, column)));
	return column;
}

/*
 * Read a template and the name of a stamp column (NULL: none) for a relation.
 * Lives in the current context.
 */
FlGuardDefinition *
fl_guard_definition(Relation relation, const char *template,
					const char *stamp)
{
	FlGuardDefinition *definition = palloc0(sizeof(FlGuardDefinition));

	definition->template = fl_template_parse(template, relation);
	if (stamp != NULL)
		definition->stamp = stamp_column(relation, stamp,
										 definition->template);
	return definition;
}
