/* The functions of the library, for C and for Python through ctypes. None of them keeps a pointer or calls Python. */

#ifndef TFPIPE_KERNELS_H
#define TFPIPE_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define TFPIPE_EXPORT __attribute__((visibility("default")))
#else
#define TFPIPE_EXPORT
#endif

/* The version of this interface. It changes with every change to a function or a struct. */
enum { TFPIPE_INTERFACE = 3 };

/* What a function returns. */
enum {
    TFPIPE_OK = 0,
    TFPIPE_DAMAGED = 1,   /* the bytes are not a JPEG, or a damaged one */
    TFPIPE_BAD_BOX = 2,   /* the box leaves the image or is empty */
    TFPIPE_TOO_LARGE = 3, /* the image has more pixels than are allowed */
    TFPIPE_NO_MEMORY = 4,
    TFPIPE_UNSUPPORTED = 5, /* a kind of JPEG that this function does not take */
    TFPIPE_BAD_REQUEST = 6, /* a place that leaves the block */
};

enum { TFPIPE_MESSAGE_BYTES = 256 };

/* The type of an image's values. */
enum { TFPIPE_UINT8 = 0, TFPIPE_FLOAT32 = 1, TFPIPE_BFLOAT16 = 2 };

/* What is made of an image.

   y, x, height, width    the crop box in pixels of the stored image
   ratio                  1, 2, 4 or 8: the image is decoded at this fraction of its size, and the box's sides are
                          rounded to pixels of the reduced image
   out_height, out_width  the size of the result in pixels; both 0: that of the box, for uint8 only
   flip                   whether to mirror left to right
   dtype                  TFPIPE_UINT8: rounded, halves up; else (value - offset) * factor of each channel
   seeks                  whether to skip what lies outside the box by restart markers
   max_pixels             the most pixels that the whole image may have */
typedef struct {
    int32_t y, x, height, width;
    int32_t ratio;
    int32_t out_height, out_width;
    int32_t flip;
    int32_t dtype;
    int32_t seeks;
    int64_t max_pixels;
    float offset[3], factor[3];
} tfpipe_request;

/* Returns TFPIPE_INTERFACE. */
TFPIPE_EXPORT int tfpipe_interface(void);

/* Decodes a part of a JPEG, resizes it bilinearly with half-pixel centers, and converts its values.

   out      the result, [out_height, out_width, 3]
   message  TFPIPE_MESSAGE_BYTES for what is wrong, if the function does not return TFPIPE_OK */
TFPIPE_EXPORT int tfpipe_decode(const uint8_t *data, size_t size, const tfpipe_request *request, void *out,
                                char *message);

/* Rewrites a JPEG without loss: the same coefficients, as one scan of Huffman codes made for them, with restart markers
   that divide a row of MCUs. Segments that do not concern pixels are left out.

   out, out_size  the result, to be freed by tfpipe_free */
TFPIPE_EXPORT int tfpipe_make_seekable(const uint8_t *data, size_t size, int64_t max_pixels, uint8_t **out,
                                       size_t *out_size, char *message);

/* Checks that the entropy-coded data of a JPEG can be decoded without a complaint. Nothing is transformed to pixels. */
TFPIPE_EXPORT int tfpipe_check(const uint8_t *data, size_t size, int64_t max_pixels, char *message);

TFPIPE_EXPORT void tfpipe_free(void *memory);

/* Returns the checksum of TFRecord files: a CRC32C, rotated, plus a constant.

   by_tables  whether to leave out the processor's own instruction, as where there is none */
TFPIPE_EXPORT uint32_t tfpipe_masked_crc32c(const uint8_t *data, size_t size, int by_tables);

/* Bytes of a block of memory. */
typedef struct {
    int64_t at, size;
} tfpipe_place;

/* Bytes of an open file, and where they go in the block. */
typedef struct {
    int64_t descriptor, offset, size, at;
} tfpipe_span;

/* Reads parts of files into one block, and checks the records of TFRecord files that lie in it.

   Storage is asked for many spans before one is waited for. A span that cannot be read becomes zeros.

   spans   what is read; a position of a file is neither used nor moved
   frames  the records in the block, each with its framing
   whole   for each frame 1 if its length is the frame's and both its checksums hold, else 0 */
TFPIPE_EXPORT int tfpipe_read_records(const tfpipe_span *spans, size_t num_spans, const tfpipe_place *frames,
                                      size_t num_frames, uint8_t *block, size_t block_size, uint8_t *whole);

/* The kinds of a feature. */
enum { TFPIPE_NOTHING = 0, TFPIPE_TEXTS = 1, TFPIPE_FLOATS = 2, TFPIPE_INTS = 3 };

/* A feature: the number of its key, its kind, and which values of that kind it has. */
typedef struct {
    int64_t key, kind, first, count;
} tfpipe_feature;

/* The features of several Examples, one behind the other. Keys and texts are places in the block. */
typedef struct {
    size_t num_keys, num_features, num_texts, num_ints, num_floats;
    tfpipe_place *keys;
    tfpipe_feature *features;
    tfpipe_place *texts;
    int64_t *ints;
    float *floats;
} tfpipe_examples;

/* Finds the features of serialized tf.train.Examples. Keys are not checked to be UTF-8.

   payloads      the Examples in the block
   out           the result, to be freed by tfpipe_free_examples if the function returns TFPIPE_OK
   num_features  of each Example; -1 if it is damaged, or valid but of an unusual form */
TFPIPE_EXPORT int tfpipe_parse_examples(const uint8_t *block, size_t block_size, const tfpipe_place *payloads,
                                        size_t count, tfpipe_examples *out, int64_t *num_features);

TFPIPE_EXPORT void tfpipe_free_examples(tfpipe_examples *examples);

#endif
