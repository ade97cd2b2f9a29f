/*
 * Lets an allocation of one process fail, of the programs that preload this: src/memory.rs says
 * which while they run.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "preload.h"

static struct control
{
	/* 0: the background worker of this name, whichever process that is. */
	int32_t		pid;
	/* The allocation that fails, counted down to 0. */
	int32_t		left;
	/* Whether those after it fail, too. */
	int32_t		lasting;
	int32_t		failed;
	char		worker[96];
}		   *control;

/* PostgreSQL's; it begins with the name. */
extern __attribute__((weak)) char *MyBgworkerEntry;

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *memory, size_t size);

__attribute__((constructor)) static void map_control(void)
{
	control = map_file("LEAF_ID_MEMORY", sizeof(*control));
}

static int chosen(void)
{
	if (control->pid != 0)
		return control->pid == getpid();
	return &MyBgworkerEntry != NULL && MyBgworkerEntry != NULL
		&& strcmp(MyBgworkerEntry, control->worker) == 0;
}

static int fails(void)
{
	if (!control || (control->left <= 0 && !(control->failed && control->lasting)) || !chosen())
		return 0;
	if (control->left > 0 && --control->left > 0)
		return 0;
	control->failed = 1;
	errno = ENOMEM;
	return 1;
}

void *malloc(size_t size)
{
	return fails() ? NULL : __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
	return fails() ? NULL : __libc_calloc(count, size);
}

void *realloc(void *memory, size_t size)
{
	return fails() ? NULL : __libc_realloc(memory, size);
}
