/*
 * What a call costs that does nothing, and those that do the least that could count:
 * the bench subtracts the first, and shows the others as the limit.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "fmgr.h"
#include "utils/memutils.h"
#if PG_VERSION_NUM >= 160000
#include "varatt.h"
#endif

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(noop);
PG_FUNCTION_INFO_V1(atomic_add);
PG_FUNCTION_INFO_V1(atomic_add_far);
PG_FUNCTION_INFO_V1(atomic_add_through);

/* noop(), noop(text): a constant. */
Datum
noop(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT64(42);
}

/* atomic_add(text): one atomic addition, to memory that no other process has. */
Datum
atomic_add(PG_FUNCTION_ARGS)
{
	int64	   *counter = fcinfo->flinfo->fn_extra;

	if (counter == NULL)
	{
		counter = MemoryContextAllocZero(fcinfo->flinfo->fn_mcxt, sizeof(int64));
		fcinfo->flinfo->fn_extra = counter;
	}
	PG_RETURN_INT64(__atomic_fetch_add(counter, 1, __ATOMIC_RELAXED));
}

/* Counters of atomic_add_far, each in a cache line of its own. */
#define FAR_COUNTERS 131072
#define LINE 64

/* A cache line: a counter, and the number of another line. */
typedef struct
{
	int64		counter;
	int64		other;
	char		pad[LINE - 16];
} Line;

/* Twice as many: each line of the first half leads to one of the second. */
static Line *
all_lines(void)
{
	static Line *lines = NULL;

	if (lines == NULL)
	{
		lines = MemoryContextAllocHuge(TopMemoryContext, 2 * (Size) FAR_COUNTERS * LINE);
		memset(lines, 0, 2 * (Size) FAR_COUNTERS * LINE);
		for (uint32 i = 0; i < FAR_COUNTERS; i++)
			lines[i].other = FAR_COUNTERS + (i * 2654435761U) % FAR_COUNTERS;
	}
	return lines;
}

static uint32
number_of(text *name)
{
	return hash_bytes((unsigned char *) VARDATA_ANY(name), VARSIZE_ANY_EXHDR(name)) % FAR_COUNTERS;
}

/* atomic_add_far(text): the same in one of many cache lines, by the text's hash. */
Datum
atomic_add_far(PG_FUNCTION_ARGS)
{
	Line	   *line = &all_lines()[number_of(PG_GETARG_TEXT_PP(0))];

	PG_RETURN_INT64(__atomic_fetch_add(&line->counter, 1, __ATOMIC_RELAXED));
}

/* atomic_add_through(text): the same in the line that this one leads to. */
Datum
atomic_add_through(PG_FUNCTION_ARGS)
{
	Line	   *lines = all_lines();
	Line	   *line = &lines[lines[number_of(PG_GETARG_TEXT_PP(0))].other];

	PG_RETURN_INT64(__atomic_fetch_add(&line->counter, 1, __ATOMIC_RELAXED));
}
