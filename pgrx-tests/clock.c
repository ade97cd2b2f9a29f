/*
 * Moves the clock of the programs that preload it: src/clock.rs sets it while they run.
 *
 * libfaketime would do, but while it waits in select() it fakes nothing, and a process
 * that is forked there never sees the set clock. The postmaster of PostgreSQL 15 forks background
 * workers from signal handlers, in select().
 *
 * Only the time of day is moved. Timeouts, which go by the monotonic clock, stay as they are.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>

#include "preload.h"

/* How far ahead in milliseconds, and its complement: a half written pair shows. */
static const volatile int64_t *setting;

__attribute__((constructor)) static void map_setting(void)
{
	setting = map_file("LEAF_ID_CLOCK", 16);
}

static int64_t ahead_ms(void)
{
	int64_t		ms;

	if (!setting)
		return 0;
	do
		ms = setting[0];
	while (setting[1] != ~ms);
	return ms;
}

int clock_gettime(clockid_t id, struct timespec *now)
{
	int			result = (int) syscall(SYS_clock_gettime, id, now);

	if (result == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
	{
		int64_t		ms = ahead_ms();
		int64_t		ns = now->tv_nsec + ms % 1000 * 1000000;

		/* The remainder of a negative number is negative: borrow, or carry. */
		now->tv_sec += ms / 1000 + (ns >= 1000000000) - (ns < 0);
		now->tv_nsec = ns + (ns < 0) * 1000000000 - (ns >= 1000000000) * 1000000000;
	}
	return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
	struct timespec precise;

	(void) zone;
	clock_gettime(CLOCK_REALTIME, &precise);
	now->tv_sec = precise.tv_sec;
	now->tv_usec = precise.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *now)
{
	struct timespec precise;

	clock_gettime(CLOCK_REALTIME, &precise);
	if (now)
		*now = precise.tv_sec;
	return precise.tv_sec;
}
