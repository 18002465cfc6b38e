/*
 * Inflate raw deflate (RFC 1951), for streams that are almost all literals: one look-up decodes up to three literals,
 * and up to three streams take turns. No input makes it read or write outside its buffers.
 */
#include <stdint.h>
#include <string.h>

#include "export.h"

enum { ROOT = 11, MOST_BITS = 15, LITERALS = 288, DISTANCES = 32, END = 256, LANES = 3, ROOM = 16 };

typedef struct {
    const uint8_t *in, *in_end;
    uint64_t bits;
    int count; /* the number of valid bits */
} Input;

typedef struct {
    uint16_t root[1 << ROOT]; /* symbol << 4 | length; 0 if the code is longer than ROOT */
    uint16_t counts[MOST_BITS + 1];
    uint16_t symbols[LITERALS];
} Code;

typedef struct {
    Code literals, distances;
    uint32_t runs[1 << ROOT]; /* of literals: bits used | count << 4 | literals << 8; 0 for anything else */
} Tables;

static const uint16_t LENGTH_BASE[29] = {3,  4,  5,  6,  7,  8,  9,  10, 11,  13,  15,  17,  19,  23, 27,
                                         31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258};
static const uint8_t LENGTH_EXTRA[29] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
static const uint16_t DISTANCE_BASE[30] = {1,   2,   3,   4,   5,   7,    9,    13,   17,   25,   33,   49,   65,    97,    129,
                                           193, 257, 385, 513, 769, 1025, 1537, 2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577};
static const uint8_t DISTANCE_EXTRA[30] = {0, 0, 0, 0, 1, 1, 2, 2,  3,  3,  4,  4,  5,  5,  6,
                                           6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13};
static const uint8_t ORDER[19] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};

static void refill(Input *s) {
    while (s->count < 56 && s->in < s->in_end) {
        s->bits |= (uint64_t)*s->in++ << s->count;
        s->count += 8;
    }
}

/* The next `need` bits (at most 16), or -1 if there are fewer. */
static int take(Input *s, int need) {
    refill(s);
    if (s->count < need) return -1;
    int value = (int)(s->bits & ((1u << need) - 1));
    s->bits >>= need;
    s->count -= need;
    return value;
}

/*
 * Make a code from the lengths of its symbols; -1 if it has too many codewords, or too few. As in zlib, only a code
 * without symbols or (if `single` allows it) with one symbol of one bit may have too few; it fails when it is used.
 */
static int make_code(Code *code, const uint8_t *lengths, int symbols, int single) {
    uint16_t first[MOST_BITS + 2] = {0};
    memset(code, 0, sizeof *code);
    for (int i = 0; i < symbols; i++) code->counts[lengths[i]]++;
    code->counts[0] = 0;
    int left = 1, used = 0;
    for (int length = 1; length <= MOST_BITS; length++) {
        left = 2 * left - code->counts[length];
        if (left < 0) return -1;
        used += code->counts[length];
    }
    if (left > 0 && used > 0 && !(single && used == 1 && code->counts[1] == 1)) return -1;
    for (int length = 1; length <= MOST_BITS; length++) first[length + 1] = (uint16_t)(first[length] + code->counts[length]);
    uint16_t next[MOST_BITS + 2];
    memcpy(next, first, sizeof next);
    for (int i = 0; i < symbols; i++)
        if (lengths[i]) code->symbols[next[lengths[i]]++] = (uint16_t)i;
    unsigned word = 0;
    int index = 0;
    for (int length = 1; length <= ROOT; length++, word <<= 1)
        for (int n = 0; n < code->counts[length]; n++, word++, index++) {
            unsigned reversed = 0;
            for (int b = 0; b < length; b++) reversed |= (word >> b & 1) << (length - 1 - b);
            for (unsigned at = reversed; at < 1u << ROOT; at += 1u << length)
                code->root[at] = (uint16_t)(code->symbols[index] << 4 | length);
        }
    return 0;
}

/* For each pattern of ROOT bits, the run of up to three literals that it starts with. */
static void make_runs(Tables *t) {
    const uint16_t *root = t->literals.root;
    for (unsigned at = 0; at < 1u << ROOT; at++) {
        unsigned length = root[at] & 15, symbol = root[at] >> 4;
        if (!length || symbol >= END) {
            t->runs[at] = 0;
            continue;
        }
        uint32_t run = length | 1u << 4 | symbol << 8;
        /* The run that follows is known already, as its index is smaller; it may use bits that are not there. */
        uint32_t then = at ? t->runs[at >> length] : 0;
        unsigned number = then >> 4 & 3;
        if (number == 3 || length + (then & 15) > ROOT) {
            unsigned next = root[at >> length];
            then = next >> 4 < END && next & 15 ? (next & 15) | 1u << 4 | (next >> 4) << 8 : 0;
            number = 1;
        }
        if (then && length + (then & 15) <= ROOT)
            run = (length + (then & 15)) | (number + 1) << 4 | symbol << 8 | then >> 8 << 16;
        t->runs[at] = run;
    }
}

/* The next symbol, or -1. */
static int symbol_of(Input *s, const Code *code) {
    refill(s);
    unsigned entry = code->root[s->bits & ((1 << ROOT) - 1)];
    int length = entry & 15;
    if (length) {
        if (length > s->count) return -1;
        s->bits >>= length;
        s->count -= length;
        return (int)(entry >> 4);
    }
    int word = 0, first = 0, index = 0;
    for (length = 1; length <= MOST_BITS && length <= s->count; length++) {
        word |= (int)(s->bits >> (length - 1) & 1);
        int count = code->counts[length];
        if (word - count < first) {
            s->bits >>= length;
            s->count -= length;
            return code->symbols[index + (word - first)];
        }
        index += count;
        first = (first + count) << 1;
        word <<= 1;
    }
    return -1;
}

static int read_codes(Input *s, Tables *t) {
    uint8_t lengths[LITERALS + DISTANCES] = {0};
    int literals = take(s, 5), distances = take(s, 5), codes = take(s, 4);
    if (literals < 0 || distances < 0 || codes < 0) return -1;
    literals += 257, distances += 1, codes += 4;
    if (literals > 286 || distances > 30) return -1;
    for (int i = 0; i < codes; i++) {
        int length = take(s, 3);
        if (length < 0) return -1;
        lengths[ORDER[i]] = (uint8_t)length;
    }
    if (make_code(&t->literals, lengths, 19, 0)) return -1;
    memset(lengths, 0, sizeof lengths);
    for (int i = 0; i < literals + distances;) {
        int symbol = symbol_of(s, &t->literals), repeat, value = 0;
        if (symbol < 0) return -1;
        if (symbol < 16) {
            lengths[i++] = (uint8_t)symbol;
            continue;
        }
        if (symbol == 16) {
            if (i == 0) return -1;
            value = lengths[i - 1];
        }
        repeat = symbol == 16 ? take(s, 2) : symbol == 17 ? take(s, 3) : take(s, 7);
        if (repeat < 0) return -1;
        repeat += symbol == 18 ? 11 : 3;
        if (i + repeat > literals + distances) return -1;
        while (repeat--) lengths[i++] = (uint8_t)value;
    }
    if (!lengths[END]) return -1;
    return make_code(&t->literals, lengths, literals, 1) || make_code(&t->distances, lengths + literals, distances, 1) ? -1 : 0;
}

static int fixed_codes(Tables *t) {
    uint8_t lengths[LITERALS];
    for (int i = 0; i < LITERALS; i++) lengths[i] = i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8;
    uint8_t distances[DISTANCES];
    memset(distances, 5, sizeof distances);
    return make_code(&t->literals, lengths, LITERALS, 1) || make_code(&t->distances, distances, DISTANCES, 1) ? -1 : 0;
}

/* One stream that is being decoded. */
typedef struct {
    Input s;
    Tables tables;
    uint8_t *start, *at, *end; /* of the output */
    enum { BETWEEN_BLOCKS, IN_BLOCK, DONE } state;
    int last; /* whether this block is the last one */
} Stream;

static void begin(Stream *d, const uint8_t *in, int64_t length, uint8_t *out, int64_t size) {
    d->s = (Input){in, in + length, 0, 0};
    d->start = d->at = out;
    d->end = out + size;
    d->state = BETWEEN_BLOCKS;
    d->last = 0;
}

static int read_stored(Stream *d) {
    Input *s = &d->s;
    s->bits >>= s->count & 7;
    s->count -= s->count & 7;
    int length = take(s, 16), inverse = take(s, 16);
    if (length < 0 || inverse < 0 || length != (~inverse & 0xFFFF) || length > d->end - d->at) return -1;
    while (length && s->count) {
        *d->at++ = (uint8_t)s->bits;
        s->bits >>= 8, s->count -= 8, length--;
    }
    if (length > s->in_end - s->in) return -1;
    memcpy(d->at, s->in, (size_t)length);
    s->in += length, d->at += length;
    return 0;
}

/* Read the start of the next block (all of it if its bytes are stored), or check the end of the stream. */
static int next_block(Stream *d) {
    if (d->last) {
        d->state = DONE;
        return d->at == d->end && d->s.in == d->s.in_end && d->s.count < 8 ? 0 : -1;
    }
    d->last = take(&d->s, 1);
    int kind = take(&d->s, 2);
    if (d->last < 0 || kind < 0 || kind == 3) return -1;
    if (kind == 0) return read_stored(d);
    if (kind == 1 ? fixed_codes(&d->tables) : read_codes(&d->s, &d->tables)) return -1;
    make_runs(&d->tables);
    d->state = IN_BLOCK;
    return 0;
}

static int copy_earlier(Stream *d, int symbol) {
    Input *s = &d->s;
    symbol -= END + 1;
    if (symbol >= 29) return -1;
    int extra = take(s, LENGTH_EXTRA[symbol]);
    if (extra < 0) return -1;
    int length = LENGTH_BASE[symbol] + extra;
    symbol = symbol_of(s, &d->tables.distances);
    if (symbol < 0 || symbol >= 30) return -1;
    extra = take(s, DISTANCE_EXTRA[symbol]);
    if (extra < 0) return -1;
    int distance = DISTANCE_BASE[symbol] + extra;
    if (distance > d->at - d->start || length > d->end - d->at) return -1;
    if (distance == 1) {
        memset(d->at, d->at[-1], (size_t)length);
        d->at += length;
    } else {
        while (length--) *d->at = d->at[-distance], d->at++;
    }
    return 0;
}

/* Decode the next item of any kind; return 0, or -1 on an error. */
static int step(Stream *d) {
    if (d->state == BETWEEN_BLOCKS) return next_block(d);
    int symbol = symbol_of(&d->s, &d->tables.literals);
    if (symbol < 0) return -1;
    if (symbol > END) return copy_earlier(d, symbol);
    if (symbol == END) {
        d->state = BETWEEN_BLOCKS;
        return 0;
    }
    if (d->at == d->end) return -1;
    *d->at++ = (uint8_t)symbol;
    return 0;
}

/* The part of a stream that literals change, to be held in registers. */
typedef struct {
    uint64_t bits;
    int count;
    const uint8_t *in, *in_last; /* the last place where 8 bytes can be read */
    uint8_t *at, *at_last;       /* the last place where four runs can be written */
    const uint32_t *runs;
} Lane;

static inline __attribute__((always_inline)) Lane enter(const Stream *d) {
    return (Lane){d->s.bits, d->s.count, d->s.in, d->s.in_end - 8, d->at, d->end - ROOM, d->tables.runs};
}

static inline __attribute__((always_inline)) void leave(Stream *d, const Lane *l) {
    /* A refill may have added bits above `count`; the next refill adds the same ones. */
    d->s.bits = l->bits & (((uint64_t)1 << l->count) - 1);
    d->s.count = l->count;
    d->s.in = l->in;
    d->at = l->at;
}

/* Whether there is enough input and output for four look-ups: at most 44 bits and 12 bytes (13 are touched). */
static inline __attribute__((always_inline)) int has_room(const Lane *l) { return l->in <= l->in_last && l->at <= l->at_last; }

static inline __attribute__((always_inline)) void fill_up(Lane *l) {
    uint64_t more;
    memcpy(&more, l->in, 8);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    more = __builtin_bswap64(more);
#endif
    l->bits |= more << l->count;
    l->in += (63 - l->count) >> 3;
    l->count |= 56;
}

/* Decode up to three literals in one look-up. If there is none, return 0 and move nothing. */
static inline __attribute__((always_inline)) unsigned look_up(Lane *l) {
    uint32_t run = l->runs[l->bits & ((1 << ROOT) - 1)], literals = run >> 8;
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    literals = __builtin_bswap32(literals);
#endif
    memcpy(l->at, &literals, 4);
    l->at += run >> 4 & 3;
    l->bits >>= run & 15;
    l->count -= (int)(run & 15);
    return run;
}

static void literals_of_one(Stream *d) {
    Lane a = enter(d);
    unsigned found = 1;
    while (found && has_room(&a)) {
        fill_up(&a);
        look_up(&a), look_up(&a), look_up(&a);
        found = look_up(&a);
    }
    leave(d, &a);
}

/*
 * Decode literals of several streams in turn: a look-up has to wait for the one before it in its own stream, so several
 * streams together take little longer than one.
 */
static void literals_of_two(Stream *one, Stream *other) {
    Lane a = enter(one), b = enter(other);
    int found = 1;
    while (found && has_room(&a) && has_room(&b)) {
        fill_up(&a), fill_up(&b);
        look_up(&a), look_up(&b);
        look_up(&a), look_up(&b);
        look_up(&a), look_up(&b);
        found = look_up(&a) != 0;
        found &= look_up(&b) != 0;
    }
    leave(one, &a), leave(other, &b);
}

static void literals_of_three(Stream *one, Stream *two, Stream *three) {
    Lane a = enter(one), b = enter(two), c = enter(three);
    int found = 1;
    while (found && has_room(&a) && has_room(&b) && has_room(&c)) {
        fill_up(&a), fill_up(&b), fill_up(&c);
        look_up(&a), look_up(&b), look_up(&c);
        look_up(&a), look_up(&b), look_up(&c);
        look_up(&a), look_up(&b), look_up(&c);
        found = look_up(&a) != 0;
        found &= look_up(&b) != 0;
        found &= look_up(&c) != 0;
    }
    leave(one, &a), leave(two, &b), leave(three, &c);
}

/* Return 0 if each `in` is exactly one stream of exactly `sizes` bytes, which are then in `out`; else -1. */
EXPORT int pof_inflate(int64_t count, const uint8_t *const *in, const int64_t *lengths, uint8_t *const *out,
                       const int64_t *sizes) {
    Stream lanes[LANES];
    int64_t next = 0;
    for (int i = 0; i < LANES; i++) lanes[i].state = DONE;
    for (;;) {
        Stream *inside[LANES];
        int running = 0, ready = 0;
        for (int i = 0; i < LANES; i++) {
            if (lanes[i].state == DONE && next < count) {
                begin(&lanes[i], in[next], lengths[next], out[next], sizes[next]);
                next++;
            }
            running += lanes[i].state != DONE;
            if (lanes[i].state == IN_BLOCK) inside[ready++] = &lanes[i];
        }
        if (!running) return 0;
        /* Wait until all running streams are ready, as one alone would take as long as all of them. */
        if (ready == running) {
            if (ready == 3) literals_of_three(inside[0], inside[1], inside[2]);
            if (ready == 2) literals_of_two(inside[0], inside[1]);
            if (ready == 1) literals_of_one(inside[0]);
        }
        for (int i = 0; i < LANES; i++)
            if (lanes[i].state != DONE && step(&lanes[i])) return -1;
    }
}
