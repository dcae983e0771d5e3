/*
 * crowd.c: runs many consumers at a time and kills some of them.
 *
 * It starts the given program a number of times, each as a process of its own,
 * kills processes (SIGKILL) and starts others in their place while the queue
 * is being emptied, shows progress on standard error, and prints the seconds
 * that it took to empty the queue on standard output.
 *
 * The plan of the kills comes from the seed and goes by the progress of the
 * queue, not by the clock: a slow mode loses as many consumers, in the same
 * places and after the same share of the work, as a fast one.
 */
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <libpq-fe.h>

#define MAX_CONSUMERS	500

#define LOOK_EVERY_MS	50

/* How often progress is shown: as a changing line, and where lines stay */
#define REDRAW_EVERY_S	0.25
#define LINE_EVERY_S	2.0

static pid_t consumers[MAX_CONSUMERS];	/* 0: this one is through */
static int	n_consumers;
static char **program;
static volatile sig_atomic_t interrupted = 0;

static void
on_signal(int signo)
{
	interrupted = signo;
}

static double
seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

static void
start_consumer(int i)
{
	pid_t		pid = fork();

	if (pid == 0)
	{
		execv(program[0], program);
		perror(program[0]);
		_exit(127);
	}
	if (pid < 0)
	{
		perror("fork");
		exit(EXIT_FAILURE);
	}
	consumers[i] = pid;
}

/* Kills one, wherever in its work it may be, and puts another in its place. */
static void
kill_consumer(int i)
{
	if (consumers[i] == 0)
		return;
	kill(consumers[i], SIGKILL);
	waitpid(consumers[i], NULL, 0);
	start_consumer(i);
}

/* Leaves no process behind, whatever happened. */
static void
kill_consumers(void)
{
	for (int i = 0; i < n_consumers; i++)
		if (consumers[i] > 0)
			kill(consumers[i], SIGKILL);
	for (int i = 0; i < n_consumers; i++)
		if (consumers[i] > 0)
			waitpid(consumers[i], NULL, 0);
}

static void
give_up(const char *why)
{
	kill_consumers();
	if (interrupted)
		exit(128 + interrupted);
	fprintf(stderr, "\n%s\n", why);
	exit(EXIT_FAILURE);
}

/*
 * Looks after consumers that have ended: a killed one is replaced, one that
 * found the queue empty is not.  Answers how many there are.
 */
static int
reap_consumers(void)
{
	int			alive = 0;

	for (int i = 0; i < n_consumers; i++)
	{
		int			status;

		if (consumers[i] == 0)
			continue;
		alive++;
		if (waitpid(consumers[i], &status, WNOHANG) != consumers[i])
			continue;
		if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
			start_consumer(i);
		else
		{
			consumers[i] = 0;
			alive--;
			if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
				give_up("a consumer failed");
		}
	}
	return alive;
}

static int
count_jobs(PGconn *conn)
{
	PGresult   *res = PQexec(conn, "SELECT count(*) FROM queue");
	int			n;

	if (PQresultStatus(res) != PGRES_TUPLES_OK)
		give_up(PQerrorMessage(conn));
	n = atoi(PQgetvalue(res, 0, 0));
	PQclear(res);
	return n;
}

/* On a terminal one line that changes, elsewhere a new line now and then. */
static void
show_progress(const char *label, int done, int total, int kills, double elapsed, bool last)
{
	static double next = 0;
	bool		terminal = isatty(STDERR_FILENO);

	if (!last && elapsed < next)
		return;
	next = elapsed + (terminal ? REDRAW_EVERY_S : LINE_EVERY_S);
	fprintf(stderr, "%s%-20s %5.1f s  %6d of %d e-mails dealt with, %d consumers killed%s",
			terminal ? "\r" : "", label, elapsed, done, total, kills,
			terminal && !last ? "" : "\n");
	fflush(stderr);
}

int
main(int argc, char **argv)
{
	struct sigaction action = {.sa_handler = on_signal};
	const char *label;
	PGconn	   *conn;
	int			total;
	int			left;
	int			planned_kills;
	int			kills = 0;
	int			timeout;
	double		started;
	double		took = 0;

	if (argc < 7)
	{
		fprintf(stderr, "usage: crowd LABEL CONSUMERS KILLS SEED TIMEOUT PROGRAM [ARGUMENT ...]\n");
		return EXIT_FAILURE;
	}
	label = argv[1];
	n_consumers = atoi(argv[2]);
	planned_kills = atoi(argv[3]);
	srandom((unsigned int) atoi(argv[4]));
	timeout = atoi(argv[5]);
	program = argv + 6;
	if (n_consumers < 1 || n_consumers > MAX_CONSUMERS)
	{
		fprintf(stderr, "crowd: between 1 and %d consumers\n", MAX_CONSUMERS);
		return EXIT_FAILURE;
	}

	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGHUP, &action, NULL);

	conn = PQconnectdb("application_name=crowd");
	if (PQstatus(conn) != CONNECTION_OK)
		give_up(PQerrorMessage(conn));
	total = left = count_jobs(conn);

	started = seconds();
	for (int i = 0; i < n_consumers; i++)
		start_consumer(i);

	/*
	 * Goes on to the end of the last consumer: a paused one comes back, and
	 * tries to write, when the queue has long been empty.
	 */
	do
	{
		double		elapsed = seconds() - started;

		if (interrupted)
			give_up("interrupted");
		if (elapsed > timeout)
			give_up("the queue was not emptied in time");

		if (left > 0)
		{
			left = count_jobs(conn);
			if (left == 0)
				took = elapsed;
			show_progress(label, total - left, total, kills, elapsed, left == 0);
		}

		/* The kills are spread evenly over the work. */
		while (left > 0 &&
			   kills < planned_kills &&
			   (long) (total - left) * (planned_kills + 1) >= (long) total * (kills + 1))
		{
			kill_consumer((int) (random() % n_consumers));
			kills++;
		}
		usleep(LOOK_EVERY_MS * 1000);
	} while (reap_consumers() > 0 || left > 0);

	PQfinish(conn);
	printf("%.2f\n", took);
	return EXIT_SUCCESS;
}
