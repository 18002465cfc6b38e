/*
 * The rows of a weight on the hypersphere, and their penalty (src/pof/sphere/hypersign.py has the formulas): each takes
 * one pass, where torch takes many over the same memory. Rows of `length` floats follow each other.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "export.h"

enum { SUMS = 16 }; /* running sums side by side, so that compilers can vectorise them */

static float total(const float *sums) {
    double all = 0;
    for (int i = 0; i < SUMS; i++) all += sums[i];
    return (float)all;
}

static float norm_of(const float *row, int64_t length) {
    float sums[SUMS] = {0};
    int64_t i = 0;
    for (; i + SUMS <= length; i += SUMS)
        for (int k = 0; k < SUMS; k++) sums[k] += row[i + k] * row[i + k];
    for (int k = 0; i < length; i++, k++) sums[k] += row[i] * row[i];
    return sqrtf(total(sums));
}

/* Each row divided by its norm (a row of zeros stays zero), the norms, and the magnitudes' bits, which sort alike. */
EXPORT void pof_unit_rows(const float *weight, int64_t rows, int64_t length, float *units, float *norms, int32_t *bits) {
    for (int64_t r = 0; r < rows; r++, weight += length, units += length, bits += length) {
        float norm = norms[r] = norm_of(weight, length), by = norm > 0 ? norm : INFINITY;
        for (int64_t i = 0; i < length; i++) units[i] = weight[i] / by;
        memcpy(bits, units, sizeof(float) * (size_t)length);
        for (int64_t i = 0; i < length; i++) bits[i] &= 0x7FFFFFFF;
    }
}

/*
 * A row's mask keeps the magnitudes above `cut`. Write each row's cosine with its mask, and one over the norm of the
 * mask (both 0 if nothing is kept). `sums` gets the sum of (cosine - 1) and the number of rows with a mask.
 */
EXPORT void pof_cosines(const float *units, int64_t rows, int64_t length, float cut, float *cosines, float *inverses,
                        double *sums) {
    sums[0] = sums[1] = 0;
    for (int64_t r = 0; r < rows; r++, units += length) {
        float along[SUMS] = {0};
        int32_t kept[SUMS] = {0};
        for (int64_t first = 0; first < length; first += SUMS) {
            int64_t count = length - first < SUMS ? length - first : SUMS;
            for (int64_t k = 0; k < count; k++) {
                float magnitude = fabsf(units[first + k]);
                along[k] += magnitude > cut ? magnitude : 0;
                kept[k] += magnitude > cut;
            }
        }
        int64_t all = 0;
        for (int k = 0; k < SUMS; k++) all += kept[k];
        inverses[r] = all ? 1 / sqrtf((float)all) : 0;
        cosines[r] = total(along) * inverses[r];
        if (all) sums[0] += (double)cosines[r] - 1, sums[1] += 1;
    }
}

/* Add slope * (mask - cosine * unit) / norm, row by row. */
EXPORT void pof_add_penalty(const float *units, const float *norms, int64_t rows, int64_t length, float cut,
                            const float *cosines, const float *inverses, float slope, float *gradient) {
    for (int64_t r = 0; r < rows; r++, units += length, gradient += length) {
        if (inverses[r] == 0) continue;
        float by_row = slope / norms[r], sign = by_row * inverses[r], unit = by_row * cosines[r];
        for (int64_t i = 0; i < length; i++) {
            float magnitude = fabsf(units[i]);
            gradient[i] += (magnitude > cut ? copysignf(sign, units[i] * sign) : 0) - unit * units[i];
        }
    }
}

/* Scale each row to its norm; rows of zeros, or with a norm of 0, stay unchanged. */
EXPORT void pof_rescale_rows(float *weight, int64_t rows, int64_t length, const float *norms) {
    for (int64_t r = 0; r < rows; r++, weight += length) {
        float now = norm_of(weight, length);
        if (!(now > 0) || !(norms[r] > 0)) continue;
        float scale = norms[r] / now;
        for (int64_t i = 0; i < length; i++) weight[i] *= scale;
    }
}
