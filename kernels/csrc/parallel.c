#include <pthread.h>

#include "parallel.h"

/* One call of tfpipe_run_parallel. It lies on the stack of its caller, who waits until no thread needs it.

   next     the first item that nobody has taken
   running  the items that are worked on
   done     is signaled when the last item is done
   later    the call that began after it */
typedef struct job {
    void (*work)(void *context, size_t item);
    void *context;
    size_t count, next;
    int threads, running;
    pthread_cond_t done;
    struct job *later;
} job;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* of all that follows, and of jobs */
static pthread_cond_t has_work = PTHREAD_COND_INITIALIZER;
static job *oldest;
static int num_helpers, working; /* the threads that were started, and those that work, with the callers */

static job *find_work(void) {
    job *each = oldest;
    while (each != NULL && each->next == each->count) each = each->later;
    return each;
}

/* Works for the oldest call until there is nothing to do; a caller until all of its own items are taken.

   The mutex is held before and after, but not during the work. */
static void work_on(const job *own) {
    working++;
    for (job *from = find_work(); from != NULL; from = find_work()) {
        if (own == NULL ? working > from->threads : own->next == own->count) break;
        const size_t item = from->next++;
        from->running++;
        pthread_mutex_unlock(&mutex);
        from->work(from->context, item);
        pthread_mutex_lock(&mutex);
        if (--from->running == 0 && from->next == from->count) pthread_cond_signal(&from->done);
    }
    working--;
    if (find_work() != NULL) pthread_cond_signal(&has_work);
}

static void *help(void *unused) {
    (void)unused;
    pthread_mutex_lock(&mutex);
    for (;;) {
        const job *found = find_work();
        if (found != NULL && working < found->threads) {
            work_on(NULL);
        } else {
            pthread_cond_wait(&has_work, &mutex);
        }
    }
    return NULL;
}

/* A forked process has none of the threads, and perhaps a mutex that nobody will unlock. */
static void forget_threads(void) {
    pthread_mutex_init(&mutex, NULL);
    pthread_cond_init(&has_work, NULL);
    oldest = NULL;
    num_helpers = working = 0;
}

static void watch_forks(void) { pthread_atfork(NULL, NULL, forget_threads); }

static void start_helpers(int wanted) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_attr_t detached;
    pthread_once(&once, watch_forks);
    if (num_helpers >= wanted || pthread_attr_init(&detached) != 0) return;
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    for (pthread_t thread; num_helpers < wanted; num_helpers++)
        if (pthread_create(&thread, &detached, help, NULL) != 0) break;
    pthread_attr_destroy(&detached);
}

void tfpipe_run_parallel(void (*work)(void *context, size_t item), void *context, size_t count, int threads) {
    job own = {.work = work, .context = context, .count = count, .threads = threads};
    pthread_cond_init(&own.done, NULL);
    pthread_mutex_lock(&mutex);
    start_helpers(threads - 1);
    job **place = &oldest;
    while (*place != NULL) place = &(*place)->later;
    *place = &own;
    for (int k = 1; k < threads && (size_t)k < count; k++) pthread_cond_signal(&has_work);
    work_on(&own);
    while (own.running > 0) pthread_cond_wait(&own.done, &mutex);
    for (place = &oldest; *place != &own; place = &(*place)->later) continue;
    *place = own.later;
    pthread_mutex_unlock(&mutex);
    pthread_cond_destroy(&own.done);
}
