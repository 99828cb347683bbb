/* The operation TfpipeDecode for TensorFlow: tfpipe_decode on one record, or on all records of a batch.

   An image that is not decoded is no error of the operation: its result says so, and the caller asks another decoder. */

#include <stdlib.h>

#include "tf_api.h"
#include "tf_buffers.h"
#include "tf_operations.h"
#include "tfpipe_native.h"

/* What the attributes of an operation say.

   request    all but the box and the flip
   max_ratio  the largest reduction while decoding: 1, 2, 4 or 8
   threads    the threads that decode a batch */
typedef struct {
    tfpipe_request request;
    int32_t max_ratio, threads;
    TF_DataType dtype;
} operation;

static void *create(TF_OpKernelConstruction *context) {
    TF_Status *status = TF_NewStatus();
    operation *self = calloc(1, sizeof *self);
    unsigned char seeks = 0;
    if (self == NULL) {
        TF_SetStatus(status, TF_RESOURCE_EXHAUSTED, "TfpipeDecode got no memory.");
    } else {
        tfpipe_request *request = &self->request;
        TF_OpKernelConstruction_GetAttrInt32(context, "height", &request->out_height, status);
        if (TF_GetCode(status) == TF_OK)
            TF_OpKernelConstruction_GetAttrInt32(context, "width", &request->out_width, status);
        if (TF_GetCode(status) == TF_OK)
            TF_OpKernelConstruction_GetAttrInt32(context, "max_ratio", &self->max_ratio, status);
        if (TF_GetCode(status) == TF_OK)
            TF_OpKernelConstruction_GetAttrInt32(context, "threads", &self->threads, status);
        if (TF_GetCode(status) == TF_OK)
            TF_OpKernelConstruction_GetAttrInt64(context, "max_pixels", &request->max_pixels, status);
        if (TF_GetCode(status) == TF_OK) TF_OpKernelConstruction_GetAttrBool(context, "seeks", &seeks, status);
        if (TF_GetCode(status) == TF_OK) TF_OpKernelConstruction_GetAttrType(context, "dtype", &self->dtype, status);
        tfpipe_read_floats(context, "offset", request->offset, 3, status);
        tfpipe_read_floats(context, "factor", request->factor, 3, status);
        request->seeks = seeks;
        request->dtype = self->dtype == TF_UINT8   ? TFPIPE_UINT8
                         : self->dtype == TF_FLOAT ? TFPIPE_FLOAT32
                                                   : TFPIPE_BFLOAT16;
    }
    if (TF_GetCode(status) != TF_OK) TF_OpKernelConstruction_Failure(context, status);
    TF_DeleteStatus(status);
    return self;
}

static int lacks_memory(const int32_t *results, size_t count) {
    for (size_t k = 0; k < count; k++)
        if (results[k] == TFPIPE_NO_MEMORY) return 1;
    return 0;
}

static void decode_all(const operation *self, TF_Tensor **inputs, size_t count, TF_Tensor *images, int32_t *results,
                       TF_Status *status) {
    const TF_TString *strings = TF_TensorData(inputs[0]);
    tfpipe_bytes *encoded = calloc(count + 1, sizeof *encoded);
    if (encoded != NULL) {
        for (size_t k = 0; k < count; k++)
            encoded[k] = (tfpipe_bytes){(const uint8_t *)TF_StringGetDataPointer(strings + k),
                                        TF_StringGetSize(strings + k)};
        tfpipe_decode_batch(encoded, TF_TensorData(inputs[1]), TF_TensorData(inputs[2]), count, &self->request,
                            self->max_ratio, self->threads, NULL, TF_TensorData(images), results);
    }
    if (encoded == NULL || lacks_memory(results, count))
        TF_SetStatus(status, TF_RESOURCE_EXHAUSTED, "TfpipeDecode got no memory.");
    free(encoded);
}

static void decode(const void *attributes, TF_OpKernelContext *context, TF_Tensor **inputs, TF_Status *status) {
    const operation *self = attributes;
    const tfpipe_request *request = &self->request;
    const int dims = TF_NumDims(inputs[0]);
    const int64_t count = dims == 0 ? 1 : TF_Dim(inputs[0], 0);
    if (dims > 1 || TF_NumDims(inputs[1]) != dims + 1 || TF_Dim(inputs[1], dims) != 4 ||
        TF_NumDims(inputs[2]) != dims ||
        (dims == 1 && (TF_Dim(inputs[1], 0) != count || TF_Dim(inputs[2], 0) != count))) {
        TF_SetStatus(status, TF_INVALID_ARGUMENT, "TfpipeDecode needs a box of four numbers and a flip for each image.");
        return;
    }
    const int64_t shape[] = {count, request->out_height, request->out_width, 3};
    const size_t value_bytes = request->dtype == TFPIPE_UINT8 ? 1 : request->dtype == TFPIPE_FLOAT32 ? 4 : 2;
    const size_t image_bytes = (size_t)shape[1] * (size_t)shape[2] * 3 * value_bytes;
    TF_Tensor *images = tfpipe_make_output(context, 0, self->dtype, shape + 1 - dims, 3 + dims,
                                           (size_t)count * image_bytes, status);
    if (TF_GetCode(status) != TF_OK) return;
    TF_Tensor *results =
        TF_AllocateOutput(context, 1, TF_INT32, &count, dims, (size_t)count * sizeof(int32_t), status);
    if (TF_GetCode(status) == TF_OK) {
        decode_all(self, inputs, (size_t)count, images, TF_TensorData(results), status);
        TF_DeleteTensor(results);
    }
    TF_DeleteTensor(images);
}

static void compute(void *self, TF_OpKernelContext *context) {
    tfpipe_compute(self, context, 3, decode);
}

void tfpipe_register_decode(TF_Status *status) {
    TF_OpDefinitionBuilder *builder = TF_NewOpDefinitionBuilder("TfpipeDecode");
    TF_OpDefinitionBuilderAddInput(builder, "encoded: string");
    TF_OpDefinitionBuilderAddInput(builder, "box: int32");
    TF_OpDefinitionBuilderAddInput(builder, "flip: bool");
    TF_OpDefinitionBuilderAddOutput(builder, "image: dtype");
    TF_OpDefinitionBuilderAddOutput(builder, "result: int32");
    TF_OpDefinitionBuilderAddAttr(builder, "dtype: {uint8, float, bfloat16}");
    TF_OpDefinitionBuilderAddAttr(builder, "height: int >= 1");
    TF_OpDefinitionBuilderAddAttr(builder, "width: int >= 1");
    TF_OpDefinitionBuilderAddAttr(builder, "max_ratio: int >= 1");
    TF_OpDefinitionBuilderAddAttr(builder, "max_pixels: int >= 1");
    TF_OpDefinitionBuilderAddAttr(builder, "threads: int >= 1");
    TF_OpDefinitionBuilderAddAttr(builder, "seeks: bool");
    TF_OpDefinitionBuilderAddAttr(builder, "offset: list(float)");
    TF_OpDefinitionBuilderAddAttr(builder, "factor: list(float)");
    tfpipe_register(builder, "TfpipeDecode", create, compute, status);
}
