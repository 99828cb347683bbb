/* Asks for records at true and lying places of whole, damaged, shrinking and missing files: see fuzz.h.

   run.sh reads SECONDS SEED

   What the page cache holds is drawn. */

#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "tfpipe_native.h"
#include "fuzz.h"

enum {
    MAX_FILES = 4,
    MAX_RECORDS = 6, /* of a file */
    MAX_PLACES = 40,
    FRAME = 16,
    SMALL = 200,          /* bytes of most payloads */
    LARGE = 400000,       /* of few */
    MOST_BYTES = 1 << 22, /* of a block */
};

/* A file, and what it held before it shrank. */
typedef struct {
    char path[64];
    uint8_t *data;
    size_t size;
    int exists, shrank;
    size_t ends[MAX_RECORDS + 1]; /* where records begin, and the last one ends */
    size_t num_records;
} record_file;

/* Where a record is looked for. */
typedef struct {
    int64_t file, begin, end;
} place;

static record_file files[MAX_FILES];
static uint64_t records_found;

/* preadv2, as if any part of what is asked for lay in the page cache. A file may shrink just before. */
long __wrap_syscall(long number, ...) {
    va_list arguments;
    va_start(arguments, number);
    const int descriptor = va_arg(arguments, int);
    const struct iovec *piece = va_arg(arguments, const struct iovec *);
    (void)va_arg(arguments, int);
    const off_t offset = va_arg(arguments, off_t);
    va_end(arguments);
    if (draw(20) == 0) {
        record_file *file = &files[draw(MAX_FILES)];
        if (file->exists && truncate(file->path, (off_t)draw(file->size + 1)) == 0) file->shrank = 1;
    }
    switch (draw(4)) {
        case 0:
            return -1;
        case 1:
            return pread(descriptor, piece->iov_base, draw(piece->iov_len + 1), offset);
        default:
            return pread(descriptor, piece->iov_base, piece->iov_len, offset);
    }
}

static void put_number(uint8_t *to, uint64_t value, int num_bytes) {
    for (int k = 0; k < num_bytes; k++) to[k] = (uint8_t)(value >> 8 * k);
}

static size_t draw_size(void) { return draw(60) == 0 ? draw(LARGE) : draw(SMALL); }

/* Fills a file with records, and damages some. A length that lies has the right checksum. */
static void write_file(record_file *file) {
    size_t sizes[MAX_RECORDS];
    file->num_records = draw(MAX_RECORDS + 1);
    file->size = file->shrank = 0;
    file->ends[0] = 0;
    for (size_t k = 0; k < file->num_records; k++) {
        sizes[k] = draw_size();
        file->ends[k + 1] = file->size += sizes[k] + FRAME;
    }
    file->data = calloc(file->size + 1, 1);
    if (file->data == NULL) exit(2);
    for (size_t k = 0; k < file->num_records; k++) {
        uint8_t *frame = file->data + file->ends[k];
        uint64_t length = sizes[k];
        for (size_t byte = 0; byte < sizes[k]; byte += 8) frame[12 + byte] = (uint8_t)draw(256);
        if (draw(12) == 0) length = draw(3) == 0 ? draw(UINT64_MAX) : draw(2 * SMALL);
        put_number(frame, length, 8);
        put_number(frame + 8, tfpipe_masked_crc32c(frame, 8, 0), 4);
        put_number(frame + 12 + sizes[k], tfpipe_masked_crc32c(frame + 12, sizes[k], 0), 4);
        if (draw(8) == 0) frame[draw(sizes[k] + FRAME)] ^= (uint8_t)(1 << draw(8));
    }
    if (draw(6) == 0) file->size = draw(file->size + 1);
    file->exists = draw(10) != 0;
    unlink(file->path);
    if (!file->exists) return;
    const int descriptor = open(file->path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (descriptor < 0 || write(descriptor, file->data, file->size) != (ssize_t)file->size) exit(2);
    close(descriptor);
}

/* Draws where records are looked for: mostly where one is, next to the one before; else anywhere. */
static size_t draw_places(place *places) {
    const size_t count = draw(MAX_PLACES + 1);
    for (size_t k = 0; k < count; k++) {
        place *to = &places[k];
        const place *before = k > 0 ? to - 1 : NULL;
        const record_file *file = &files[before != NULL && draw(4) != 0 ? (size_t)before->file % MAX_FILES : draw(MAX_FILES)];
        const size_t record = file->num_records > 0 ? draw(file->num_records) : 0;
        to->file = file - files;
        to->begin = (int64_t)file->ends[record];
        to->end = file->num_records > 0 ? (int64_t)file->ends[record + 1] : FRAME;
        if (before != NULL && before->file == to->file && draw(4) != 0)
            for (size_t next = 0; next < file->num_records; next++)
                if ((int64_t)file->ends[next] == before->end) {
                    to->begin = before->end;
                    to->end = (int64_t)file->ends[next + 1];
                }
        if (draw(10) == 0) to->begin = (int64_t)draw((uint64_t)to->end + 1);
        if (draw(10) == 0) to->end = to->begin + (int64_t)draw(2 * SMALL);
        if (draw(30) == 0) to->file = (int64_t)draw(MAX_FILES);
    }
    return count;
}

/* Says whether a record is at a place, by the simplest code. */
static int holds_record(const uint8_t *frame, size_t size) {
    uint8_t length[8], checksum[4];
    if (size < FRAME) return 0;
    put_number(length, size - FRAME, 8);
    put_number(checksum, tfpipe_masked_crc32c(length, 8, 1), 4);
    if (memcmp(frame, length, 8) != 0 || memcmp(frame + 8, checksum, 4) != 0) return 0;
    put_number(checksum, tfpipe_masked_crc32c(frame + 12, size - FRAME, 1), 4);
    return memcmp(frame + size - 4, checksum, 4) == 0;
}

static int has_record(const place *at) {
    const record_file *file = &files[at->file];
    if (!file->exists || at->end > (int64_t)file->size) return 0;
    return holds_record(file->data + at->begin, (size_t)(at->end - at->begin));
}

/* Reads places as the engine does: one span for each, one behind the other. Some spans lie. */
static void read_block(const place *places, size_t count) {
    tfpipe_span spans[MAX_PLACES];
    tfpipe_place frames[MAX_PLACES];
    int descriptors[MAX_FILES], lies = 0;
    uint8_t whole[MAX_PLACES];
    size_t used = 0;
    for (int k = 0; k < MAX_FILES; k++) descriptors[k] = open(files[k].path, O_RDONLY);
    for (size_t k = 0; k < count; k++) {
        const int64_t size = places[k].end - places[k].begin;
        const int fits = used + (size_t)size < MOST_BYTES;
        spans[k] = (tfpipe_span){fits ? descriptors[places[k].file] : -1, places[k].begin, size, (int64_t)used};
        if (!fits) spans[k].offset = spans[k].size = 0;
        frames[k] = (tfpipe_place){spans[k].at, spans[k].size};
        used += (size_t)spans[k].size;
    }
    if (count > 0 && draw(4) == 0) {
        static const int64_t telling[] = {-1, INT64_MIN, INT64_MAX, INT64_MAX - 16, 1000000000};
        tfpipe_span *span = &spans[draw(count)];
        tfpipe_place *frame = &frames[draw(count)];
        int64_t *fields[] = {&span->descriptor, &span->offset, &span->size, &span->at, &frame->at, &frame->size};
        *fields[draw(6)] = draw(3) ? (int64_t)draw(used + 2) : telling[draw(5)];
        lies = 1;
    }
    uint8_t *block = malloc(used + !used);
    if (block == NULL) exit(2);
    memset(block, 0xA5, used);
    const int code = tfpipe_read_records(spans, count, frames, count, block, used, whole);
    demand(code == TFPIPE_OK || (code == TFPIPE_BAD_REQUEST && lies), "Places in the block are not taken.");
    for (size_t k = 0; k < count && code == TFPIPE_OK; k++) {
        const int wanted = holds_record(block + frames[k].at, (size_t)frames[k].size);
        demand(whole[k] == wanted, "A record in the block is wrongly checked.");
        if (lies || spans[k].descriptor < 0) continue;
        /* What a file lacks is read as zeros, and may have been zeros. */
        const int lacks_bytes = places[k].end > (int64_t)files[places[k].file].size;
        demand(whole[k] <= has_record(&places[k]) || lacks_bytes, "A record that is none is read.");
        demand(whole[k] >= has_record(&places[k]) || files[places[k].file].shrank, "A record is not read.");
        records_found += whole[k];
    }
    for (int k = 0; k < MAX_FILES; k++)
        if (descriptors[k] >= 0) close(descriptors[k]);
    free(block);
}

static void run_case(void) {
    place places[MAX_PLACES];
    for (int k = 0; k < MAX_FILES; k++) write_file(&files[k]);
    const size_t count = draw_places(places);
    read_block(places, count);
    for (int k = 0; k < MAX_FILES; k++) free(files[k].data);
}

int main(int argc, char **argv) {
    char folder[] = "/tmp/tfpipe-fuzz-XXXXXX";
    if (argc != 3 || mkdtemp(folder) == NULL) {
        fprintf(stderr, "usage: reads SECONDS SEED\n");
        return 2;
    }
    for (int k = 0; k < MAX_FILES; k++) snprintf(files[k].path, sizeof files[k].path, "%s/%d.tfrecord", folder, k);
    const uint64_t cases = run_cases(argv[1], argv[2], run_case);
    print_end(cases, argv[2], records_found, "records");
    for (int k = 0; k < MAX_FILES; k++) unlink(files[k].path);
    rmdir(folder);
    return 0;
}
