/*
 * Threads that wait for work, a moment actively and then asleep. They are ours and not OpenMP's, because a second OpenMP
 * beside the one that torch brings fights with it for the cores.
 */
#include "pool.h"

#if defined(__GNUC__) && !defined(_WIN32)

#include <pthread.h>
#include <time.h>

enum { MOST_WORKERS = 255 };
static const int64_t SPIN_NANOSECONDS = 100000;

static pthread_mutex_t caller = PTHREAD_MUTEX_INITIALIZER; /* held by whoever uses the pool */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;   /* of what follows */
static pthread_cond_t news = PTHREAD_COND_INITIALIZER;
static int workers;                     /* threads that were started */
static int64_t started_at[MOST_WORKERS]; /* the call that each was started before */

/* How many calls there were, times 256, plus how many workers take part in the last: one word, so that both fit together. */
static int64_t call;

/* The present piece of work; written before `call`, and not while a worker may be at it. */
static void (*present)(void *, int64_t);
static void *present_argument;
static int64_t present_parts;
static int64_t next_part, left; /* parts that were taken; workers that have not said yet that they are done */

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

/* Wait for another call than `seen`; return it. */
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

/* A child process has none of the threads, and nobody who could unlock. */
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
    /* One caller at a time; another one that comes meanwhile works alone. */
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
