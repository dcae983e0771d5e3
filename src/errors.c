/*-------------------------------------------------------------------------
 *
 * errors.c
 *	  What stands in our error messages, and errors that are not raised yet.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "errors.h"
#include "lib/stringinfo.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

/*
 * A key as a message shows it.  The primary message holds all facts in one
 * line, since some frameworks show no more; a key may hold line breaks, which
 * would also forge lines of the server's log.
 */
char *
fl_key_in_message(const char *key, Size length)
{
	StringInfoData shown;

	initStringInfo(&shown);
	for (Size i = 0; i < length; i++)
	{
		unsigned char c = key[i];

		if (c < 0x20 || c == 0x7f)
			appendStringInfo(&shown, "\\x%02x", c);
		else
			appendStringInfoChar(&shown, c);
	}
	return shown.data;
}

char *
fl_text_key_in_message(const text *key)
{
	return fl_key_in_message(VARDATA_ANY(key), VARSIZE_ANY_EXHDR(key));
}

/* A relation by schema and name, quoted where SQL would have it. */
char *
fl_relation_in_message(Relation relation)
{
	return quote_qualified_identifier(get_namespace_name(RelationGetNamespace(relation)),
									  RelationGetRelationName(relation));
}

/* A fault, in the current context. */
FlFault *
fl_fault(int sqlstate, AttrNumber column, const char *hint,
		 const char *format,...)
{
	FlFault    *fault = palloc(sizeof(FlFault));
	StringInfoData message;

	initStringInfo(&message);
	for (;;)
	{
		va_list		arguments;
		int			needed;

		va_start(arguments, format);
		needed = appendStringInfoVA(&message, format, arguments);
		va_end(arguments);
		if (needed == 0)
			break;
		enlargeStringInfo(&message, needed);
	}
	fault->sqlstate = sqlstate;
	fault->message = message.data;
	fault->hint = hint;
	fault->column = column;
	return fault;
}

void
fl_raise(const FlFault *fault, Relation relation)
{
	ereport(ERROR,
			(errcode(fault->sqlstate),
			 errmsg_internal("%s", fault->message),
			 fault->hint != NULL ? errhint("%s", fault->hint) : 0,
			 fault->column != 0 ? errtablecol(relation, fault->column) : errtable(relation)));
}
