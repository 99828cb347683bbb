#include <pthread.h>
#include <time.h>

#include "parallel.h"
#include "tfpipe_native.h"

/* One call of tfpipe_run_parallel. It lies on the stack of its caller, who waits until no thread needs it.

   next     the first item that nobody has taken
   running  the items that are worked on
   cpu_ns   the processor time of the threads that worked on it
   done     is signaled when the last item is done
   later    the call that began after it */
typedef struct job {
    void (*work)(void *context, size_t item);
    void *context;
    size_t count, next;
    int most, running;
    int64_t cpu_ns;
    pthread_cond_t done;
    struct job *later;
} job;

/* mutex        of all that follows, and of jobs
   oldest       the first of the jobs that run
   num_helpers  the threads that were started
   working      the threads that work */
struct tfpipe_threads {
    pthread_mutex_t mutex;
    pthread_cond_t has_work;
    job *oldest;
    int num_helpers, working;
};

#define NO_THREADS {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, NULL, 0, 0}

tfpipe_threads tfpipe_computing = NO_THREADS, tfpipe_waiting = NO_THREADS;

/* The processor time of the helpers in all calls of this thread. */
static _Thread_local int64_t helped_ns;

int64_t tfpipe_helped_ns(void) { return helped_ns; }

static int64_t read_cpu_ns(void) {
    struct timespec now = {0, 0};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static job *find_work(const tfpipe_threads *threads) {
    job *each = threads->oldest;
    while (each != NULL && each->next == each->count) each = each->later;
    return each;
}

/* Takes an item of a call and works on it. The mutex is held before and after, but not during the work. */
static void work_on(tfpipe_threads *threads, job *from) {
    const size_t item = from->next++;
    from->running++;
    threads->working++;
    const job *more = find_work(threads);
    if (more != NULL && threads->working < more->most) pthread_cond_signal(&threads->has_work);
    pthread_mutex_unlock(&threads->mutex);
    const int64_t began_ns = read_cpu_ns();
    from->work(from->context, item);
    const int64_t spent_ns = read_cpu_ns() - began_ns;
    pthread_mutex_lock(&threads->mutex);
    from->cpu_ns += spent_ns;
    threads->working--;
    if (--from->running == 0 && from->next == from->count) pthread_cond_signal(&from->done);
}

static void *help(void *of) {
    tfpipe_threads *threads = of;
    pthread_mutex_lock(&threads->mutex);
    for (;;) {
        job *from = find_work(threads);
        if (from != NULL && threads->working < from->most) {
            work_on(threads, from);
        } else {
            pthread_cond_wait(&threads->has_work, &threads->mutex);
        }
    }
    return NULL;
}

/* A forked process has none of the threads, and perhaps a mutex that nobody will unlock. */
static void forget_threads(void) {
    tfpipe_computing = (tfpipe_threads)NO_THREADS;
    tfpipe_waiting = (tfpipe_threads)NO_THREADS;
}

static void watch_forks(void) { pthread_atfork(NULL, NULL, forget_threads); }

/* Starts the threads that are missing. Returns 0, or -1 if there are none and none can be started. */
static int start_helpers(tfpipe_threads *threads, int wanted) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_attr_t detached;
    pthread_once(&once, watch_forks);
    if (threads->num_helpers < wanted && pthread_attr_init(&detached) == 0) {
        pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
        for (pthread_t thread; threads->num_helpers < wanted; threads->num_helpers++)
            if (pthread_create(&thread, &detached, help, threads) != 0) break;
        pthread_attr_destroy(&detached);
    }
    return threads->num_helpers > 0 ? 0 : -1;
}

/* Lets the threads work on all items of a call, and waits for them. The mutex is held. */
static void wait_for(tfpipe_threads *threads, job *own) {
    job **place = &threads->oldest;
    while (*place != NULL) place = &(*place)->later;
    *place = own;
    pthread_cond_signal(&threads->has_work);
    while (own->next < own->count || own->running > 0) pthread_cond_wait(&own->done, &threads->mutex);
    for (place = &threads->oldest; *place != own; place = &(*place)->later) continue;
    *place = own->later;
}

void tfpipe_run_parallel(tfpipe_threads *helpers, void (*work)(void *context, size_t item), void *context, size_t count,
                         int most) {
    int waited = 0;
    if (most > 1 && count > 1) {
        job own = {.work = work, .context = context, .count = count, .most = most};
        pthread_cond_init(&own.done, NULL);
        pthread_mutex_lock(&helpers->mutex);
        waited = start_helpers(helpers, most) == 0;
        if (waited) wait_for(helpers, &own);
        pthread_mutex_unlock(&helpers->mutex);
        pthread_cond_destroy(&own.done);
        helped_ns += own.cpu_ns;
    }
    for (size_t item = 0; !waited && item < count; item++) work(context, item);
}
