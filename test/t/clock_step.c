/*
 * Preloaded into a server, this shifts its wall clock by what a file says, in
 * microseconds, from one call to the next.  The monotonic clock is left alone.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *offset;

__attribute__((constructor))
static void
map_offset(void)
{
	const char *path = getenv("CLOCK_STEP_FILE");
	int			fd = path ? open(path, O_RDONLY) : -1;
	void	   *map;

	if (fd < 0)
		return;
	map = mmap(NULL, sizeof(*offset), PROT_READ, MAP_SHARED, fd, 0);
	if (map != MAP_FAILED)
		offset = map;
	close(fd);
}

int
clock_gettime(clockid_t clock, struct timespec *result)
{
	int			rc = (int) syscall(SYS_clock_gettime, clock, result);
	int64_t		ns;

	if (rc != 0 || offset == NULL || clock != CLOCK_REALTIME)
		return rc;
	ns = result->tv_nsec + *offset % 1000000 * 1000;
	result->tv_sec += *offset / 1000000;
	if (ns < 0)
	{
		ns += 1000000000;
		result->tv_sec--;
	}
	if (ns >= 1000000000)
	{
		ns -= 1000000000;
		result->tv_sec++;
	}
	result->tv_nsec = ns;
	return 0;
}

int
gettimeofday(struct timeval *restrict result, void *restrict zone)
{
	struct timespec now;

	(void) zone;
	clock_gettime(CLOCK_REALTIME, &now);
	result->tv_sec = now.tv_sec;
	result->tv_usec = now.tv_nsec / 1000;
	return 0;
}

/* pg_ctl compares this with what the server writes. */
time_t
time(time_t *result)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	if (result != NULL)
		*result = now.tv_sec;
	return now.tv_sec;
}
