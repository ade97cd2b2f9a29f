/*
 * Lets fsync() of leaf_id's file of reservations hang in the programs that preload it, as long as
 * src/disk.rs says so.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Whether it hangs, and how many calls wait. */
static volatile int32_t *control;

__attribute__((constructor)) static void map_control(void)
{
	const char *file = getenv("LEAF_ID_DISK");
	int			fd = file ? open(file, O_RDWR | O_CLOEXEC) : -1;
	void	   *map;

	if (fd < 0)
		return;
	map = mmap(NULL, 8, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (map == MAP_FAILED)
		abort();
	control = map;
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
