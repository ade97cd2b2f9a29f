/*
 * What a call costs that does nothing, and those that do the least that could count:
 * the bench subtracts the first, and shows the others as the limit.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "fmgr.h"
#include "utils/memutils.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(noop);
PG_FUNCTION_INFO_V1(atomic_add);
PG_FUNCTION_INFO_V1(atomic_add_far);

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

/* atomic_add_far(text): the same in one of many cache lines, by the text's hash. */
Datum
atomic_add_far(PG_FUNCTION_ARGS)
{
	static char *counters = NULL;
	text	   *name = PG_GETARG_TEXT_PP(0);
	uint32		hash;

	if (counters == NULL)
		counters = MemoryContextAllocZero(TopMemoryContext, (Size) FAR_COUNTERS * LINE);
	hash = hash_bytes((unsigned char *) VARDATA_ANY(name), VARSIZE_ANY_EXHDR(name));
	PG_RETURN_INT64(__atomic_fetch_add((int64 *) (counters + (hash % FAR_COUNTERS) * LINE), 1,
									   __ATOMIC_RELAXED));
}
