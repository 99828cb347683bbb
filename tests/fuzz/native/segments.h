/* JPEGs as lists of segments, and changes to them: of one field, one segment or one scan at a time. */

#ifndef TFPIPE_FUZZ_SEGMENTS_H
#define TFPIPE_FUZZ_SEGMENTS_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"

enum { SOF0 = 0xC0, SOF2 = 0xC2, DHT = 0xC4, JPG = 0xC8, DAC = 0xCC, SOF15 = 0xCF, RST0 = 0xD0, RST7 = 0xD7 };
enum { SOI = 0xD8, EOI = 0xD9, SOS = 0xDA, DQT = 0xDB, DRI = 0xDD, APP14 = 0xEE, TEM = 0x01 };

enum { MAX_SEGMENTS = 512, ARENA = 1 << 16 };

typedef struct {
    uint8_t *data;
    size_t size;
} bytes;

/* A piece of a file: a marker with what follows it up to the next, or, with marker 0, bytes without one.

   body, body_size  what lies behind a length; in the scan's header for SOS */
typedef struct {
    int marker;
    uint8_t *data, *body;
    size_t size, body_size;
} segment;

typedef struct {
    segment all[MAX_SEGMENTS];
    int count;
    uint8_t arena[ARENA]; /* bytes of new segments */
    size_t used;
} segments;

static int is_frame(int marker) {
    return marker >= SOF0 && marker <= SOF15 && marker != DHT && marker != JPG && marker != DAC;
}

static int has_length(int marker) { return marker != 0 && marker != TEM && (marker < RST0 || marker > EOI); }

static void add_segment(segments *to, int marker, uint8_t *data, size_t size) {
    if (size == 0 || to->count == MAX_SEGMENTS) return;
    segment *one = &to->all[to->count++];
    *one = (segment){.marker = marker, .data = data, .size = size};
    if (!has_length(marker) || size < 4) return;
    const size_t length = (size_t)(data[2] << 8 | data[3]);
    one->body = data + 4;
    one->body_size = length < 2 ? 0 : length - 2 < size - 4 ? length - 2 : size - 4;
}

/* Cuts a file into segments, which point into it. */
static void cut_segments(bytes file, segments *to) {
    to->count = 0;
    to->used = 0;
    size_t at = file.size < 2 ? file.size : 2;
    add_segment(to, 0, file.data, at);
    while (at < file.size && to->count < MAX_SEGMENTS - 1) {
        const size_t start = at;
        while (at + 1 < file.size && (file.data[at] != 0xFF || file.data[at + 1] == 0 || file.data[at + 1] == 0xFF))
            at++;
        if (at + 1 >= file.size) at = file.size;
        add_segment(to, 0, file.data + start, at - start);
        if (at == file.size) return;
        const int marker = file.data[at + 1];
        size_t end = at + 2;
        if (has_length(marker)) {
            size_t length = end + 1 < file.size ? (size_t)(file.data[end] << 8 | file.data[end + 1]) : 0;
            end = length < file.size - end ? end + length : file.size;
            if (marker == SOS)
                while (end < file.size && (file.data[end] != 0xFF || end + 1 == file.size || file.data[end + 1] == 0 ||
                                           (file.data[end + 1] >= RST0 && file.data[end + 1] <= RST7)))
                    end++;
        }
        add_segment(to, marker, file.data + at, end - at);
        at = end;
    }
    add_segment(to, 0, file.data + at, file.size - at);
}

/* Joins segments in memory of exactly their size. */
static bytes join_segments(const segments *from) {
    bytes file = {NULL, 0};
    for (int i = 0; i < from->count; i++) file.size += from->all[i].size;
    file.data = malloc(file.size ? file.size : 1);
    if (file.data == NULL) exit(2);
    size_t at = 0;
    for (int i = 0; i < from->count; i++) {
        memcpy(file.data + at, from->all[i].data, from->all[i].size);
        at += from->all[i].size;
    }
    return file;
}

static segment *pick_if(segments *from, int (*fits)(int)) {
    int found[MAX_SEGMENTS], count = 0;
    for (int i = 0; i < from->count; i++)
        if (from->all[i].body_size > 0 && fits(from->all[i].marker)) found[count++] = i;
    return count == 0 ? NULL : &from->all[found[draw((uint64_t)count)]];
}

static int wanted_marker;
static int is_wanted(int marker) { return marker == wanted_marker; }
static segment *pick(segments *from, int marker) {
    wanted_marker = marker;
    return pick_if(from, is_wanted);
}

static void set(segment *one, size_t at, int value) {
    if (one != NULL && at < one->body_size) one->body[at] = (uint8_t)value;
}

static void set_16(segment *one, size_t at, int value) {
    set(one, at, value >> 8);
    set(one, at + 1, value);
}

static void insert(segments *into, int at, segment one) {
    if (into->count == MAX_SEGMENTS) return;
    memmove(into->all + at + 1, into->all + at, (size_t)(into->count - at) * sizeof *into->all);
    into->all[at] = one;
    into->count++;
}

static int draw_place(const segments *from) { return 1 + (int)draw((uint64_t)from->count); }

/* Makes a segment of these bytes, and puts it anywhere behind the first. */
static void insert_bytes(segments *into, const uint8_t *data, size_t size) {
    if (into->used + size > ARENA) return;
    uint8_t *copy = memcpy(into->arena + into->used, data, size);
    into->used += size;
    segment one = {.data = copy, .size = size};
    const int at = draw_place(into);
    if (at <= into->count) insert(into, at, one);
}

/* Gives a segment another body, in memory of its own; it loses what was behind the body only if it is no scan. */
static void replace_body(segments *of, segment *one, const uint8_t *body, size_t size) {
    const size_t behind = one->size - 4 - one->body_size;
    if (size > 65533 || of->used + 4 + size + behind > ARENA) return;
    uint8_t *data = of->arena + of->used;
    of->used += 4 + size + behind;
    data[0] = 0xFF;
    data[1] = (uint8_t)one->marker;
    data[2] = (uint8_t)((size + 2) >> 8);
    data[3] = (uint8_t)(size + 2);
    memmove(data + 4, body, size);
    memcpy(data + 4 + size, one->body + one->body_size, behind);
    *one = (segment){.marker = one->marker, .data = data, .body = data + 4, .size = 4 + size + behind};
    one->body_size = size;
}

#define ONE_OF(list) (list)[draw(sizeof(list) / sizeof *(list))]

static void change_frame(segments *of) {
    static const int sides[] = {0, 1, 2, 7, 8, 9, 16, 17, 255, 256, 4095, 65500, 65501, 65535};
    static const int sampling[] = {0x11, 0x21, 0x12, 0x22, 0x31, 0x13, 0x41, 0x14, 0x42, 0x24, 0x44, 0x33, 0, 0x51};
    static const int counts[] = {0, 1, 2, 3, 4, 5, 255};
    static const int kinds[] = {0xC0, 0xC1, 0xC2, 0xC3, 0xC5, 0xC9, 0xCA};
    static const int ids[] = {0, 1, 2, 3, 4, 'R', 'G', 'B', 255};
    static const int precisions[] = {0, 1, 7, 9, 12, 16, 255};
    segment *one = pick_if(of, is_frame);
    if (one == NULL || one->body_size < 6) return;
    const size_t component = 6 + 3 * draw(4);
    switch (draw(8)) {
        case 0:
        case 1: {
            const size_t at = 1 + 2 * draw(2);
            const int before = one->body[at] << 8 | one->body[at + 1];
            set_16(one, at, draw(2) ? ONE_OF(sides) : before + (int)draw(41) - 20);
            break;
        }
        case 2:
        case 3:
            set(one, component + 1, ONE_OF(sampling));
            break;
        case 4:
            if (draw(2)) {
                set(one, 5, ONE_OF(counts));
            } else { /* as many components as it says */
                uint8_t body[6 + 3 * 255];
                const int count = ONE_OF(counts);
                memcpy(body, one->body, 6);
                body[5] = (uint8_t)count;
                for (int i = 0; i < 3 * count; i++)
                    body[6 + i] = one->body_size > 6 ? one->body[6 + (size_t)i % (one->body_size - 6)] : 1;
                replace_body(of, one, body, 6 + 3 * (size_t)count);
            }
            break;
        case 5:
            one->marker = one->data[1] = (uint8_t)ONE_OF(kinds);
            break;
        case 6:
            set(one, component + 2 * draw(2), ONE_OF(ids));
            break;
        default:
            set(one, 0, ONE_OF(precisions));
    }
}

static void change_huffman(segments *of) {
    segment *one = pick(of, DHT);
    if (one == NULL) return;
    const size_t at = draw(2) ? draw(17) : draw(one->body_size);
    if (at >= one->body_size) return;
    static const int values[] = {0, 1, 2, 16, 255};
    set(one, at, draw(2) ? ONE_OF(values) : draw(2) ? one->body[at] + 1 - 2 * (int)draw(2) : (int)draw(256));
}

static void change_quantization(segments *of) {
    segment *one = pick(of, DQT);
    if (one == NULL) return;
    static const int values[] = {0, 1, 2, 127, 128, 255}, heads[] = {0x10, 0x11, 1, 2, 3, 4, 0x20, 0};
    if (draw(3) != 0) {
        for (uint64_t i = 0, count = 1 + draw(4); i < count; i++) set(one, 1 + draw(65), ONE_OF(values));
    } else if (draw(2)) {
        set(one, 0, ONE_OF(heads));
    } else { /* 16 bits a value, large ones */
        uint8_t body[129];
        body[0] = one->body[0] | 0x10;
        for (int i = 1; i < 129; i++) body[i] = (uint8_t)draw(256);
        replace_body(of, one, body, sizeof body);
    }
}

static void change_interval(segments *of) {
    static const int intervals[] = {0, 1, 2, 3, 5, 8, 100, 65535};
    segment *one = pick(of, DRI);
    const int interval = ONE_OF(intervals);
    if (one != NULL && draw(3) != 0) {
        set_16(one, 0, interval);
    } else {
        const uint8_t data[] = {0xFF, DRI, 0, 4, (uint8_t)(interval >> 8), (uint8_t)interval};
        insert_bytes(of, data, sizeof data);
    }
}

static void change_adobe(segments *of) {
    segment *one = pick(of, APP14);
    if (one != NULL && draw(3) != 0) {
        set(one, draw(2) ? 11 : draw(12), (int)draw(4));
    } else {
        const uint8_t data[] = {0xFF, APP14, 0, 14, 'A', 'd', 'o', 'b', 'e', 0, 100, 0, 0, 0, 0, (uint8_t)draw(4)};
        insert_bytes(of, data, sizeof data);
    }
}

static void change_scan_header(segments *of) {
    static const int values[] = {0, 1, 2, 3, 4, 5, 10, 13, 62, 63, 64, 255, 0x10, 0x21, 0x32, 0x12, 0xD0, 0x11, 0x33};
    segment *one = pick(of, SOS);
    if (one == NULL) return;
    const size_t end = one->body_size;
    set(one, draw(2) && end > 3 ? end - 1 - draw(3) : draw(end), ONE_OF(values));
}

static void change_scan(segments *of) {
    segment *one = pick(of, SOS);
    if (one == NULL) return;
    uint8_t *scan = one->body + one->body_size;
    const size_t size = one->size - 4 - one->body_size;
    if (size < 3) return;
    size_t at = draw(size - 1);
    switch (draw(5)) {
        case 0:
            for (uint64_t i = 0, count = 1 + draw(4); i < count; i++) scan[draw(size)] ^= (uint8_t)(1 << draw(8));
            break;
        case 1: /* a marker, or a fill byte, anywhere */
            scan[at] = 0xFF;
            scan[at + 1] = (uint8_t)(draw(4) == 0 ? 0xFF : draw(2) ? RST0 + draw(8) : 0xC0 + draw(64));
            break;
        case 2: /* another number for a restart marker */
            for (size_t i = at; i + 1 < size; i++)
                if (scan[i] == 0xFF && scan[i + 1] >= RST0 && scan[i + 1] <= RST7) {
                    scan[i + 1] = (uint8_t)(RST0 + draw(8));
                    break;
                }
            break;
        case 3: /* the end is missing */
            one->size -= draw(size);
            break;
        default: /* bytes are missing */ {
            size_t count = 1 + draw(draw(2) ? 3 : size - at);
            if (count > size - at) count = size - at;
            memmove(scan + at, scan + at + count, size - at - count);
            one->size -= count;
        }
    }
}

static void move_segments(segments *of) {
    if (of->count < 3) return;
    const int i = 1 + (int)draw((uint64_t)of->count - 1), j = 1 + (int)draw((uint64_t)of->count - 1);
    const segment one = of->all[i];
    switch (draw(4)) {
        case 0:
            of->all[i] = of->all[j];
            of->all[j] = one;
            break;
        case 1:
            insert(of, j, one);
            break;
        case 2:
            memmove(of->all + i, of->all + i + 1, (size_t)(of->count - i - 1) * sizeof one);
            of->count--;
            break;
        default: { /* two scans change places */
            segment *first = pick(of, SOS), *second = pick(of, SOS);
            if (first == NULL) return;
            const segment kept = *first;
            *first = *second;
            *second = kept;
        }
    }
}

static void put_between(segments *of) {
    uint8_t data[8] = {0xFF, (uint8_t)(RST0 + draw(8)), 0xFF, 0, 0, 0xFF, TEM, 0xFF};
    const size_t from = draw(8);
    if (draw(4) == 0) data[from] = (uint8_t)draw(256);
    insert_bytes(of, data + from, 1 + draw(8 - from));
}

static void shorten_segment(segments *of) {
    segment *one = &of->all[draw((uint64_t)of->count)];
    if (one->body_size == 0) return;
    const size_t sizes[] = {0, one->body_size - 1, one->body_size / 2};
    switch (draw(3)) {
        case 0: { /* another length with the same bytes */
            const int lengths[] = {0, 1, 2, 3, (int)one->body_size + 1, (int)one->body_size + 3, 65535};
            const int length = ONE_OF(lengths);
            one->data[2] = (uint8_t)(length >> 8);
            one->data[3] = (uint8_t)length;
            break;
        }
        default:
            replace_body(of, one, one->body, ONE_OF(sizes));
    }
}

static void drop_end(segments *of) {
    for (int i = of->count - 1; i > 0; i--)
        if (of->all[i].marker == EOI) of->all[i].size = draw(2);
}

/* Makes one change. */
static void change_segments(segments *of) {
    static void (*const changes[])(segments *) = {
        change_frame,       change_frame, change_frame,  change_huffman, change_quantization, change_interval,
        change_adobe,       change_scan,  move_segments, put_between,    shorten_segment,     change_scan_header,
        change_scan_header, change_scan,  move_segments, drop_end,
    };
    ONE_OF(changes)(of);
}

#endif
