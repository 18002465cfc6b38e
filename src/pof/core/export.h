/* The functions that are visible outside the library. */
#include <stdint.h>

#ifdef _WIN32
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

/* How many positions the patterns contain (masks.c). */
EXPORT int64_t pof_count(const uint16_t *patterns, int64_t groups);
