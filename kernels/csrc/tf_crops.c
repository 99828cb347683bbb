/* The operation TfpipeDrawCrops for TensorFlow: the crop boxes and flips of a batch. */

#include <stdlib.h>

#include "crops.h"
#include "tf_api.h"
#include "tf_operations.h"

/* What the attributes say.

   stored  the height and width of all images if they are squeezed to one size; else 0 */
typedef struct {
    tfpipe_crops crops;
    int32_t stored[2];
} operation;

static void *create(TF_OpKernelConstruction *context) {
    TF_Status *status = TF_NewStatus();
    operation *self = calloc(1, sizeof *self);
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
        self->crops = (tfpipe_crops){areas[0], areas[1], aspects[0], aspects[1]};
    }
    if (TF_GetCode(status) != TF_OK) TF_OpKernelConstruction_Failure(context, status);
    TF_DeleteStatus(status);
    return self;
}

/* Draws for all images. Returns 0 if one of them has no pixel. */
static int draw_all(const operation *self, const int32_t *seeds, const int32_t *sizes, int64_t count, int32_t *boxes,
                    unsigned char *flips) {
    for (int64_t k = 0; k < count; k++) {
        const int32_t *seed = seeds + 2 * k, *size = sizes + 2 * k;
        if (size[0] < 1 || size[1] < 1) return 0;
        tfpipe_draw_crop(seed, size[0], size[1], &self->crops, boxes + 4 * k);
        if (self->stored[0] > 0) tfpipe_squeeze_box(boxes + 4 * k, size, self->stored);
        flips[k] = (unsigned char)tfpipe_draw_flip(seed);
    }
    return 1;
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
        if (!draw_all(attributes, TF_TensorData(inputs[0]), TF_TensorData(inputs[1]), count, TF_TensorData(boxes),
                      TF_TensorData(flips)))
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
