/*
 * Functions that the bench measures in addition to the contenders: one that does nothing, whose
 * cost is subtracted from theirs, and the minimum cost of a shared counter.
 */
#include "postgres.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/hashfn.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#if PG_VERSION_NUM >= 160000
#include "varatt.h"
#endif

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(noop);
PG_FUNCTION_INFO_V1(atomic_add);
PG_FUNCTION_INFO_V1(atomic_add_shared);
PG_FUNCTION_INFO_V1(atomic_add_through);

/* noop(), noop(text): return a constant. */
Datum
noop(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT64(42);
}

/* atomic_add(text): one atomic addition to private memory. */
Datum
atomic_add(PG_FUNCTION_ARGS)
{
	static int64 counter;

	PG_RETURN_INT64(__atomic_fetch_add(&counter, 1, __ATOMIC_RELAXED));
}

/* The counter of a file in the data directory, mapped into all sessions that use it. */
static int64 *
shared_counter(text *name)
{
	static char mapped[MAXPGPATH];
	static void *counter;
	char	   *path = text_to_cstring(name);
	int			fd;

	/* Not again for each execution of a statement. */
	if (strcmp(path, mapped) == 0)
		return counter;
	fd = open(path, O_RDWR | O_CREAT, 0600);
	if (fd < 0 || ftruncate(fd, sizeof(int64)) != 0)
		elog(ERROR, "could not create a counter: %m");
	counter = mmap(NULL, sizeof(int64), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (counter == MAP_FAILED)
		elog(ERROR, "could not map a counter: %m");
	close(fd);
	strlcpy(mapped, path, sizeof(mapped));
	return counter;
}

/* atomic_add_shared(text): one atomic addition to memory that all sessions share. */
Datum
atomic_add_shared(PG_FUNCTION_ARGS)
{
	if (fcinfo->flinfo->fn_extra == NULL)
		fcinfo->flinfo->fn_extra = shared_counter(PG_GETARG_TEXT_PP(0));
	PG_RETURN_INT64(__atomic_fetch_add((int64 *) fcinfo->flinfo->fn_extra, 1, __ATOMIC_RELAXED));
}

#define LINES 131072

/* A cache line with the number of another one. */
typedef struct
{
	int64		counter;
	int64		other;
	char		pad[48];
} Line;

/*
 * atomic_add_through(text): one atomic addition in a cache line found through another one,
 * which is selected by the text's hash: two dependent cache misses, if the texts in use exceed
 * the cache.
 */
Datum
atomic_add_through(PG_FUNCTION_ARGS)
{
	static Line *lines = NULL;
	text	   *name = PG_GETARG_TEXT_PP(0);
	uint32		hash = hash_bytes((unsigned char *) VARDATA_ANY(name), VARSIZE_ANY_EXHDR(name));

	if (lines == NULL)
	{
		/* Each line of the first half refers to one of the second. */
		lines = MemoryContextAllocHuge(TopMemoryContext, 2 * (Size) LINES * sizeof(Line));
		memset(lines, 0, 2 * (Size) LINES * sizeof(Line));
		for (uint32 i = 0; i < LINES; i++)
			lines[i].other = LINES + (i * 2654435761U) % LINES;
	}
	PG_RETURN_INT64(__atomic_fetch_add(&lines[lines[hash % LINES].other].counter, 1, __ATOMIC_RELAXED));
}
