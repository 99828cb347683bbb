"""What a trainer writes without tfpipe: the usual tf.data recipe for ImageNet, with uint8 handed over."""

import tensorflow as tf

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def dataset(directory: str, batch_size: int, floats: bool = False) -> tf.data.Dataset:
    """Shuffled files, interleaved; a shuffle buffer; fused decoding of a random crop; resize and flip."""
    examples = shuffled_records(directory).map(lambda r: _example(r, floats), num_parallel_calls=tf.data.AUTOTUNE)
    return examples.batch(batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def shuffled_records(directory: str) -> tf.data.Dataset:
    """Shuffled files, interleaved; a shuffle buffer; again and again."""
    files = tf.data.Dataset.list_files(f"{directory}/*.tfrecord", shuffle=True, seed=1)
    records = files.interleave(
        tf.data.TFRecordDataset,
        cycle_length=8,
        block_length=16,
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=False,
    )
    return records.shuffle(500).repeat()


def _example(record: tf.Tensor, floats: bool) -> tuple[tf.Tensor, tf.Tensor]:
    features = tf.io.parse_single_example(
        record,
        {
            "image/encoded": tf.io.FixedLenFeature([], tf.string),
            "image/class/label": tf.io.FixedLenFeature([], tf.int64),
        },
    )
    encoded = features["image/encoded"]
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        tf.io.extract_jpeg_shape(encoded),
        tf.zeros([1, 0, 4]),
        min_object_covered=0.0,
        area_range=(0.08, 1.0),
        aspect_ratio_range=(3 / 4, 4 / 3),
        max_attempts=10,
        use_image_if_no_bounding_boxes=True,
    )
    image = tf.io.decode_and_crop_jpeg(encoded, tf.concat([begin[:2], size[:2]], 0), channels=3)
    image = tf.image.random_flip_left_right(tf.image.resize(image, [224, 224]))
    if floats:
        image = (image / 255.0 - MEAN) / DEVIATION
    return image if floats else tf.cast(image, tf.uint8), features["image/class/label"]
