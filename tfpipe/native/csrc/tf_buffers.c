#include "tf_buffers.h"

#include <pthread.h>
#include <stdlib.h>

enum {
    ALIGNMENT = 64,        /* what TensorFlow asks for: it copies what is aligned less */
    LEAST_BYTES = 4 << 20, /* smaller blocks are used again by the C library */
    SLOTS = 4,             /* more batches are rarely free at once */
};

/* Blocks that nobody uses, the longest unused first. */
static struct {
    void *memory;
    size_t bytes;
} unused[SLOTS];
static int num_unused;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Takes a block out of the unused ones. The caller has the lock. */
static void *take(int index) {
    void *memory = unused[index].memory;
    num_unused--;
    for (int i = index; i < num_unused; i++) unused[i] = unused[i + 1];
    return memory;
}

static void *get_block(size_t bytes) {
    void *memory = NULL;
    if (pthread_mutex_trylock(&lock) == 0) { /* in a forked process another thread may have it for ever */
        for (int i = num_unused - 1; i >= 0 && memory == NULL; i--)
            if (unused[i].bytes == bytes) memory = take(i);
        pthread_mutex_unlock(&lock);
    }
    if (memory != NULL) return memory;
    return aligned_alloc(ALIGNMENT, (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
}

/* Keeps a block that TensorFlow has no use for any more, in place of the one that is unused for longest. */
static void keep_block(void *memory, size_t bytes, void *none) {
    void *given_up = memory;
    (void)none;
    if (pthread_mutex_trylock(&lock) == 0) {
        given_up = num_unused == SLOTS ? take(0) : NULL;
        unused[num_unused].memory = memory;
        unused[num_unused++].bytes = bytes;
        pthread_mutex_unlock(&lock);
    }
    free(given_up);
}

TF_Tensor *tfpipe_make_output(TF_OpKernelContext *context, int index, TF_DataType dtype, const int64_t *dims, int num_dims,
                              size_t bytes, TF_Status *status) {
    if (bytes < LEAST_BYTES) return TF_AllocateOutput(context, index, dtype, dims, num_dims, bytes, status);
    void *memory = get_block(bytes);
    if (memory == NULL) {
        TF_SetStatus(status, TF_RESOURCE_EXHAUSTED, "There is no memory for a batch.");
        return NULL;
    }
    TF_Tensor *tensor = TF_NewTensor(dtype, dims, num_dims, memory, bytes, keep_block, NULL);
    if (tensor == NULL) {
        TF_SetStatus(status, TF_RESOURCE_EXHAUSTED, "There is no memory for a batch.");
        return NULL;
    }
    TF_SetOutput(context, index, tensor, status);
    if (TF_GetCode(status) == TF_OK) return tensor;
    TF_DeleteTensor(tensor); /* the block goes back */
    return NULL;
}
