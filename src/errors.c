/*-------------------------------------------------------------------------
 *
 * errors.c
 *	  What stands in our error messages.
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
