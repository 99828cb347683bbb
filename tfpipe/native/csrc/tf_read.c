/* The operation TfpipeRead for TensorFlow: records of TFRecord files, wherever they lie. */

#define _FILE_OFFSET_BITS 64

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "parallel.h"
#include "read_records.h"
#include "tf_api.h"
#include "tf_operations.h"

enum { MAX_AT_ONCE_BYTES = 1 << 20 }; /* the bytes up to which adjacent records are read at once */

/* Where a record lies, as the third input says it: its file's number, its first byte, and the byte behind it. */
typedef struct {
    int64_t file, begin, end;
} frame;

/* What the attributes of an operation say.

   threads  the most threads that wait for storage
   ahead    the bytes that storage is asked for from a record on that it has to send: the next ones are wanted soon */
typedef struct {
    int32_t threads;
    int64_t ahead;
} operation;

/* A file that is open while the operation runs. It has no bytes if it cannot be opened. */
typedef struct {
    int64_t file, num_bytes;
    int descriptor;
} open_file;

/* Adjacent records that are read at once: which of the records. */
typedef struct {
    size_t first, count;
    const open_file *from;
} run;

/* What is read, and where it goes.

   lacks_memory  whether a run was not read for lack of memory: set by any thread, read when all have ended */
typedef struct {
    const frame *frames;
    run *runs;
    TF_TString *payloads;
    unsigned char *whole;
    int lacks_memory;
} batch;

static void *create(TF_OpKernelConstruction *context) {
    TF_Status *status = TF_NewStatus();
    operation *self = calloc(1, sizeof *self);
    if (self == NULL) {
        TF_SetStatus(status, TF_RESOURCE_EXHAUSTED, "TfpipeRead got no memory.");
    } else {
        TF_OpKernelConstruction_GetAttrInt32(context, "threads", &self->threads, status);
        if (TF_GetCode(status) == TF_OK) TF_OpKernelConstruction_GetAttrInt64(context, "ahead", &self->ahead, status);
    }
    if (TF_GetCode(status) != TF_OK) TF_OpKernelConstruction_Failure(context, status);
    TF_DeleteStatus(status);
    return self;
}

static tfpipe_span find_span(const batch *all, const run *each) {
    const frame *frames = all->frames + each->first;
    const int64_t begin = frames[0].begin;
    return (tfpipe_span){each->from->descriptor, begin, frames[each->count - 1].end - begin, 0};
}

/* Checks the records of a run that is read, and hands over those that are whole. The others stay empty. */
static void hand_over(const batch *all, const run *each, const uint8_t *bytes) {
    const frame *frames = all->frames + each->first;
    for (size_t k = 0; k < each->count; k++) {
        const uint8_t *start = bytes + (frames[k].begin - frames[0].begin);
        const size_t size = (size_t)(frames[k].end - frames[k].begin);
        if (!tfpipe_is_whole(start, size)) continue;
        TF_StringCopy(all->payloads + each->first + k, (const char *)start + TFPIPE_HEADER_BYTES,
                      size - TFPIPE_HEADER_BYTES - TFPIPE_FOOTER_BYTES);
        all->whole[each->first + k] = 1;
    }
}

/* Reads the runs that lie in the page cache, and asks storage for the others.

   All of them are read into the same memory, so that it stays in the processor's cache.

   Returns the number of the others, which become the first of the runs; -1 if there is no memory. */
static int64_t read_cached_runs(const batch *all, size_t num_runs, size_t ahead) {
    size_t num_late = 0, largest = 0;
    for (size_t k = 0; k < num_runs; k++) {
        const tfpipe_span span = find_span(all, all->runs + k);
        if ((size_t)span.size > largest) largest = (size_t)span.size;
    }
    uint8_t *buffer = malloc(largest + 1);
    if (buffer == NULL) return -1;
    for (size_t k = 0; k < num_runs; k++) {
        const run each = all->runs[k];
        const tfpipe_span span = find_span(all, &each);
        if (tfpipe_read_cached(&span, buffer, ahead) < (size_t)span.size) {
            all->runs[num_late++] = each;
        } else {
            hand_over(all, &each, buffer);
        }
    }
    free(buffer);
    return (int64_t)num_late;
}

static void read_late_run(void *context, size_t item) {
    batch *all = context;
    const tfpipe_span span = find_span(all, all->runs + item);
    uint8_t *buffer = malloc((size_t)span.size + 1);
    if (buffer == NULL) {
        __atomic_store_n(&all->lacks_memory, 1, __ATOMIC_RELAXED);
        return;
    }
    tfpipe_read_rest(&span, buffer, 0);
    hand_over(all, all->runs + item, buffer);
    free(buffer);
}

/* Returns the open file of a number. `files` is a table of `size` places, more than there are files. */
static open_file *find_file(open_file *files, size_t size, int64_t file, const TF_TString *paths) {
    size_t place = (size_t)file % size;
    while (files[place].file != file && files[place].file >= 0) place = (place + 1) % size;
    if (files[place].file < 0) {
        /* A file name in TensorFlow's string ends with a zero. */
        const int descriptor = open(TF_StringGetDataPointer(paths + file), O_RDONLY | O_CLOEXEC);
        struct stat facts;
        const int is_known = descriptor >= 0 && fstat(descriptor, &facts) == 0;
        files[place] = (open_file){file, is_known ? facts.st_size : 0, descriptor};
    }
    return files + place;
}

/* Cuts the records into runs of adjacent ones, without those behind the end of their file. Returns the number of runs.

   A length that an index says is not trusted: no memory is asked for what is not there. */
static size_t cut_runs(const frame *frames, size_t count, open_file *files, const TF_TString *paths, run *runs) {
    size_t num_runs = 0;
    for (size_t k = 0; k < count; k++) {
        const open_file *from = find_file(files, 2 * count, frames[k].file, paths);
        run *last = runs + num_runs - (num_runs > 0);
        if (frames[k].end > from->num_bytes) continue;
        if (num_runs > 0 && last->first + last->count == k && last->from == from &&
            frames[k].begin == frames[k - 1].end && frames[k].end - frames[last->first].begin <= MAX_AT_ONCE_BYTES) {
            last->count++;
        } else {
            runs[num_runs++] = (run){.first = k, .count = 1, .from = from};
        }
    }
    return num_runs;
}

static int are_places(const frame *frames, size_t count, int64_t num_files) {
    for (size_t k = 0; k < count; k++)
        if (frames[k].file < 0 || frames[k].file >= num_files || frames[k].begin < 0 ||
            frames[k].end < frames[k].begin)
            return 0;
    return 1;
}

static void read_all(const operation *self, batch *all, size_t count, const TF_TString *paths, TF_Status *status) {
    open_file *files = malloc((2 * count + 1) * sizeof *files);
    all->runs = malloc((count + 1) * sizeof *all->runs);
    if (files != NULL && all->runs != NULL) {
        for (size_t k = 0; k < 2 * count; k++) files[k] = (open_file){-1, 0, -1};
        const size_t num_runs = cut_runs(all->frames, count, files, paths, all->runs);
        const int64_t num_late = read_cached_runs(all, num_runs, (size_t)self->ahead);
        if (num_late < 0) all->lacks_memory = 1;
        if (num_late > 0)
            tfpipe_run_parallel(&tfpipe_waiting, read_late_run, all, (size_t)num_late, self->threads);
        for (size_t k = 0; k < 2 * count; k++)
            if (files[k].descriptor >= 0) close(files[k].descriptor);
    }
    if (files == NULL || all->runs == NULL || all->lacks_memory)
        TF_SetStatus(status, TF_RESOURCE_EXHAUSTED, "TfpipeRead got no memory.");
    free(files);
    free(all->runs);
}

static void read_records(const void *attributes, TF_OpKernelContext *context, TF_Tensor **inputs, TF_Status *status) {
    if (TF_NumDims(inputs[0]) != 1 || TF_NumDims(inputs[1]) != 2 || TF_Dim(inputs[1], 1) != 3 ||
        !are_places(TF_TensorData(inputs[1]), (size_t)TF_Dim(inputs[1], 0), TF_Dim(inputs[0], 0))) {
        TF_SetStatus(status, TF_INVALID_ARGUMENT,
                     "TfpipeRead needs the number of a file, a first byte and the byte behind it for each record.");
        return;
    }
    const int64_t count = TF_Dim(inputs[1], 0);
    TF_Tensor *payloads =
        TF_AllocateOutput(context, 0, TF_STRING, &count, 1, (size_t)count * sizeof(TF_TString), status);
    if (TF_GetCode(status) != TF_OK) return;
    TF_Tensor *whole = TF_AllocateOutput(context, 1, TF_BOOL, &count, 1, (size_t)count, status);
    if (TF_GetCode(status) == TF_OK) {
        batch all = {.frames = TF_TensorData(inputs[1]),
                     .payloads = TF_TensorData(payloads),
                     .whole = TF_TensorData(whole)};
        for (int64_t k = 0; k < count; k++) all.whole[k] = 0;
        read_all(attributes, &all, (size_t)count, TF_TensorData(inputs[0]), status);
        TF_DeleteTensor(whole);
    }
    TF_DeleteTensor(payloads);
}

static void compute(void *self, TF_OpKernelContext *context) { tfpipe_compute(self, context, 2, read_records); }

void tfpipe_register_read(TF_Status *status) {
    TF_OpDefinitionBuilder *builder = TF_NewOpDefinitionBuilder("TfpipeRead");
    TF_OpDefinitionBuilderAddInput(builder, "paths: string");
    TF_OpDefinitionBuilderAddInput(builder, "places: int64");
    TF_OpDefinitionBuilderAddOutput(builder, "payloads: string");
    TF_OpDefinitionBuilderAddOutput(builder, "whole: bool");
    TF_OpDefinitionBuilderAddAttr(builder, "threads: int >= 1");
    TF_OpDefinitionBuilderAddAttr(builder, "ahead: int >= 0");
    tfpipe_register(builder, "TfpipeRead", create, compute, status);
}
