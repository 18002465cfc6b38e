/*
 * Convolutions of 3 x 3 with stride 1 and padding 1, for images whose channels lie together (NHWC), by Winograd's
 * F(4 x 4, 3 x 3): tiles of 6 x 6 inputs and the weights are transformed, so that 36 products replace 144. The matrices
 * B, G and A are those of A. Lavin and S. Gray, Fast Algorithms for Convolutional Neural Networks, CVPR 2016. The
 * caller transforms the weights (src/pof/trainer/winograd.py).
 */
#include <stdint.h>

#include "export.h"
#include "pool.h"
#include "structures.h"

/* It has not been timed on other machines. */
#if defined(__GNUC__) && defined(__x86_64__) && !defined(_WIN32)

#define FAST __attribute__((target("avx2,fma")))
#define PART_OF_FAST static inline __attribute__((always_inline, target("avx2,fma")))

enum { LANES = 8, OUT = 4, IN = 6, POSITIONS = 36, TILES = 24, ROWS = 6, COLUMNS = 16, GRADIENT_ROWS = 4 };

typedef float Vec __attribute__((vector_size(32)));
typedef float Anywhere __attribute__((vector_size(32), aligned(4), may_alias)); /* the same, at any address */

/* The image and the first output pixel of a tile. */
typedef struct {
    int64_t image, row, column;
} Tile;

PART_OF_FAST Vec load(const float *from) { return *(const Anywhere *)from; }
PART_OF_FAST void store(float *to, Vec value) { *(Anywhere *)to = value; }

/* Multiply B^T, A^T and A by a column; the results lie `step` vectors apart. */
PART_OF_FAST void transform_in(const Vec *d, Vec *to, int step) {
    Vec far = d[4] - 4.0f * d[2], odd = d[3] - 4.0f * d[1], near = d[4] - d[2], twice = 2.0f * (d[3] - d[1]);
    to[0] = 4.0f * d[0] - 5.0f * d[2] + d[4];
    to[step] = far + odd;
    to[2 * step] = far - odd;
    to[3 * step] = near + twice;
    to[4 * step] = near - twice;
    to[5 * step] = 4.0f * d[1] - 5.0f * d[3] + d[5];
}

PART_OF_FAST void transform_out(const Vec *m, Vec *to, int step) {
    Vec sum = m[1] + m[2], difference = m[1] - m[2], sum2 = m[3] + m[4], difference2 = m[3] - m[4];
    to[0] = m[0] + sum + sum2;
    to[step] = difference + 2.0f * difference2;
    to[2 * step] = sum + 4.0f * sum2;
    to[3 * step] = difference + 8.0f * difference2 + m[5];
}

PART_OF_FAST void transform_gradient(const Vec *g, Vec *to, int step) {
    Vec even = g[0] + g[2], odd = g[1] + g[3], even2 = g[0] + 4.0f * g[2], odd2 = 2.0f * g[1] + 8.0f * g[3];
    to[0] = g[0];
    to[step] = even + odd;
    to[2 * step] = even - odd;
    to[3 * step] = even2 + odd2;
    to[4 * step] = even2 - odd2;
    to[5 * step] = g[3];
}

static Tile tile_at(const WinogradCall *call, int64_t number) {
    int64_t across = call->width / OUT, each = across * (call->height / OUT);
    return (Tile){number / each, number % each / across * OUT, number % across * OUT};
}

/* Transform the inputs of a tile into 36 vectors, `stride` floats apart; outside the image, inputs are 0. */
FAST static void take_inputs(const WinogradCall *call, Tile tile, int64_t channel, float *to, int64_t stride) {
    static const float zeros[LANES];
    Vec half[IN * IN];
    int64_t channels = call->in_channels, steps[IN];
    const float *rows[IN], *image = call->in + tile.image * call->height * call->width * channels + channel;
    for (int i = 0; i < IN; i++) {
        int64_t row = tile.row + i - 1, is_inside = row >= 0 && row < call->height;
        rows[i] = is_inside ? image + (row * call->width + tile.column) * channels : zeros;
        steps[i] = is_inside ? channels : 0;
    }
    for (int k = 0; k < IN; k++) {
        Vec column[IN] = {{0}};
        if (tile.column + k > 0 && tile.column + k <= call->width)
            for (int i = 0; i < IN; i++) column[i] = load(rows[i] + (k - 1) * steps[i]);
        transform_in(column, half + k, IN);
    }
    for (int i = 0; i < IN; i++) {
        Vec line[IN];
        transform_in(half + IN * i, line, 1);
        for (int k = 0; k < IN; k++) store(to + (IN * i + k) * stride, line[k]);
    }
}

/* Transform the gradients of a tile's outputs, like `take_inputs`. */
FAST static void take_gradients(const WinogradCall *call, Tile tile, int64_t channel, float *to, int64_t stride) {
    Vec half[IN * OUT];
    int64_t channels = call->out_channels;
    const float *from =
        call->out_gradient + ((tile.image * call->height + tile.row) * call->width + tile.column) * channels + channel;
    for (int k = 0; k < OUT; k++) {
        Vec column[OUT];
        for (int i = 0; i < OUT; i++) column[i] = load(from + (i * call->width + k) * channels);
        transform_gradient(column, half + k, OUT);
    }
    for (int i = 0; i < IN; i++) {
        Vec line[IN];
        transform_gradient(half + OUT * i, line, 1);
        for (int k = 0; k < IN; k++) store(to + (IN * i + k) * stride, line[k]);
    }
}

/* Write the outputs of a tile from their transformed form. */
FAST static void give_outputs(const WinogradCall *call, Tile tile, int64_t channel, const float *from, int64_t stride) {
    Vec half[OUT * IN];
    int64_t channels = call->out_channels;
    float *to = call->out + ((tile.image * call->height + tile.row) * call->width + tile.column) * channels + channel;
    for (int k = 0; k < IN; k++) {
        Vec column[IN];
        for (int i = 0; i < IN; i++) column[i] = load(from + (IN * i + k) * stride);
        transform_out(column, half + k, IN);
    }
    for (int i = 0; i < OUT; i++) {
        Vec line[OUT];
        transform_out(half + IN * i, line, 1);
        for (int k = 0; k < OUT; k++) store(to + (i * call->width + k) * channels, line[k]);
    }
}

/* [tiles][in] times [in][out], 6 tiles and 16 outputs at a time; results past the last tile mean nothing. */
FAST static void multiply(const float *in, const float *weights, float *out, int64_t tiles, int64_t ins, int64_t outs) {
    for (int64_t o = 0; o < outs; o += COLUMNS)
        for (int64_t t = 0; t < tiles; t += ROWS) {
            Vec sums[ROWS][2] = {{{0}}};
            const float *row = in + t * ins, *column = weights + o;
            for (int64_t c = 0; c < ins; c++, column += outs) {
                Vec first = load(column), second = load(column + LANES);
#pragma GCC unroll 6
                for (int i = 0; i < ROWS; i++) {
                    sums[i][0] += row[i * ins + c] * first;
                    sums[i][1] += row[i * ins + c] * second;
                }
            }
#pragma GCC unroll 6
            for (int i = 0; i < ROWS; i++) {
                store(out + (t + i) * outs + o, sums[i][0]);
                store(out + (t + i) * outs + o + LANES, sums[i][1]);
            }
        }
}

/* Add [tiles][in] transposed times [tiles][out] to [in][out]. */
FAST static void add_products(const float *in, const float *gradients, float *to, int64_t tiles, int64_t ins, int64_t outs) {
    for (int64_t c = 0; c < ins; c += GRADIENT_ROWS)
        for (int64_t o = 0; o < outs; o += COLUMNS) {
            Vec sums[GRADIENT_ROWS][2];
            float *at = to + c * outs + o;
#pragma GCC unroll 4
            for (int i = 0; i < GRADIENT_ROWS; i++) {
                sums[i][0] = load(at + i * outs);
                sums[i][1] = load(at + i * outs + LANES);
            }
            for (int64_t t = 0; t < tiles; t++) {
                Vec first = load(gradients + t * outs + o), second = load(gradients + t * outs + o + LANES);
#pragma GCC unroll 4
                for (int i = 0; i < GRADIENT_ROWS; i++) {
                    sums[i][0] += in[t * ins + c + i] * first;
                    sums[i][1] += in[t * ins + c + i] * second;
                }
            }
#pragma GCC unroll 4
            for (int i = 0; i < GRADIENT_ROWS; i++) {
                store(at + i * outs, sums[i][0]);
                store(at + i * outs + LANES, sums[i][1]);
            }
        }
}

/* How many floats of scratch memory each part needs. */
EXPORT int64_t pof_winograd_scratch(int64_t in_channels, int64_t out_channels) {
    return 2 * POSITIONS * (TILES + 1) * (in_channels > out_channels ? in_channels : out_channels);
}

/* For some of the images, compute their outputs, or add their part of the gradient of the weights. */
FAST static void some_images(void *argument, int64_t part) {
    const WinogradCall *call = argument;
    int64_t ins = call->in_channels, outs = call->out_channels, scratch = pof_winograd_scratch(ins, outs);
    int64_t each = call->height / OUT * (call->width / OUT);
    int64_t first = call->images * part / call->parts * each, end = call->images * (part + 1) / call->parts * each;
    /* With a round stride, the 36 positions of a tile would compete for the same few cache sets. */
    int64_t in_stride = TILES * ins + COLUMNS, out_stride = TILES * outs + COLUMNS;
    float *inputs = call->scratch + part * scratch, *outputs = inputs + scratch / 2;
    float *gradients = call->weight_gradients ? call->weight_gradients + part * POSITIONS * ins * outs : 0;
    for (; first < end; first += TILES) {
        int64_t tiles = end - first < TILES ? end - first : TILES;
        for (int64_t t = 0; t < tiles; t++) {
            Tile tile = tile_at(call, first + t);
            for (int64_t c = 0; c < ins; c += LANES) take_inputs(call, tile, c, inputs + t * ins + c, in_stride);
            for (int64_t o = 0; gradients && o < outs; o += LANES)
                take_gradients(call, tile, o, outputs + t * outs + o, out_stride);
        }
        for (int64_t p = 0; p < POSITIONS; p++) {
            const float *in = inputs + p * in_stride;
            float *out = outputs + p * out_stride;
            if (gradients)
                add_products(in, out, gradients + p * ins * outs, tiles, ins, outs);
            else
                multiply(in, call->weights + p * ins * outs, out, tiles, ins, outs);
        }
        for (int64_t t = 0; !gradients && t < tiles; t++)
            for (int64_t o = 0; o < outs; o += LANES)
                give_outputs(call, tile_at(call, first + t), o, outputs + t * outs + o, out_stride);
    }
}

/* Whether this machine can run these kernels. */
EXPORT int64_t pof_has_winograd(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

/* A convolution or, if `weight_gradients` is given, the gradient of its weights. Channels are multiples of 16. */
EXPORT void pof_winograd(const WinogradCall *call) { pool_run(some_images, (void *)call, call->parts, (int)call->parts); }

#else

EXPORT int64_t pof_has_winograd(void) { return 0; }
EXPORT int64_t pof_winograd_scratch(int64_t in_channels, int64_t out_channels) {
    (void)in_channels, (void)out_channels;
    return 0;
}
EXPORT void pof_winograd(const void *call) { (void)call; }

#endif
