"""What an image would cost from `parse` to `batch` if an option or the stored images were otherwise.

A profile shows what a pipeline's stages cost, not what others would. How much of `augment` is due to floats, what a
smaller image saves, whether whole images for the device cost less than crops on the host: all that depends on the
images and on the machine. So each is tried with a few of the records, from memory, beside the stages as they are. They
take turns, each after the other has come to rest: machines drift, and what one reads ahead must not count for another.
Half a second for each.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import tensorflow as tf

from tfpipe.format.example import decode_example, encode_example
from tfpipe.format.image_form import ImageForm
from tfpipe.images.normalize import BadImage, prepare_image
from tfpipe.pipeline.config.pipeline_config import PipelineConfig
from tfpipe.pipeline.plan.read_plan import ReadPlan
from tfpipe.pipeline.plan.source import Source
from tfpipe.pipeline.stage import Stages, tf_data_options
from tfpipe.pipeline.stages.augment import augment_images
from tfpipe.pipeline.stages.batch import batch_examples
from tfpipe.pipeline.stages.decode import decode_images
from tfpipe.pipeline.stages.parse import add_seed, parse_records
from tfpipe.system import host_limits

RECORDS, BATCH = 32, 32
_SECONDS, _TURN_S, _MIN_TURNS = 0.3, 0.03, 3
_REST_S, _MAX_REST_S = 0.003, 1.0
"""At rest is who has used less than a tenth of this time. Whose other threads never rest is waited for no longer."""
_UNMADE = "unmade"


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
        tried: dict[str, float] = _tried(source, config, short_side, late_cache)
    except tf.errors.OpError:  # a damaged record: the pipeline itself says so, or leaves it out
        return {}
    return tried


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def _tried(source: Source, config: PipelineConfig, short_side: int | None, late_cache: bool) -> dict[str, float]:
    base = replace(
        config,
        cache="none",
        cache_dir=None,
        global_batch_size=BATCH,
        per_replica_batch_size=None,
        num_parallel_calls=host_limits.usable_cpus(),
        autotune=False,
        map_fusion=False,
    )
    payloads = _payloads(source)
    if not payloads:
        return {}
    made = {_UNMADE: _seeded(payloads).batch(BATCH), "now": _dataset(source, base, payloads)}
    for name, changed in _changes(base):
        made[name] = _dataset(source, changed, payloads)
    made["cached"] = _dataset(source, replace(base, cache="decoded"), payloads)
    if late_cache:
        on_device = replace(base, cache="decoded", augment="device", image_dtype="uint8")
        made["cached_device"] = _dataset(source, on_device, payloads)
    if short_side is not None and (smaller := _smaller(source, payloads, short_side)):
        made["smaller"] = _dataset(source, base, smaller)
    found = _costs_us(made)
    unmade = found.pop(_UNMADE)  # what is fetched comes with no record
    return {name: max(cost - (0.0 if "cached" in name else unmade), 1.0) for name, cost in found.items()}


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


def _dataset(source: Source, config: PipelineConfig, payloads: list[bytes]) -> tf.data.Dataset:
    """Batches of these records for ever."""
    plan = ReadPlan(source, config)
    stages, finish = [parse_records(plan), decode_images(plan)], [augment_images(plan), batch_examples(plan)]
    if config.cache == "decoded":
        cached = Stages(stages).apply_to(_records(payloads)).cache()
        numbers: Any = tf.data.Dataset.range(2**62)
        whole = numbers.map(lambda number: _fetched(plan, cached, number), num_parallel_calls=2)
    else:
        whole = Stages(stages).apply_to(_seeded(payloads))
    options = tf_data_options(config, plan.deterministic)
    options.experimental_optimization.apply_default_optimizations = True  # a map and a batch in one, as in the pipeline
    return Stages(finish).apply_to(whole).with_options(options)


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


def _costs_us(datasets: dict[str, tf.data.Dataset]) -> dict[str, float]:
    """Processor time of all threads together for one image of each, with what it takes to have its record ready."""
    batches = {name: iter(dataset) for name, dataset in datasets.items()}
    for one in batches.values():
        _turn_us(one)  # functions are made, caches filled, buffers full
    turns: list[dict[str, float]] = []
    until = time.perf_counter() + _SECONDS * len(batches)
    while len(turns) < _MIN_TURNS or time.perf_counter() < until:
        turns.append({name: _turn_us(one) for name, one in batches.items()})
    return {name: statistics.median(turn[name] for turn in turns) for name in batches}


def _turn_us(batches: Iterator[Any]) -> float:
    """Of one image. A turn begins and ends with full buffers, so what it takes is what its images take."""
    started, cpu, images = time.perf_counter(), time.process_time(), 0
    while not images or time.perf_counter() - started < _TURN_S:
        next(batches)
        images += BATCH
    _rest()
    return (time.process_time() - cpu) / images * 1e6


def _rest() -> None:
    """Waits until buffers are full: no thread computes any more."""
    until = time.perf_counter() + _MAX_REST_S
    while time.perf_counter() < until:
        before = time.process_time()
        time.sleep(_REST_S)
        if time.process_time() - before < _REST_S / 10:
            return


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
    return add_seed(plan, features, tf.stack([tf.cast(number, tf.int32), tf.constant(7)]))
