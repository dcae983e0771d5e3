/*-------------------------------------------------------------------------
 *
 * errors.h
 *	  The SQLSTATEs of class LF, and what stands in messages.
 *
 * Class LF is ours: classes that begin with I-Z are left to implementations.
 * LF0xx says that the lock is lost, so the job is to be queued again; LF1xx
 * says that the program is wrong.  Never 40001 for these (frameworks would
 * retry the same dead token) and never class 23 (ORMs swallow it).
 *
 * An owner token never stands in a message.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FENCED_LOCK_ERRORS_H
#define FENCED_LOCK_ERRORS_H

#include "access/attnum.h"
#include "utils/elog.h"
#include "utils/relcache.h"

/* lost: a newer token was issued for the key */
#define ERRCODE_STALE_FENCING_TOKEN		MAKE_SQLSTATE('L','F','0','0','1')
/* lost: the lease expired or was released */
#define ERRCODE_LOCK_NOT_HELD			MAKE_SQLSTATE('L','F','0','0','2')
/* bug: a guarded write without a pin */
#define ERRCODE_WRITE_WITHOUT_PIN		MAKE_SQLSTATE('L','F','1','0','1')
/* bug: a token that was never issued for the key */
#define ERRCODE_UNKNOWN_FENCING_TOKEN	MAKE_SQLSTATE('L','F','1','0','2')

/*
 * What is wrong with a definition, found without raising it: a trigger raises
 * it, view guards shows it.
 */
typedef struct FlFault
{
	int			sqlstate;
	char	   *message;
	const char *hint;			/* NULL: none */
	AttrNumber	column;			/* of the relation that it is about; 0: none */
} FlFault;

extern FlFault *fl_fault(int sqlstate, AttrNumber column, const char *hint,
						 const char *format,...) pg_attribute_printf(4, 5);
extern void fl_raise(const FlFault *fault, Relation relation);

extern char *fl_key_in_message(const char *key, Size length);
extern char *fl_text_key_in_message(const text *key);
extern char *fl_relation_in_message(Relation relation);

#endif							/* FENCED_LOCK_ERRORS_H */
