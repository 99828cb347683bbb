/* The operation TfpipeDrawCrops for TensorFlow: the crop boxes and flips of a batch. */

#include <stdlib.h>

#include "tf_api.h"
#include "tf_operations.h"
#include "tfpipe_native.h"

static void *create(TF_OpKernelConstruction *context) {
    TF_Status *status = TF_NewStatus();
    tfpipe_crops *self = calloc(1, sizeof *self);
    float areas[2] = {0}, aspects[2] = {0};
    if (self == NULL) {
        TF_SetStatus(status, TF_RESOURCE_EXHAUSTED, "TfpipeDrawCrops got no memory.");
    } else {
        tfpipe_read_floats(context, "scale", areas, 2, status);
        tfpipe_read_floats(context, "ratio", aspects, 2, status);
        if (TF_GetCode(status) == TF_OK)
            TF_OpKernelConstruction_GetAttrInt32(context, "stored_height", &self->stored[0], status);
        if (TF_GetCode(status) == TF_OK)
            TF_OpKernelConstruction_GetAttrInt32(context, "stored_width", &self->stored[1], status);
        self->min_area = areas[0];
        self->max_area = areas[1];
        self->min_aspect = aspects[0];
        self->max_aspect = aspects[1];
    }
    if (TF_GetCode(status) != TF_OK) TF_OpKernelConstruction_Failure(context, status);
    TF_DeleteStatus(status);
    return self;
}

static void draw(const void *attributes, TF_OpKernelContext *context, TF_Tensor **inputs, TF_Status *status) {
    for (int i = 0; i < 2; i++) {
        if (TF_NumDims(inputs[i]) != 2 || TF_Dim(inputs[i], 1) != 2 || TF_Dim(inputs[i], 0) != TF_Dim(inputs[0], 0)) {
            TF_SetStatus(status, TF_INVALID_ARGUMENT, "TfpipeDrawCrops needs two numbers of a seed and two of a size.");
            return;
        }
    }
    const int64_t count = TF_Dim(inputs[0], 0), shape[] = {count, 4};
    TF_Tensor *boxes = TF_AllocateOutput(context, 0, TF_INT32, shape, 2, (size_t)count * 4 * sizeof(int32_t), status);
    if (TF_GetCode(status) != TF_OK) return;
    TF_Tensor *flips = TF_AllocateOutput(context, 1, TF_BOOL, shape, 1, (size_t)count, status);
    if (TF_GetCode(status) == TF_OK) {
        if (tfpipe_draw_crops(TF_TensorData(inputs[0]), TF_TensorData(inputs[1]), (size_t)count, attributes,
                              TF_TensorData(boxes), TF_TensorData(flips)) != TFPIPE_OK)
            TF_SetStatus(status, TF_INVALID_ARGUMENT, "Image height and width must be positive.");
        TF_DeleteTensor(flips);
    }
    TF_DeleteTensor(boxes);
}

static void compute(void *self, TF_OpKernelContext *context) { tfpipe_compute(self, context, 2, draw); }

void tfpipe_register_crops(TF_Status *status) {
    TF_OpDefinitionBuilder *builder = TF_NewOpDefinitionBuilder("TfpipeDrawCrops");
    TF_OpDefinitionBuilderAddInput(builder, "seeds: int32");
    TF_OpDefinitionBuilderAddInput(builder, "sizes: int32");
    TF_OpDefinitionBuilderAddOutput(builder, "boxes: int32");
    TF_OpDefinitionBuilderAddOutput(builder, "flips: bool");
    TF_OpDefinitionBuilderAddAttr(builder, "scale: list(float)");
    TF_OpDefinitionBuilderAddAttr(builder, "ratio: list(float)");
    TF_OpDefinitionBuilderAddAttr(builder, "stored_height: int >= 0");
    TF_OpDefinitionBuilderAddAttr(builder, "stored_width: int >= 0");
    tfpipe_register(builder, "TfpipeDrawCrops", create, compute, status);
}
