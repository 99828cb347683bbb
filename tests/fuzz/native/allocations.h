/* The other functions that allocate, which run out of memory as those of memory.h do: link with -Wl,--wrap= and each
   name. */

#ifndef TFPIPE_FUZZ_ALLOCATIONS_H
#define TFPIPE_FUZZ_ALLOCATIONS_H

#include <errno.h>

#include "memory.h"

void *__real_calloc(size_t count, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
int __real_posix_memalign(void **memory, size_t alignment, size_t size);

void *__wrap_calloc(size_t count, size_t size) { return runs_out() ? NULL : __real_calloc(count, size); }

void *__wrap_aligned_alloc(size_t alignment, size_t size) {
    return runs_out() ? NULL : __real_aligned_alloc(alignment, size);
}

int __wrap_posix_memalign(void **memory, size_t alignment, size_t size) {
    return runs_out() ? ENOMEM : __real_posix_memalign(memory, alignment, size);
}

#endif
