/* Work on many items in several threads. */

#ifndef TFPIPE_PARALLEL_H
#define TFPIPE_PARALLEL_H

#include <stddef.h>

/* Threads that stay for the next call. */
typedef struct tfpipe_threads tfpipe_threads;

/* The threads that compute, and those that wait for storage. They do not wait for each other. */
extern tfpipe_threads tfpipe_computing, tfpipe_waiting;

/* Calls `work` for each item from 0 to `count` - 1, and returns when all are done.

   The calling thread only waits: if it worked too, calls that run at once would have more threads than cores, and a
   batch would wait for a core when it is done. It works where there is one item or one thread, or none can be started.
   If several calls run at once, all threads work for the oldest one first, so that calls end in their order.

   helpers  the threads that work
   most     the most threads that work, for all calls with these helpers together */
void tfpipe_run_parallel(tfpipe_threads *helpers, void (*work)(void *context, size_t item), void *context, size_t count,
                         int most);

#endif
