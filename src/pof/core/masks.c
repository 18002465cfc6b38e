/* The positions and values of a .pof file, weight by weight: see src/pof/file/SPEC.md. Plain C, no libraries. */
#include <stdint.h>

#include "export.h"

enum { KERNEL = 9, CONTEXTS = 9, NINTHS = 9, STREAMS = CONTEXTS + NINTHS };

/* Symbols of u bits: 1 << PACK[u] of them share a byte, WIDTH[u] bits each. */
static const uint8_t PACK[CONTEXTS + 1] = {0, 3, 2, 1, 1, 0, 0, 0, 0, 0};
static const uint8_t WIDTH[CONTEXTS + 1] = {8, 1, 2, 4, 4, 8, 8, 8, 8, 8};

static int ones(unsigned bits) {
    int count = 0;
    for (; bits; bits &= bits - 1) count++;
    return count;
}

static void count_table(uint8_t *table, int size) {
    for (unsigned i = 0; i < 1u << size; i++) table[i] = (uint8_t)ones(i);
}

/* members: a byte 0 or 1 for each of n positions; patterns: one for each group of `size`. */
EXPORT void pof_patterns(const uint8_t *members, int64_t n, int size, uint16_t *patterns) {
    int64_t groups = n / size;
    for (int64_t g = 0; g < groups; g++, members += size) {
        unsigned pattern = 0;
        for (int i = 0; i < size; i++) pattern |= (unsigned)members[i] << i;
        patterns[g] = (uint16_t)pattern;
    }
    unsigned pattern = 0;
    for (int i = 0; i < (int)(n % size); i++) pattern |= (unsigned)members[i] << i;
    if (n % size) patterns[groups] = (uint16_t)pattern;
}

/*
 * The symbols of one weight, by context: `out[u - 1]` takes those of u bits (the low 8 for u = 9), `out[9 + c]` the ninth
 * bits after a low byte with c ones; a byte each, each buffer has room for `groups`. `counts` says how many went where.
 */
EXPORT void pof_gather(const uint16_t *taken, const uint16_t *own, int64_t groups, int size, const uint16_t *table,
                       uint8_t *const *out, int64_t *counts) {
    uint8_t count[512];
    unsigned full = (1u << size) - 1;
    count_table(count, 9);
    for (int i = 0; i < STREAMS; i++) counts[i] = 0;
    for (int64_t g = 0; g < groups; g++) {
        unsigned free = full ^ taken[g];
        int context = count[free];
        if (context == 0) continue;
        unsigned symbol = table[free << size | own[g]];
        out[context - 1][counts[context - 1]++] = (uint8_t)symbol;
        if (context == KERNEL) {
            int ninth = CONTEXTS + count[symbol & 255];
            out[ninth][counts[ninth]++] = (uint8_t)(symbol >> 8);
        }
    }
}

/*
 * The inverse: patterns of one weight from packed streams. `used[i]` says how many bytes of `streams[i]` were read.
 * Returns 0, or -1 if a stream is too short.
 */
EXPORT int pof_spread(const uint16_t *taken, int64_t groups, int size, const uint16_t *table,
                      const uint8_t *const *streams, const int64_t *lengths, int64_t *used, uint16_t *own) {
    uint8_t count[512];
    int64_t read[CONTEXTS + 1] = {0}, total[CONTEXTS + 1] = {0}, bits[NINTHS] = {0};
    unsigned full = (1u << size) - 1;
    count_table(count, 9);
    /* How much of each stream will be read, so that the second loop need not ask. */
    for (int64_t g = 0; g < groups; g++) total[count[full ^ taken[g]]]++;
    for (int u = 1; u <= CONTEXTS; u++) {
        used[u - 1] = (total[u] + (1 << PACK[u]) - 1) >> PACK[u];
        if (used[u - 1] > lengths[u - 1]) return -1;
    }
    for (int64_t g = 0; g < groups; g++) {
        unsigned free = full ^ taken[g];
        int u = count[free];
        if (u == 0) {
            own[g] = 0;
            continue;
        }
        int64_t index = read[u]++;
        int pack = PACK[u];
        unsigned symbol = streams[u - 1][index >> pack] >> ((index & ((1 << pack) - 1)) * WIDTH[u]) & ((1u << u) - 1) & 255;
        if (u == KERNEL) {
            int ninth = count[symbol];
            int64_t bit = bits[ninth]++;
            if (bit >> 3 >= lengths[CONTEXTS + ninth]) return -1;
            symbol |= (unsigned)(streams[CONTEXTS + ninth][bit >> 3] >> (bit & 7) & 1) << 8;
        }
        own[g] = free == full ? (uint16_t)symbol : table[free << size | symbol];
    }
    for (int i = 0; i < NINTHS; i++) used[CONTEXTS + i] = (bits[i] + 7) >> 3;
    return 0;
}

/* How many positions the patterns hold. */
EXPORT int64_t pof_count(const uint16_t *patterns, int64_t groups) {
    uint8_t count[512];
    int64_t total = 0;
    count_table(count, 9);
    for (int64_t g = 0; g < groups; g++) total += count[patterns[g] & 511];
    return total;
}
