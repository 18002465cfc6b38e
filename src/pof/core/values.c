/* The values in a .pof file: join them from their streams, and place them by the patterns. See src/pof/file/SPEC.md. */
#include <stdint.h>
#include <string.h>

#include "export.h"
#include "structures.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define X86 1
#include <immintrin.h>
#define HAS(FEATURE) __builtin_cpu_supports(FEATURE)
#else
#define HAS(FEATURE) 0
#endif

enum { BLOCK = 512, ROOM = 8 }; /* BLOCK groups are joined and placed at once, so that they stay in the cache. */

/* The streams that a run of magnitudes is read from. */
typedef struct {
    const uint8_t *symbols, *planes[3];
    const uint8_t *signs; /* one byte of 0 or 1 each, or NULL */
    int signed_planes;    /* if this is set, the sign is the top bit of the last plane */
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

/* For each pattern of 8: where each position takes its value from (128 gives a zero byte), and its bits as signs. */
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
        /* If two threads both wrote here, they wrote the same. */
        __atomic_store_n(&ready, 1, __ATOMIC_RELEASE);
    }
    return &made;
}

__attribute__((target("ssse3"))) static void spread16(const uint16_t *patterns, int64_t first, int64_t end, int size,
                       const uint16_t **from, uint16_t *out) {
    const Tables *t = tables();
    const uint16_t *values = *from;
    for (int64_t g = first; g < end; g++, out += size) {
        unsigned pattern = patterns[g], low = pattern & 255;
        __m128i chosen = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)values),
                                          _mm_loadu_si128((const __m128i *)t->bytes[low]));
        _mm_storeu_si128((__m128i *)out, _mm_or_si128(_mm_loadu_si128((const __m128i *)out), chosen));
        values += t->ones[low];
        if (size > 8) { /* without a branch, as half of them would be mispredicted */
            out[8] |= *values & (uint16_t)-(pattern >> 8);
            values += pattern >> 8;
        }
    }
    *from = values;
}

__attribute__((target("avx2"))) static void spread32(const uint16_t *patterns, int64_t first, int64_t end, int size,
                       const uint32_t **from, uint32_t *out) {
    const Tables *t = tables();
    const uint32_t *values = *from;
    const __m256i bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    for (int64_t g = first; g < end; g++, out += size) {
        unsigned pattern = patterns[g], low = pattern & 255;
        __m256i chosen = _mm256_permutevar8x32_epi32(_mm256_loadu_si256((const __m256i *)values),
                                                     _mm256_loadu_si256((const __m256i *)t->lanes[low]));
        __m256i set = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32((int)low), bits), bits);
        chosen = _mm256_and_si256(chosen, set);
        _mm256_storeu_si256((__m256i *)out, _mm256_or_si256(_mm256_loadu_si256((const __m256i *)out), chosen));
        values += t->ones[low];
        if (size > 8) { /* without a branch, as half of them would be mispredicted */
            out[8] |= *values & -(pattern >> 8);
            values += pattern >> 8;
        }
    }
    *from = values;
}
#endif

/* A filled band: its patterns, its signs (one bit each, or none), and how far it has been read. */
typedef struct {
    const uint16_t *patterns; /* NULL if nothing is filled */
    int size;
    int64_t length; /* weights in a row */
    const uint8_t *signs;
    int64_t bytes; /* how many bytes of signs */
    int64_t row, row_end, used;
} Band;

static unsigned next_sign(Band *b) {
    int64_t k = b->used++;
    return b->signs ? b->signs[k >> 3] >> (k & 7) & 1 : 0;
}

/* Fill one group; `out` points to its first position. */
#define FILL_GROUP(NAME, TYPE)                                                                                        \
    static void NAME(Band *b, int64_t g, const TYPE *fills, TYPE *out) {                                              \
        int64_t at = g * b->size;                                                                                     \
        for (unsigned left = b->patterns[g]; left; left >>= 1, at++, out++) {                                         \
            while (at >= b->row_end) b->row++, b->row_end += b->length;                                               \
            if (left & 1) *out = fills[b->row] | (TYPE)((TYPE)next_sign(b) << (8 * sizeof(TYPE) - 1));                \
        }                                                                                                             \
    }

FILL_GROUP(fill_group16, uint16_t)
FILL_GROUP(fill_group32, uint32_t)

#ifdef X86
__attribute__((target("ssse3"))) static void fill16_fast(Band *b, int64_t first, int64_t end, const uint16_t *fills,
                                                         uint16_t *out) {
    const Tables *t = tables();
    const int size = b->size;
    const uint16_t *patterns = b->patterns;
    int64_t used = b->used, row_end = b->row_end;
    /* Up to here, the sign bits of a group can be loaded at once. */
    const int64_t last = b->signs ? 8 * (b->bytes - 4) : INT64_MAX - 64;
    const uint8_t *signs = b->signs;
    for (int64_t g = first; g < end; g++, out += size) {
        int64_t at = g * size;
        while (at >= row_end) b->row++, row_end += b->length;
        /* The fast way needs a group that lies in one row. */
        if (at + size > row_end || used > last) {
            b->used = used, b->row_end = row_end;
            fill_group16(b, g, fills, out);
            used = b->used, row_end = b->row_end;
            continue;
        }
        unsigned pattern = patterns[g], low = pattern & 255, count = t->ones[low];
        uint32_t bits = 0;
        if (signs) memcpy(&bits, signs + (used >> 3), 4);
        bits >>= used & 7;
        __m128i values = _mm_or_si128(_mm_set1_epi16((short)fills[b->row]),
                                      _mm_loadu_si128((const __m128i *)t->signs[bits & 255]));
        values = _mm_shuffle_epi8(values, _mm_loadu_si128((const __m128i *)t->bytes[low]));
        __m128i *to = (__m128i *)out;
        _mm_storeu_si128(to, _mm_or_si128(_mm_loadu_si128(to), values));
        if (size > 8) out[8] |= (uint16_t)((fills[b->row] | (bits >> count & 1) << 15) & -(pattern >> 8));
        used += count + (pattern >> 8);
    }
    b->used = used, b->row_end = row_end;
}
#endif

/* Fill the groups from `first`, where `out` points to, up to `end`; those before `whole` may be written in full. */
static void fill16(Band *b, int64_t first, int64_t whole, int64_t end, const uint16_t *fills, uint16_t *out) {
    int64_t g = first;
#ifdef X86
    if (whole > first) fill16_fast(b, first, g = whole, fills, out);
#endif
    for (; g < end; g++) fill_group16(b, g, fills, out + (g - first) * b->size);
    (void)whole;
}

static void fill32(Band *b, int64_t first, int64_t whole, int64_t end, const uint32_t *fills, uint32_t *out) {
    for (int64_t g = first; g < end; g++) fill_group32(b, g, fills, out + (g - first) * b->size);
    (void)whole;
}

/* Collect the values at the positions of the patterns, in order. */
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

/* Join the magnitudes of a block, fill its filled positions, and place all; `to` is the block's first position. */
#define PLACE_BLOCK(NAME, TYPE, JOIN, SPREAD, FILL)                                                                   \
    static void NAME(const Placing *p, Magnitudes *m, Band *b, int64_t first, int64_t whole, int64_t end, TYPE *to) { \
        TYPE values[BLOCK * 9 + ROOM];                                                                                \
        const TYPE *from = values;                                                                                    \
        int64_t count = pof_count(p->plain + first, end - first), g = first;                                          \
        if (b->patterns) FILL(b, first, whole, end, (const TYPE *)p->fills, to);                                      \
        JOIN(m, count, values);                                                                                       \
        memset(values + count, 0, ROOM * sizeof(TYPE));                                                               \
        advance(m, count);                                                                                            \
        if (whole > first) SPREAD(p->plain, first, g = whole, p->size, &from, to);                                    \
        for (; g < end; g++)                                                                                          \
            for (unsigned left = p->plain[g], i = 0; left; left >>= 1, i++)                                           \
                if (left & 1) to[(g - first) * p->size + i] = *from++;                                                \
    }

#ifdef X86
PLACE_BLOCK(place_block16, uint16_t, join16, spread16, fill16)
PLACE_BLOCK(place_block32, uint32_t, join32, spread32, fill32)
#else
#define NO_SPREAD(...) (void)whole
PLACE_BLOCK(place_block16, uint16_t, join16, NO_SPREAD, fill16)
PLACE_BLOCK(place_block32, uint32_t, join32, NO_SPREAD, fill32)
#endif

static uint32_t widened(uint16_t half) {
    uint32_t magnitude = (uint32_t)(half & 0x7FFF) << 13, infinite = half & 0x7C00;
    float value;
    memcpy(&value, &magnitude, 4);
    value *= 0x1p112f; /* the difference between the exponents' biases; exact for subnormal numbers too */
    memcpy(&magnitude, &value, 4);
    if (infinite == 0x7C00) magnitude |= 0x7F800000;
    return magnitude | (uint32_t)(half & 0x8000) << 16;
}

#ifdef X86
__attribute__((target("avx2,f16c"))) static int64_t widen_fast(const uint16_t *from, int64_t count, uint32_t *out) {
    int64_t k = 0;
    for (; k + 8 <= count; k += 8) {
        __m256i wide = _mm256_castps_si256(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + k))));
        __m256i *to = (__m256i *)(out + k);
        _mm256_storeu_si256(to, _mm256_or_si256(_mm256_loadu_si256(to), wide));
    }
    return k;
}
#endif

/* Convert float16 to float32 where `out` is zero; a zero leaves `out` unchanged. */
static void widen(const uint16_t *from, int64_t count, int fast, uint32_t *out) {
    int64_t k = 0;
#ifdef X86
    if (fast) k = widen_fast(from, count, out);
#endif
    for (; k < count; k++)
        if (from[k]) out[k] |= widened(from[k]);
    (void)fast;
}

/* The end, within `first` and `end`, of the groups that may be written in full, 8 positions at once. */
static int64_t whole_of(const Placing *p, int64_t first, int64_t end, int fast) {
    int64_t whole = fast ? p->count / p->size : 0;
    return whole < first ? first : whole > end ? end : whole;
}

/* Place magnitudes of 16 bits, unchanged or (if `wide`) as float32. */
EXPORT void pof_place16(const Placing *p) {
    Magnitudes m = {p->symbols, {p->planes[0], 0, 0}, p->signs, p->signed_planes, p->base};
    Band b = {p->filled, p->size, p->length, p->fill_signs, p->fill_bytes, 0, p->length, 0};
    uint16_t halves[BLOCK * 9];
    int fast = HAS("ssse3"), fast_wide = HAS("avx2") && HAS("f16c");
    for (int64_t first = 0; first < p->groups; first += BLOCK) {
        int64_t end = first + BLOCK < p->groups ? first + BLOCK : p->groups, start = first * p->size;
        int64_t stop = end * p->size < p->count ? end * p->size : p->count;
        if (p->wide) {
            memset(halves, 0, sizeof halves);
            place_block16(p, &m, &b, first, fast ? end : first, end, halves);
            widen(halves, stop - start, fast_wide, (uint32_t *)p->out + start);
        } else {
            place_block16(p, &m, &b, first, whole_of(p, first, end, fast), end, (uint16_t *)p->out + start);
        }
    }
}

/* Place magnitudes of 32 bits. */
EXPORT void pof_place32(const Placing *p) {
    Magnitudes m = {p->symbols, {p->planes[0], p->planes[1], p->planes[2]}, p->signs, p->signed_planes, p->base};
    Band b = {p->filled, p->size, p->length, p->fill_signs, p->fill_bytes, 0, p->length, 0};
    int fast = HAS("avx2");
    for (int64_t first = 0; first < p->groups; first += BLOCK) {
        int64_t end = first + BLOCK < p->groups ? first + BLOCK : p->groups;
        place_block32(p, &m, &b, first, whole_of(p, first, end, fast), end, (uint32_t *)p->out + first * p->size);
    }
}

/* Unpack 7-bit numbers, 8 of them in 7 bytes, into one byte each. */
EXPORT void pof_from_sevens(const uint8_t *packed, int64_t groups, uint8_t *out) {
    for (int64_t g = 0; g < groups; g++, packed += 7, out += 8) {
        uint64_t word = 0, spread;
        for (int i = 0; i < 7; i++) word |= (uint64_t)packed[i] << 8 * i;
        /* Separate fours (28 bits), then twos (14 bits), then single numbers. */
        spread = (word & 0x000000000FFFFFFF) | (word & 0x00FFFFFFF0000000) << 4;
        spread = (spread & 0x00003FFF00003FFF) | (spread & 0x0FFFC0000FFFC000) << 2;
        spread = (spread & 0x007F007F007F007F) | (spread & 0x3F803F803F803F80) << 1;
        for (int i = 0; i < 8; i++) out[i] = (uint8_t)(spread >> 8 * i);
    }
}
