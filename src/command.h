/*-------------------------------------------------------------------------
 *
 * command.h
 *	  SQL commands that we put together.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FENCED_LOCK_COMMAND_H
#define FENCED_LOCK_COMMAND_H

#include "nodes/pg_list.h"

extern int	fl_commands_begin(void);
extern void fl_commands_end(int settings);
extern void fl_command(const char *command);
extern void fl_commands(List *commands);

#endif							/* FENCED_LOCK_COMMAND_H */
