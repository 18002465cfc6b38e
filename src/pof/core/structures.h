/*
 * The structures that C and Python share. core/structures.py has each of them too. structures.c lists their sizes and
 * offsets, and Python compares them when it loads the core. A field that is added here must be added in all three.
 */
#ifndef POF_STRUCTURES_H
#define POF_STRUCTURES_H
#include <stdint.h>

/* A nonzero weight, and the distance in bytes from a tile to the values that it multiplies (sparse.c). */
typedef struct {
    int32_t offset;
    float weight;
} Tap;

/* A sparse convolution for one size of input (sparse.c). */
typedef struct {
    const Tap *taps;
    const int32_t *starts; /* [blocks][channels + 1]: where a channel's taps begin, for each block of inputs */
    const float *bias;     /* [channels] */
    const int64_t *tile_in, *tile_out, *tile_vectors; /* [tiles]: floats from the start, and vectors of 8 floats */
    int64_t channels, blocks, tiles;
    int64_t out_stride;             /* floats from one output channel to the next */
    int64_t blocks_outside;         /* whether the outer loop is over blocks; if not, it is over tiles */
    int64_t dense;                  /* whether no weight is zero, so that all channels have the same offsets */
    int64_t rows, pitch, first_gap; /* of an output channel: its rows, floats per row, floats to the end of row 0 */
    int64_t gap, last_gap;          /* floats that are set to zero after each row, and after the last one */
    float low, high;                /* the range that outputs are clipped to */
} Conv;

/* A part of the work on one image: channels and tiles from the first up to, but not including, the end (sparse.c). */
typedef struct {
    int64_t first_channel, end_channel, first_tile, end_tile;
} ConvPart;

/*
 * A convolution of `images` images, which lie `in_images` and `out_images` floats apart, each in `count` parts. A
 * `residual` lies in memory like `out`. `plain` runs the portable kernel (sparse.c).
 */
typedef struct {
    const Conv *conv;
    const float *source, *residual;
    float *out;
    int64_t images, in_images, out_images, count;
    const ConvPart *parts;
    int64_t threads, plain;
} ConvCall;

/* Where pixels are read from, with strides in floats. Image n is lane n % lanes of block n / lanes (planes.c). */
typedef struct {
    const float *data;
    int64_t block, lane, channel, row, column;
} CopyFrom;

/* Where pixels are written to: those of a row are `lanes` floats apart, rows are `pitch` pixels apart (planes.c). */
typedef struct {
    float *data;
    int64_t block, channel, phase; /* floats from one to the next */
    int64_t pitch, lanes, top, left, row_stride, column_stride;
} CopyTo;

/* A copy of images (planes.c). */
typedef struct {
    CopyFrom from;
    CopyTo to;
    int64_t images, channels, height, width, threads;
} Copy;

/* A pool of images (planes.c). */
typedef struct {
    Copy planes; /* `to` has no strides of its own; height and width are those of the input */
    int64_t kernel_height, kernel_width, stride_y, stride_x, padding_y, padding_x, out_height, out_width;
} Pool;

/* A convolution, or the gradient of its weights, by Winograd's algorithm (winograd.c). */
typedef struct {
    const float *in, *out_gradient; /* [images][height][width][in_channels], [...][out_channels] */
    const float *weights;           /* [36][in_channels][out_channels] */
    float *out;                     /* the output of a convolution, laid out like out_gradient */
    float *weight_gradients;        /* [parts][36][in_channels][out_channels]: the gradient is added here */
    float *scratch;                 /* [parts][pof_winograd_scratch] */
    int64_t images, height, width, in_channels, out_channels, parts;
} WinogradCall;

/* The parts of one tensor's magnitudes, and where they go (values.c). */
typedef struct {
    const uint16_t *plain;  /* the positions whose magnitudes have their own bits */
    const uint16_t *filled; /* the positions that take their row's magnitude, or NULL */
    int64_t groups, count;  /* how many; the last group may reach beyond the weights, but none of its bits do */
    int64_t length;         /* weights in a row */
    int64_t fill_bytes;     /* bytes of signs of the filled weights */
    const uint8_t *symbols, *planes[3];
    const uint8_t *signs, *fill_signs;
    const void *fills; /* the magnitude of each row's filled weights */
    void *out;         /* zero at all these positions */
    int32_t size, base, signed_planes, wide;
} Placing;

/* One of several steps in one call (steps.c). */
typedef struct {
    void (*run)(const void *);
    const void *argument;
} Step;

#endif
