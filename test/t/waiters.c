/*
 * waiters.c: clients of one key, which wait for it in line, driven from one
 * process.  012_hand_over.pl builds it and judges what it prints.
 *
 * usage: waiters KEY CLIENTS GRANTS SEED BEHAVIOUR [BEHAVIOUR ...]
 *
 * The key is KEY with a 0 behind it.
 *
 * "line": somebody holds the key; the clients line up, each seen in pg_locks
 * before the next starts; the key is released, and each is served once.  With
 * "kill" eight heads are killed before that, in turn their backend by
 * pg_terminate_backend() and their client by SIGKILL.  With "idle" they stand
 * for ten seconds before that, and "cpu SECONDS" is printed: what all of them
 * used meanwhile; with "lines" every second does so in one of ten other lines,
 * for keys of their own.
 *
 * "loop": each client acquires, releases and acquires again, until there were
 * GRANTS of them.  "cancel": each third call, at random, is ended early by
 * pg_cancel_backend(), statement_timeout or a short wait.  "expire": leases
 * are short and never released.  "kill": heads are terminated now and then.
 * "pause": clients wait a little between two calls.
 *
 * For each call a line is printed when it has ended:
 *
 *   CLIENT HOW LIMIT OUTCOME TOKEN EXPIRES SENT ENDED SEEN
 *
 * LIMIT: ms of the wait.  OUTCOME: "granted" or an SQLSTATE.  EXPIRES: by the
 * server's clock, SENT and ENDED: by ours, all in microseconds.  SEEN: the last
 * token drawn once the call had been seen in line, or -1.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <libpq-fe.h>

#define MAX_CLIENTS		200
#define HOLDER			"00000000-0000-0000-0000-000000000001"
#define LINES			11
#define IDLE_US			(10 * INT64_C(1000000))
#define LONG_WAIT_MS	60000
#define TIME_LIMIT_US	(60 * INT64_C(1000000))
#define KILLED_IN_LINE	8
#define KILLED_IN_LOOP	25

typedef enum State
{
	IDLE,
	WAITING,					/* in acquire() */
	RELEASING,
	GONE						/* is not to come again */
} State;

typedef struct Client
{
	PGconn	   *conn;			/* NULL: in the process "process" */
	pid_t		process;
	int			backend;
	State		state;
	const char *how;			/* what may end the call early */
	int			limit_ms;		/* of its wait */
	int64_t		sent;			/* when the call was sent, and ... */
	int64_t		sent_event;		/* ... as which event */
	int64_t		seen;
	int64_t		cancel_at;		/* 0: not */
	int64_t		start_at;		/* an idle client's next call */
	char		answer[3][40];	/* token, owner, expires */
	char		sqlstate[6];	/* of an error; else "" */
} Client;

static const char *key;
static int	clients_wanted;
static int	grants_wanted;
static bool line,
			cancel,
			expire,
			kills,
			idle,
			lines,
			pause_between;

static Client clients[MAX_CLIENTS];
static PGconn *control;
static PGconn *observer;
static int64_t events = 0;
static int64_t snapshot_event;	/* when the running snapshot was begun */
static int64_t snapshot_at = 0; /* when the next is due */
static bool snapshot_runs = false;
static int	head = -1;			/* of the last snapshot; -1: none of ours */
static int	head_pid = 0;		/* 0: none */
static int	grants = 0;
static int	seen_grants = 0;
static int	killed = 0;
static int	lined_up = 0;		/* clients seen in line ("line") */
static bool opened = false;		/* the key was released ("line") */
static int64_t idle_since = 0;	/* "idle": 0 before it begins */
static double idle_cpu;			/* what was used until then */

static void
die(const char *what, PGconn *conn)
{
	fprintf(stderr, "waiters: %s: %s\n", what, conn ? PQerrorMessage(conn) : strerror(errno));
	exit(EXIT_FAILURE);
}

static int64_t
now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * INT64_C(1000000) + now.tv_nsec / 1000;
}

/* From 0 to n - 1. */
static int
any_of(int n)
{
	return (int) (random() % n);
}

static void
say_nothing(void *arg, const char *message)
{
	(void) arg;
	(void) message;
}

static PGconn *
open_connection(const char *options)
{
	char		conninfo[200];
	PGconn	   *conn;

	snprintf(conninfo, sizeof(conninfo), "dbname=postgres application_name=waiters options='%s'", options);
	conn = PQconnectdb(conninfo);
	if (PQstatus(conn) != CONNECTION_OK)
		die("connect", conn);
	PQsetNoticeProcessor(conn, say_nothing, NULL);	/* a killed one's last words */
	return conn;
}

/* Runs a statement on the control connection; the first value goes to "out". */
static void
run(const char *sql, char *out, size_t size)
{
	PGresult   *res = PQexec(control, sql);

	if (PQresultStatus(res) != PGRES_TUPLES_OK)
		die(sql, control);
	if (out != NULL)
		snprintf(out, size, "%s", PQgetvalue(res, 0, 0));
	PQclear(res);
}

static void
signal_backend(const char *function, int backend)
{
	char		sql[100];

	snprintf(sql, sizeof(sql), "SELECT %s(%d)", function, backend);
	run(sql, NULL, 0);
}

/* Which of the lines a client stands in. */
static int
line_of(const Client *client)
{
	int			number = (int) (client - clients);

	return lines && number % 2 == 1 ? 1 + number / 2 % (LINES - 1) : 0;
}

static void
acquire_statement(const Client *client, char *sql, size_t size)
{
	int			ttl_ms = expire ? 5 : kills && !line ? 200 : 30000;
	char		before[80] = "";

	if (strcmp(client->how, "statement_timeout") == 0)
		snprintf(before, sizeof(before), "SET LOCAL statement_timeout = %d; ",
				 1 + any_of(60));
	snprintf(sql, size,
			 "%sSELECT fencing_token, owner_token, "
			 "(extract(epoch FROM expires_at) * 1000000)::int8 "
			 "FROM fenced_lock.acquire('%s%d', '%d ms', wait => '%d ms')",
			 before, key, line_of(client), ttl_ms, client->limit_ms);
}

static void
send_query(Client *client, const char *sql, State state)
{
	if (!PQsendQuery(client->conn, sql))
		die(sql, client->conn);
	client->state = state;
	client->sqlstate[0] = '\0';
}

static void
begin_call(Client *client)
{
	char		sql[400];

	client->how = "-";
	client->limit_ms = LONG_WAIT_MS;
	client->cancel_at = 0;
	client->seen = -1;
	client->sent = now_us();
	client->sent_event = events++;
	if (cancel && any_of(3) == 0)
	{
		switch (any_of(3))
		{
			case 0:
				client->how = "cancel";
				client->cancel_at = client->sent + 1 + any_of(60000);
				break;
			case 1:
				client->how = "statement_timeout";
				break;
			default:
				client->how = "wait";
				client->limit_ms = 1 + any_of(60);
		}
	}
	acquire_statement(client, sql, sizeof(sql));
	send_query(client, sql, WAITING);
}

static void
begin_release(Client *client)
{
	char		sql[200];

	snprintf(sql, sizeof(sql), "SELECT fenced_lock.release('%s%d', '%s')",
			 key, line_of(client), client->answer[1]);
	send_query(client, sql, RELEASING);
}

/* A client in a process of its own, to be killed. */
static void
begin_process(Client *client)
{
	int			ends[2];

	if (pipe(ends) != 0)
		die("pipe", NULL);
	client->how = "-";
	client->limit_ms = LONG_WAIT_MS;
	client->seen = -1;
	client->sent = now_us();
	client->process = fork();
	if (client->process < 0)
		die("fork", NULL);
	if (client->process == 0)
	{
		char		sql[400];
		PGconn	   *conn = open_connection("-c client_connection_check_interval=100ms");
		int			backend = PQbackendPID(conn);

		if (write(ends[1], &backend, sizeof(backend)) != sizeof(backend))
			_exit(EXIT_FAILURE);
		acquire_statement(client, sql, sizeof(sql));
		PQclear(PQexec(conn, sql));
		_exit(EXIT_FAILURE);	/* was granted, or failed: in either case wrong */
	}
	if (read(ends[0], &client->backend, sizeof(client->backend)) != sizeof(client->backend))
		die("read from a client's process", NULL);
	close(ends[0]);
	close(ends[1]);
	client->sent_event = events++;
	client->state = WAITING;
}

static void
begin_snapshot(void)
{
	if (!PQsendQuery(observer,
					 "SELECT pid, granted FROM pg_locks WHERE objsubid = 17997; "
					 "SELECT last_value FROM fenced_lock.token_seq"))
		die("snapshot", observer);
	snapshot_event = events++;
	snapshot_runs = true;
}

/*
 * The line as it was.  A call that was sent before the snapshot was begun, and
 * has not ended yet, is the one that is shown.
 */
static void
end_snapshot(const PGresult *shown, int64_t last_token)
{
	head = -1;
	head_pid = 0;
	for (int row = 0; row < PQntuples(shown); row++)
	{
		int			pid = atoi(PQgetvalue(shown, row, 0));
		bool		first = PQgetvalue(shown, row, 1)[0] == 't';

		if (first)
			head_pid = pid;
		for (int i = 0; i < clients_wanted; i++)
		{
			Client	   *client = &clients[i];

			if (client->backend != pid || client->state != WAITING ||
				client->sent_event > snapshot_event)
				continue;
			if (first)
				head = i;
			if (client->seen < 0)
			{
				client->seen = last_token;
				lined_up++;
			}
		}
	}
}

static void
print_call(int i)
{
	const Client *client = &clients[i];
	bool		granted = client->sqlstate[0] == '\0';

	printf("%d %s %d %s %s %s %lld %lld %lld\n", i, client->how, client->limit_ms,
		   granted ? "granted" : client->sqlstate,
		   granted ? client->answer[0] : "0", granted ? client->answer[2] : "0",
		   (long long) client->sent, (long long) now_us(), (long long) client->seen);
}

/* After a snapshot: kill its head, if that is to be. */
static void
kill_head(void)
{
	Client	   *client = head >= 0 ? &clients[head] : NULL;

	if (client == NULL || strcmp(client->how, "kill") == 0 ||
		killed >= (line ? KILLED_IN_LINE : KILLED_IN_LOOP))
		return;
	if (line ? lined_up < clients_wanted || opened : any_of(4) != 0)
		return;
	killed++;
	client->how = "kill";
	if (client->conn != NULL)
	{
		signal_backend("pg_terminate_backend", client->backend);
		return;
	}
	kill(client->process, SIGKILL);
	waitpid(client->process, NULL, 0);
	strcpy(client->sqlstate, "57P01");
	print_call(head);
	client->state = GONE;
}

/* What the clients' backends have used of the CPU, in seconds. */
static double
cpu_used(void)
{
	double		seconds = 0;

	for (int i = 0; i < clients_wanted; i++)
	{
		clockid_t	clock;
		struct timespec used;

		/* to the nanosecond, where /proc/PID/stat counts in hundredths */
		if (clock_getcpuclockid(clients[i].backend, &clock) != 0 ||
			clock_gettime(clock, &used) != 0)
			die("the CPU clock of a backend", NULL);
		seconds += used.tv_sec + used.tv_nsec / 1e9;
	}
	return seconds;
}

/* "idle": all stand in line; nobody looks at them, until the time is over. */
static bool
idle_enough(void)
{
	if (!idle)
		return true;
	if (idle_since == 0)
	{
		idle_since = now_us();
		idle_cpu = cpu_used();
		snapshot_at = idle_since + IDLE_US;
	}
	if (now_us() < idle_since + IDLE_US)
		return false;
	printf("cpu %.4f\n", cpu_used() - idle_cpu);
	return true;
}

static void
for_each_line(const char *format)
{
	for (int i = 0; i < (lines ? LINES : 1); i++)
	{
		char		sql[200];

		snprintf(sql, sizeof(sql), format, key, i);
		run(sql, NULL, 0);
	}
}

/* "line": all stand in line, and those to be killed are gone from it. */
static void
open_key_when_ready(void)
{
	if (!line || opened || lined_up < clients_wanted || !idle_enough())
		return;
	if (kills && killed < KILLED_IN_LINE)
		return;
	for (int i = 0; i < killed; i++)
	{
		if (clients[i].state != GONE || clients[i].backend == head_pid)
			return;
	}
	for_each_line("SELECT fenced_lock.release('%s%d', '" HOLDER "')");
	opened = true;
}

/* Whether clients are to call again. */
static bool
go_on(void)
{
	return !line && (grants < grants_wanted || seen_grants < grants_wanted / 20 ||
					 (kills && killed < KILLED_IN_LOOP));
}

static void
rest(Client *client)
{
	client->state = go_on() ? IDLE : GONE;
	client->start_at = now_us() + (pause_between ? any_of(5000) : 0);
}

/* A client's statement has ended. */
static void
end_statement(int i)
{
	Client	   *client = &clients[i];
	bool		lost = PQstatus(client->conn) != CONNECTION_OK;

	if (lost)
		strcpy(client->sqlstate, "57P01");
	if (client->state == RELEASING)
	{
		if (lost || client->sqlstate[0] == '\0')
			rest(client);
		else if (strcmp(client->sqlstate, "57014") == 0)
			begin_release(client);	/* the cancel came late */
		else
			die("release", client->conn);
	}
	else
	{
		print_call(i);
		if (client->sqlstate[0] == '\0')
		{
			grants++;
			seen_grants += client->seen >= 0;
		}
		if (client->sqlstate[0] == '\0' && !expire)
			begin_release(client);
		else
			rest(client);
	}
	if (lost && !line)
	{
		PQfinish(client->conn);
		client->conn = open_connection("");
		client->backend = PQbackendPID(client->conn);
	}
}

static void
take_results(int i)
{
	Client	   *client = &clients[i];
	PGresult   *res;

	PQconsumeInput(client->conn);
	while (client->state != GONE && !PQisBusy(client->conn))
	{
		const char *sqlstate;

		res = PQgetResult(client->conn);
		if (res == NULL)
		{
			end_statement(i);
			return;
		}
		sqlstate = PQresultErrorField(res, PG_DIAG_SQLSTATE);
		if (sqlstate != NULL)
			snprintf(client->sqlstate, sizeof(client->sqlstate), "%s", sqlstate);
		if (client->state == WAITING && PQresultStatus(res) == PGRES_TUPLES_OK)
		{
			for (int column = 0; column < 3; column++)
				snprintf(client->answer[column], sizeof(client->answer[0]), "%s",
						 PQgetvalue(res, 0, column));
		}
		else if (client->state == RELEASING && PQresultStatus(res) == PGRES_TUPLES_OK &&
				 PQgetvalue(res, 0, 0)[0] != 't' && !kills)
			die("a lease was lost before its release", client->conn);
		PQclear(res);
	}
}

static void
take_snapshot(void)
{
	static PGresult *shown = NULL;
	PGresult   *res;

	PQconsumeInput(observer);
	while (!PQisBusy(observer))
	{
		res = PQgetResult(observer);
		if (res == NULL)
		{
			snapshot_runs = false;
			snapshot_at = now_us() + (line ? 0 : 3000);
			if (kills)
				kill_head();
			open_key_when_ready();
			return;
		}
		if (PQresultStatus(res) != PGRES_TUPLES_OK)
			die("snapshot", observer);
		if (shown == NULL)
		{
			shown = res;
			continue;
		}
		end_snapshot(shown, strtoll(PQgetvalue(res, 0, 0), NULL, 10));
		PQclear(shown);
		PQclear(res);
		shown = NULL;
	}
}

/* Begin what is due; false when all has ended. */
static bool
begin_what_is_due(void)
{
	int64_t		now = now_us();
	bool		left = false;

	for (int i = 0; i < clients_wanted; i++)
	{
		Client	   *client = &clients[i];

		if (client->state == IDLE && client->start_at <= now && (!line || i == lined_up))
		{
			if (client->conn != NULL)
				begin_call(client);
			else
				begin_process(client);
		}
		if (client->state == WAITING && client->cancel_at != 0 && client->cancel_at <= now)
		{
			client->cancel_at = 0;
			signal_backend("pg_cancel_backend", client->backend);
		}
		left = left || client->state != GONE;
	}
	if (left && !snapshot_runs && snapshot_at <= now)
		begin_snapshot();
	return left;
}

static void
drive(void)
{
	int64_t		until = now_us() + TIME_LIMIT_US;

	while (begin_what_is_due() || snapshot_runs)
	{
		struct pollfd fds[MAX_CLIENTS + 1];
		int			who[MAX_CLIENTS + 1];
		int			n = 0;

		fds[n].fd = PQsocket(observer);
		who[n++] = -1;
		for (int i = 0; i < clients_wanted; i++)
		{
			if (clients[i].conn == NULL || (clients[i].state != WAITING && clients[i].state != RELEASING))
				continue;
			fds[n].fd = PQsocket(clients[i].conn);
			who[n++] = i;
		}
		for (int i = 0; i < n; i++)
			fds[i].events = POLLIN;
		if (poll(fds, n, 1) < 0 && errno != EINTR)
			die("poll", NULL);
		for (int i = 0; i < n; i++)
		{
			if (!(fds[i].revents & (POLLIN | POLLERR | POLLHUP)))
				continue;
			if (who[i] < 0)
				take_snapshot();
			else
				take_results(who[i]);
		}
		if (now_us() > until)
		{
			fprintf(stderr, "waiters: not done in time; %d grants\n", grants);
			exit(EXIT_FAILURE);
		}
	}
}

int
main(int argc, char **argv)
{
	char		left[20];

	if (argc < 6)
		return EXIT_FAILURE;
	key = argv[1];
	clients_wanted = atoi(argv[2]);
	grants_wanted = atoi(argv[3]);
	srandom(atoi(argv[4]));
	for (int i = 5; i < argc; i++)
	{
		line = line || strcmp(argv[i], "line") == 0;
		cancel = cancel || strcmp(argv[i], "cancel") == 0;
		expire = expire || strcmp(argv[i], "expire") == 0;
		idle = idle || strcmp(argv[i], "idle") == 0;
		lines = lines || strcmp(argv[i], "lines") == 0;
		kills = kills || strcmp(argv[i], "kill") == 0;
		pause_between = pause_between || strcmp(argv[i], "pause") == 0;
	}

	control = open_connection("");
	observer = open_connection("");
	if (line)
		for_each_line("SELECT fenced_lock.acquire('%s%d', '1 h', '" HOLDER "')");
	for (int i = 0; i < clients_wanted; i++)
	{
		if (line && kills && i < KILLED_IN_LINE && i % 2 == 1)
			continue;
		clients[i].conn = open_connection("");
		clients[i].backend = PQbackendPID(clients[i].conn);
	}
	drive();

	/* All sessions are still there. */
	run("SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) "
		"WHERE objsubid IN (17996, 17997, 17998) AND application_name = 'waiters'",
		left, sizeof(left));
	printf("left %s\n", left);
	return EXIT_SUCCESS;
}
