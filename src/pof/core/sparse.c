/*
 * Sparse convolution. For one output channel, the sums of a tile of neighbouring floats stay in registers while its
 * taps pass by. A tap is a nonzero weight, and the distance in memory from the tile to the values that it multiplies.
 * The caller decides what the floats are (pixels of padded rows, or images side by side): see src/pof/runtime.
 */
#include <stdint.h>
#include <string.h>

#include "export.h"
#include "pool.h"
#include "structures.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define X86 1
#include <immintrin.h>
#endif

enum { LANES = 8, MOST_VECTORS = 14 };

/* One tile of the channels from `first` to `end`, for one block of inputs. */
typedef struct {
    const Tap *taps;
    const int32_t *starts;
    const float *in, *bias, *residual; /* residual: added at the end; it points to a tile as `out` does, or is NULL */
    float *out;
    int64_t first, end, stride;
    int begins, finishes; /* whether this is the first block, the last block */
    float low, high;
} Job;

static void tile_plain(const Job *j, int vectors) {
    int count = LANES * vectors;
    for (int64_t c = j->first; c < j->end; c++) {
        float sums[LANES * MOST_VECTORS], *out = j->out + c * j->stride;
        if (j->begins)
            for (int i = 0; i < count; i++) sums[i] = j->bias[c];
        else
            memcpy(sums, out, sizeof(float) * (size_t)count);
        for (const Tap *tap = j->taps + j->starts[c], *end = j->taps + j->starts[c + 1]; tap < end; tap++) {
            const float *in = (const float *)((const char *)j->in + tap->offset);
            for (int i = 0; i < count; i++) sums[i] += tap->weight * in[i];
        }
        if (j->finishes) {
            if (j->residual)
                for (int i = 0; i < count; i++) sums[i] += j->residual[c * j->stride + i];
            for (int i = 0; i < count; i++) sums[i] = sums[i] < j->low ? j->low : sums[i] > j->high ? j->high : sums[i];
        }
        memcpy(out, sums, sizeof(float) * (size_t)count);
    }
}

#ifdef X86
#define EACH _Pragma("GCC unroll 14") for (int i = 0; i < N; i++)
#define TILE(N_)                                                                                                      \
    __attribute__((target("avx2,fma"))) static void tile_##N_(const Job *j) {                                         \
        enum { N = N_ };                                                                                              \
        for (int64_t c = j->first; c < j->end; c++) {                                                                 \
            __m256 sums[N];                                                                                           \
            float *out = j->out + c * j->stride;                                                                      \
            if (j->begins) {                                                                                          \
                EACH sums[i] = _mm256_set1_ps(j->bias[c]);                                                            \
            } else {                                                                                                  \
                EACH sums[i] = _mm256_loadu_ps(out + LANES * i);                                                      \
            }                                                                                                         \
            for (const Tap *tap = j->taps + j->starts[c], *end = j->taps + j->starts[c + 1]; tap < end; tap++) {      \
                const float *in = (const float *)((const char *)j->in + tap->offset);                                 \
                __m256 weight = _mm256_broadcast_ss(&tap->weight);                                                    \
                EACH sums[i] = _mm256_fmadd_ps(weight, _mm256_loadu_ps(in + LANES * i), sums[i]);                     \
            }                                                                                                         \
            if (j->finishes) {                                                                                        \
                if (j->residual) {                                                                                    \
                    EACH sums[i] = _mm256_add_ps(sums[i], _mm256_loadu_ps(j->residual + c * j->stride + LANES * i));  \
                }                                                                                                     \
                __m256 low = _mm256_set1_ps(j->low), high = _mm256_set1_ps(j->high);                                  \
                /* In this order, NaN stays NaN. */                                                                   \
                EACH sums[i] = _mm256_min_ps(high, _mm256_max_ps(low, sums[i]));                                      \
            }                                                                                                         \
            EACH _mm256_storeu_ps(out + LANES * i, sums[i]);                                                          \
        }                                                                                                             \
    }

TILE(1) TILE(2) TILE(3) TILE(4) TILE(5) TILE(6) TILE(7) TILE(8) TILE(9) TILE(10) TILE(11) TILE(12) TILE(13) TILE(14)

/*
 * If no weight is zero, all channels have the same offsets, and each load can serve four of them: four channels of up
 * to three vectors, `at` vectors from the start of the tile.
 */
#define EACH_CHANNEL _Pragma("GCC unroll 4") for (int k = 0; k < 4; k++)
#define QUAD(N_)                                                                                                      \
    __attribute__((target("avx2,fma"))) static void quad_##N_(const Job *j, int64_t c, int64_t at) {                  \
        enum { N = N_ };                                                                                              \
        __m256 sums[4][N];                                                                                            \
        float *out = j->out + c * j->stride + LANES * at;                                                             \
        const Tap *taps[4];                                                                                           \
        int64_t count = j->starts[c + 1] - j->starts[c];                                                              \
        EACH_CHANNEL {                                                                                                \
            taps[k] = j->taps + j->starts[c + k];                                                                     \
            EACH sums[k][i] = j->begins ? _mm256_set1_ps(j->bias[c + k]) : _mm256_loadu_ps(out + k * j->stride + LANES * i); \
        }                                                                                                             \
        for (int64_t t = 0; t < count; t++) {                                                                         \
            const float *in = (const float *)((const char *)j->in + taps[0][t].offset) + LANES * at;                  \
            __m256 x[N];                                                                                              \
            EACH x[i] = _mm256_loadu_ps(in + LANES * i);                                                              \
            EACH_CHANNEL {                                                                                            \
                __m256 weight = _mm256_broadcast_ss(&taps[k][t].weight);                                              \
                EACH sums[k][i] = _mm256_fmadd_ps(weight, x[i], sums[k][i]);                                          \
            }                                                                                                         \
        }                                                                                                             \
        __m256 low = _mm256_set1_ps(j->low), high = _mm256_set1_ps(j->high);                                          \
        EACH_CHANNEL EACH {                                                                                           \
            int64_t place = k * j->stride + LANES * i;                                                                \
            if (j->finishes && j->residual)                                                                           \
                sums[k][i] = _mm256_add_ps(sums[k][i], _mm256_loadu_ps(j->residual + c * j->stride + LANES * at + place)); \
            if (j->finishes) sums[k][i] = _mm256_min_ps(high, _mm256_max_ps(low, sums[k][i]));                        \
            _mm256_storeu_ps(out + place, sums[k][i]);                                                                \
        }                                                                                                             \
    }

QUAD(1) QUAD(2) QUAD(3)

static void (*const QUADS[])(const Job *, int64_t, int64_t) = {0, quad_1, quad_2, quad_3};

/* Compute four channels at a time; job->first is then the first of those left over. */
static void dense_tile(Job *job, int vectors) {
    for (; job->first + 4 <= job->end; job->first += 4)
        for (int at = 0; at < vectors; at += 3) QUADS[vectors - at < 3 ? vectors - at : 3](job, job->first, at);
}

static void (*const TILES[])(const Job *) = {0,       tile_1, tile_2, tile_3,  tile_4,  tile_5,  tile_6, tile_7,
                                             tile_8,  tile_9, tile_10, tile_11, tile_12, tile_13, tile_14};
#endif

/* Whether the fast kernels can run on this machine. */
EXPORT int pof_sparse_is_fast(void) {
#ifdef X86
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return 0;
#endif
}

static void run_tile(Job *job, int vectors, int dense, int plain) {
#ifdef X86
    if (!plain) {
        if (dense) dense_tile(job, vectors);
        TILES[vectors](job);
        return;
    }
#endif
    (void)plain, (void)dense;
    tile_plain(job, vectors);
}

/*
 * Tiles overrun the ends of rows, but the gaps between rows must be zero for the next layer. Each tile cleans its own
 * gaps, so that tiles can be computed in any order and in parallel.
 */
static void clean_tile(const Conv *conv, float *out, const ConvPart *part, int64_t tile) {
    if (!conv->last_gap) return;
    int64_t start = conv->tile_out[tile], end = start + LANES * conv->tile_vectors[tile];
    /* The first row whose gap may reach into the tile. */
    int64_t y = start < conv->first_gap ? 0 : (start - conv->first_gap) / conv->pitch;
    for (; y < conv->rows; y++) {
        int64_t gap = conv->first_gap + y * conv->pitch;
        int64_t gap_end = gap + (y == conv->rows - 1 ? conv->last_gap : conv->gap);
        if (gap >= end) break;
        if (gap < start) gap = start;
        if (gap_end > end) gap_end = end;
        if (gap >= gap_end) continue;
        for (int64_t c = part->first_channel; c < part->end_channel; c++)
            memset(out + c * conv->out_stride + gap, 0, sizeof(float) * (size_t)(gap_end - gap));
    }
}

/* Compute a part of one image (or of one block of images side by side). */
static void some_work(const Conv *conv, const float *in, const float *residual, float *out, const ConvPart *part, int plain) {
    int64_t tiles = part->end_tile - part->first_tile;
    int64_t outer = conv->blocks_outside ? conv->blocks : tiles;
    int64_t inner = conv->blocks_outside ? tiles : conv->blocks;
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < inner; i++) {
            int64_t block = conv->blocks_outside ? o : i, tile = part->first_tile + (conv->blocks_outside ? i : o);
            Job job = {
                .taps = conv->taps,
                .starts = conv->starts + block * (conv->channels + 1),
                .in = in + conv->tile_in[tile],
                .bias = conv->bias,
                .residual = residual ? residual + conv->tile_out[tile] : 0,
                .out = out + conv->tile_out[tile],
                .first = part->first_channel,
                .end = part->end_channel,
                .stride = conv->out_stride,
                .begins = block == 0,
                .finishes = block == conv->blocks - 1,
                .low = conv->low,
                .high = conv->high,
            };
            run_tile(&job, (int)conv->tile_vectors[tile], (int)conv->dense, plain);
            if (block == conv->blocks - 1) clean_tile(conv, out, part, tile);
        }
}

static void some_part(void *argument, int64_t number) {
    const ConvCall *c = argument;
    int64_t image = number / c->count;
    some_work(c->conv, c->source + image * c->in_images, c->residual ? c->residual + image * c->out_images : 0,
              c->out + image * c->out_images, c->parts + number % c->count, c->plain || !pof_sparse_is_fast());
}

EXPORT void pof_sparse_conv(const ConvCall *call) {
    pool_run(some_part, (void *)call, call->images * call->count, (int)call->threads);
}

/*
 * The taps of a weight with `channels` rows of `length`: its nonzero values, with the distance of each place in a row
 * from `offsets`, which has one row for every `group` channels. Block b of a row goes from `places[b]` to
 * `places[b + 1]`. Return the number of taps; without `taps`, only count them.
 */
EXPORT int64_t pof_sparse_taps(const float *weight, int64_t channels, int64_t length, int64_t group,
                               const int64_t *places, int64_t blocks, const int32_t *offsets, int32_t *starts, Tap *taps) {
    int64_t count = 0;
    for (int64_t b = 0; b < blocks; b++)
        for (int64_t c = 0; c <= channels; c++) {
            if (starts) starts[b * (channels + 1) + c] = (int32_t)count;
            if (c == channels) break;
            const float *row = weight + c * length;
            const int32_t *own = offsets + c / group * length;
            for (int64_t i = places[b]; i < places[b + 1]; i++) {
                if (row[i] == 0) continue;
                if (taps) taps[count] = (Tap){own[i], row[i]};
                count++;
            }
        }
    return count;
}
