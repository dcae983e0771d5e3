/*-------------------------------------------------------------------------
 *
 * key_template.c
 *	  From a row to its key: 'wallet:{id}'.
 *
 * {column} stands for the column's text, {{ for a brace; all else, a closing
 * brace too, stands for itself.
 *
 * Only columns whose text is the same in every session and different for
 * different values may name a key: integers, text, varchar, uuid, boolean and
 * enums, and domains over these.  The text of dates, floats, numerics and
 * bytea depends on settings or has several forms.  A generated column is not
 * computed yet when a BEFORE trigger sees its row.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "arguments.h"
#include "catalog/pg_type.h"
#include "compat.h"
#include "key_template.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/rls.h"

/* A piece of a template: literal text, then a column, or none at the end. */
typedef struct Piece
{
	const char *literal;
	int			length;
	AttrNumber	column;			/* 0: none */
	Oid			type;			/* under any domain */
	bool		by_value;
	int16		length_of_type;
	FmgrInfo	output;
	Datum		last;			/* value in the row that was seen last */
} Piece;

struct FlTemplate
{
	int			count;
	Piece	   *pieces;
	StringInfoData key;			/* of the row that was seen last */
	MemoryContext context;
};

/* A column by its exact name; 0 if the table has none such. */
AttrNumber
fl_column_number(Relation relation, const char *name)
{
	TupleDesc	desc = RelationGetDescr(relation);

	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute attribute = TupleDescAttr(desc, i);

		if (!attribute->attisdropped &&
			strcmp(NameStr(attribute->attname), name) == 0)
			return attribute->attnum;
	}
	return InvalidAttrNumber;
}

FlFault *
fl_no_such_column(Relation relation, const char *name)
{
	return fl_fault(ERRCODE_UNDEFINED_COLUMN, 0, NULL,
					"column \"%s\" of relation \"%s\" does not exist",
					name, RelationGetRelationName(relation));
}

static bool
type_may_name_a_key(Oid type)
{
	switch (type)
	{
		case INT2OID:
		case INT4OID:
		case INT8OID:
		case TEXTOID:
		case VARCHAROID:
		case UUIDOID:
		case BOOLOID:
			return true;
		default:
			return type_is_enum(type);
	}
}

static FlFault *
set_column(Piece *piece, Relation relation, const char *name)
{
	Form_pg_attribute attribute;
	Oid			output;
	bool		is_varlena;

	piece->column = fl_column_number(relation, name);
	if (piece->column == 0)
		return fl_no_such_column(relation, name);
	attribute = TupleDescAttr(RelationGetDescr(relation), piece->column - 1);
	if (attribute->attgenerated != '\0')
		return fl_fault(ERRCODE_INVALID_OBJECT_DEFINITION, piece->column, NULL,
						"generated column \"%s\" of relation \"%s\" can't be part of a key template",
						name, RelationGetRelationName(relation));
	piece->type = getBaseType(attribute->atttypid);
	if (!type_may_name_a_key(piece->type))
		return fl_fault(ERRCODE_DATATYPE_MISMATCH, piece->column,
						"Integer, text, varchar, uuid, boolean and enum columns can.",
						"column \"%s\" of relation \"%s\" has type %s, which can't be part of a key template",
						name, RelationGetRelationName(relation),
						format_type_be(attribute->atttypid));
	piece->by_value = attribute->attbyval;
	piece->length_of_type = attribute->attlen;
	getTypeOutputInfo(piece->type, &output, &is_varlena);
	fmgr_info(output, &piece->output);
	return NULL;
}

/*
 * Take a template apart for a relation.  Columns are found by name, since a
 * partition numbers them in its own way.  Lives in the current context.
 * NULL, or what is wrong with it.
 */
FlFault *
fl_template_parse(const char *source, Relation relation, FlTemplate **result)
{
	FlTemplate *template = palloc(sizeof(FlTemplate));
	char	   *copy = pstrdup(source);
	char	   *from = copy;

	template->context = CurrentMemoryContext;
	initStringInfo(&template->key);

	if (source[0] == '\0')
		return fl_fault(ERRCODE_INVALID_PARAMETER_VALUE, 0, NULL,
						"key template must not be empty");
	if (strlen(source) > FL_MAX_KEY_LENGTH)
		return fl_fault(ERRCODE_INVALID_PARAMETER_VALUE, 0, NULL,
						"key template is too long: %zu bytes, at most %d are allowed",
						strlen(source), FL_MAX_KEY_LENGTH);

	/* Each piece but the last ends with a brace. */
	template->count = 0;
	template->pieces = palloc0((strlen(source) + 1) * sizeof(Piece));
	for (;;)
	{
		Piece	   *piece = &template->pieces[template->count++];
		char	   *brace = strchr(from, '{');
		char	   *end;
		FlFault    *fault;

		piece->literal = from;
		if (brace == NULL)
		{
			piece->length = strlen(from);
			*result = template;
			return NULL;
		}
		if (brace[1] == '{')
		{
			piece->length = brace + 1 - from;
			from = brace + 2;
			continue;
		}
		end = strchr(brace, '}');
		if (end == NULL || end == brace + 1)
			return fl_fault(ERRCODE_INVALID_PARAMETER_VALUE, 0,
							"Write {column} for a column's value and {{ for a brace.",
							"invalid key template \"%s\": %s", source,
							end == NULL ? "\"{\" without \"}\"" : "empty \"{}\"");
		piece->length = brace - from;
		*end = '\0';
		fault = set_column(piece, relation, brace + 1);
		if (fault != NULL)
			return fault;
		from = end + 1;
	}
}

/* Is a column part of the key? */
bool
fl_template_uses(const FlTemplate *template, AttrNumber column)
{
	for (int i = 0; i < template->count; i++)
	{
		if (template->pieces[i].column == column)
			return true;
	}
	return false;
}

/* May the current user read all columns of the key? */
bool
fl_template_is_readable(const FlTemplate *template, Relation relation)
{
	Oid			table = RelationGetRelid(relation);

	/* Row security may hide the row itself. */
	if (check_enable_rls(table, InvalidOid, true) == RLS_ENABLED)
		return false;
	if (pg_class_aclcheck(table, GetUserId(), ACL_SELECT) == ACLCHECK_OK)
		return true;
	for (int i = 0; i < template->count; i++)
	{
		AttrNumber	column = template->pieces[i].column;

		if (column != 0 &&
			pg_attribute_aclcheck(table, column, GetUserId(),
								  ACL_SELECT) != ACLCHECK_OK)
			return false;
	}
	return true;
}

static Datum
column_value(const Piece *piece, Relation relation, HeapTuple row)
{
	TupleDesc	desc = RelationGetDescr(relation);
	bool		isnull;
	Datum		value = heap_getattr(row, piece->column, desc, &isnull);

	if (isnull)
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("column \"%s\" of relation \"%s\" is part of the lock's key and must not be null",
						NameStr(TupleDescAttr(desc, piece->column - 1)->attname),
						RelationGetRelationName(relation))));
	return value;
}

/* Has a row the key of the one before it, as far as its bytes show? */
static bool
is_same_key(const FlTemplate *template, Relation relation, HeapTuple row)
{
	if (template->key.len == 0)
		return false;
	for (int i = 0; i < template->count; i++)
	{
		const Piece *piece = &template->pieces[i];
		Datum		value;

		if (piece->column == 0)
			continue;
		value = column_value(piece, relation, row);
		if (piece->by_value ? value != piece->last :
			!datumIsEqual(value, piece->last, false, piece->length_of_type))
			return false;
	}
	return true;
}

static void
keep_value(FlTemplate *template, Piece *piece, Datum value)
{
	MemoryContext saved = MemoryContextSwitchTo(template->context);

	if (!piece->by_value && DatumGetPointer(piece->last) != NULL)
		pfree(DatumGetPointer(piece->last));
	piece->last = datumCopy(value, piece->by_value, piece->length_of_type);
	MemoryContextSwitchTo(saved);
}

static void
append_value(StringInfo key, Piece *piece, Datum value)
{
	char	   *text;

	/* as value::text has it, which for a boolean is not what output has */
	if (piece->type == BOOLOID)
	{
		appendStringInfoString(key, DatumGetBool(value) ? "true" : "false");
		return;
	}
	text = OutputFunctionCall(&piece->output, value);
	appendStringInfoString(key, text);
	pfree(text);
}

/*
 * The key of a row, good until the next call, and whether it is the same as
 * that of the last one: many rows of one key should cost little.
 */
StringInfo
fl_template_key(FlTemplate *template, Relation relation, HeapTuple row,
				bool *same)
{
	StringInfo	key = &template->key;

	*same = is_same_key(template, relation, row);
	if (*same)
		return key;

	resetStringInfo(key);
	for (int i = 0; i < template->count; i++)
	{
		Piece	   *piece = &template->pieces[i];
		Datum		value;

		appendBinaryStringInfo(key, piece->literal, piece->length);
		if (piece->column == 0)
			continue;
		value = column_value(piece, relation, row);
		append_value(key, piece, value);
		keep_value(template, piece, value);
	}
	fl_check_key_length(key->len, "key of the row");
	return key;
}
