/*
 * Lets fsync() of leaf_id's file of reservations hang in the programs that preload it, as long as
 * src/disk.rs says so.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "preload.h"

/* Whether it hangs, and how many calls wait. */
static volatile int32_t *control;

__attribute__((constructor)) static void map_control(void)
{
	control = map_file("LEAF_ID_DISK", 8);
}

int fsync(int fd)
{
	int			(*real) (int) = (int (*) (int)) dlsym(RTLD_NEXT, "fsync");
	char		link[32];
	char		path[4096] = "";

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	if (control && control[0] && readlink(link, path, sizeof(path) - 1) > 0
		&& strstr(path, "leaf_id_reservation"))
	{
		__sync_fetch_and_add(&control[1], 1);
		while (control[0])
			usleep(10000);
		__sync_fetch_and_sub(&control[1], 1);
	}
	return real(fd);
}
