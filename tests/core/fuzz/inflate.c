/*
 * A libFuzzer target for core/inflate.c: bytes of a stranger must be refused or fill exactly the memory they claim.
 *
 * The first byte says how many streams there are, two more for each how long its output claims to be; the rest is
 * divided among them. Every buffer is allocated at its exact size, so that AddressSanitizer sees a single byte beyond.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 6 };

int pof_inflate(int64_t count, const uint8_t *const *in, const int64_t *lengths, uint8_t *const *out,
                const int64_t *sizes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1) return 0;
    int64_t count = 1 + data[0] % MOST;
    data++, size--;
    if (size < (size_t)(2 * count)) return 0;
    uint8_t *in[MOST], *out[MOST];
    int64_t lengths[MOST], sizes[MOST];
    for (int64_t i = 0; i < count; i++, data += 2, size -= 2) sizes[i] = data[0] | data[1] << 8;
    for (int64_t i = 0; i < count; i++) {
        size_t length = i == count - 1 ? size : size / (size_t)(count - i);
        lengths[i] = (int64_t)length;
        in[i] = malloc(length ? length : 1);
        out[i] = malloc(sizes[i] ? (size_t)sizes[i] : 1);
        memcpy(in[i], data, length);
        data += length, size -= length;
    }
    pof_inflate(count, (const uint8_t *const *)in, lengths, out, sizes);
    for (int64_t i = 0; i < count; i++) free(in[i]), free(out[i]);
    return 0;
}
