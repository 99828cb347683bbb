/* The part of TensorFlow's stable C API that the operations use.

   It is declared here so that the library is built without TensorFlow, and serves every version that has these functions.
   They are looked up when TensorFlow loads the library. */

#ifndef TFPIPE_TF_API_H
#define TFPIPE_TF_API_H

#include <stddef.h>
#include <stdint.h>

typedef struct TF_Status TF_Status;
typedef struct TF_Tensor TF_Tensor;
typedef struct TF_KernelBuilder TF_KernelBuilder;
typedef struct TF_OpDefinitionBuilder TF_OpDefinitionBuilder;
typedef struct TF_OpKernelConstruction TF_OpKernelConstruction;
typedef struct TF_OpKernelContext TF_OpKernelContext;
typedef struct TF_ShapeInferenceContext TF_ShapeInferenceContext;

/* Its size counts, for tensors have several: three words, as tensorflow/core/platform/ctstring_internal.h asserts. */
typedef struct TF_TString {
    size_t words[3];
} TF_TString;

typedef enum {
    TF_FLOAT = 1,
    TF_INT32 = 3,
    TF_UINT8 = 4,
    TF_STRING = 7,
    TF_INT64 = 9,
    TF_BOOL = 10,
    TF_BFLOAT16 = 14
} TF_DataType;
typedef enum { TF_OK = 0, TF_INVALID_ARGUMENT = 3, TF_RESOURCE_EXHAUSTED = 8 } TF_Code;

TF_Status *TF_NewStatus(void);
void TF_DeleteStatus(TF_Status *status);
void TF_SetStatus(TF_Status *status, TF_Code code, const char *message);
TF_Code TF_GetCode(const TF_Status *status);
const char *TF_Message(const TF_Status *status);

void *TF_TensorData(const TF_Tensor *tensor);
int TF_NumDims(const TF_Tensor *tensor);
int64_t TF_Dim(const TF_Tensor *tensor, int index);
void TF_DeleteTensor(TF_Tensor *tensor);
const char *TF_StringGetDataPointer(const TF_TString *string);
size_t TF_StringGetSize(const TF_TString *string);
void TF_StringCopy(TF_TString *target, const char *source, size_t size);

TF_OpDefinitionBuilder *TF_NewOpDefinitionBuilder(const char *name);
void TF_OpDefinitionBuilderAddInput(TF_OpDefinitionBuilder *builder, const char *spec);
void TF_OpDefinitionBuilderAddOutput(TF_OpDefinitionBuilder *builder, const char *spec);
void TF_OpDefinitionBuilderAddAttr(TF_OpDefinitionBuilder *builder, const char *spec);
void TF_OpDefinitionBuilderSetShapeInferenceFunction(TF_OpDefinitionBuilder *builder,
                                                     void (*infer)(TF_ShapeInferenceContext *, TF_Status *));
void TF_RegisterOpDefinition(TF_OpDefinitionBuilder *builder, TF_Status *status);
void TF_ShapeInferenceContextSetUnknownShape(TF_ShapeInferenceContext *context, TF_Status *status);

TF_KernelBuilder *TF_NewKernelBuilder(const char *op, const char *device, void *(*create)(TF_OpKernelConstruction *),
                                      void (*compute)(void *, TF_OpKernelContext *), void (*destroy)(void *));
void TF_RegisterKernelBuilder(const char *name, TF_KernelBuilder *builder, TF_Status *status);
void TF_OpKernelConstruction_Failure(TF_OpKernelConstruction *context, TF_Status *status);
void TF_OpKernelConstruction_GetAttrSize(TF_OpKernelConstruction *context, const char *name, int32_t *list_size,
                                         int32_t *total_size, TF_Status *status);
void TF_OpKernelConstruction_GetAttrType(TF_OpKernelConstruction *context, const char *name, TF_DataType *value,
                                         TF_Status *status);
void TF_OpKernelConstruction_GetAttrInt32(TF_OpKernelConstruction *context, const char *name, int32_t *value,
                                          TF_Status *status);
void TF_OpKernelConstruction_GetAttrInt64(TF_OpKernelConstruction *context, const char *name, int64_t *value,
                                          TF_Status *status);
void TF_OpKernelConstruction_GetAttrBool(TF_OpKernelConstruction *context, const char *name, unsigned char *value,
                                         TF_Status *status);
void TF_OpKernelConstruction_GetAttrFloatList(TF_OpKernelConstruction *context, const char *name, float *values,
                                              int most, TF_Status *status);
void TF_GetInput(TF_OpKernelContext *context, int index, TF_Tensor **tensor, TF_Status *status);
TF_Tensor *TF_AllocateOutput(TF_OpKernelContext *context, int index, TF_DataType dtype, const int64_t *dims,
                             int num_dims, size_t size, TF_Status *status);
TF_Tensor *TF_NewTensor(TF_DataType dtype, const int64_t *dims, int num_dims, void *data, size_t size,
                        void (*free_data)(void *data, size_t size, void *argument), void *argument);
void TF_SetOutput(TF_OpKernelContext *context, int index, const TF_Tensor *tensor, TF_Status *status);
void TF_OpKernelContext_Failure(TF_OpKernelContext *context, TF_Status *status);

#endif
