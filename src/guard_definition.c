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
 * What the relation and its ancestors are partitioned by counts.
 *
 * The ancestors are looked at without a lock.  A trigger asks this, and a lock
 * that is taken behind that of a row can be part of a deadlock; and whoever
 * has the partition locked keeps it from being detached from them.
 */
static bool
is_in_partition_key(Relation relation, const char *column)
{
	List	   *partitioned = list_make1_oid(RelationGetRelid(relation));
	ListCell   *cell;
	bool		found = false;

	if (relation->rd_rel->relispartition)
		partitioned = list_concat(partitioned,
								  get_partition_ancestors(RelationGetRelid(relation)));
	foreach(cell, partitioned)
	{
		Relation	ancestor = RelationIdGetRelation(lfirst_oid(cell));
		AttrNumber	number;
		bool		in_expression;

		if (ancestor == NULL)
			continue;
		number = fl_column_number(ancestor, column);
		found |= has_partition_attrs(ancestor,
									 bms_make_singleton(number - FirstLowInvalidHeapAttributeNumber),
									 &in_expression);
		RelationClose(ancestor);
	}
	return found;
}

static FlFault *
find_stamp(Relation relation, const char *name, FlGuardDefinition *definition)
{
	AttrNumber	column = fl_column_number(relation, name);
	Form_pg_attribute attribute;

	if (column == 0)
		return fl_no_such_column(relation, name);
	attribute = TupleDescAttr(RelationGetDescr(relation), column - 1);
	if (attribute->atttypid != INT8OID)
		return fl_fault(ERRCODE_DATATYPE_MISMATCH, column, NULL,
						"stamp column \"%s\" of table %s must be of type bigint, not %s",
						name, fl_relation_in_message(relation),
						format_type_be(attribute->atttypid));
	if (attribute->attgenerated != '\0' ||
		fl_template_uses(definition->template, column) ||
		is_in_partition_key(relation, name))
		return fl_fault(ERRCODE_INVALID_OBJECT_DEFINITION, column, NULL,
						"stamp column \"%s\" of table %s must be neither generated, nor part of the key template or of a partition key",
						name, fl_relation_in_message(relation));
	definition->stamp = column;
	return NULL;
}

/*
 * Read a template and the name of a stamp column (NULL: none) for a relation.
 * NULL, or what is wrong with them.  Lives in the current context.
 */
FlFault *
fl_guard_definition(Relation relation, const char *template,
					const char *stamp, FlGuardDefinition *definition)
{
	FlFault    *fault = fl_template_parse(template, relation,
										  &definition->template);

	definition->stamp = 0;
	if (fault == NULL && stamp != NULL)
		fault = find_stamp(relation, stamp, definition);
	return fault;
}
