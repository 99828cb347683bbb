"""Facts that a look finds: TensorFlow's version, the devices, headers, a real batch, the compiler, the host's speed.

Nothing here connects to a TPU, since that starts a machine that is paid by the minute.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf

from tfpipe.doctor.data_checks import IntArray
from tfpipe.doctor.runtime_checks import TensorFact
from tfpipe.engine.batch import BatchMaker
from tfpipe.engine.columns.labels import number_classes
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.open_maker import open_maker
from tfpipe.engine.plan import BatchPlan, plan_batches
from tfpipe.engine.source import Source
from tfpipe.errors import DataError, TfpipeError, first_line
from tfpipe.pipeline.device import augment
from tfpipe.pipeline.stages.decode import decode_image
from tfpipe.pipeline.stages.parse import parse_example
from tfpipe.pipeline.textbook_choice import is_by_engine
from tfpipe.storage.file_io import read_size

WARM_UP_S, MEASURE_S = 2.0, 3.0
# The errors of a read from a damaged or unreachable file.
READ_ERRORS = (TfpipeError, tf.errors.OpError)

_CLASSES = 1000  # classes of the model, if their number is unknown
_FEATURES = 8
_THREADS = 16  # an object store answers in tens of milliseconds

Batch = Mapping[str, tf.Tensor]


def tensorflow_version() -> str:
    """Returns the version of TensorFlow that was imported."""
    return str(tf.__version__)


def count_local_replicas() -> int:
    """Counts the accelerators of this machine without starting them; a machine with none has 1, its CPU."""
    return next((n for kind in ("TPU", "GPU") if (n := len(tf.config.list_physical_devices(kind)))), 1)


def read_tpu_host() -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Looks for the device files of TPU chips, and for other processes that have them open."""
    chips = tuple(sorted(glob.glob("/dev/accel[0-9]*") + glob.glob("/dev/vfio/[0-9]*")))
    holders = set()
    for link in glob.glob("/proc/[0-9]*/fd/*") if chips else ():
        with contextlib.suppress(OSError):  # the process has ended, or belongs to another user
            if os.readlink(link) in chips:
                holders.add(int(link.split("/")[2]))
    return chips, tuple(sorted(holders - {os.getpid()}))


def read_file_sizes(paths: Sequence[str]) -> dict[str, int | None]:
    """Returns the bytes of each file by path; None for a file that is missing or cannot be read."""
    with ThreadPoolExecutor(min(_THREADS, max(len(paths), 1))) as pool:
        return dict(zip(paths, pool.map(_size, paths), strict=True))


def _size(path: str) -> int | None:
    try:
        return read_size(path)
    except (OSError, DataError):
        return None


# The pipeline


def get_named_parts(element: Any) -> dict[str, Any]:
    """Returns the tensors of a batch, or their specs, by name; the batch may be a dictionary or a tuple."""
    if isinstance(element, Mapping):
        return dict(element)
    first, *rest = element
    inputs = dict(first) if isinstance(first, Mapping) else {"image": first}
    return inputs | dict(zip(("label", "mask"), rest, strict=False))


def describe_tensors(element_spec: Any) -> list[TensorFact]:
    """Returns the name, dtype and shape of every tensor of a batch."""
    return [
        TensorFact(name, spec.dtype.name, None if spec.shape.rank is None else tuple(spec.shape.as_list()))
        for name, spec in get_named_parts(element_spec).items()
    ]


def without_cache(config: PipelineConfig) -> PipelineConfig:
    """Returns the config without its cache, since a check should not fill a disk."""
    return dataclasses.replace(config, cache="none", cache_dir=None, cache_bytes=None)


def read_first_shape(source: Source, config: PipelineConfig) -> tuple[int, ...]:
    """Reads the first record and decodes its whole image.

    Returns:
        The height, width and channels; nothing if records have no image.

    Raises:
        tf.errors.OpError: The record is damaged, or it is not an image.
        TfpipeError: A file is not a valid TFRecord file.
    """
    encoded = _read_values(source, 0, 1, config, "encoded")
    if not source.has_images:
        return ()
    if source.images.size is not None and source.images.formats == {"RAW"}:
        decode_image(tf.constant(encoded[0]), source.images)
        return (*source.images.size, 3)
    return tuple(tf.io.decode_image(encoded[0], 3, expand_animations=False).shape)


def read_labels(source: Source, file: int, count: int, config: PipelineConfig) -> IntArray:
    """Returns the labels of the first `count` records of a file, in order; errors as with `read_first_shape`."""
    return np.array(_read_values(source, file, count, config, "label"), np.int64)


def _read_values(source: Source, file: int, count: int, config: PipelineConfig, name: str) -> list[Any]:
    """Reads the image or the label of the first records of a file; nothing if they have none."""
    plan = plan_batches(source, _in_file_order(config))
    if is_by_engine(source, plan.config):
        maker = open_maker(plan)
        assert isinstance(maker, BatchMaker)
        numbers = np.arange(source.bases[file], min(source.bases[file] + count, source.bases[file + 1]))
        columns = maker.read(0, 0, numbers).columns
        if name == "label":
            assert source.label_key is not None
            return list(number_classes(source.label_key, columns[source.label_key], source.label_base))
        return [] if source.image_key is None else [columns[source.image_key].get_bytes(0)]
    records = tf.data.TFRecordDataset(source.files[file], source.compression).take(count)
    values = [parse_example(plan, record).get(name) for record in records]
    return [tf.reshape(value, [-1])[0].numpy() for value in values if value is not None]


def _in_file_order(config: PipelineConfig) -> PipelineConfig:
    """Returns a config for one pass over the first images and labels alone. A damaged record ends the pass."""
    return PipelineConfig(batch_size=1, training=False, augment="none", image_size=config.image_size, images="first")


# The compiler


def compile_step(batch: Batch, plan: BatchPlan) -> tuple[str | None, float]:
    """Compiles a small train step over one batch with XLA, and runs it: cast, normalize, convolve, differentiate.

    Returns:
        The first line of the compiler's error, or None, and the seconds that it took.
    """
    tensors = {name: tensor for name, tensor in batch.items() if tensor.dtype != tf.string}
    classes = plan.source.num_classes or _CLASSES
    kernel = tf.ones([3, 3, 3, _FEATURES]) / 27
    head = tf.zeros([_FEATURES, classes])

    def step(kernel: tf.Tensor, head: tf.Tensor, batch: Batch) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch([kernel, head])
            images = _model_input(batch, plan.config)
            activations = tf.nn.relu(tf.nn.conv2d(images, tf.cast(kernel, images.dtype), 4, "SAME"))
            inner = list(range(1, images.shape.rank - 1))  # height and width, and before them several images
            logits = tf.matmul(tf.cast(tf.reduce_mean(activations, inner), tf.float32), head)
            loss = _loss(logits, batch.get("label"))
        gradients: list[tf.Tensor] = tape.gradient(loss, [kernel, head])
        return gradients

    started = time.perf_counter()
    try:
        for gradient in tf.function(step, jit_compile=True, autograph=False)(kernel, head, tensors):
            gradient.numpy()
    except (tf.errors.OpError, ValueError, TypeError) as error:
        return first_line(error), time.perf_counter() - started
    return None, time.perf_counter() - started


def _model_input(batch: Batch, config: PipelineConfig) -> tf.Tensor:
    image = batch["image"]
    if config.augment == "device":
        sizes = batch.get("height"), batch.get("width")
        seeds = batch.get("seed")
        return augment.augment(image, seeds, *sizes, config.size, config.training, options=config.augment_options)
    if image.dtype == tf.uint8:
        return augment.normalize(image, tf.float32, config.augment_options.mean, config.augment_options.std)
    return image


def _loss(logits: tf.Tensor, label: tf.Tensor | None) -> tf.Tensor:
    if label is None:
        return tf.reduce_mean(tf.square(logits - 1))
    if label.shape.rank == 1:
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(label, logits))
    return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(label, logits))


# The host


def measure_rate(batches: Iterator[Any], batch_size: int) -> float:
    """Measures the images per second that this host makes.

    Args:
        batches: Batches without end. Those that are buffered already are used up first.
        batch_size: Images in each batch.
    """
    _count_for(batches, WARM_UP_S)
    count, seconds = _count_for(batches, MEASURE_S)
    return count * batch_size / seconds


def _count_for(batches: Iterator[Any], seconds: float) -> tuple[int, float]:
    started, count = time.perf_counter(), 0
    while (passed := time.perf_counter() - started) < seconds or not count:
        next(batches)
        count += 1
    return count, passed
