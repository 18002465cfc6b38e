/* A pool of threads that wait for work. */
#include <stdint.h>

/* Call `work(argument, part)` for each part, on up to `threads` threads; return when all are done. */
void pool_run(void (*work)(void *argument, int64_t part), void *argument, int64_t parts, int threads);
