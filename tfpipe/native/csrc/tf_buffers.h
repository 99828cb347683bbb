/* Memory for large results of operations, which is used again.

   The C library gives each block of more than 32 MB back to the system as soon as it is freed, and asks for it anew. A
   batch of 64 images of 224 x 224 in float32 has 38 MB, and the system then clears each of its pages: 80 us an image. */

#ifndef TFPIPE_TF_BUFFERS_H
#define TFPIPE_TF_BUFFERS_H

#include "tf_api.h"

/* Makes an output of an operation, as TF_AllocateOutput does. A large one lies in memory that an earlier one has left. */
TF_Tensor *tfpipe_make_output(TF_OpKernelContext *context, int index, TF_DataType dtype, const int64_t *dims, int num_dims,
                              size_t bytes, TF_Status *status);

#endif
