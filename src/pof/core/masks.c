/* The positions and values of a .pof file, weight by weight: see src/pof/file/SPEC.md. Plain C, no libraries. */
#include <stdint.h>

#include "export.h"

enum { KERNEL = 9, CONTEXTS = 9, NINTHS = 9, STREAMS = CONTEXTS + NINTHS };

/* How many symbols of u bits share a byte. */
static const int PER_BYTE[CONTEXTS + 1] = {1, 8, 4, 2, 2, 1, 1, 1, 1, 1};

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
    int64_t read[STREAMS] = {0};
    unsigned full = (1u << size) - 1;
    count_table(count, 9);
    for (int64_t g = 0; g < groups; g++) {
        unsigned free = full ^ taken[g];
        int context = count[free];
        if (context == 0) {
            own[g] = 0;
            continue;
        }
        int per_byte = PER_BYTE[context];
        int64_t index = read[context - 1]++;
        unsigned symbol;
        if (per_byte == 1) {
            if (index >= lengths[context - 1]) return -1;
            symbol = streams[context - 1][index];
        } else {
            if (index / per_byte >= lengths[context - 1]) return -1;
            symbol = streams[context - 1][index / per_byte] >> (index % per_byte * (8 / per_byte)) & ((1u << context) - 1);
        }
        if (context == KERNEL) {
            int ninth = CONTEXTS + count[symbol];
            int64_t bit = read[ninth]++;
            if (bit / 8 >= lengths[ninth]) return -1;
            symbol |= (unsigned)(streams[ninth][bit / 8] >> (bit % 8) & 1) << 8;
        }
        own[g] = table[free << size | symbol];
    }
    for (int i = 0; i < STREAMS; i++) {
        int per_byte = i < CONTEXTS ? PER_BYTE[i + 1] : 8;
        used[i] = (read[i] + per_byte - 1) / per_byte;
    }
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
