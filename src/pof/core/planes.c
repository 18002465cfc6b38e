/*
 * Images before and between sparse convolutions (see src/pof/runtime/image_geometry.py): they are copied into padded
 * planes, split into phases for convolutions with a stride, pooled and averaged.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "export.h"
#include "pool.h"
#include "structures.h"

/*
 * Compile plain loops for any processor and (where the compiler can) for one with longer vectors: WORK is the function,
 * which is inlined into both.
 */
#if defined(__x86_64__) && defined(__GNUC__)
#define INLINE static inline __attribute__((always_inline))
#define FOR_EACH_PROCESSOR(NAME, WORK)                                                                                \
    __attribute__((target("avx2"))) static void NAME##_avx2(void *argument, int64_t number) { WORK(argument, number); } \
    static void NAME##_any(void *argument, int64_t number) { WORK(argument, number); }                                \
    static void (*NAME(void))(void *, int64_t) { return __builtin_cpu_supports("avx2") ? NAME##_avx2 : NAME##_any; }
#else
#define INLINE static inline
#define FOR_EACH_PROCESSOR(NAME, WORK)                                                                                \
    static void NAME##_any(void *argument, int64_t number) { WORK(argument, number); }                                \
    static void (*NAME(void))(void *, int64_t) { return NAME##_any; }
#endif

enum { LONGEST_ROW = 8192, MOST_LANES = 16 };

static int64_t block_count(const Copy *c) { return (c->images + c->to.lanes - 1) / c->to.lanes; }

/* Copy one row of one channel: pixel x of lane n goes to column (x + left) / stride of phase (x + left) % stride. */
INLINE void copy_row(const Copy *c, const float *from, float *to, int64_t lanes) {
    int64_t stride = c->to.column_stride, step = c->to.lanes;
    if (stride == 1 && step == 1 && c->from.column == 1) {
        memcpy(to + c->to.left, from, sizeof(float) * (size_t)c->width);
        return;
    }
    for (int64_t phase = 0; phase < stride; phase++) {
        /* The first pixel of this phase, and where it goes. */
        int64_t x = ((phase - c->to.left) % stride + stride) % stride;
        float *out = to + phase * c->to.phase + (x + c->to.left) / stride * step;
        if (stride == 2 && step == 1 && c->from.column == 1) {
            /* Here the compiler knows the strides, so that it can use vectors. */
            for (int64_t i = 0; i < (c->width - x + 1) / 2; i++) out[i] = from[x + 2 * i];
            continue;
        }
        if (step > 1 && c->from.lane == 1 && lanes == step) {
            for (; x < c->width; x += stride, out += step) memcpy(out, from + x * c->from.column, sizeof(float) * (size_t)step);
            continue;
        }
        for (int64_t n = 0; n < lanes; n++) {
            const float *in = from + n * c->from.lane;
            int64_t at = 0;
            for (int64_t column = x; column < c->width; column += stride, at += step) out[at + n] = in[column * c->from.column];
        }
    }
}

INLINE void copy_channel(void *argument, int64_t number) {
    const Copy *c = argument;
    int64_t block = number / c->channels, channel = number % c->channels;
    int64_t lanes = c->images - block * c->to.lanes < c->to.lanes ? c->images - block * c->to.lanes : c->to.lanes;
    const float *from = c->from.data + block * c->from.block + channel * c->from.channel;
    float *to = c->to.data + block * c->to.block + channel * c->to.channel;
    for (int64_t y = 0; y < c->height; y++) {
        int64_t at = y + c->to.top, phase = at % c->to.row_stride * c->to.column_stride;
        copy_row(c, from + y * c->from.row, to + phase * c->to.phase + at / c->to.row_stride * c->to.pitch * c->to.lanes,
                 lanes);
    }
}

FOR_EACH_PROCESSOR(channel_copier, copy_channel)

/* Only pixels are written: the padding around them must be zero already. */
EXPORT void pof_copy_planes(const Copy *copy) {
    pool_run(channel_copier(), (void *)copy, block_count(copy) * copy->channels, (int)copy->threads);
}

/* The mean of one channel of an image, or of several images side by side, from and to padded planes. */
INLINE void mean_of_channel(void *argument, int64_t number) {
    const Copy *c = argument;
    int64_t block = number / c->channels, channel = number % c->channels, lanes = c->to.lanes;
    const float *from = c->from.data + block * c->from.block + channel * c->from.channel;
    float *to = c->to.data + block * c->to.block + channel * c->to.channel;
    to += (c->to.top * c->to.pitch + c->to.left) * lanes;
    float sums[MOST_LANES] = {0};
    for (int64_t y = 0; y < c->height; y++) {
        const float *row = from + y * c->from.row;
        /* Neighbours are images side by side, or pixels of one image: either way they go to separate sums. */
        int64_t count = c->width * lanes, together = lanes > 1 ? lanes : MOST_LANES, i = 0;
        for (; i + together <= count; i += together)
            for (int64_t n = 0; n < together; n++) sums[n] += row[i + n];
        for (int64_t n = 0; i + n < count; n++) sums[n] += row[i + n];
    }
    for (int64_t n = 1; lanes == 1 && n < MOST_LANES; n++) sums[0] += sums[n];
    for (int64_t n = 0; n < lanes; n++) to[n] = sums[n] / (float)(c->height * c->width);
}

FOR_EACH_PROCESSOR(channel_mean, mean_of_channel)

EXPORT void pof_mean_planes(const Copy *copy) {
    pool_run(channel_mean(), (void *)copy, block_count(copy) * copy->channels, (int)copy->threads);
}

/* The larger of two numbers; NaN wins, as in torch. */
INLINE float larger(float a, float b) { return (b > a) | (b != b) ? b : a; }

/* The largest value in each column of the rows from `top` to `bottom`, which are `count` floats without gaps. */
INLINE void largest_of_rows(const float *from, int64_t stride, int64_t top, int64_t bottom, int64_t count,
                            float *restrict out) {
    for (int64_t i = 0; i < count; i++) out[i] = -INFINITY;
    for (int64_t v = top; v < bottom; v++) {
        const float *in = from + v * stride;
        for (int64_t i = 0; i < count; i++) out[i] = larger(out[i], in[i]);
    }
}

/* One row of outputs from the largest values of its rows, which have -inf before and after their pixels. */
INLINE void largest_in_row(const Pool *p, const float *row, int64_t lanes, float *restrict out) {
    int64_t step = p->stride_x * lanes;
    for (int64_t u = 0; u < p->kernel_width; u++)
        for (int64_t x = 0; x < p->out_width; x++)
            for (int64_t n = 0; n < lanes; n++) {
                float value = row[x * step + u * lanes + n];
                out[x * lanes + n] = u ? larger(out[x * lanes + n], value) : value;
            }
}

/* The same for one image: the largest of neighbours first, then every stride-th of them, to use vectors. */
INLINE void largest_in_single_row(const Pool *p, float *restrict row, float *restrict out) {
    int64_t count = (p->out_width - 1) * p->stride_x + 1;
    for (int64_t u = 1; u < p->kernel_width; u++)
        /* Each takes in its right neighbour, which has not changed yet, and so covers u + 1 places. */
        for (int64_t i = 0; i < count + p->kernel_width - 1 - u; i++) row[i] = larger(row[i], row[i + 1]);
    if (p->stride_x == 2)
        for (int64_t x = 0; x < p->out_width; x++) out[x] = row[2 * x];
    else
        for (int64_t x = 0; x < p->out_width; x++) out[x] = row[x * p->stride_x];
}

INLINE void pool_slowly(const Pool *p, const float *from, float *out, int64_t top, int64_t bottom, int64_t lanes) {
    const Copy *c = &p->planes;
    for (int64_t x = 0; x < p->out_width; x++, out += c->to.lanes) {
        int64_t left = x * p->stride_x - p->padding_x, right = left + p->kernel_width;
        if (left < 0) left = 0;
        if (right > c->width) right = c->width;
        for (int64_t n = 0; n < lanes; n++) out[n] = -INFINITY;
        for (int64_t v = top; v < bottom; v++)
            for (int64_t u = left; u < right; u++) {
                const float *in = from + v * c->from.row + u * c->from.column;
                for (int64_t n = 0; n < lanes; n++) out[n] = larger(out[n], in[n * c->from.lane]);
            }
    }
}

INLINE void pool_channel(void *argument, int64_t number) {
    const Pool *p = argument;
    const Copy *c = &p->planes;
    int64_t block = number / c->channels, channel = number % c->channels, step = c->to.lanes;
    int64_t lanes = c->images - block * step < step ? c->images - block * step : step;
    const float *from = c->from.data + block * c->from.block + channel * c->from.channel;
    float *to = c->to.data + block * c->to.block + channel * c->to.channel, row[LONGEST_ROW];
    int64_t edge = p->padding_x * step, behind = p->kernel_width * step;
    int fast = c->from.column == step && (step == 1 || c->from.lane == 1) && c->width * step + edge + behind <= LONGEST_ROW;
    for (int64_t y = 0; y < p->out_height; y++) {
        int64_t top = y * p->stride_y - p->padding_y, bottom = top + p->kernel_height;
        if (top < 0) top = 0;
        if (bottom > c->height) bottom = c->height;
        float *out = to + ((y + c->to.top) * c->to.pitch + c->to.left) * step;
        if (!fast) {
            pool_slowly(p, from, out, top, bottom, lanes);
            continue;
        }
        for (int64_t i = 0; i < edge; i++) row[i] = -INFINITY;
        for (int64_t i = edge + c->width * step; i < edge + c->width * step + behind; i++) row[i] = -INFINITY;
        largest_of_rows(from, c->from.row, top, bottom, c->width * step, row + edge);
        if (step == 1)
            largest_in_single_row(p, row, out);
        else
            largest_in_row(p, row, step, out);
    }
}

FOR_EACH_PROCESSOR(channel_pooler, pool_channel)

EXPORT void pof_max_pool(const Pool *pool) {
    const Copy *planes = &pool->planes;
    pool_run(channel_pooler(), (void *)pool, block_count(planes) * planes->channels, (int)planes->threads);
}
