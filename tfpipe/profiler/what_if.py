"""What an image would cost from `parse` to `batch` if an option or the stored images were otherwise.

A profile shows what a pipeline's stages cost, not what others would. How much of `augment` is due to floats, what a
smaller image saves, whether whole images for the device cost less than crops on the host: all that depends on the
images and on the machine. So each is tried for a fifth of a second with a few of the records, from memory, and compared
with what the stages cost as they are, tried in the same way. About half a second for each.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import tensorflow as tf

from tfpipe import machine
from tfpipe.format.example import decode_example, encode_example
from tfpipe.format.form import ImageForm
from tfpipe.images.prepare import BadImage, prepare_image
from tfpipe.pipeline import named, outputs
from tfpipe.pipeline.config import PipelineConfig
from tfpipe.pipeline.plan import ReadPlan
from tfpipe.pipeline.source import Source
from tfpipe.pipeline.stages import Stages, tf_data_options

RECORDS, BATCH = 32, 32
_SECONDS = 0.2


def try_changes(
    source: Source, config: PipelineConfig, short_side: int | None, late_cache: bool = False
) -> dict[str, float]:
    """Processor time of an image from `parse` to `batch`, in us.

    Args:
        source: Whose first records are taken.
        config: Of the pipeline.
        short_side: That images could be stored with; None where that would not make them smaller.
        late_cache: A stage of the user's own keeps augmented images.

    Returns:
        "now", and where the config has it otherwise "uint8" (hand-over), "device" (augmentation), "dct_scaling",
        "cached" (images fetched decoded, from memory) and "smaller" (stored with `short_side`); and with a late
        cache "cached_device" (fetched decoded, augmented by the device). Empty where nothing is decoded in training.
    """
    if not config.training or config.service or config.cache == "decoded":
        return {}
    try:
        return _tried(source, config, short_side, late_cache)
    except tf.errors.OpError:  # a damaged record: the pipeline itself says so, or leaves it out
        return {}


def _tried(source: Source, config: PipelineConfig, short_side: int | None, late_cache: bool) -> dict[str, float]:
    base = replace(
        config,
        cache="none",
        cache_dir=None,
        global_batch_size=BATCH,
        per_replica_batch_size=None,
        num_parallel_calls=machine.usable_cpus(),
        autotune=False,
        map_fusion=False,
    )
    payloads = _payloads(source)
    if not payloads:
        return {}
    unmade = _time_us(_seeded(payloads).batch(BATCH))
    found = {"now": _cost_us(source, base, payloads) - unmade}
    for name, changed in _changes(base):
        found[name] = _cost_us(source, changed, payloads) - unmade
    found["cached"] = _cost_us(source, replace(base, cache="decoded"), payloads)
    if late_cache:
        on_device = replace(base, cache="decoded", augment="device", image_dtype="uint8")
        found["cached_device"] = _cost_us(source, on_device, payloads)
    if short_side is not None and (smaller := _smaller(source, payloads, short_side)):
        found["smaller"] = _cost_us(source, base, smaller) - unmade
    return {name: max(cost, 1.0) for name, cost in found.items()}


def _changes(config: PipelineConfig) -> Iterator[tuple[str, PipelineConfig]]:
    if config.image_dtype != "uint8":
        yield "uint8", replace(config, image_dtype="uint8")
    if config.augment == "host":
        yield "device", replace(config, augment="device", image_dtype="uint8")
    if not config.dct_scaling:
        yield "dct_scaling", replace(config, dct_scaling=True)


def _payloads(source: Source) -> list[bytes]:
    """A few records of some files; none if those are empty."""
    files = source.files[:: max(len(source.files) // 4, 1)][:4]
    records = tf.data.Dataset.from_tensor_slices(list(files)).interleave(
        lambda file: tf.data.TFRecordDataset(file, source.compression).take(RECORDS),
        cycle_length=4,
        num_parallel_calls=4,
    )
    found = [payload.numpy() for payload in records.take(RECORDS)]
    return [found[i % len(found)] for i in range(RECORDS)] if found else []


def _smaller(source: Source, payloads: list[bytes], short_side: int) -> list[bytes]:
    """The records as `tfpipe shard --resize-short` would have written them; none if an image cannot be read."""
    form, found = ImageForm(resize_short=short_side), []
    try:
        for payload in payloads:
            features: dict[str, Any] = dict(decode_example(payload))
            image = features[source.image_key]
            made = prepare_image(image[0], form)
            features[source.image_key] = [made.encoded]
            features |= {"image/height": [made.height], "image/width": [made.width]}
            found.append(encode_example(features))
    except BadImage:
        return []
    return found


def _cost_us(source: Source, config: PipelineConfig, payloads: list[bytes]) -> float:
    """Processor time of one image, with what it takes to have its record ready."""
    plan = ReadPlan(source, config)
    stages, finish = [named.parse(plan), named.decode(plan)], [named.augment(plan), named.batch(plan)]
    if config.cache == "decoded":
        cached = Stages(stages).dataset_of(_records(payloads)).cache()
        numbers: Any = tf.data.Dataset.range(2**62)
        whole = numbers.map(lambda number: _fetched(plan, cached, number), num_parallel_calls=2)
    else:
        whole = Stages(stages).dataset_of(_seeded(payloads))
    options = tf_data_options(config, plan.deterministic)
    options.experimental_optimization.apply_default_optimizations = True  # a map and a batch in one, as in the pipeline
    return _time_us(Stages(finish).dataset_of(whole).with_options(options))


def _records(payloads: list[bytes]) -> tf.data.Dataset:
    """As `read` gives them."""
    numbers, seeds = tf.range(RECORDS, dtype=tf.int64), tf.zeros([RECORDS, 2], tf.int32)
    return tf.data.Dataset.from_tensor_slices((tf.constant(payloads), numbers, seeds))


def _seeded(payloads: list[bytes]) -> tf.data.Dataset:
    """The same for ever, with another seed each time, or the same crops would come again and again."""
    seven = tf.constant(7)
    return (
        _records(payloads)
        .repeat()
        .enumerate()
        .map(lambda i, one: (one[0], one[1], tf.stack([tf.cast(i, tf.int32), seven])), num_parallel_calls=2)
    )


def _time_us(dataset: tf.data.Dataset) -> float:
    """Processor time of all threads together, for one image of these batches."""
    batches = iter(dataset)
    for _ in range(2):
        next(batches)
    started, cpu, images = time.perf_counter(), time.process_time(), 0
    while not images or time.perf_counter() - started < _SECONDS:
        next(batches)
        images += BATCH
    return (time.process_time() - cpu) / images * 1e6


def _fetched(plan: ReadPlan, cached: tf.data.Dataset, number: tf.Tensor) -> Any:
    """An image out of a cache, as `cache.fetch` does it."""
    flat = tf.nest.flatten(cached.element_spec)
    tensors = tf.raw_ops.GetElementAtIndex(
        dataset=tf.data.experimental.to_variant(cached),
        index=number % RECORDS,
        output_types=[spec.dtype for spec in flat],
        output_shapes=[spec.shape for spec in flat],
    )
    features = tf.nest.pack_sequence_as(cached.element_spec, tensors)
    return outputs.with_seed(plan, features, tf.stack([tf.cast(number, tf.int32), tf.constant(7)]))
