/*
 * consumer.c: one consumer of the e-mail queue, the client program of the demo.
 *
 * It takes an e-mail from the queue, locks the wallet that pays for it, looks
 * whether the e-mail has been charged already and whether the wallet can pay,
 * sends the e-mail, charges the wallet, unlocks it and tells the queue that the
 * job is done.  It ends when the queue is empty.
 *
 * The three modes of the demo run these same steps, with the same pauses.
 * They differ in the strings of lock_kinds[] and in nothing else; keep it so,
 * or the comparison is worth nothing.
 */
#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <libpq-fe.h>

#define ERRCODE_STALE_TOKEN		"LF001"
#define ERRCODE_LOCK_NOT_HELD	"LF002"

/*
 * How a mode locks a wallet.
 *
 * "acquire" gets the key and the time-to-live, and answers with one row:
 * acquired, owner, fencing token, milliseconds to wait before the next try.
 * "prove" comes first in the transaction that charges the wallet; it is a
 * format for the key and the fencing token.  "release" gets key and owner.
 */
typedef struct LockKind
{
	const char *name;
	const char *acquire;
	const char *prove;
	const char *release;
} LockKind;

static const LockKind lock_kinds[] = {
	{
		.name = "none",
	},
	{
		.name = "ttl",
		.acquire =
		"WITH try AS ("
		" INSERT INTO ttl_lock AS held (key, owner, expires_at)"
		" VALUES ($1, gen_random_uuid(), clock_timestamp() + $2::interval)"
		" ON CONFLICT (key) DO UPDATE"
		" SET owner = excluded.owner, expires_at = excluded.expires_at"
		" WHERE held.expires_at < clock_timestamp()"
		" RETURNING owner) "
		"SELECT owner IS NOT NULL, owner, NULL,"
		" (SELECT greatest(0, ceil(extract(epoch FROM expires_at - clock_timestamp()) * 1000))"
		"  FROM ttl_lock WHERE key = $1) "
		"FROM (VALUES (1)) AS one_row LEFT JOIN try ON true",
		.release =
		"DELETE FROM ttl_lock WHERE key = $1 AND owner = $2::uuid",
	},
	{
		.name = "fenced",
		.acquire =
		"SELECT acquired, owner_token, fencing_token, retry_after_ms "
		"FROM fenced_lock.try_acquire($1, $2::interval)",
		.prove =
		"SELECT fenced_lock.pin('%s', %s);",
		.release =
		"SELECT fenced_lock.release($1, $2::uuid)",
	},
};

/* One delivery of one e-mail, as the queue hands it out. */
typedef struct Job
{
	int			email;
	int			wallet;
	int			delivery;		/* 1 for the first, and so on */
	uint64_t	random;			/* state of this delivery's generator */
} Job;

/* A lock as its holder knows it; empty strings where the mode has none. */
typedef struct Lock
{
	char		key[32];
	char		owner[40];
	char		token[24];
} Lock;

typedef enum ChargeResult
{
	CHARGED,
	REFUSED_AS_STALE,
} ChargeResult;

static PGconn *conn;
static const LockKind *kind;
static uint64_t seed = 1;
static int	price = 25;			/* cents for an e-mail */
static int	ttl_ms = 500;		/* a lock lives so long */
static int	redeliver_ms = 750;	/* a job not done by then is handed out again */
static int	pause_ms = 1500;	/* how long a paused consumer sleeps ... */
static int	pause_percent = 5;	/* ... and how often that happens */

/*
 * Ends the program because of a failed result.  That the server has gone away
 * is not worth a message of each consumer: crowd.c notices and says so.
 */
static void
die(const char *what, const PGresult *res)
{
	if (PQresultErrorField(res, PG_DIAG_SQLSTATE))
		fprintf(stderr, "consumer (%s): %s: %s", kind->name, what,
				PQresultErrorMessage(res));
	exit(EXIT_FAILURE);
}

/*
 * The splitmix64 generator.  Each delivery of an e-mail has its own, so that
 * a delivery is paused or not whichever consumer gets it, and in each mode.
 */
static uint64_t
next_random(uint64_t *state)
{
	uint64_t	z = (*state += UINT64_C(0x9e3779b97f4a7c15));

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

static int
random_between(uint64_t *state, int low, int high)
{
	return low + (int) (next_random(state) % (uint64_t) (high - low + 1));
}

static uint64_t
random_state_for(int email, int delivery)
{
	uint64_t	state = seed;

	state = next_random(&state) ^ (uint64_t) email;
	state = next_random(&state) ^ (uint64_t) delivery;
	return state;
}

static void
sleep_ms(int ms)
{
	struct timespec left = {ms / 1000, (ms % 1000) * 1000000L};

	while (nanosleep(&left, &left) != 0 && errno == EINTR)
		;
}

/*
 * Runs a prepared statement with parameters given as printf formats would
 * print them: 'i' is an int, 's' a string.  An error ends the program.  The
 * caller clears the result.
 */
static PGresult *
run_prepared(const char *name, const char *types,...)
{
	char		numbers[8][16];
	const char *values[8];
	int			n = 0;
	PGresult   *res;
	va_list		args;

	va_start(args, types);
	for (; types[n] != '\0'; n++)
	{
		if (types[n] == 'i')
		{
			snprintf(numbers[n], sizeof(numbers[n]), "%d", va_arg(args, int));
			values[n] = numbers[n];
		}
		else
			values[n] = va_arg(args, const char *);
	}
	va_end(args);

	res = PQexecPrepared(conn, name, n, values, NULL, NULL, 0);
	if (PQresultStatus(res) != PGRES_TUPLES_OK &&
		PQresultStatus(res) != PGRES_COMMAND_OK)
		die(name, res);
	return res;
}

static void
prepare(const char *name, const char *sql)
{
	PGresult   *res = PQprepare(conn, name, sql, 0, NULL);

	if (PQresultStatus(res) != PGRES_COMMAND_OK)
		die(name, res);
	PQclear(res);
}

static void
prepare_all(void)
{
	/*
	 * SKIP LOCKED only lets consumers take jobs side by side: the row lock is
	 * gone when this statement ends.  What keeps others off the job is its
	 * visible_at, as in SQS and the like, and that runs out.
	 */
	prepare("take job",
			"WITH next AS ("
			" SELECT email_id FROM queue WHERE visible_at <= clock_timestamp()"
			" ORDER BY email_id LIMIT 1 FOR UPDATE SKIP LOCKED) "
			"UPDATE queue SET deliveries = deliveries + 1,"
			" visible_at = clock_timestamp() + $1 * interval '1 ms' "
			"FROM next JOIN emails ON emails.id = next.email_id "
			"WHERE queue.email_id = next.email_id "
			"RETURNING emails.id, emails.wallet_id, queue.deliveries");

	/* The delivery's number is the receipt: an old one changes nothing. */
	prepare("put job back",
			"UPDATE queue SET deliveries = deliveries - $3,"
			" visible_at = clock_timestamp() + $4 * interval '1 ms' "
			"WHERE email_id = $1 AND deliveries = $2");
	prepare("finish job",
			"DELETE FROM queue WHERE email_id = $1");
	prepare("count jobs",
			"SELECT count(*) FROM queue");
	prepare("read",
			"SELECT balance, EXISTS (SELECT FROM charges WHERE email_id = $1) "
			"FROM wallets WHERE id = $2");
	prepare("send",
			"INSERT INTO mailbox (email_id) VALUES ($1)");
	prepare("note stale write",
			"INSERT INTO stale_writes (email_id, sqlstate) VALUES ($1, $2)");

	if (kind->acquire)
		prepare("acquire", kind->acquire);
	if (kind->release)
		prepare("release", kind->release);
}

/* Takes the first job that is to be had; false if there is none just now. */
static bool
take_job(Job *job)
{
	PGresult   *res = run_prepared("take job", "i", redeliver_ms);
	bool		found = PQntuples(res) == 1;

	if (found)
	{
		job->email = atoi(PQgetvalue(res, 0, 0));
		job->wallet = atoi(PQgetvalue(res, 0, 1));
		job->delivery = atoi(PQgetvalue(res, 0, 2));
		job->random = random_state_for(job->email, job->delivery);
	}
	PQclear(res);
	return found;
}

/* A job that was not begun does not count as delivered: the pauses go by that. */
static void
put_job_back(const Job *job, bool begun, int after_ms)
{
	PQclear(run_prepared("put job back", "iiii",
						 job->email, job->delivery, begun ? 0 : 1, after_ms));
}

static void
finish_job(const Job *job)
{
	PQclear(run_prepared("finish job", "i", job->email));
}

static bool
queue_is_empty(void)
{
	PGresult   *res = run_prepared("count jobs", "");
	bool		empty = strcmp(PQgetvalue(res, 0, 0), "0") == 0;

	PQclear(res);
	return empty;
}

/* If the lock is not to be had, false and the time until it may be. */
static bool
lock_wallet(const Job *job, Lock *lock, int *retry_after_ms)
{
	char		ttl[32];
	PGresult   *res;
	bool		acquired;

	memset(lock, 0, sizeof(*lock));
	snprintf(lock->key, sizeof(lock->key), "wallet:%d", job->wallet);
	if (!kind->acquire)
		return true;

	snprintf(ttl, sizeof(ttl), "%d ms", ttl_ms);
	res = run_prepared("acquire", "ss", lock->key, ttl);
	acquired = PQgetvalue(res, 0, 0)[0] == 't';
	snprintf(lock->owner, sizeof(lock->owner), "%s", PQgetvalue(res, 0, 1));
	snprintf(lock->token, sizeof(lock->token), "%s", PQgetvalue(res, 0, 2));
	*retry_after_ms = atoi(PQgetvalue(res, 0, 3));
	PQclear(res);
	return acquired;
}

static void
unlock_wallet(const Lock *lock)
{
	if (kind->release)
		PQclear(run_prepared("release", "ss", lock->key, lock->owner));
}

/*
 * Reads, in one snapshot, all that the decision rests on.  From here to
 * charge_wallet() it must stay true; that is what the lock is for.
 */
static void
read_wallet(const Job *job, int *balance, bool *charged_already)
{
	PGresult   *res = run_prepared("read", "ii", job->email, job->wallet);

	*balance = atoi(PQgetvalue(res, 0, 0));
	*charged_already = PQgetvalue(res, 0, 1)[0] == 't';
	PQclear(res);
}

/*
 * The mail server: sends at once, but its answer takes some milliseconds, or
 * much longer, where a garbage collection or the network comes between.
 */
static void
send_email(Job *job)
{
	PQclear(run_prepared("send", "i", job->email));

	if (random_between(&job->random, 1, 100) <= pause_percent)
		sleep_ms(pause_ms);
	else
		sleep_ms(random_between(&job->random, 5, 25));
}

/*
 * The write that is at stake, as one transaction: several statements in one
 * string are one.  Errors other than those of a lost lock end the program:
 * LF101 and LF102 would be a bug of ours.
 */
static ChargeResult
charge_wallet(const Job *job, const Lock *lock)
{
	char		prove[128] = "";
	char		sql[512];
	char		sqlstate[6] = "";
	PGresult   *res;

	if (kind->prove)
		snprintf(prove, sizeof(prove), kind->prove, lock->key, lock->token);
	snprintf(sql, sizeof(sql),
			 "%s"
			 "UPDATE wallets SET balance = balance - %d WHERE id = %d;"
			 "INSERT INTO charges (email_id, wallet_id, cents) VALUES (%d, %d, %d);",
			 prove, price, job->wallet, job->email, job->wallet, price);

	res = PQexec(conn, sql);
	if (PQresultStatus(res) != PGRES_COMMAND_OK)
	{
		const char *code = PQresultErrorField(res, PG_DIAG_SQLSTATE);

		if (!code || (strcmp(code, ERRCODE_STALE_TOKEN) != 0 &&
					  strcmp(code, ERRCODE_LOCK_NOT_HELD) != 0))
			die("charge", res);
		strcpy(sqlstate, code);
	}
	PQclear(res);

	if (sqlstate[0] == '\0')
		return CHARGED;
	PQclear(run_prepared("note stale write", "is", job->email, sqlstate));
	return REFUSED_AS_STALE;
}

/* The life of one delivery. */
static void
work_on(Job *job)
{
	Lock		lock;
	int			retry_after_ms = 0;
	int			balance;
	bool		charged_already;

	if (!lock_wallet(job, &lock, &retry_after_ms))
	{
		put_job_back(job, false, random_between(&job->random, 0, retry_after_ms));
		return;
	}

	read_wallet(job, &balance, &charged_already);
	if (!charged_already && balance >= price)
	{
		send_email(job);
		if (charge_wallet(job, &lock) == REFUSED_AS_STALE)
		{
			/* The lock is lost: nothing to release, and the job is to do. */
			put_job_back(job, true, 0);
			return;
		}
	}

	/* Charged now or before, or the wallet is empty: the job is done. */
	unlock_wallet(&lock);
	finish_job(job);
}

/*
 * release warns where the lease has ended since the charge and somebody else
 * has the lock: no harm, since the charge was in time.
 */
static void
ignore_notice(void *arg, const PGresult *res)
{
	(void) arg;
	(void) res;
}

static int
number(const char *text)
{
	char	   *end;
	long		value = strtol(text, &end, 10);

	if (*text == '\0' || *end != '\0' || value < 0 || value > 1000000000)
	{
		fprintf(stderr, "consumer: not a number: %s\n", text);
		exit(EXIT_FAILURE);
	}
	return (int) value;
}

static void
read_options(int argc, char **argv)
{
	static const struct option options[] = {
		{"mode", required_argument, NULL, 'm'},
		{"seed", required_argument, NULL, 's'},
		{"price", required_argument, NULL, 'c'},
		{"ttl-ms", required_argument, NULL, 't'},
		{"redeliver-ms", required_argument, NULL, 'r'},
		{"pause-ms", required_argument, NULL, 'p'},
		{"pause-percent", required_argument, NULL, 'q'},
		{NULL, 0, NULL, 0}
	};
	int			c;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1)
	{
		switch (c)
		{
			case 'm':
				for (size_t i = 0; i < sizeof(lock_kinds) / sizeof(lock_kinds[0]); i++)
					if (strcmp(optarg, lock_kinds[i].name) == 0)
						kind = &lock_kinds[i];
				break;
			case 's':
				seed = (uint64_t) number(optarg);
				break;
			case 'c':
				price = number(optarg);
				break;
			case 't':
				ttl_ms = number(optarg);
				break;
			case 'r':
				redeliver_ms = number(optarg);
				break;
			case 'p':
				pause_ms = number(optarg);
				break;
			case 'q':
				pause_percent = number(optarg);
				break;
			default:
				exit(EXIT_FAILURE);
		}
	}
	if (!kind || optind != argc)
	{
		fprintf(stderr, "usage: consumer --mode=none|ttl|fenced [--seed=N] [--price=CENTS]\n"
				"                [--ttl-ms=N] [--redeliver-ms=N] [--pause-ms=N] [--pause-percent=N]\n"
				"The connection is taken from PGHOST, PGUSER, PGDATABASE and so on.\n");
		exit(EXIT_FAILURE);
	}
}

int
main(int argc, char **argv)
{
	Job			job;

	read_options(argc, argv);

	conn = PQconnectdb("application_name=consumer");
	if (PQstatus(conn) != CONNECTION_OK)
	{
		fprintf(stderr, "consumer (%s): %s", kind->name, PQerrorMessage(conn));
		return EXIT_FAILURE;
	}
	PQsetNoticeReceiver(conn, ignore_notice, NULL);
	prepare_all();

	for (;;)
	{
		if (take_job(&job))
			work_on(&job);
		else if (queue_is_empty())
			break;
		else
			sleep_ms(30);
	}

	PQfinish(conn);
	return EXIT_SUCCESS;
}
