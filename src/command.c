/*-------------------------------------------------------------------------
 *
 * command.c
 *	  SQL commands that we put together: with the caller's rights, and with a
 *	  search_path in which nobody else's objects come first.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "command.h"
#include "compat.h"
#include "executor/spi.h"

/* Connect to SPI; what this returns is for fl_commands_end(). */
int
fl_commands_begin(void)
{
	int			settings = NewGUCNestLevel();

	set_config_option("search_path", "pg_catalog, pg_temp",
					  PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE,
					  true, 0, false);
	SPI_connect();
	return settings;
}

void
fl_commands_end(int settings)
{
	SPI_finish();
	AtEOXact_GUC(true, settings);
}

/* A utility command; what it says must be quoted already. */
void
fl_command(const char *command)
{
	if (SPI_execute(command, false, 0) != SPI_OK_UTILITY)
		elog(ERROR, "could not execute \"%s\"", command);
}

void
fl_commands(List *commands)
{
	ListCell   *cell;

	foreach(cell, commands)
		fl_command(lfirst(cell));
}
