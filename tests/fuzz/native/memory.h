/* Memory that runs out: link with -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc. */

#ifndef TFPIPE_FUZZ_MEMORY_H
#define TFPIPE_FUZZ_MEMORY_H

#include <stddef.h>

static int fail_after = -1, failed; /* allocations until one fails; whether one did */

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *memory, size_t size);

static int runs_out(void) {
    if (__atomic_load_n(&fail_after, __ATOMIC_RELAXED) < 0 || __atomic_fetch_sub(&fail_after, 1, __ATOMIC_RELAXED) != 0)
        return 0;
    __atomic_store_n(&failed, 1, __ATOMIC_RELAXED);
    return 1;
}

void *__wrap_malloc(size_t size) { return runs_out() ? NULL : __real_malloc(size); }

void *__wrap_calloc(size_t count, size_t size) { return runs_out() ? NULL : __real_calloc(count, size); }

void *__wrap_realloc(void *memory, size_t size) { return runs_out() ? NULL : __real_realloc(memory, size); }

#endif
