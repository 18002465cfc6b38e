/* The values of a .pof file: joined from their streams, and put to the positions of the patterns. See SPEC.md. */
#include <stdint.h>
#include <string.h>

#include "export.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define X86 1
#include <immintrin.h>
#endif

/*
 * Join symbols, planes and signs to integers. `signs` (a byte 0 or 1 each) may be absent: then, if `signed_planes`, the
 * sign is the top bit of the last plane.
 */
EXPORT void pof_join32(const uint8_t *symbols, int base, const uint8_t *plane0, const uint8_t *plane1,
                       const uint8_t *plane2, int signed_planes, const uint8_t *signs, int64_t count, uint32_t *out) {
    uint32_t keep = signed_planes ? 1u << 31 : 0;
    for (int64_t k = 0; k < count; k++)
        out[k] = (uint32_t)(uint8_t)(base - symbols[k]) << 23 | (uint32_t)(plane2[k] & 127) << 16 |
                 (uint32_t)plane1[k] << 8 | plane0[k] | ((uint32_t)plane2[k] << 24 & keep);
    if (signs)
        for (int64_t k = 0; k < count; k++) out[k] |= (uint32_t)signs[k] << 31;
}

EXPORT void pof_join16(const uint8_t *symbols, int base, const uint8_t *plane0, int signed_planes, const uint8_t *signs,
                       int64_t count, uint16_t *out) {
    uint16_t keep = signed_planes ? 1u << 15 : 0;
    for (int64_t k = 0; k < count; k++)
        out[k] = (uint16_t)((uint16_t)(uint8_t)(base - symbols[k]) << 7 | (plane0[k] & 127) | ((plane0[k] << 8) & keep));
    if (signs)
        for (int64_t k = 0; k < count; k++) out[k] |= (uint16_t)(signs[k] << 15);
}

/*
 * Put `values`, in order, to the positions of the patterns, where `out` is zero. `values` has room for 8 more at its end.
 * The last group may reach beyond the `n` weights of `out`; its pattern does not.
 */
#define SCATTER(NAME, TYPE)                                                                                           \
    static void NAME(const uint16_t *patterns, int64_t first, int64_t groups, int size, const TYPE *values,           \
                     TYPE *out) {                                                                                     \
        for (int64_t g = first; g < groups; g++)                                                                      \
            for (unsigned left = patterns[g], i = 0; left; left >>= 1, i++)                                           \
                if (left & 1) out[g * size + i] = *values++;                                                          \
    }

SCATTER(scatter8, uint8_t)
SCATTER(scatter16, uint16_t)
SCATTER(scatter32, uint32_t)

#ifdef X86
typedef struct {
    uint8_t bytes[256][16];
    uint32_t lanes[256][8];
    uint8_t ones[256];
} Tables;

/* For each pattern of 8: where each position takes its value from (nowhere: a byte of 128 gives zero). */
static const Tables *tables(void) {
    static Tables made;
    static int ready;
    if (!__atomic_load_n(&ready, __ATOMIC_ACQUIRE)) {
        for (int pattern = 0; pattern < 256; pattern++) {
            int from = 0;
            for (int i = 0; i < 8; i++) {
                int set = pattern >> i & 1;
                made.bytes[pattern][2 * i] = set ? (uint8_t)(2 * from) : 128;
                made.bytes[pattern][2 * i + 1] = set ? (uint8_t)(2 * from + 1) : 128;
                made.lanes[pattern][i] = (uint32_t)from;
                from += set;
            }
            made.ones[pattern] = (uint8_t)from;
        }
        /* Two threads may both have written, but the same. */
        __atomic_store_n(&ready, 1, __ATOMIC_RELEASE);
    }
    return &made;
}

__attribute__((target("ssse3"))) static int64_t spread16(const uint16_t *patterns, int64_t groups, int size,
                                                         const uint16_t **from, uint16_t *out) {
    const Tables *t = tables();
    const uint16_t *values = *from;
    int64_t g = 0;
    for (; g < groups; g++, out += size) {
        unsigned pattern = patterns[g], low = pattern & 255;
        __m128i chosen = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)values),
                                          _mm_loadu_si128((const __m128i *)t->bytes[low]));
        _mm_storeu_si128((__m128i *)out, _mm_or_si128(_mm_loadu_si128((const __m128i *)out), chosen));
        values += t->ones[low];
        if (pattern >> 8) out[8] = *values++;
    }
    *from = values;
    return g;
}

__attribute__((target("avx2"))) static int64_t spread32(const uint16_t *patterns, int64_t groups, int size,
                                                        const uint32_t **from, uint32_t *out) {
    const Tables *t = tables();
    const uint32_t *values = *from;
    const __m256i bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    int64_t g = 0;
    for (; g < groups; g++, out += size) {
        unsigned pattern = patterns[g], low = pattern & 255;
        __m256i chosen = _mm256_permutevar8x32_epi32(_mm256_loadu_si256((const __m256i *)values),
                                                     _mm256_loadu_si256((const __m256i *)t->lanes[low]));
        __m256i set = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32((int)low), bits), bits);
        chosen = _mm256_and_si256(chosen, set);
        _mm256_storeu_si256((__m256i *)out, _mm256_or_si256(_mm256_loadu_si256((const __m256i *)out), chosen));
        values += t->ones[low];
        if (pattern >> 8) out[8] = *values++;
    }
    *from = values;
    return g;
}
#endif

/*
 * For each position of the patterns, in order, the magnitude of its row with its sign: `length` weights a row, one of
 * `fills` a row; `signs` (a byte 0 or 1 each) may be absent.
 */
#define ROW_VALUES(NAME, TYPE)                                                                                        \
    EXPORT void NAME(const uint16_t *patterns, int64_t groups, int size, int64_t length, const TYPE *fills,           \
                     const uint8_t *signs, TYPE *values) {                                                            \
        const TYPE *start = values;                                                                                   \
        int64_t row = 0, row_end = length;                                                                            \
        for (int64_t g = 0; g < groups; g++) {                                                                        \
            int64_t at = g * size;                                                                                    \
            if (at + size <= row_end) {                                                                               \
                TYPE fill = fills[row];                                                                               \
                for (int i = 0; i < 9; i++) values[i] = fill;                                                         \
                values += __builtin_popcount(patterns[g]);                                                            \
                continue;                                                                                             \
            }                                                                                                         \
            for (unsigned left = patterns[g]; left; left >>= 1, at++) {                                               \
                while (at >= row_end) row++, row_end += length;                                                       \
                if (left & 1) *values++ = fills[row];                                                                 \
            }                                                                                                         \
            while ((g + 1) * size >= row_end && (g + 1) < groups) row++, row_end += length;                           \
        }                                                                                                             \
        for (int64_t k = 0; signs && k < values - start; k++)                                                         \
            ((TYPE *)start)[k] |= (TYPE)((TYPE)signs[k] << (8 * sizeof(TYPE) - 1));                                   \
    }

ROW_VALUES(pof_row_values16, uint16_t)
ROW_VALUES(pof_row_values32, uint32_t)

/* The values at the positions of the patterns, in order. */
#define COLLECT(NAME, TYPE)                                                                                           \
    EXPORT void NAME(const uint16_t *patterns, int64_t groups, int size, const TYPE *values, TYPE *out) {             \
        for (int64_t g = 0; g < groups; g++, values += size)                                                          \
            for (unsigned left = patterns[g]; left; left &= left - 1) *out++ = values[__builtin_ctz(left)];           \
    }

COLLECT(pof_collect8, uint8_t)
COLLECT(pof_collect16, uint16_t)
COLLECT(pof_collect32, uint32_t)

EXPORT void pof_scatter8(const uint16_t *patterns, int64_t groups, int size, int64_t n, const uint8_t *values,
                         uint8_t *out) {
    (void)n;
    scatter8(patterns, 0, groups, size, values, out);
}

EXPORT void pof_scatter16(const uint16_t *patterns, int64_t groups, int size, int64_t n, const uint16_t *values,
                          uint16_t *out) {
    int64_t done = 0;
#ifdef X86
    if (__builtin_cpu_supports("ssse3")) done = spread16(patterns, n / size, size, &values, out);
#endif
    scatter16(patterns, done, groups, size, values, out);
}

EXPORT void pof_scatter32(const uint16_t *patterns, int64_t groups, int size, int64_t n, const uint32_t *values,
                          uint32_t *out) {
    int64_t done = 0;
#ifdef X86
    if (__builtin_cpu_supports("avx2")) done = spread32(patterns, n / size, size, &values, out);
#endif
    scatter32(patterns, done, groups, size, values, out);
}
