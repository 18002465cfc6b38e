/*
 * Images on their way into and between sparse convolutions (see src/pof/runtime/geometry.py): copied into padded planes,
 * split by phases where a convolution has a stride, and pooled.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "export.h"
#include "pool.h"

/* Where pixels are read: strides in floats. Image n is lane n % lanes of block n / lanes. */
typedef struct {
    const float *data;
    int64_t block, lane, channel, row, column;
} From;

/* Where they are written: pixels of a row are `lanes` floats apart, rows `pitch` pixels. */
typedef struct {
    float *data;
    int64_t block, channel, phase; /* floats from one to the next */
    int64_t pitch, lanes, top, left, row_stride, column_stride;
} To;

typedef struct {
    From from;
    To to;
    int64_t images, channels, height, width;
} Copy;

/* One row of one channel: pixel x of lane n goes to column (x + left) / stride of phase (x + left) % stride. */
static void copy_row(const Copy *c, const float *from, float *to, int64_t lanes) {
    int64_t stride = c->to.column_stride, step = c->to.lanes;
    if (stride == 1 && step == 1 && c->from.column == 1) {
        memcpy(to + c->to.left, from, sizeof(float) * (size_t)c->width);
        return;
    }
    for (int64_t phase = 0; phase < stride; phase++) {
        /* The first pixel of this phase, and where it goes. */
        int64_t x = ((phase - c->to.left) % stride + stride) % stride;
        float *out = to + phase * c->to.phase + (x + c->to.left) / stride * step;
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

static void copy_channel(void *argument, int64_t number) {
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

/* Only pixels are written: what is around them has to be zero already. */
EXPORT void pof_copy_planes(const Copy *copy, int threads) {
    int64_t blocks = (copy->images + copy->to.lanes - 1) / copy->to.lanes;
    pool_run(copy_channel, (void *)copy, blocks * copy->channels, threads);
}

typedef struct {
    Copy planes; /* `to` has no strides of its own; height and width are those of the input */
    int64_t kernel_height, kernel_width, stride_y, stride_x, padding_y, padding_x, out_height, out_width;
} Pool;

/* As torch's: NaN wins. */
static inline float larger(float a, float b) { return (b > a) | (b != b) ? b : a; }

enum { LONGEST_ROW = 8192 };

/* The largest of each column of the rows from `top` to `bottom`, which are `count` floats without gaps. */
static void largest_of_rows(const float *from, int64_t stride, int64_t top, int64_t bottom, int64_t count,
                            float *restrict out) {
    for (int64_t i = 0; i < count; i++) out[i] = -INFINITY;
    for (int64_t v = top; v < bottom; v++) {
        const float *in = from + v * stride;
        for (int64_t i = 0; i < count; i++) out[i] = larger(out[i], in[i]);
    }
}

/* One row of outputs from the largest of its rows, which has -inf before and behind its pixels. */
static void largest_in_row(const Pool *p, const float *row, int64_t lanes, float *restrict out) {
    int64_t step = p->stride_x * lanes;
    for (int64_t u = 0; u < p->kernel_width; u++)
        for (int64_t x = 0; x < p->out_width; x++)
            for (int64_t n = 0; n < lanes; n++) {
                float value = row[x * step + u * lanes + n];
                out[x * lanes + n] = u ? larger(out[x * lanes + n], value) : value;
            }
}

/* The same, of one image: without the inner loop. */
static void largest_in_single_row(const Pool *p, const float *row, float *restrict out) {
    for (int64_t x = 0; x < p->out_width; x++) out[x] = row[x * p->stride_x];
    for (int64_t u = 1; u < p->kernel_width; u++)
        for (int64_t x = 0; x < p->out_width; x++) out[x] = larger(out[x], row[x * p->stride_x + u]);
}

static void pool_slowly(const Pool *p, const float *from, float *out, int64_t top, int64_t bottom, int64_t lanes) {
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

static void pool_channel(void *argument, int64_t number) {
    const Pool *p = argument;
    const Copy *c = &p->planes;
    int64_t block = number / c->channels, channel = number % c->channels, step = c->to.lanes;
    int64_t lanes = c->images - block * step < step ? c->images - block * step : step;
    const float *from = c->from.data + block * c->from.block + channel * c->from.channel;
    float *to = c->to.data + block * c->to.block + channel * c->to.channel, row[LONGEST_ROW];
    int64_t edge = p->padding_x * step, behind = p->kernel_width * step;
    int fast = c->from.column == step && (step == 1 || c->from.lane == 1) && c->width * step + edge + behind <= LONGEST_ROW;
    if (fast)
        for (int64_t i = 0; i < c->width * step + edge + behind; i++) row[i] = -INFINITY;
    for (int64_t y = 0; y < p->out_height; y++) {
        int64_t top = y * p->stride_y - p->padding_y, bottom = top + p->kernel_height;
        if (top < 0) top = 0;
        if (bottom > c->height) bottom = c->height;
        float *out = to + ((y + c->to.top) * c->to.pitch + c->to.left) * step;
        if (!fast) {
            pool_slowly(p, from, out, top, bottom, lanes);
            continue;
        }
        largest_of_rows(from, c->from.row, top, bottom, c->width * step, row + edge);
        if (step == 1)
            largest_in_single_row(p, row, out);
        else
            largest_in_row(p, row, step, out);
    }
}

EXPORT void pof_max_pool(const Pool *pool, int threads) {
    int64_t blocks = (pool->planes.images + pool->planes.to.lanes - 1) / pool->planes.to.lanes;
    pool_run(pool_channel, (void *)pool, blocks * pool->planes.channels, threads);
}
