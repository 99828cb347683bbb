/* Records of TFRecord files, read into one block of memory and checked. */

#define _GNU_SOURCE
#define _FILE_OFFSET_BITS 64

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif

#include "parallel.h"
#include "tfpipe_native.h"

/* The system call itself: the function of this name would ask for a C library of 2017. */
#if defined(SYS_preadv2) && defined(RWF_NOWAIT) && defined(__LP64__)
#define HAS_NOWAIT 1
#else
#define HAS_NOWAIT 0
#endif

/* LENGTH_BYTES     the length of a payload, with which a record begins
   HEADER_BYTES     the length and its checksum
   FOOTER_BYTES     the checksum of the payload, with which a record ends
   AT_ONCE          the spans that storage is asked for before one of them is waited for
   WAITING_THREADS  the threads that wait for storage, of all calls together */
enum { LENGTH_BYTES = 8, HEADER_BYTES = 12, FOOTER_BYTES = 4, AT_ONCE = 256, WAITING_THREADS = 64 };

/* Spans that the page cache does not have.

   done   the bytes of each that are read
   which  the numbers of those that lack bytes */
typedef struct {
    const tfpipe_span *spans;
    uint8_t *block;
    size_t done[AT_ONCE], which[AT_ONCE];
} late_spans;

static uint64_t load(const uint8_t *data, int num_bytes) {
    uint64_t value = 0;
    for (int place = 0; place < num_bytes; place++) value |= (uint64_t)data[place] << 8 * place;
    return value;
}

static int fits(int64_t at, int64_t size, size_t block_size) {
    return at >= 0 && size >= 0 && (uint64_t)at <= block_size && (uint64_t)size <= block_size - (uint64_t)at;
}

/* Reads what lies in the page cache, and asks storage for the rest without waiting for it. Returns the bytes read. */
static size_t read_cached(const tfpipe_span *span, uint8_t *target) {
    const size_t size = (size_t)span->size;
    size_t done = 0;
#if HAS_NOWAIT
    const struct iovec piece = {target, size};
    const long count = syscall(SYS_preadv2, (int)span->descriptor, &piece, 1, span->offset, 0L, RWF_NOWAIT);
    if (count > 0) done = (size_t)count;
#else
    (void)target;
#endif
#ifdef POSIX_FADV_WILLNEED
    if (done < size)
        posix_fadvise((int)span->descriptor, span->offset + (off_t)done, (off_t)(size - done), POSIX_FADV_WILLNEED);
#else
    (void)size;
#endif
    return done;
}

/* Reads the rest of a span, of which `done` bytes are read. What cannot be read becomes zeros, which no checksum of a
   header fits. */
static void read_rest(const tfpipe_span *span, uint8_t *target, size_t done) {
    const size_t size = (size_t)span->size;
    while (done < size) {
        const ssize_t count = pread((int)span->descriptor, target + done, size - done, span->offset + (off_t)done);
        if (count > 0) {
            done += (size_t)count;
        } else if (count == 0 || errno != EINTR) {
            memset(target + done, 0, size - done);
            return;
        }
    }
}

/* Returns whether a record with its framing, of `size` bytes, has that length and the right checksums. */
static int is_whole(const uint8_t *frame, size_t size) {
    if (size < HEADER_BYTES + FOOTER_BYTES) return 0;
    const size_t length = size - HEADER_BYTES - FOOTER_BYTES;
    return load(frame, LENGTH_BYTES) == length &&
           load(frame + LENGTH_BYTES, 4) == tfpipe_masked_crc32c(frame, LENGTH_BYTES, 0) &&
           load(frame + HEADER_BYTES + length, 4) == tfpipe_masked_crc32c(frame + HEADER_BYTES, length, 0);
}

static void read_late_span(void *context, size_t item) {
    const late_spans *late = context;
    const size_t k = late->which[item];
    read_rest(late->spans + k, late->block + late->spans[k].at, late->done[k]);
}

/* Reads up to AT_ONCE spans. */
static void read_spans(const tfpipe_span *spans, size_t count, uint8_t *block) {
    late_spans late = {.spans = spans, .block = block};
    size_t num_late = 0;
    for (size_t k = 0; k < count; k++) {
        late.done[k] = read_cached(&spans[k], block + spans[k].at);
        if (late.done[k] < (size_t)spans[k].size) late.which[num_late++] = k;
    }
    tfpipe_run_parallel(&tfpipe_waiting, read_late_span, &late, num_late, WAITING_THREADS);
}

int tfpipe_read_records(const tfpipe_span *spans, size_t num_spans, const tfpipe_place *frames, size_t num_frames,
                        uint8_t *block, size_t block_size, uint8_t *whole) {
    for (size_t k = 0; k < num_spans; k++)
        if (spans[k].offset < 0 || !fits(spans[k].at, spans[k].size, block_size)) return TFPIPE_BAD_REQUEST;
    for (size_t k = 0; k < num_frames; k++)
        if (!fits(frames[k].at, frames[k].size, block_size)) return TFPIPE_BAD_REQUEST;
    for (size_t first = 0; first < num_spans; first += AT_ONCE)
        read_spans(spans + first, num_spans - first < AT_ONCE ? num_spans - first : AT_ONCE, block);
    for (size_t k = 0; k < num_frames; k++) whole[k] = (uint8_t)is_whole(block + frames[k].at, (size_t)frames[k].size);
    return TFPIPE_OK;
}
