/* Work on many items in several threads. */

#ifndef TFPIPE_PARALLEL_H
#define TFPIPE_PARALLEL_H

#include <stddef.h>

/* Calls `work` for each item from 0 to `count` - 1, and returns when all are done.

   The calling thread works too, so the call ends also where no other thread can be started. Threads stay for the next
   call. If several calls run at once, all threads work for the oldest one first, so that calls end in their order.

   threads  the most threads that work, for all calls together */
void tfpipe_run_parallel(void (*work)(void *context, size_t item), void *context, size_t count, int threads);

#endif
