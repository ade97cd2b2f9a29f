/*
 * What the libraries that servers preload have in common: a file by which the test controls them.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* The file that this environment variable names, in memory; null without one. */
static void *map_file(const char *variable, size_t size)
{
	const char *file = getenv(variable);
	int			fd = file ? open(file, O_RDWR | O_CLOEXEC) : -1;
	void	   *map;

	if (fd < 0)
		return NULL;
	map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (map == MAP_FAILED)
		abort();
	return map;
}
