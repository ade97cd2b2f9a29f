/*
 * What a call costs that does nothing, and one that does the least that could count:
 * the bench subtracts the first, and shows the second as the limit.
 */
#include "postgres.h"

#include "fmgr.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(noop);
PG_FUNCTION_INFO_V1(atomic_add);

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
