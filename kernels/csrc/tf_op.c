/* The operation TfpipeDecode for TensorFlow: tfpipe_decode on one record. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tf_api.h"
#include "tfpipe_kernels.h"

/* What the attributes of an operation say.

   request    all but the box and the flip
   max_ratio  the largest reduction while decoding: 1, 2, 4 or 8 */
typedef struct {
    tfpipe_request request;
    int32_t max_ratio;
    TF_DataType dtype;
} operation;

static void read_floats(TF_OpKernelConstruction *context, const char *name, float *values, TF_Status *status) {
    int32_t count = 0, total = 0;
    if (TF_GetCode(status) != TF_OK) return;
    TF_OpKernelConstruction_GetAttrSize(context, name, &count, &total, status);
    if (TF_GetCode(status) == TF_OK && count != 3) {
        TF_SetStatus(status, TF_INVALID_ARGUMENT, "TfpipeDecode needs three values for its offset and its factor.");
    } else if (TF_GetCode(status) == TF_OK) {
        TF_OpKernelConstruction_GetAttrFloatList(context, name, values, 3, status);
    }
}

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
            TF_OpKernelConstruction_GetAttrInt64(context, "max_pixels", &request->max_pixels, status);
        if (TF_GetCode(status) == TF_OK) TF_OpKernelConstruction_GetAttrBool(context, "seeks", &seeks, status);
        if (TF_GetCode(status) == TF_OK) TF_OpKernelConstruction_GetAttrType(context, "dtype", &self->dtype, status);
        read_floats(context, "offset", request->offset, status);
        read_floats(context, "factor", request->factor, status);
        request->seeks = seeks;
        request->dtype = self->dtype == TF_UINT8   ? TFPIPE_UINT8
                         : self->dtype == TF_FLOAT ? TFPIPE_FLOAT32
                                                   : TFPIPE_BFLOAT16;
    }
    if (TF_GetCode(status) != TF_OK) TF_OpKernelConstruction_Failure(context, status);
    TF_DeleteStatus(status);
    return self;
}

static void destroy(void *self) { free(self); }

/* Chooses the largest reduction that leaves the crop no smaller than the result. */
static int32_t choose_ratio(const operation *self) {
    const tfpipe_request *request = &self->request;
    int32_t ratio = 1;
    while (ratio < self->max_ratio && request->height >= 2 * ratio * request->out_height &&
           request->width >= 2 * ratio * request->out_width)
        ratio *= 2;
    return ratio;
}

static void decode(const operation *self, TF_OpKernelContext *context, TF_Tensor **inputs, TF_Status *status) {
    operation one = *self;
    tfpipe_request *request = &one.request;
    if (TF_NumDims(inputs[0]) != 0 || TF_NumDims(inputs[1]) != 1 || TF_Dim(inputs[1], 0) != 4 ||
        TF_NumDims(inputs[2]) != 0) {
        TF_SetStatus(status, TF_INVALID_ARGUMENT, "TfpipeDecode needs a scalar, a box of four numbers and a scalar.");
        return;
    }
    const TF_TString *encoded = TF_TensorData(inputs[0]);
    const int32_t *box = TF_TensorData(inputs[1]);
    request->y = box[0];
    request->x = box[1];
    request->height = box[2];
    request->width = box[3];
    request->flip = *(const unsigned char *)TF_TensorData(inputs[2]);
    request->ratio = choose_ratio(&one);
    const int64_t shape[] = {request->out_height, request->out_width, 3};
    const size_t value_bytes = request->dtype == TFPIPE_UINT8 ? 1 : request->dtype == TFPIPE_FLOAT32 ? 4 : 2;
    const size_t bytes = (size_t)shape[0] * (size_t)shape[1] * 3 * value_bytes;
    TF_Tensor *image = TF_AllocateOutput(context, 0, one.dtype, shape, 3, bytes, status);
    if (TF_GetCode(status) != TF_OK) return;
    char message[TFPIPE_MESSAGE_BYTES];
    const int result = tfpipe_decode((const uint8_t *)TF_StringGetDataPointer(encoded), TF_StringGetSize(encoded),
                                     request, TF_TensorData(image), message);
    if (result == TFPIPE_NO_MEMORY) {
        TF_SetStatus(status, TF_RESOURCE_EXHAUSTED, "TfpipeDecode got no memory.");
    } else if (result != TFPIPE_OK) {
        /* What tf.io.decode_and_crop_jpeg says of a JPEG. */
        TF_SetStatus(status, TF_INVALID_ARGUMENT, "jpeg::Uncompress failed. Invalid JPEG data or crop window.");
    }
    TF_DeleteTensor(image);
}

static void compute(void *self, TF_OpKernelContext *context) {
    TF_Status *status = TF_NewStatus();
    TF_Tensor *inputs[3] = {NULL, NULL, NULL};
    for (int i = 0; i < 3 && TF_GetCode(status) == TF_OK; i++) TF_GetInput(context, i, &inputs[i], status);
    if (TF_GetCode(status) == TF_OK) decode(self, context, inputs, status);
    if (TF_GetCode(status) != TF_OK) TF_OpKernelContext_Failure(context, status);
    for (int i = 0; i < 3; i++)
        if (inputs[i] != NULL) TF_DeleteTensor(inputs[i]);
    TF_DeleteStatus(status);
}

/* The caller sets the shape, which it knows. */
static void infer_shape(TF_ShapeInferenceContext *context, TF_Status *status) {
    TF_ShapeInferenceContextSetUnknownShape(context, status);
}

static void report(const TF_Status *status) {
    if (TF_GetCode(status) != TF_OK) fprintf(stderr, "tfpipe-kernels: %s\n", TF_Message(status));
}

/* Runs when TensorFlow loads the library. */
__attribute__((constructor)) static void register_operation(void) {
    TF_Status *status = TF_NewStatus();
    TF_OpDefinitionBuilder *builder = TF_NewOpDefinitionBuilder("TfpipeDecode");
    TF_OpDefinitionBuilderAddInput(builder, "encoded: string");
    TF_OpDefinitionBuilderAddInput(builder, "box: int32");
    TF_OpDefinitionBuilderAddInput(builder, "flip: bool");
    TF_OpDefinitionBuilderAddOutput(builder, "image: dtype");
    TF_OpDefinitionBuilderAddAttr(builder, "dtype: {uint8, float, bfloat16}");
    TF_OpDefinitionBuilderAddAttr(builder, "height: int >= 1");
    TF_OpDefinitionBuilderAddAttr(builder, "width: int >= 1");
    TF_OpDefinitionBuilderAddAttr(builder, "max_ratio: int >= 1");
    TF_OpDefinitionBuilderAddAttr(builder, "max_pixels: int >= 1");
    TF_OpDefinitionBuilderAddAttr(builder, "seeks: bool");
    TF_OpDefinitionBuilderAddAttr(builder, "offset: list(float)");
    TF_OpDefinitionBuilderAddAttr(builder, "factor: list(float)");
    TF_OpDefinitionBuilderSetShapeInferenceFunction(builder, infer_shape);
    TF_RegisterOpDefinition(builder, status);
    report(status);
    TF_KernelBuilder *kernel = TF_NewKernelBuilder("TfpipeDecode", "CPU", create, compute, destroy);
    TF_RegisterKernelBuilder("TfpipeDecode", kernel, status);
    report(status);
    TF_DeleteStatus(status);
}
