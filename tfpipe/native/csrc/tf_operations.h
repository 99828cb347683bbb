/* What the operations for TensorFlow have in common. */

#ifndef TFPIPE_TF_OPERATIONS_H
#define TFPIPE_TF_OPERATIONS_H

#include "tf_api.h"

/* Computes an operation from what its `create` made of the attributes. An error goes to `status`. */
typedef void tfpipe_work(const void *attributes, TF_OpKernelContext *context, TF_Tensor **inputs, TF_Status *status);

/* Calls `work` with the first `count` inputs, at most TFPIPE_MAX_INPUTS, and reports its error to TensorFlow. */
void tfpipe_compute(const void *attributes, TF_OpKernelContext *context, int count, tfpipe_work *work);

enum { TFPIPE_MAX_INPUTS = 3 };

/* Reads an attribute that must have `count` numbers, unless there was an error before. */
void tfpipe_read_floats(TF_OpKernelConstruction *context, const char *name, float *values, int count,
                        TF_Status *status);

/* Registers an operation and its kernel. What `create` returns is freed by `free`. */
void tfpipe_register(TF_OpDefinitionBuilder *builder, const char *name, void *(*create)(TF_OpKernelConstruction *),
                     void (*compute)(void *, TF_OpKernelContext *), TF_Status *status);

void tfpipe_register_decode(TF_Status *status);
void tfpipe_register_crops(TF_Status *status);
void tfpipe_register_read(TF_Status *status);

#endif
