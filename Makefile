# Builds and installs fenced_lock with PostgreSQL's extension makefiles (PGXS)
# and starts the tests and the demo. PG_CONFIG= picks another major everywhere.

.DEFAULT_GOAL := all

MODULE_big = fenced_lock
OBJS = $(patsubst %.c,%.o,$(wildcard src/*.c))

EXTENSION = fenced_lock
DATA = sql/fenced_lock--1.0.sql

REGRESS = install lease arguments keys pin guard guard_misuse key_columns stamp paths paths_partitions paths_indirect one_statement watermark protect guards_view transactions rights hostile_names parallel sequence repair reinstall
REGRESS_OPTS = --inputdir=test
ISOLATION = acquire_contest admit_cursor_savepoint admit_hand_on_row admit_serializable admit_snapshot admit_stale_writer admit_waits bulk_maintenance cursor_savepoint deadlock_stale_writer first_grant guard_takes_no_lock force_release hand_on_row lease_ends_between one_statement_wait own_upgrade owner_retry prepared_transaction protect_beside_writers purge release_and_acquire renew_beside_pin renew_off_page repeatable_read savepoints serializable_keys stale_writer statement_snapshot takeover_pinned_writer try_never_waits view_locks wait_behind_release wait_deadlock wait_is_over wait_open_transaction wait_own_lease
ISOLATION_OPTS = --inputdir=test/isolation
TAP_TESTS = 1
PROVE_TESTS = test/t/*.pl

PG_CONFIG ?= pg_config

# These make their own PostgreSQL, so they must work where pg_config is missing.
selfmade = test test-all demo sanitize

ifneq ($(filter-out $(selfmade),$(or $(MAKECMDGOALS),all)),)

PGXS := $(shell $(PG_CONFIG) --pgxs 2>/dev/null)
ifeq ($(wildcard $(PGXS)),)
$(error "$(PG_CONFIG)" finds no PostgreSQL server development files. Install them (Debian and Ubuntu: postgresql-server-dev-NN) or say PG_CONFIG=/path/to/pg_config. "make test" and "make demo" need neither)
endif

# STRICT=1 is how our own tests build. With -isystem a warning inside
# PostgreSQL's headers is not held against us; all of ours are errors.
ifdef STRICT
PG_CFLAGS = -Wall -Wextra -Werror
endif

include $(PGXS)

ifdef STRICT
override CPPFLAGS := $(patsubst -I$(pkgincludedir)%,-isystem $(pkgincludedir)%,$(CPPFLAGS))
endif

# PGXS tracks no headers.
$(OBJS) $(OBJS:.o=.bc): $(wildcard src/*.h)

endif

.PHONY: $(selfmade)

test test-all:
	@test/run

demo:
	@test/demo/run

sanitize:
	@test/sanitize
