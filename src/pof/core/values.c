/* The values of a .pof file: joined from their streams, and put to the positions of the patterns. See SPEC.md. */
#include <stdint.h>
#include <string.h>

#include "export.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define X86 1
#include <immintrin.h>
#endif

enum { BLOCK = 512, ROOM = 8 }; /* Groups that are joined and placed at once, so that their values stay in the cache. */

/* Where a run of magnitudes is read from. */
typedef struct {
    const uint8_t *symbols, *planes[3];
    const uint8_t *signs; /* a byte 0 or 1 each, or absent: */
    int signed_planes;    /* then the sign is the top bit of the last plane, if this is set */
    int base;
} Magnitudes;

static void advance(Magnitudes *m, int64_t count) {
    m->symbols += count;
    for (int i = 0; i < 3; i++)
        if (m->planes[i]) m->planes[i] += count;
    if (m->signs) m->signs += count;
}

static void join32(const Magnitudes *m, int64_t count, uint32_t *restrict out) {
    const uint8_t *symbols = m->symbols, *plane0 = m->planes[0], *plane1 = m->planes[1], *plane2 = m->planes[2];
    uint32_t keep = m->signed_planes ? 1u << 31 : 0;
    for (int64_t k = 0; k < count; k++)
        out[k] = (uint32_t)(uint8_t)(m->base - symbols[k]) << 23 | (uint32_t)(plane2[k] & 127) << 16 |
                 (uint32_t)plane1[k] << 8 | plane0[k] | ((uint32_t)plane2[k] << 24 & keep);
    if (m->signs)
        for (int64_t k = 0; k < count; k++) out[k] |= (uint32_t)m->signs[k] << 31;
}

static void join16(const Magnitudes *m, int64_t count, uint16_t *restrict out) {
    const uint8_t *symbols = m->symbols, *plane = m->planes[0];
    uint16_t keep = m->signed_planes ? 1u << 15 : 0;
    for (int64_t k = 0; k < count; k++)
        out[k] = (uint16_t)((uint16_t)(uint8_t)(m->base - symbols[k]) << 7 | (plane[k] & 127) | ((plane[k] << 8) & keep));
    if (m->signs)
        for (int64_t k = 0; k < count; k++) out[k] |= (uint16_t)(m->signs[k] << 15);
}

#ifdef X86
typedef struct {
    uint8_t bytes[256][16];
    uint16_t signs[256][8];
    uint32_t lanes[256][8];
    uint8_t ones[256];
} Tables;

/* For each pattern of 8: where each position takes its value from (nowhere: a byte of 128 gives zero), and its bits as signs. */
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
                made.signs[pattern][i] = (uint16_t)(set << 15);
                from += set;
            }
            made.ones[pattern] = (uint8_t)from;
        }
        /* Two threads may both have written, but the same. */
        __atomic_store_n(&ready, 1, __ATOMIC_RELEASE);
    }
    return &made;
}

__attribute__((target("ssse3"))) static void spread16(const uint16_t *patterns, int64_t first, int64_t end, int size,
                       const uint16_t **from, uint16_t *out) {
    const Tables *t = tables();
    const uint16_t *values = *from;
    out += first * size;
    for (int64_t g = first; g < end; g++, out += size) {
        unsigned pattern = patterns[g], low = pattern & 255;
        __m128i chosen = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)values),
                                          _mm_loadu_si128((const __m128i *)t->bytes[low]));
        _mm_storeu_si128((__m128i *)out, _mm_or_si128(_mm_loadu_si128((const __m128i *)out), chosen));
        values += t->ones[low];
        if (pattern >> 8) out[8] = *values++;
    }
    *from = values;
}

__attribute__((target("avx2"))) static void spread32(const uint16_t *patterns, int64_t first, int64_t end, int size,
                       const uint32_t **from, uint32_t *out) {
    const Tables *t = tables();
    const uint32_t *values = *from;
    const __m256i bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    out += first * size;
    for (int64_t g = first; g < end; g++, out += size) {
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
}
#endif

/* A band that was filled: the rows' magnitudes with signs, a bit each (or none), and how far it has come. */
typedef struct {
    const uint16_t *patterns;
    int64_t groups;
    int size;
    int64_t length; /* weights of a row */
    const uint8_t *signs;
    int64_t bytes; /* of signs */
    int64_t row, row_end, used;
} Band;

static unsigned next_sign(Band *b) {
    int64_t k = b->used++;
    return b->signs ? b->signs[k >> 3] >> (k & 7) & 1 : 0;
}

#define FILL_GROUP(NAME, TYPE)                                                                                        \
    static void NAME(Band *b, int64_t g, const TYPE *fills, TYPE *out) {                                              \
        int64_t at = g * b->size;                                                                                     \
        for (unsigned left = b->patterns[g]; left; left >>= 1, at++) {                                                \
            while (at >= b->row_end) b->row++, b->row_end += b->length;                                               \
            if (left & 1) out[at] = fills[b->row] | (TYPE)((TYPE)next_sign(b) << (8 * sizeof(TYPE) - 1));             \
        }                                                                                                             \
    }

FILL_GROUP(fill_group16, uint16_t)
FILL_GROUP(fill_group32, uint32_t)

#ifdef X86
__attribute__((target("ssse3"))) static void fill16_fast(Band *b, const uint16_t *fills, uint16_t *out) {
    const Tables *t = tables();
    for (int64_t g = 0; g < b->groups; g++) {
        int64_t at = g * b->size;
        while (at >= b->row_end) b->row++, b->row_end += b->length;
        /* Only a group that lies in one row, and whose signs can be loaded at once. */
        if (at + b->size > b->row_end || (b->signs && (b->used >> 3) + 4 > b->bytes)) {
            fill_group16(b, g, fills, out);
            continue;
        }
        unsigned pattern = b->patterns[g], low = pattern & 255, count = t->ones[low];
        uint32_t bits = 0;
        if (b->signs) memcpy(&bits, b->signs + (b->used >> 3), 4);
        bits >>= b->used & 7;
        __m128i values = _mm_or_si128(_mm_set1_epi16((short)fills[b->row]),
                                      _mm_loadu_si128((const __m128i *)t->signs[bits & 255]));
        values = _mm_shuffle_epi8(values, _mm_loadu_si128((const __m128i *)t->bytes[low]));
        __m128i *to = (__m128i *)(out + at);
        _mm_storeu_si128(to, _mm_or_si128(_mm_loadu_si128(to), values));
        if (pattern >> 8) out[at + 8] = (uint16_t)(fills[b->row] | (bits >> count & 1) << 15), count++;
        b->used += count;
    }
}
#endif

/*
 * Give the positions of the patterns the magnitude of their row, one of `fills`, and their sign; `out` is zero there.
 * `signs`, `bytes` of them, hold a bit a position, or are absent.
 */
EXPORT void pof_fill16(const uint16_t *patterns, int64_t groups, int size, int64_t length, const uint8_t *signs,
                       int64_t bytes, const uint16_t *fills, uint16_t *out) {
    Band b = {patterns, groups, size, length, signs, bytes, 0, length, 0};
#ifdef X86
    if (__builtin_cpu_supports("ssse3")) {
        fill16_fast(&b, fills, out);
        return;
    }
#endif
    for (int64_t g = 0; g < groups; g++) fill_group16(&b, g, fills, out);
}

EXPORT void pof_fill32(const uint16_t *patterns, int64_t groups, int size, int64_t length, const uint8_t *signs,
                       int64_t bytes, const uint32_t *fills, uint32_t *out) {
    Band b = {patterns, groups, size, length, signs, bytes, 0, length, 0};
    for (int64_t g = 0; g < groups; g++) fill_group32(&b, g, fills, out);
}

/* The values at the positions of the patterns, in order. */
#define COLLECT(NAME, TYPE)                                                                                           \
    EXPORT void NAME(const uint16_t *patterns, int64_t groups, int size, const TYPE *values, TYPE *out) {             \
        for (int64_t g = 0; g < groups; g++, values += size)                                                          \
            for (unsigned left = patterns[g]; left; left &= left - 1) *out++ = values[__builtin_ctz(left)];           \
    }

COLLECT(pof_collect8, uint8_t)
COLLECT(pof_collect16, uint16_t)
COLLECT(pof_collect32, uint32_t)

EXPORT void pof_scatter8(const uint16_t *patterns, int64_t groups, int size, const uint8_t *values, uint8_t *out) {
    for (int64_t g = 0; g < groups; g++)
        for (unsigned left = patterns[g], i = 0; left; left >>= 1, i++)
            if (left & 1) out[g * size + i] = *values++;
}

/*
 * Join the magnitudes of the positions of the patterns and put them there, where `out`, of `n` weights, is zero. The
 * last group may reach beyond them; its pattern does not. JOIN makes the values of a block, SPREAD puts 8 at a time.
 */
#define PLACE(NAME, TYPE, JOIN, SPREAD, FEATURE)                                                                      \
    EXPORT void NAME(const uint16_t *patterns, int64_t groups, int size, int64_t n, const uint8_t *symbols, int base, \
                     const uint8_t *plane0, const uint8_t *plane1, const uint8_t *plane2, int signed_planes,          \
                     const uint8_t *signs, TYPE *out) {                                                               \
        Magnitudes m = {symbols, {plane0, plane1, plane2}, signs, signed_planes, base};                               \
        TYPE values[BLOCK * 9 + ROOM] = {0};                                                                          \
        int fast = FEATURE;                                                                                           \
        for (int64_t first = 0; first < groups; first += BLOCK) {                                                     \
            int64_t end = first + BLOCK < groups ? first + BLOCK : groups, whole = fast ? n / size : 0, count = 0;    \
            count = pof_count(patterns + first, end - first);                                                         \
            JOIN(&m, count, values);                                                                                  \
            advance(&m, count);                                                                                       \
            const TYPE *from = values;                                                                                \
            if (whole > end) whole = end;                                                                             \
            int64_t done = first;                                                                                     \
            if (whole > first) SPREAD(patterns, first, done = whole, size, &from, out);                               \
            for (int64_t g = done; g < end; g++)                                                                      \
                for (unsigned left = patterns[g], i = 0; left; left >>= 1, i++)                                       \
                    if (left & 1) out[g * size + i] = *from++;                                                        \
        }                                                                                                             \
    }

#ifdef X86
PLACE(pof_place16, uint16_t, join16, spread16, __builtin_cpu_supports("ssse3"))
PLACE(pof_place32, uint32_t, join32, spread32, __builtin_cpu_supports("avx2"))
#else
#define NO_SPREAD(...) (void)whole
PLACE(pof_place16, uint16_t, join16, NO_SPREAD, 0)
PLACE(pof_place32, uint32_t, join32, NO_SPREAD, 0)
#endif

/* Numbers of 7 bits, 8 of them in 7 bytes, to a byte each. */
EXPORT void pof_from_sevens(const uint8_t *packed, int64_t groups, uint8_t *out) {
    for (int64_t g = 0; g < groups; g++, packed += 7, out += 8) {
        uint64_t word = 0, spread;
        for (int i = 0; i < 7; i++) word |= (uint64_t)packed[i] << 8 * i;
        /* Fours of 28 bits apart, then twos of 14, then single ones. */
        spread = (word & 0x000000000FFFFFFF) | (word & 0x00FFFFFFF0000000) << 4;
        spread = (spread & 0x00003FFF00003FFF) | (spread & 0x0FFFC0000FFFC000) << 2;
        spread = (spread & 0x007F007F007F007F) | (spread & 0x3F803F803F803F80) << 1;
        for (int i = 0; i < 8; i++) out[i] = (uint8_t)(spread >> 8 * i);
    }
}
