/*
 * hand_over.c: hands one lock round between clients as fast as it goes.
 *
 *	hand_over lease|polling|advisory CLIENTS SECONDS
 *
 * Each client takes the lock, gives it back at once and wants it again.
 *	lease		acquire() with a wait, and release()
 *	polling		try_acquire(), after a refusal again in 20 ms, and release()
 *	advisory	pg_advisory_lock() and pg_advisory_unlock()
 *
 * Prints, in one line: grants per second; hand-overs per second, which are the
 * grants to another client than the one before; and the median and the 99th
 * percentile of the milliseconds from a release, when it is sent, to the next
 * client's grant, when it arrives.
 *
 * One process and one thread for all clients, so that the order in which it
 * sees the grants is the order of the holders.
 */
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <libpq-fe.h>

#define MAX_CLIENTS		500
#define MAX_HAND_OVERS	1000000
#define POLL_EVERY_MS	20.0

typedef enum State
{
	IDLE,						/* at the end */
	ASKED,						/* the acquire is sent */
	PAUSING,					/* was refused, and will ask again */
	RELEASED					/* the release is sent */
} State;

typedef struct Client
{
	PGconn	   *conn;
	State		state;
	double		ask_at;			/* of a pause: its end */
	char		acquire[200];
	char		release[200];
} Client;

static Client clients[MAX_CLIENTS];
static int	n_clients;
static bool polling;
static bool over;				/* nobody asks any more */

static long grants;
static long hand_overs;
static double latencies[MAX_HAND_OVERS];
static Client *last_holder;
static double last_release;

static double
milliseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1e3 + now.tv_nsec / 1e6;
}

static void
fail(const char *what)
{
	fprintf(stderr, "hand_over: %s\n", what);
	exit(EXIT_FAILURE);
}

static void
send_query(Client *client, const char *query, State state)
{
	if (!PQsendQuery(client->conn, query))
		fail(PQerrorMessage(client->conn));
	client->state = state;
}

static void
connect_client(Client *client, int number, const char *mode)
{
	client->conn = PQconnectdb("");
	if (PQstatus(client->conn) != CONNECTION_OK)
		fail(PQerrorMessage(client->conn));
	if (strcmp(mode, "advisory") == 0)
	{
		strcpy(client->acquire, "SELECT true FROM pg_advisory_lock(1)");
		strcpy(client->release, "SELECT pg_advisory_unlock(1)");
		return;
	}
	snprintf(client->acquire, sizeof(client->acquire),
			 "SELECT acquired FROM fenced_lock.%s('hot', '30 s', '00000000-0000-4000-8000-%012d', wait => '%s')",
			 polling ? "try_acquire" : "acquire", number,
			 polling ? "0" : "60 s");
	snprintf(client->release, sizeof(client->release),
			 "SELECT fenced_lock.release('hot', '00000000-0000-4000-8000-%012d')",
			 number);
}

/* Was it true?  The whole answer is there, so this does not wait. */
static bool
take_answer(Client *client)
{
	PGresult   *result = PQgetResult(client->conn);
	bool		answer;

	if (PQresultStatus(result) != PGRES_TUPLES_OK)
		fail(PQerrorMessage(client->conn));
	answer = PQgetvalue(result, 0, 0)[0] == 't';
	PQclear(result);
	while ((result = PQgetResult(client->conn)) != NULL)
		PQclear(result);
	return answer;
}

static void
granted(Client *client)
{
	double		now = milliseconds();

	grants++;
	if (last_holder != NULL && last_holder != client)
	{
		if (hand_overs < MAX_HAND_OVERS)
			latencies[hand_overs] = now - last_release;
		hand_overs++;
	}
	last_holder = client;
	last_release = now;
	send_query(client, client->release, RELEASED);
}

static void
answered(Client *client)
{
	bool		answer = take_answer(client);

	if (client->state == RELEASED)
	{
		if (!answer)
			fail("a release was not true");
		client->state = IDLE;
		if (!over)
			send_query(client, client->acquire, ASKED);
	}
	else if (answer)
		granted(client);
	else
	{
		client->state = PAUSING;
		client->ask_at = milliseconds() + POLL_EVERY_MS;
	}
}

static int
busy_clients(void)
{
	int			count = 0;

	for (int i = 0; i < n_clients; i++)
		count += clients[i].state != IDLE;
	return count;
}

/* Waits for answers and for ends of pauses, and deals with them. */
static void
turn(void)
{
	struct pollfd fds[MAX_CLIENTS];
	double		now = milliseconds();
	double		wait = POLL_EVERY_MS;
	struct timespec timeout;

	for (int i = 0; i < n_clients; i++)
	{
		Client	   *client = &clients[i];

		if (client->state == PAUSING && over)
			client->state = IDLE;
		else if (client->state == PAUSING && client->ask_at <= now)
			send_query(client, client->acquire, ASKED);
		else if (client->state == PAUSING && client->ask_at - now < wait)
			wait = client->ask_at - now;
		fds[i].fd = PQsocket(client->conn);
		fds[i].events = client->state == PAUSING ? 0 : POLLIN;
		fds[i].revents = 0;
	}
	timeout.tv_sec = 0;
	timeout.tv_nsec = (long) (wait * 1e6);
	if (ppoll(fds, n_clients, &timeout, NULL) < 0)
		fail("ppoll() failed");
	for (int i = 0; i < n_clients; i++)
	{
		if (fds[i].revents == 0)
			continue;
		if (!PQconsumeInput(clients[i].conn))
			fail(PQerrorMessage(clients[i].conn));
		if (!PQisBusy(clients[i].conn))
			answered(&clients[i]);
	}
}

static int
compare(const void *a, const void *b)
{
	double		x = *(const double *) a;
	double		y = *(const double *) b;

	return (x > y) - (x < y);
}

static void
report(double seconds)
{
	long		kept = hand_overs < MAX_HAND_OVERS ? hand_overs : MAX_HAND_OVERS;

	if (hand_overs == 0)
		fail("nothing was handed over");
	qsort(latencies, kept, sizeof(double), compare);
	printf("%.0f %.0f %.2f %.2f\n", grants / seconds, hand_overs / seconds,
		   latencies[kept / 2], latencies[kept * 99 / 100]);
}

int
main(int argc, char **argv)
{
	double		begin;
	double		seconds;

	if (argc != 4 || (n_clients = atoi(argv[2])) < 2 || n_clients > MAX_CLIENTS)
		fail("usage: hand_over lease|polling|advisory CLIENTS SECONDS");
	polling = strcmp(argv[1], "polling") == 0;
	seconds = atof(argv[3]);
	for (int i = 0; i < n_clients; i++)
		connect_client(&clients[i], i, argv[1]);

	begin = milliseconds();
	for (int i = 0; i < n_clients; i++)
		send_query(&clients[i], clients[i].acquire, ASKED);
	while (milliseconds() - begin < seconds * 1e3)
		turn();
	seconds = (milliseconds() - begin) / 1e3;
	report(seconds);

	/* Whoever still stands in line would be in the next run's way. */
	over = true;
	while (busy_clients() > 0)
		turn();
	for (int i = 0; i < n_clients; i++)
		PQfinish(clients[i].conn);
	return 0;
}
