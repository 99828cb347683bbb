#include <stdio.h>
#include <stdlib.h>

#include "tf_operations.h"

void tfpipe_compute(const void *attributes, TF_OpKernelContext *context, int count, tfpipe_work *work) {
    TF_Status *status = TF_NewStatus();
    TF_Tensor *inputs[TFPIPE_MAX_INPUTS] = {NULL};
    for (int i = 0; i < count && TF_GetCode(status) == TF_OK; i++) TF_GetInput(context, i, &inputs[i], status);
    if (TF_GetCode(status) == TF_OK) work(attributes, context, inputs, status);
    if (TF_GetCode(status) != TF_OK) TF_OpKernelContext_Failure(context, status);
    for (int i = 0; i < count; i++)
        if (inputs[i] != NULL) TF_DeleteTensor(inputs[i]);
    TF_DeleteStatus(status);
}

void tfpipe_read_floats(TF_OpKernelConstruction *context, const char *name, float *values, int count,
                        TF_Status *status) {
    int32_t list_size = 0, total_size = 0;
    if (TF_GetCode(status) != TF_OK) return;
    TF_OpKernelConstruction_GetAttrSize(context, name, &list_size, &total_size, status);
    if (TF_GetCode(status) == TF_OK && list_size != count) {
        char message[128];
        snprintf(message, sizeof message, "The attribute %s must have %d numbers, got %d.", name, count, list_size);
        TF_SetStatus(status, TF_INVALID_ARGUMENT, message);
    } else if (TF_GetCode(status) == TF_OK) {
        TF_OpKernelConstruction_GetAttrFloatList(context, name, values, count, status);
    }
}

/* The caller sets the shapes, which it knows. */
static void infer_shape(TF_ShapeInferenceContext *context, TF_Status *status) {
    TF_ShapeInferenceContextSetUnknownShape(context, status);
}

static void report(const TF_Status *status) {
    if (TF_GetCode(status) != TF_OK) fprintf(stderr, "tfpipe: %s\n", TF_Message(status));
}

void tfpipe_register(TF_OpDefinitionBuilder *builder, const char *name, void *(*create)(TF_OpKernelConstruction *),
                     void (*compute)(void *, TF_OpKernelContext *), TF_Status *status) {
    TF_OpDefinitionBuilderSetShapeInferenceFunction(builder, infer_shape);
    TF_RegisterOpDefinition(builder, status);
    report(status);
    TF_RegisterKernelBuilder(name, TF_NewKernelBuilder(name, "CPU", create, compute, free), status);
    report(status);
}

/* Runs when TensorFlow loads the library. */
__attribute__((constructor)) static void register_all(void) {
    TF_Status *status = TF_NewStatus();
    tfpipe_register_decode(status);
    tfpipe_register_crops(status);
    tfpipe_register_read(status);
    TF_DeleteStatus(status);
}
