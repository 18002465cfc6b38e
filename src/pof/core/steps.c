/* Many steps in one call from Python, as each call of its own costs as much as a small layer. */
#include <stdint.h>

#include "export.h"

typedef struct {
    void (*run)(const void *);
    const void *argument;
} Step;

EXPORT void pof_run_steps(const Step *steps, int64_t count) {
    for (int64_t i = 0; i < count; i++) steps[i].run(steps[i].argument);
}
