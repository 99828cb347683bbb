/* The functions of the library, for C and for Python through ctypes. None of them keeps a pointer or calls Python. */

#ifndef TFPIPE_NATIVE_H
#define TFPIPE_NATIVE_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define TFPIPE_EXPORT __attribute__((visibility("default")))
#else
#define TFPIPE_EXPORT
#endif

/* The version of this interface. It changes with every change to a function or a struct. */
enum { TFPIPE_INTERFACE = 15 };

/* What a function returns. */
enum {
    TFPIPE_OK = 0,
    TFPIPE_DAMAGED = 1,   /* the bytes are not a JPEG, or a damaged one */
    TFPIPE_BAD_BOX = 2,   /* the box leaves the image or is empty */
    TFPIPE_TOO_LARGE = 3, /* the image has more pixels than are allowed */
    TFPIPE_NO_MEMORY = 4,
    TFPIPE_UNSUPPORTED = 5, /* a kind of JPEG that this function does not take */
    TFPIPE_BAD_REQUEST = 6, /* a place that leaves the block, or an image without a pixel */
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

/* Returns the processor time, in nanoseconds, of the threads that worked in all calls of this thread so far. */
TFPIPE_EXPORT int64_t tfpipe_helped_ns(void);

/* Decodes a part of a JPEG, resizes it bilinearly with half-pixel centers, and converts its values.

   out      the result, [out_height, out_width, 3]
   message  TFPIPE_MESSAGE_BYTES for what is wrong, if the function does not return TFPIPE_OK */
TFPIPE_EXPORT int tfpipe_decode(const uint8_t *data, size_t size, const tfpipe_request *request, void *out,
                                char *message);

/* Bytes in memory. */
typedef struct {
    const uint8_t *data;
    size_t size;
} tfpipe_bytes;

/* Decodes a part of each of many images, as tfpipe_decode does.

   inputs     the JPEGs; or with `sizes` images that are pixels already: uint8 [height, width, 3]
   sizes      int32 [count, 2]: the height and width of each image; NULL for JPEGs
   boxes      int32 [count, 4]: y, x, height and width of each crop
   flips      [count]
   request    all but the box, the flip and the ratio
   max_ratio  the largest ratio: the one taken leaves the crop no smaller than the result
   threads    the threads that work, of all calls together; with 1 the caller does it
   rows       [count]: which of the images each becomes; NULL: they stay in their order
   images     the results, each [out_height, out_width, 3]
   results    [count]: for each what tfpipe_decode returns */
TFPIPE_EXPORT void tfpipe_decode_batch(const tfpipe_bytes *inputs, const int32_t *sizes, const int32_t *boxes,
                                       const uint8_t *flips, size_t count, const tfpipe_request *request,
                                       int32_t max_ratio, int32_t threads, const int64_t *rows, void *images,
                                       int32_t *results);

/* Which crops are drawn.

   min_area, max_area, min_aspect, max_aspect  the shares of the image's area and the aspect ratios (width / height)
                                               that a box may have
   stored                                      the height and width of all images if they are squeezed to one size;
                                               else 0 */
typedef struct {
    float min_area, max_area, min_aspect, max_aspect;
    int32_t stored[2];
} tfpipe_crops;

/* Draws random resized crops and flips for training.

   seeds   int32 [count, 2]
   sizes   int32 [count, 2]: the height and width of the originals
   boxes   the results, int32 [count, 4]: y, x, height and width in pixels of the stored images
   flips   the results, [count]: whether to mirror left to right */
TFPIPE_EXPORT int tfpipe_draw_crops(const int32_t *seeds, const int32_t *sizes, size_t count,
                                    const tfpipe_crops *crops, int32_t *boxes, uint8_t *flips);

/* Rewrites a JPEG without loss: the same coefficients, as one scan of Huffman codes made for them, with restart markers
   that divide a row of MCUs. Segments that do not concern pixels are left out.

   out, out_size  the result, to be freed by tfpipe_free */
TFPIPE_EXPORT int tfpipe_make_seekable(const uint8_t *data, size_t size, int64_t max_pixels, uint8_t **out,
                                       size_t *out_size, char *message);

/* Returns whether a crop of a JPEG can be decoded from its restart markers: 0 unless it has one sequential scan, and the
   markers up to the end of the image are exactly those of intervals that divide a row of MCUs; 2 if the intervals are
   those of tfpipe_make_seekable; else 1. Nothing is decoded. */
TFPIPE_EXPORT int tfpipe_find_intervals(const uint8_t *data, size_t size);

/* Checks that the entropy-coded data of a JPEG can be decoded without a complaint. Nothing is transformed to pixels. */
TFPIPE_EXPORT int tfpipe_check(const uint8_t *data, size_t size, int64_t max_pixels, char *message);

/* Copies a JPEG without padding: zeros between the last block in front of a marker and that marker. The copy is one that
   tfpipe_check accepts.

   out       `size` bytes
   out_size  how many of them are written, if the function returns TFPIPE_OK */
TFPIPE_EXPORT int tfpipe_drop_padding(const uint8_t *data, size_t size, int64_t max_pixels, uint8_t *out,
                                      size_t *out_size, char *message);

TFPIPE_EXPORT void tfpipe_free(void *memory);

/* Resizes the upper left part of RGB pixels, whose sides need not be whole numbers, as Pillow does with its bicubic or its
   bilinear filter.

   Returns TFPIPE_OK or TFPIPE_NO_MEMORY. */
TFPIPE_EXPORT int tfpipe_resize_antialiased(const uint8_t *in, int32_t height, int32_t width, float part_height,
                                            float part_width, int is_bicubic, uint8_t *out, int32_t out_height,
                                            int32_t out_width);

/* Decodes a whole JPEG of three components, checks it as tfpipe_check does, and resizes it as tfpipe_resize_antialiased
   does with the bicubic filter. Pixels are those of libjpeg.

   ratio  1, 2, 4 or 8: the image is decoded at this fraction of its size
   out    RGB pixels; not all are written if the function does not return TFPIPE_OK */
TFPIPE_EXPORT int tfpipe_decode_resized(const uint8_t *data, size_t size, int64_t max_pixels, int32_t ratio, uint8_t *out,
                                        int32_t out_height, int32_t out_width, char *message);

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

   Storage is asked for many spans before one is waited for, and several threads wait. A span that cannot be read
   becomes zeros.

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

/* Hashes texts by BLAKE2b with a key of at most 64 bytes: of each digest its 8 bytes, the lowest first.

   offsets  of each text, and of the end of the last one */
TFPIPE_EXPORT void tfpipe_hash_texts(const uint8_t *texts, const int64_t *offsets, int64_t count, const uint8_t *key,
                                     size_t key_bytes, uint64_t *hashes);

/* What stands in the place of a file's size. */
enum { TFPIPE_NO_FILE = -1, TFPIPE_NOT_REGULAR = -2 };

/* Reads the sizes of files. Links are followed.

   folder  the descriptor of the folder that paths begin in
   paths   each with a zero byte behind it */
TFPIPE_EXPORT void tfpipe_read_sizes(int folder, const char *paths, int64_t count, int64_t *sizes);

#endif
