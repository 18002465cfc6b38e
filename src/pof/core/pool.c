/*
 * A pool of threads that wait for work: they spin for a moment, then sleep. They are our own, not OpenMP's, because a
 * second OpenMP would compete for the cores with the one that comes with torch.
 */
#include "pool.h"

#if defined(__GNUC__) && !defined(_WIN32)

#include <pthread.h>
#include <time.h>

enum { MOST_WORKERS = 255 };
static const int64_t SPIN_NANOSECONDS = 100000;

static pthread_mutex_t caller = PTHREAD_MUTEX_INITIALIZER; /* held by the thread that uses the pool */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;   /* protects the variables below */
static pthread_cond_t news = PTHREAD_COND_INITIALIZER;
static int workers;                     /* how many threads were started */
static int64_t started_at[MOST_WORKERS]; /* the value of `call` when each was started */

/* The number of calls so far, times 256, plus the workers in the last one: one word, so that both always match. */
static int64_t call;

/* The present piece of work; it is written before `call`, and never while a worker may use it. */
static void (*present)(void *, int64_t);
static void *present_argument;
static int64_t present_parts;
static int64_t next_part, left; /* the next part to take; workers that are not done yet */

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void take_parts(void) {
    for (;;) {
        int64_t part = __atomic_fetch_add(&next_part, 1, __ATOMIC_RELAXED);
        if (part >= present_parts) return;
        present(present_argument, part);
    }
}

/* Wait until `call` is no longer `seen`, and return its new value. */
static int64_t wait_for_news(int64_t seen) {
    for (int64_t until = now() + SPIN_NANOSECONDS; now() < until;)
        for (int i = 0; i < 64; i++, relax()) {
            int64_t found = __atomic_load_n(&call, __ATOMIC_ACQUIRE);
            if (found != seen) return found;
        }
    pthread_mutex_lock(&lock);
    while (__atomic_load_n(&call, __ATOMIC_ACQUIRE) == seen) pthread_cond_wait(&news, &lock);
    int64_t found = __atomic_load_n(&call, __ATOMIC_ACQUIRE);
    pthread_mutex_unlock(&lock);
    return found;
}

static void *worker(void *argument) {
    int me = (int)(intptr_t)argument;
    int64_t seen = started_at[me];
    for (;;) {
        seen = wait_for_news(seen);
        if (me < (seen & 255)) {
            take_parts();
            __atomic_fetch_sub(&left, 1, __ATOMIC_ACQ_REL);
        }
    }
    return 0;
}

/* A forked child has none of the threads, and nothing that could release the locks. */
static void forget(void) {
    static const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
    static const pthread_cond_t fresh_news = PTHREAD_COND_INITIALIZER;
    caller = lock = fresh;
    news = fresh_news;
    workers = 0;
    call = 0;
}

static void start_workers(int count) {
    static int registered;
    if (!registered) {
        pthread_atfork(0, 0, forget);
        registered = 1;
    }
    for (; workers < count && workers < MOST_WORKERS; workers++) {
        started_at[workers] = call;
        pthread_t thread;
        pthread_attr_t detached;
        pthread_attr_init(&detached);
        pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
        int failed = pthread_create(&thread, &detached, worker, (void *)(intptr_t)workers);
        pthread_attr_destroy(&detached);
        if (failed) return;
    }
}

void pool_run(void (*work)(void *, int64_t), void *argument, int64_t parts, int threads) {
    /* Only one caller at a time uses the pool; any other does its work alone. */
    if (threads < 2 || parts < 2 || pthread_mutex_trylock(&caller)) {
        for (int64_t part = 0; part < parts; part++) work(argument, part);
        return;
    }
    pthread_mutex_lock(&lock);
    start_workers(threads - 1);
    int helpers = threads - 1 < workers ? threads - 1 : workers;
    present = work;
    present_argument = argument;
    present_parts = parts;
    next_part = 0;
    left = helpers;
    __atomic_store_n(&call, (call / 256 + 1) * 256 + helpers, __ATOMIC_RELEASE);
    pthread_cond_broadcast(&news);
    pthread_mutex_unlock(&lock);
    take_parts();
    while (__atomic_load_n(&left, __ATOMIC_ACQUIRE)) relax();
    pthread_mutex_unlock(&caller);
}

#else

void pool_run(void (*work)(void *, int64_t), void *argument, int64_t parts, int threads) {
    (void)threads;
    for (int64_t part = 0; part < parts; part++) work(argument, part);
}

#endif
