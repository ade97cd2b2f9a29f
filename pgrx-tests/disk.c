/*
 * The disk of the programs that preload it: fsync() of the file that src/disk.rs names hangs, or takes
 * as long as it says, and a log has what is done to leaf_id's files.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "preload.h"

static volatile struct
{
	int32_t		delay_ms;		/* -1: as long as it is that */
	int32_t		waiting;		/* how many calls wait */
	char		part[56];		/* of the names of files that are meant */
} *control;
static int	log_fd = -1;

/* Whether this process has done anything to a file of leaf_id: then it syncs the directory for it. */
static int	is_begun;

__attribute__((constructor)) static void map_control(void)
{
	char		name[4096];

	control = map_file("LEAF_ID_DISK", sizeof(*control));
	if (control)
	{
		snprintf(name, sizeof(name), "%s.log", getenv("LEAF_ID_DISK"));
		log_fd = ((int (*) (const char *, int, ...)) dlsym(RTLD_NEXT, "open")) (name, O_WRONLY | O_APPEND | O_CLOEXEC);
	}
}

/* One line for each, as "1234 fsync leaf_id_lease.json". */
static void tell(const char *what, const char *path)
{
	const char *slash = strrchr(path, '/');
	const char *name = slash ? slash + 1 : path;
	int			is_ours = strncmp(name, "leaf_id_", 8) == 0;
	char		line[256];
	int			length;

	is_begun = is_begun || is_ours;
	if (log_fd < 0 || !(is_ours || (is_begun && strcmp(what, "sync") == 0)))
		return;
	length = snprintf(line, sizeof(line), "%d %s %s\n", (int) getpid(), what, is_ours ? name : ".");
	if (write(log_fd, line, length) != length)
		abort();
}

/* How the file of a descriptor is called; a directory has the directory's name. */
static const char *name_of(int fd, char *path, size_t size)
{
	char		link[32];
	ssize_t		length;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	length = readlink(link, path, size - 1);
	path[length > 0 ? length : 0] = '\0';
	return path;
}

int fsync(int fd)
{
	int			(*real) (int) = (int (*) (int)) dlsym(RTLD_NEXT, "fsync");
	char		path[4096];
	struct stat status;
	int			result;

	if (!control)
		return real(fd);
	name_of(fd, path, sizeof(path));
	if (control->delay_ms != 0 && strstr(path, (const char *) control->part))
	{
		__sync_fetch_and_add(&control->waiting, 1);
		/* In parts, since a signal ends a sleep. */
		for (int slept_ms = 0; control->delay_ms < 0 || slept_ms < control->delay_ms; slept_ms += 10)
			usleep(10000);
		__sync_fetch_and_sub(&control->waiting, 1);
	}
	result = real(fd);
	if (strstr(path, "/leaf_id_") || (fstat(fd, &status) == 0 && S_ISDIR(status.st_mode)))
		tell("sync", path);
	return result;
}

int rename(const char *from, const char *to)
{
	int			result = ((int (*) (const char *, const char *)) dlsym(RTLD_NEXT, "rename")) (from, to);

	tell("rename", to);
	return result;
}

int unlink(const char *path)
{
	int			result = ((int (*) (const char *)) dlsym(RTLD_NEXT, "unlink")) (path);

	tell("unlink", path);
	return result;
}

#define OPEN(name) \
	int name(const char *path, int flags, ...) \
	{ \
		mode_t		mode = 0; \
		va_list		arguments; \
		va_start(arguments, flags); \
		if (flags & (O_CREAT | O_TMPFILE)) \
			mode = va_arg(arguments, mode_t); \
		va_end(arguments); \
		if (flags & O_TRUNC) \
			tell("truncate", path); \
		return ((int (*) (const char *, int, ...)) dlsym(RTLD_NEXT, #name)) (path, flags, mode); \
	}
OPEN(open)
OPEN(open64)
