/* Run several steps in one call from Python, as a separate call for each costs as much as a small layer. */
#include <stdint.h>

#include "export.h"
#include "structures.h"

EXPORT void pof_run_steps(const Step *steps, int64_t count) {
    for (int64_t i = 0; i < count; i++) steps[i].run(steps[i].argument);
}
