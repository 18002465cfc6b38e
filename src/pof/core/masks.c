/* The positions in a .pof file, tensor by tensor: see src/pof/file/SPEC.md. */
#include <stdint.h>

#include "export.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define X86 1
#include <immintrin.h>
#endif

enum { KERNEL = 9, CONTEXTS = 9, NINTHS = 9, STREAMS = CONTEXTS + NINTHS };

/* For symbols of u bits: 1 << PACK[u] of them share a byte, with WIDTH[u] bits each. */
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

/* The pattern of each group of `size` positions; `members` has a byte of 0 or 1 for each of n positions. */
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
 * The symbols of one tensor, by context: `out[u - 1]` takes those of u bits (the low 8 for u = 9), `out[9 + c]` the
 * ninth bits of those whose low byte has c ones. Each takes one byte, and each buffer has room for `groups`. `counts`
 * is set to the number of bytes in each buffer.
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

/* The state of pof_spread. */
typedef struct {
    const uint16_t *taken;
    int64_t groups;
    int size;
    const uint16_t *table;
    const uint8_t *streams[STREAMS];
    int64_t lengths[STREAMS]; /* the bytes left in each */
    int64_t read[CONTEXTS + 1]; /* symbols read in each context */
    int64_t bits[NINTHS];       /* ninth bits read */
    uint16_t *own;
    int all_free; /* whether nothing is taken */
} Spreading;

/*
 * The loop of pof_spread, for two functions: PLACE moves the low bits of a symbol to the ones of a pattern, and ONES
 * counts ones. They use tables (one of half a megabyte, one small), or one instruction each.
 */
#define SPREAD_LOOP(PLACE, ONES)                                                                                      \
    int64_t *read = s->read;                                                                                          \
    const unsigned full = (1u << s->size) - 1;                                                                        \
    for (int64_t g = 0; g < s->groups; g++) {                                                                         \
        unsigned free = full ^ s->taken[g];                                                                           \
        int u = ONES(free);                                                                                           \
        if (u == 0) {                                                                                                 \
            s->own[g] = 0;                                                                                            \
            continue;                                                                                                 \
        }                                                                                                             \
        int64_t index = read[u]++;                                                                                    \
        if (index >> PACK[u] >= s->lengths[u - 1]) return -1;                                                         \
        if (u == KERNEL) {                                                                                            \
            unsigned symbol = s->streams[KERNEL - 1][index];                                                          \
            int ninth = ONES(symbol);                                                                                 \
            int64_t bit = s->bits[ninth]++;                                                                           \
            if (bit >> 3 >= s->lengths[CONTEXTS + ninth]) return -1;                                                  \
            s->own[g] = (uint16_t)(symbol | (s->streams[CONTEXTS + ninth][bit >> 3] >> (bit & 7) & 1u) << 8);         \
            continue;                                                                                                 \
        }                                                                                                             \
        int pack = PACK[u];                                                                                           \
        unsigned symbol = s->streams[u - 1][index >> pack] >> ((index & ((1 << pack) - 1)) * WIDTH[u]);               \
        symbol &= (1u << u) - 1;                                                                                      \
        s->own[g] = (uint16_t)(free == full ? symbol : PLACE);                                                        \
    }                                                                                                                 \
    return 0;

/* The loop for groups of 9 in which nothing is taken: it needs neither contexts nor free positions. */
#define KERNELS_LOOP(ONES)                                                                                            \
    const uint8_t *symbols = s->streams[KERNEL - 1];                                                                  \
    s->read[KERNEL] = s->groups;                                                                                      \
    for (int64_t g = 0; g < s->groups; g++) {                                                                         \
        unsigned symbol = symbols[g];                                                                                 \
        int ninth = ONES(symbol);                                                                                     \
        int64_t bit = s->bits[ninth]++;                                                                               \
        if (bit >> 3 >= s->lengths[CONTEXTS + ninth]) return -1;                                                      \
        s->own[g] = (uint16_t)(symbol | (s->streams[CONTEXTS + ninth][bit >> 3] >> (bit & 7) & 1u) << 8);             \
    }                                                                                                                 \
    return 0;

static int spread_by_table(Spreading *s) {
    uint8_t count[512];
    count_table(count, 9);
#define BY_TABLE(bits) count[bits]
    if (s->all_free) {
        KERNELS_LOOP(BY_TABLE)
    }
    SPREAD_LOOP(s->table[free << s->size | symbol], BY_TABLE)
}

#ifdef X86
__attribute__((target("bmi2,popcnt"))) static int spread_by_pdep(Spreading *s) {
    if (s->all_free) {
        KERNELS_LOOP(_mm_popcnt_u32)
    }
    SPREAD_LOOP(_pdep_u32(symbol, free), _mm_popcnt_u32)
}
#endif

/*
 * The inverse of pof_gather, from packed streams: the patterns of one tensor. `used[i]` bytes of `streams[i]` have been
 * read before; it is advanced. Return 0, or -1 if a stream is too short.
 */
EXPORT int pof_spread(const uint16_t *taken, int64_t groups, int size, const uint16_t *table,
                      const uint8_t *const *streams, const int64_t *lengths, int64_t *used, uint16_t *own) {
    unsigned full = (1u << size) - 1, any = 0;
    Spreading s = {.taken = taken, .groups = groups, .size = size, .table = table, .own = own};
    for (int i = 0; i < STREAMS; i++) {
        s.streams[i] = streams[i] + used[i];
        s.lengths[i] = lengths[i] - used[i];
    }
    for (int64_t g = 0; g < groups; g++) any |= taken[g];
    s.all_free = !(any & full);
    if (s.all_free && groups > s.lengths[size - 1]) return -1;
    if (s.all_free && size < KERNEL) {
        for (int64_t g = 0; g < groups; g++) own[g] = s.streams[size - 1][g];
        used[size - 1] += groups;
        return 0;
    }
#ifdef X86
    int fast = __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt");
    int failed = fast ? spread_by_pdep(&s) : spread_by_table(&s);
#else
    int failed = spread_by_table(&s);
#endif
    if (failed) return -1;
    for (int u = 1; u <= CONTEXTS; u++) used[u - 1] += (s.read[u] + (1 << PACK[u]) - 1) >> PACK[u];
    for (int i = 0; i < NINTHS; i++) used[CONTEXTS + i] += (s.bits[i] + 7) >> 3;
    return 0;
}

int64_t pof_count(const uint16_t *patterns, int64_t groups) {
    int64_t total = 0;
    for (int64_t g = 0; g < groups; g++) {
        /* Add the bits of a 16-bit word in pairs, fours and eights, which compilers can vectorise. */
        uint16_t p = patterns[g];
        p = (uint16_t)(p - (p >> 1 & 0x5555));
        p = (uint16_t)((p & 0x3333) + (p >> 2 & 0x3333));
        p = (uint16_t)((p + (p >> 4)) & 0x0F0F);
        total += (p + (p >> 8)) & 31;
    }
    return total;
}
