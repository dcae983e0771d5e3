/*
 * random_writes.c: eight clients of 016_random_writes.pl, which explains the
 * whole.  Each plays steps that only the seed, its number and the step's
 * number choose: a lease is taken, renewed, given back; a wallet is written in
 * one statement, or in a transaction with pins, savepoints and swallowed
 * errors.  Nobody minds whether its lease has ended meanwhile.
 *
 * A client knows what its open transaction has pinned, says so in a comment
 * before each statement (the log takes it from there), and judges each answer
 * by it: what must be refused and was not, or the reverse, is a VIOLATION.
 * Whether a pin was given to the right one is for the log to tell.
 *
 * Prints what was counted, "name value", one a line.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <libpq-fe.h>

#define CLIENTS		8
#define WALLETS		20
#define HANDED_ON	17			/* from here on tokens pass between clients */
#define FOREIGN		21			/* its stamp is above all tokens */
#define KEYS		(FOREIGN + 1)
#define NEVER		INT64_C(4611686018427387000)	/* above all tokens too */

/* Whose token a pin shows. */
typedef enum Origin
{
	OWN,						/* once granted for this key */
	OTHER_KEYS,
	NOBODYS
} Origin;

typedef struct Grant
{
	int64_t		token;			/* 0: none yet */
	char		owner[40];
} Grant;

/* What a transaction changes and its rollback brings back. */
typedef struct State
{
	int64_t		pinned[KEYS];	/* the token, 0: none */
	bool		sure[KEYS];		/* or perhaps not pinned after all */
	int64_t		delta;			/* of the sum of all wallets */
	Grant		mine[KEYS];		/* last grant, alive or not */
} State;

typedef struct Pin
{
	int			key;			/* 0: no pin */
	int64_t		token;
	Origin		origin;
} Pin;

/* A statement that writes. */
typedef struct Write
{
	char		sql[700];
	int			keys[3];		/* what it may touch; 0: no more */
	int64_t		each;			/* added to the sum by each row, unless told */
	Pin			pin;			/* in the statement itself */
	bool		tells;			/* each row returns its key and its delta */
	bool		may_collide;	/* with a row that has the key already */
	int64_t		read;			/* what the writer read, or -1 */
} Write;

static const char *const refusals[] = {
	"LF001", "LF002", "LF101", "LF102", "40001", "40P01", "23505"
};
#define REFUSALS	((int) (sizeof(refusals) / sizeof(refusals[0])))

typedef struct Client
{
	PGconn	   *conn;
	uint64_t	seed;			/* of this client */
	uint64_t	random;			/* of this step */
	State		state;
	bool		in_block;
	bool		repeatable_read;
	int			block_keys[3];
	bool		lost[KEYS];		/* the lease was seen to be lost */
	char		sqlstate[6];	/* of the last statement, "" if it succeeded */
	long		refused[REFUSALS];
	long		statements;		/* that write wallets, or try to */
	long		rows;			/* written, before any rollback */
	long		renewals,
				releases,
				old_snapshots,	/* 40001 of a pin or a guard */
				rollbacks,
				violations;
} Client;

static long target;				/* statements of each client */
static int64_t latest[KEYS];	/* tokens, as the clients tell each other */
static pthread_mutex_t latest_mutex = PTHREAD_MUTEX_INITIALIZER;

/* --- chance --- */

/* The splitmix64 generator. */
static uint64_t
next_random(uint64_t *state)
{
	uint64_t	z = (*state += UINT64_C(0x9e3779b97f4a7c15));

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

static int
between(Client *c, int low, int high)
{
	return low + (int) (next_random(&c->random) % (uint64_t) (high - low + 1));
}

static bool
percent(Client *c, int chance)
{
	return between(c, 1, 100) <= chance;
}

static void
pause_up_to(Client *c, int ms)
{
	struct timespec t = {0, between(c, 0, ms * 1000) * 1000L};

	nanosleep(&t, NULL);
}

/* --- statements --- */

static void
violation(Client *c, const char *what, const char *sql)
{
	c->violations++;
	fprintf(stderr, "VIOLATION: %s%s%s: %s\n", what,
			c->sqlstate[0] ? ", got " : "", c->sqlstate, sql);
}

/* Count a failed statement; false if no statement here may fail like that. */
static bool
count_refusal(Client *c, const PGresult *res)
{
	const char *message = PQresultErrorField(res, PG_DIAG_MESSAGE_PRIMARY);

	if (strcmp(c->sqlstate, "40001") == 0 && message && strstr(message, "lease"))
		c->old_snapshots++;
	for (int i = 0; i < REFUSALS; i++)
	{
		if (strcmp(refusals[i], c->sqlstate) == 0)
		{
			c->refused[i]++;
			return true;
		}
	}
	return false;
}

/*
 * Run a statement, saying before it what is pinned, and what the caller has to
 * say.  The caller clears the result.  A connection that fails ends the program.
 */
static PGresult *
run(Client *c, const char *says, const char *sql)
{
	char		text[1500] = "/*";
	size_t		end = 2;
	PGresult   *res;
	const char *sqlstate;

	for (int key = 1; key < KEYS; key++)
	{
		if (c->state.pinned[key] != 0)
			end += (size_t) sprintf(text + end, " %d:%" PRId64, key,
									c->state.pinned[key]);
	}
	snprintf(text + end, sizeof(text) - end, "%s */ %s", says, sql);

	res = PQexec(c->conn, text);
	sqlstate = PQresultErrorField(res, PG_DIAG_SQLSTATE);
	if (PQresultStatus(res) != PGRES_TUPLES_OK &&
		PQresultStatus(res) != PGRES_COMMAND_OK && !sqlstate)
	{
		fprintf(stderr, "%s", PQerrorMessage(c->conn));
		exit(EXIT_FAILURE);
	}
	snprintf(c->sqlstate, sizeof(c->sqlstate), "%s", sqlstate ? sqlstate : "");
	if (sqlstate && !count_refusal(c, res))
		violation(c, PQresultErrorMessage(res), text);
	return res;
}

static PGresult *run_format(Client *c, const char *format,...)
			__attribute__((format(printf, 2, 3)));

static PGresult *
run_format(Client *c, const char *format,...)
{
	char		sql[1000];
	va_list		args;

	va_start(args, format);
	vsnprintf(sql, sizeof(sql), format, args);
	va_end(args);
	return run(c, "", sql);
}

/* A statement of no interest, which must succeed; true if it did. */
static bool
command(Client *c, const char *sql)
{
	PQclear(run(c, "", sql));
	if (c->sqlstate[0] != '\0')
		violation(c, "unexpected failure", sql);
	return c->sqlstate[0] == '\0';
}

static bool
refused_as(const Client *c, const char *sqlstate)
{
	return strcmp(c->sqlstate, sqlstate) == 0;
}

/* Run inside a PL/pgSQL block that swallows the error and tells it. */
static PGresult *
run_tried(Client *c, const char *says, const char *sql)
{
	char		text[1000];
	PGresult   *res;

	snprintf(text, sizeof(text), "SELECT tried($q$%s$q$)", sql);
	res = run(c, says, text);

	if (c->sqlstate[0] == '\0' && strlen(PQgetvalue(res, 0, 0)) == 5)
	{
		strcpy(c->sqlstate, PQgetvalue(res, 0, 0));
		if (!count_refusal(c, res))
			violation(c, "unexpected failure", sql);
	}
	return res;
}

/* --- what may happen --- */

/* May a pin be refused as it was?  A deadlock may hit any statement. */
static bool
pin_may_fail(Client *c, const Pin *pin)
{
	if (refused_as(c, "LF001") || refused_as(c, "LF002"))
		c->lost[pin->key] = true;
	if (refused_as(c, "40P01"))
		return true;
	if (refused_as(c, "40001"))
		return c->repeatable_read || pin->key >= HANDED_ON;
	if (refused_as(c, "LF001") || refused_as(c, "LF002"))
		return pin->origin != NOBODYS;
	if (refused_as(c, "LF102"))
		return pin->origin != OWN;
	return false;
}

static bool
is_pinned(const State *state, int key)
{
	return state->pinned[key] != 0;
}

static bool
write_may_fail(Client *c, const Write *w, const State *before)
{
	bool		pin_is_new = w->pin.key != 0 &&
		!(before->sure[w->pin.key] &&
		  before->pinned[w->pin.key] == w->pin.token);

	if (refused_as(c, "40P01") ||
		(refused_as(c, "40001") && c->repeatable_read) ||
		(refused_as(c, "23505") && w->may_collide))
		return true;
	if (pin_is_new && pin_may_fail(c, &w->pin))
		return true;
	for (int i = 0; i < 3 && w->keys[i] != 0; i++)
	{
		if (refused_as(c, "LF001") && w->keys[i] == FOREIGN)
			return true;
		if (refused_as(c, "LF101") && w->keys[i] != w->pin.key &&
			!(is_pinned(before, w->keys[i]) && before->sure[w->keys[i]]))
			return true;
	}
	return false;
}

/* Judge and count the rows that were written; returns their number. */
static int
take_rows(Client *c, const Write *w, const PGresult *res, bool tried)
{
	int			rows = atoi(tried ? PQgetvalue(res, 0, 0) :
							PQcmdTuples((PGresult *) res));

	for (int i = 0; i < rows; i++)
	{
		bool		told = w->tells && !tried;
		int			key = told ? atoi(PQgetvalue(res, i, 0)) : w->keys[0];

		if (!is_pinned(&c->state, key))
			violation(c, "written without a pin", w->sql);
		if (key == FOREIGN)
			violation(c, "written over a higher stamp", w->sql);
		c->state.delta += told ? atoll(PQgetvalue(res, i, 1)) : w->each;
	}
	c->rows += rows;
	return rows;
}

/* Write; true if the transaction goes on. */
static bool
do_write(Client *c, const Write *w, bool tried)
{
	State		before = c->state;
	int			key = w->pin.key;
	char		says[60] = "";
	size_t		end = 0;
	PGresult   *res;
	bool		alive;

	if (key != 0)
		c->state.pinned[key] = w->pin.token;
	if (key != 0 && !is_pinned(&before, key))
		end += (size_t) sprintf(says + end, " pins:%d", key);
	if (w->read >= 0)
		end += (size_t) sprintf(says + end, " read:%" PRId64, w->read);
	res = tried ? run_tried(c, says, w->sql) : run(c, says, w->sql);
	alive = PQresultStatus(res) != PGRES_FATAL_ERROR;
	c->statements++;
	if (c->sqlstate[0] == '\0')
	{
		int			rows = take_rows(c, w, res, tried);

		if (key != 0 && rows > 0 && w->pin.origin != OWN)
			violation(c, "pinned with a token of somebody else", w->sql);

		/* Without a row perhaps nobody has called pin(). */
		if (key != 0 && rows > 0)
			c->state.sure[key] = true;
		else if (key != 0 && is_pinned(&before, key))
			c->state.pinned[key] = before.pinned[key];
		else if (key != 0)
			c->state.sure[key] = false;
	}
	else
	{
		if (!write_may_fail(c, w, &before))
			violation(c, "refused for no reason", w->sql);
		c->state = before;
	}
	PQclear(res);
	if (!c->in_block)
		memset(c->state.pinned, 0, sizeof(c->state.pinned));
	return alive;
}

/* --- choices --- */

/*
 * Each client has wallets that it prefers, as has a neighbour of it, and
 * mostly, not always, leaves alone what it knows to have lost.
 */
static int
choose_key(Client *c, int number)
{
	int			any = between(c, 1, WALLETS);
	int			chance = between(c, 1, 100);
	int			key[4];
	int			i = 0;

	for (int k = 0; k < 4; k++)
		key[k] = 1 + (number * 2 + between(c, 0, 3)) % (HANDED_ON - 1);
	if (chance <= 2)
		return FOREIGN;
	if (chance <= 17)
		return any;
	while (chance > 30 && i < 3 && c->lost[key[i]])
		i++;
	return key[i];
}

static Pin
choose_pin(Client *c, int key)
{
	Pin			pin = {key, c->state.mine[key].token, OWN};
	int			chance = between(c, 1, 100);
	int			other = 1 + key % WALLETS;

	if (key >= HANDED_ON && percent(c, 50))
	{
		pthread_mutex_lock(&latest_mutex);
		pin.token = latest[key];
		pthread_mutex_unlock(&latest_mutex);
	}
	if (chance <= 5 && c->state.mine[other].token != 0)
	{
		pin.token = c->state.mine[other].token;
		pin.origin = OTHER_KEYS;
	}
	else if (chance > 97 || pin.token == 0)
	{
		pin.token = NEVER;
		pin.origin = NOBODYS;
	}
	return pin;
}


/* A key for the next statement of an open transaction. */
static int
key_in_block(Client *c, int number)
{
	if (percent(c, 85))
		return c->block_keys[between(c, 0, 2)];
	return choose_key(c, number);
}

static Write
new_write(int key, const Pin *pin)
{
	Write		w = {.keys = {key}, .tells = true, .read = -1};

	if (pin)
		w.pin = *pin;
	return w;
}

static void set_sql(Write *w, const char *format,...)
			__attribute__((format(printf, 2, 3)));

static void
set_sql(Write *w, const char *format,...)
{
	va_list		args;

	va_start(args, format);
	vsnprintf(w->sql, sizeof(w->sql), format, args);
	va_end(args);
}

/* Pin and write in one statement. */
static Write
write_with_pin(Client *c, int key, int other)
{
	Pin			shown = choose_pin(c, key);
	Write		w = new_write(key, &shown);
	int			add = between(c, -50, 50);
	char		pin[80];

	snprintf(pin, sizeof(pin), "fenced_lock.pin('wallet:%d', %" PRId64 ")",
			 key, shown.token);
	switch (between(c, 0, 9))
	{
		case 0:
			set_sql(&w, "DELETE FROM wallets USING %s WHERE id = %d RETURNING id, -balance",
					pin, key);
			break;
		case 1:
		case 2:
			set_sql(&w, "INSERT INTO wallets SELECT %d, %d FROM %s ON CONFLICT (id) "
					"DO UPDATE SET balance = wallets.balance + %d RETURNING id, %d",
					key, add, pin, add, add);
			break;
		case 3:
			set_sql(&w, "INSERT INTO wallets SELECT %d, %d FROM %s "
					"ON CONFLICT (id) DO NOTHING RETURNING id, %d",
					key, add, pin, add);
			break;
		case 4:
			set_sql(&w, "MERGE INTO wallets USING (SELECT FROM %s) AS proof ON id = %d "
					"WHEN MATCHED THEN UPDATE SET balance = balance + %d "
					"WHEN NOT MATCHED THEN INSERT (id, balance) VALUES (%d, %d)",
					pin, key, add, key, add);
			w.tells = false;
			w.each = add;
			w.may_collide = true;
			break;
		case 5:
			set_sql(&w, "UPDATE wallets SET balance = balance + %d FROM %s "
					"WHERE id IN (%d, %d) RETURNING id, %d",
					add, pin, key, other, add);
			w.keys[1] = other;
			break;
		case 6:
		case 7:
			set_sql(&w, "UPDATE wallets SET balance = balance + %d "
					"WHERE id = %d AND %s RETURNING id, %d", add, key, pin, add);
			break;
		default:
			set_sql(&w, "UPDATE wallets SET balance = balance + %d FROM %s "
					"WHERE id = %d RETURNING id, %d", add, pin, key, add);
			break;
	}
	return w;
}

/* Write under what was pinned before, if it was. */
static Write
write_without_pin(Client *c, int key, int other, int third)
{
	Write		w = new_write(key, NULL);
	int			add = between(c, -50, 50);

	switch (between(c, 0, 9))
	{
		case 0:
			set_sql(&w, "DELETE FROM wallets WHERE id = %d RETURNING id, -balance", key);
			break;
		case 1:
			set_sql(&w, "INSERT INTO wallets VALUES (%d, %d) RETURNING id, balance",
					key, add);
			w.may_collide = true;
			break;
		case 2:
			set_sql(&w, "INSERT INTO wallets VALUES (%d, %d) ON CONFLICT (id) "
					"DO UPDATE SET balance = wallets.balance + %d RETURNING id, %d",
					key, add, add, add);
			break;
		case 3:
			set_sql(&w, "UPDATE wallets SET balance = balance + %d "
					"WHERE id IN (%d, %d, %d) RETURNING id, %d",
					add, key, other, third, add);
			w.keys[1] = other;
			w.keys[2] = third;
			break;
		case 4:
			set_sql(&w, "UPDATE wallets SET balance = balance + CASE id WHEN %d THEN %d ELSE %d END "
					"WHERE id IN (%d, %d) RETURNING id, CASE id WHEN %d THEN %d ELSE %d END",
					key, add, -add, key, other, key, add, -add);
			w.keys[1] = other;
			break;
		case 5:
			if (key != FOREIGN && other != FOREIGN)
			{
				set_sql(&w, "UPDATE wallets SET id = %d WHERE id = %d RETURNING id, 0",
						other, key);
				w.keys[1] = other;
				w.may_collide = true;
				break;
			}
			/* FALLTHROUGH */
		default:
			set_sql(&w, "UPDATE wallets SET balance = balance + %d WHERE id = %d "
					"RETURNING id, %d", add, key, add);
			break;
	}
	return w;
}

/* --- what a client does --- */

static void
publish(Client *c)
{
	pthread_mutex_lock(&latest_mutex);
	for (int key = 1; key < KEYS; key++)
	{
		if (c->state.mine[key].token > latest[key])
			latest[key] = c->state.mine[key].token;
	}
	pthread_mutex_unlock(&latest_mutex);
}

/* Each of these returns true if the transaction goes on. */

static bool
take(Client *c, int key)
{
	Grant	   *mine = &c->state.mine[key];
	bool		again = percent(c, 10) && mine->token != 0;
	int			ttl = between(c, 5, 250);
	int			wait = percent(c, 10) ? 5 : 0;
	PGresult   *res;
	bool		alive;

	res = run_format(c, "SELECT acquired, fencing_token, owner_token "
					 "FROM take(%d, '%d ms', %s%s%s, '%d ms')", key, ttl,
					 again ? "'" : "", again ? mine->owner : "NULL",
					 again ? "'" : "", wait);
	alive = PQresultStatus(res) == PGRES_TUPLES_OK;
	if (!alive && !refused_as(c, "40P01"))
		violation(c, "no grant", "take");
	if (alive && PQgetvalue(res, 0, 0)[0] == 't')
	{
		mine->token = atoll(PQgetvalue(res, 0, 1));
		snprintf(mine->owner, sizeof(mine->owner), "%s", PQgetvalue(res, 0, 2));
		c->lost[key] = false;
		if (c->in_block)
		{
			c->state.pinned[key] = mine->token;
			c->state.sure[key] = true;
		}
		else
			publish(c);
	}
	PQclear(res);
	return alive;
}

/* A worker that has noticed its loss may try anew before it goes on. */
static void
take_if_lost(Client *c, int key)
{
	uint64_t	saved = c->random;

	if (percent(c, 70) && (c->lost[key] || c->state.mine[key].token == 0))
		take(c, key);
	c->random = saved;			/* the step's choices do not depend on it */
}

static bool
renew(Client *c, int key)
{
	PGresult   *res;
	bool		alive;

	if (c->state.mine[key].token == 0)
		return true;
	res = run_format(c, "SELECT keep(%d, '%s', '%d ms')", key,
					 c->state.mine[key].owner, between(c, 5, 250));
	alive = PQresultStatus(res) == PGRES_TUPLES_OK;
	if (!alive && !refused_as(c, "40P01"))
		violation(c, "no renewal", "renew");
	if (alive && PQgetvalue(res, 0, 0)[0] == 't')
		c->renewals++;
	PQclear(res);
	return alive;
}

static bool
give_back(Client *c, int key)
{
	PGresult   *res;
	bool		alive;

	if (c->state.mine[key].token == 0)
		return true;
	res = run_format(c, "SELECT give_back(%d, '%s')", key,
					 c->state.mine[key].owner);
	alive = PQresultStatus(res) == PGRES_TUPLES_OK;
	if (!alive && !refused_as(c, "40P01"))
		violation(c, "no release", "give_back");
	if (alive && PQgetvalue(res, 0, 0)[0] == 't')
	{
		c->releases++;
		c->state.pinned[key] = 0;
	}
	PQclear(res);
	return alive;
}

static bool
pin_key(Client *c, int key)
{
	Pin			pin = choose_pin(c, key);
	int			how = between(c, 0, 9);
	bool		undone = how == 0;
	PGresult   *res;
	bool		alive;
	char		sql[200];

	snprintf(sql, sizeof(sql), "SELECT fenced_lock.pin('wallet:%d', %" PRId64 ")",
			 key, pin.token);
	if (undone)
	{
		res = run_format(c, "SELECT pin_and_fail(%d, %" PRId64 ")", key, pin.token);
		if (c->sqlstate[0] == '\0' && strcmp(PQgetvalue(res, 0, 0), "P0001") != 0)
		{
			strcpy(c->sqlstate, PQgetvalue(res, 0, 0));
			count_refusal(c, res);
		}
	}
	else if (how <= 2)
		res = run_tried(c, "", sql);
	else if (how == 3)
		res = run_format(c, "SELECT fenced_lock.pin_all(ARRAY['wallet:%d'], %" PRId64 ")",
						 key, pin.token);
	else
		res = run(c, "", sql);

	alive = PQresultStatus(res) == PGRES_TUPLES_OK;
	if (c->sqlstate[0] != '\0')
	{
		if (!pin_may_fail(c, &pin))
			violation(c, "pin refused for no reason", sql);
	}
	else if (pin.origin != OWN)
		violation(c, "pinned with a token of somebody else", sql);
	else if (!undone)
	{
		c->state.pinned[key] = pin.token;
		c->state.sure[key] = true;
	}
	PQclear(res);
	return alive;
}

/* A set of keys under one token, which is not that of all. */
static bool
pin_both(Client *c, int key, int other)
{
	Pin			pin = choose_pin(c, key);
	PGresult   *res;

	if (key == other)
		return true;
	if (pin.origin == OWN)
		pin.origin = OTHER_KEYS;
	res = run_format(c, "SELECT tried('SELECT fenced_lock.pin_all(ARRAY[''wallet:%d'', ''wallet:%d''], %" PRId64 ")')",
					 key, other, pin.token);
	if (strlen(PQgetvalue(res, 0, 0)) == 5)
	{
		strcpy(c->sqlstate, PQgetvalue(res, 0, 0));
		count_refusal(c, res);
	}
	if (c->sqlstate[0] == '\0' || !pin_may_fail(c, &pin))
		violation(c, "one token for two keys", "pin_all");
	PQclear(res);
	return true;
}

/* From one wallet to another, under both pins, in an order that all share. */
static bool
transfer(Client *c, int from, int to)
{
	int			amount = between(c, 1, 50);
	Write		w = new_write(from, NULL);

	if (!pin_key(c, from < to ? from : to) || !pin_key(c, from < to ? to : from))
		return false;
	set_sql(&w, "UPDATE wallets SET balance = balance - %d WHERE id = %d "
			"RETURNING id, %d", amount, from, -amount);
	if (!do_write(c, &w, false))
		return false;
	w.keys[0] = to;
	set_sql(&w, "UPDATE wallets SET balance = balance + %d WHERE id = %d "
			"RETURNING id, %d", amount, to, amount);
	return do_write(c, &w, false);
}

static bool
delete_and_insert(Client *c, int key)
{
	Write		w = new_write(key, NULL);
	int64_t		before = c->state.delta;

	set_sql(&w, "DELETE FROM wallets WHERE id = %d RETURNING id, -balance", key);
	if (!do_write(c, &w, false))
		return false;
	w.may_collide = true;
	set_sql(&w, "INSERT INTO wallets VALUES (%d, %" PRId64 ") RETURNING id, balance",
			key, before - c->state.delta);
	return do_write(c, &w, false);
}

/*
 * As a worker does: read, think for perhaps too long, write what was worked
 * out.  Whoever shares a token could come between, so not for such wallets.
 */
static bool
read_think_write(Client *c, int key)
{
	Pin			pin;
	Write		w;
	PGresult   *res;
	int64_t		balance;
	int			add = between(c, -50, 50);

	key = 1 + key % (HANDED_ON - 1);
	pin = choose_pin(c, key);
	w = new_write(key, &pin);
	res = run_format(c, "SELECT balance FROM wallets WHERE id = %d", key);
	balance = PQntuples(res) == 1 ? atoll(PQgetvalue(res, 0, 0)) : 0;
	w.read = balance;
	PQclear(res);
	if (percent(c, 50))
		pause_up_to(c, 15);
	set_sql(&w, "UPDATE wallets SET balance = %" PRId64
			" FROM fenced_lock.pin('wallet:%d', %" PRId64 ") "
			"WHERE id = %d RETURNING id, %d", balance + add, key, pin.token, key, add);
	return do_write(c, &w, false);
}

static bool
act_in_block(Client *c, int number, bool first)
{
	int			key = key_in_block(c, number);
	int			other = key_in_block(c, number);
	int			chance = between(c, 1, 100);
	Write		w;

	if (first ? chance <= 70 : chance <= 20)
		return pin_key(c, first ? c->block_keys[0] : key);
	if (chance <= 23)
		return pin_both(c, key, other);
	if (chance <= 26)
		return give_back(c, key);
	if (chance <= 29)
		return renew(c, key);
	if (chance <= 33)
		return c->repeatable_read || take(c, key);
	if (chance <= 45)
		return transfer(c, key, other);
	if (chance <= 53)
		return delete_and_insert(c, key);
	if (chance <= 63)
	{
		w = write_with_pin(c, key, other);
		return do_write(c, &w, false);
	}
	if (chance <= 72)
	{
		w = new_write(key, NULL);
		w.each = 3;
		set_sql(&w, "UPDATE wallets SET balance = balance + 3 WHERE id = %d", key);
		return do_write(c, &w, true);
	}
	w = write_without_pin(c, key, other, key_in_block(c, number));
	return do_write(c, &w, false);
}

/* A transaction of several statements. */
static void
block(Client *c, int number)
{
	State		outer = c->state;
	bool		alive = true;
	int			actions = between(c, 2, 7);

	for (int i = 0; i < 3; i++)
	{
		c->block_keys[i] = choose_key(c, number);
		take_if_lost(c, c->block_keys[i]);
	}
	c->repeatable_read = percent(c, 30);
	command(c, c->repeatable_read ? "BEGIN ISOLATION LEVEL REPEATABLE READ" : "BEGIN");
	c->in_block = true;
	if (c->repeatable_read && percent(c, 50))
	{
		/* A snapshot that may be older than the lease that it comes to. */
		c->block_keys[0] = between(c, HANDED_ON, WALLETS);
		command(c, "SELECT count(*) FROM wallets");
		pause_up_to(c, 4);
	}
	for (int i = 0; i < actions && alive; i++)
	{
		State		saved = c->state;
		bool		savepoint = percent(c, 40);

		if (savepoint)
			command(c, "SAVEPOINT s");
		alive = act_in_block(c, number, i == 0);
		if (savepoint && (!alive || percent(c, 20)))
		{
			alive = command(c, "ROLLBACK TO s");
			c->state = saved;
		}
	}
	if (alive && percent(c, 85))
	{
		command(c, "COMMIT");
		publish(c);
	}
	else
	{
		command(c, "ROLLBACK");
		c->state = outer;
		c->rollbacks++;
	}
	memset(c->state.pinned, 0, sizeof(c->state.pinned));
	c->in_block = false;
	c->repeatable_read = false;
}

static void
step(Client *c, int number)
{
	int			key = choose_key(c, number);
	int			other = choose_key(c, number);
	int			chance = between(c, 1, 100);
	Write		w;

	take_if_lost(c, key);
	if (chance <= 10)
		take(c, key);
	else if (chance <= 21)
		renew(c, key);
	else if (chance <= 27)
		give_back(c, key);
	else if (chance <= 35)
		read_think_write(c, key);
	else if (chance <= 65)
	{
		w = write_with_pin(c, key, other);
		do_write(c, &w, false);
	}
	else if (chance <= 70)
	{
		w = write_without_pin(c, key, other, choose_key(c, number));
		do_write(c, &w, false);
	}
	else
		block(c, number);
}

/* --- the whole --- */

static void
ignore_notice(void *arg, const PGresult *res)
{
	(void) arg;
	(void) res;
}

static Client clients[CLIENTS];

static void *
work(void *arg)
{
	int			number = *(int *) arg;
	Client	   *c = &clients[number];

	while (c->statements < target && c->violations < 20)
	{
		c->random = next_random(&c->seed);
		step(c, number);
	}
	return NULL;
}

int
main(int argc, char **argv)
{
	pthread_t	threads[CLIENTS];
	int			numbers[CLIENTS];
	Client		all = {.statements = 0};

	if (argc != 3)
	{
		fprintf(stderr, "usage: random_writes SEED STATEMENTS\n");
		return EXIT_FAILURE;
	}
	target = atol(argv[2]) / CLIENTS;

	for (int i = 0; i < CLIENTS; i++)
	{
		Client	   *c = &clients[i];

		numbers[i] = i;
		c->seed = strtoull(argv[1], NULL, 10) * CLIENTS + (uint64_t) i;
		c->conn = PQconnectdb("application_name=random_writes");
		if (PQstatus(c->conn) != CONNECTION_OK)
		{
			fprintf(stderr, "%s", PQerrorMessage(c->conn));
			return EXIT_FAILURE;
		}
		PQsetNoticeReceiver(c->conn, ignore_notice, NULL);
		if (pthread_create(&threads[i], NULL, work, &numbers[i]) != 0)
			return EXIT_FAILURE;
	}
	for (int i = 0; i < CLIENTS; i++)
	{
		Client	   *c = &clients[i];

		pthread_join(threads[i], NULL);
		PQfinish(c->conn);
		for (int r = 0; r < REFUSALS; r++)
			all.refused[r] += c->refused[r];
		all.statements += c->statements;
		all.rows += c->rows;
		all.renewals += c->renewals;
		all.releases += c->releases;
		all.old_snapshots += c->old_snapshots;
		all.rollbacks += c->rollbacks;
		all.violations += c->violations;
		all.state.delta += c->state.delta;
	}
	printf("statements %ld\nrows %ld\nrenewals %ld\nreleases %ld\n"
		   "old_snapshots %ld\nrollbacks %ld\nviolations %ld\ndelta %" PRId64 "\n",
		   all.statements, all.rows, all.renewals, all.releases,
		   all.old_snapshots, all.rollbacks, all.violations, all.state.delta);
	for (int r = 0; r < REFUSALS; r++)
		printf("%s %ld\n", refusals[r], all.refused[r]);
	return EXIT_SUCCESS;
}
