"""The cost of an image from `parse` to `batch`, as it is and with an option or the stored images changed.

A profile shows the costs of a pipeline's stages, not those with other options. Floats in place of bytes, smaller
images, whole images for the device: their costs depend on the images and on the machine. So each change is tried with a
few of the records, from memory, beside the stages as they are. The candidates take turns because machines drift. Each
waits until the one before is idle, so that nothing it reads ahead counts for another. Each takes about a third of a
second.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import tensorflow as tf

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.source import Source
from tfpipe.format.example import decode_example, encode_example
from tfpipe.format.image_form import ImageForm
from tfpipe.images.normalize import BadImage, prepare_image
from tfpipe.images.seekable import make_seekable
from tfpipe.pipeline.native_stages import fuse_stages
from tfpipe.pipeline.plan.read_plan import ReadPlan
from tfpipe.pipeline.stage import Stages, tf_data_options
from tfpipe.pipeline.stages.augment import augment_images
from tfpipe.pipeline.stages.batch import batch_examples
from tfpipe.pipeline.stages.decode import decode_images
from tfpipe.pipeline.stages.parse import add_seed, parse_records
from tfpipe.profiler.measure.host_usage import has_ready_thread
from tfpipe.profiler.measure.record_sample import RECORDS, sample_records
from tfpipe.profiler.types import OptionCosts
from tfpipe.system import host_limits

BATCH = RECORDS
_SECONDS, _TURN_S, _MIN_TURNS = 0.3, 0.03, 5
_REST_S, _MAX_REST_S, _SHORT_REST_S = 0.003, 5.0, 0.02
"""A process counts as idle when it used less than a tenth of `_REST_S`, and no thread waits for a core. After
`_MAX_REST_S` nobody waits any longer, since a process may have other threads that never rest; from then on a turn is
followed by `_SHORT_REST_S`. Buffers of 800 records of 3 MB took more than one second to fill for the first time."""
_RECORDS_ALONE = "records alone"
_FROM_CACHE = ("cached", "cached_device")


def measure_option_costs(
    source: Source, config: PipelineConfig, short_side: int | None, late_cache: bool = False
) -> OptionCosts:
    """Measures the processor time of an image with the config as it is, and with each possible change.

    Args:
        source: The data; its first records are taken.
        config: The pipeline's options.
        short_side: The short side that images could be stored with; None if that would not make them smaller.
        late_cache: Whether one of the user's stages keeps augmented images. Then augmentation of cached images on the
            device is tried, too.

    Returns:
        The costs. There are none without images or with several in a record, if nothing is decoded in training, or if
        a record is damaged.
    """
    one_image = source.has_images and source.per_record is None
    if not config.training or config.service or config.cache == "decoded" or not one_image:
        return OptionCosts()
    try:
        costs: OptionCosts = _measure(source, config, short_side, late_cache)
    except tf.errors.OpError:  # a damaged record: the pipeline itself says so, or leaves it out
        return OptionCosts()
    return costs


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def _measure(source: Source, config: PipelineConfig, short_side: int | None, late_cache: bool) -> OptionCosts:
    base = replace(
        config,
        cache="none",
        cache_dir=None,
        cache_bytes=None,
        global_batch_size=BATCH,
        per_replica_batch_size=None,
        num_parallel_calls=host_limits.usable_cpus(),
        autotune=False,
        map_fusion=False,
    )
    payloads = sample_records(source)
    if not payloads:
        return OptionCosts()
    datasets = {_RECORDS_ALONE: _repeat_records(payloads).batch(BATCH)}
    for name, changed in _list_changes(source, base, late_cache):
        datasets[name] = _build_dataset(source, changed, payloads)
    if short_side is not None and (smaller := _shrink_images(source, payloads, short_side)):
        datasets["smaller"] = _build_dataset(source, base, smaller)
    if seekable := _add_markers(source, base, payloads):
        datasets["seekable"] = _build_dataset(source, base, seekable)
    costs_us = measure_costs_us(datasets)
    records_us = costs_us.pop(_RECORDS_ALONE)  # a cached image comes without its record
    return OptionCosts(
        **{name: max(cost - (0.0 if name in _FROM_CACHE else records_us), 1.0) for name, cost in costs_us.items()}
    )


def _list_changes(source: Source, config: PipelineConfig, late_cache: bool) -> Iterator[tuple[str, PipelineConfig]]:
    """Yields each change that needs no other records: its field of `OptionCosts`, and its config."""
    yield "now", config
    if config.image_dtype != "uint8":
        yield "uint8", replace(config, image_dtype="uint8")
    if config.augment == "host":
        yield "device", replace(config, augment="device", image_dtype="uint8")
    native = replace(config, decoder="auto")
    if native != config and ReadPlan(source, native).decoder == "native":
        yield "native", native
    if not config.dct_scaling:
        yield "dct_scaling", replace(config, dct_scaling=True)
    yield "cached", replace(config, cache="decoded")
    if late_cache:
        yield "cached_device", replace(config, cache="decoded", augment="device", image_dtype="uint8")


def _shrink_images(source: Source, payloads: list[bytes], short_side: int) -> list[bytes]:
    """Returns the records as `tfpipe shard --resize-short` would write them; none if an image cannot be read."""
    form, smaller = ImageForm(resize_short=short_side), []
    try:
        for payload in payloads:
            features: dict[str, Any] = dict(decode_example(payload))
            assert source.image_key is not None
            image = prepare_image(features[source.image_key][0], form)
            features[source.image_key] = [image.encoded]
            features |= {"image/height": [image.height], "image/width": [image.width]}
            smaller.append(encode_example(features))
    except BadImage:
        return []
    return smaller


def _add_markers(source: Source, config: PipelineConfig, payloads: list[bytes]) -> list[bytes]:
    """Returns the records as `tfpipe reshard --seekable` would write them; none if that would not help, or fails."""
    if source.images.seekable or ReadPlan(source, config).decoder != "native":
        return []
    seekable = []
    try:
        for payload in payloads:
            features: dict[str, Any] = dict(decode_example(payload))
            assert source.image_key is not None  # a native decoder needs images
            image = make_seekable(features[source.image_key][0], ImageForm().max_pixels)
            if image is None:
                return []
            seekable.append(encode_example(features | {source.image_key: [image]}))
    except BadImage:
        return []
    return seekable


def _build_dataset(source: Source, config: PipelineConfig, payloads: list[bytes]) -> tf.data.Dataset:
    """Returns a dataset that gives batches of these records without end."""
    plan = ReadPlan(source, config)
    stages = [parse_records(plan), decode_images(plan), augment_images(plan), batch_examples(plan)]
    if config.cache == "decoded":
        options = tf_data_options(config, plan.deterministic)  # those of the whole do not reach what is fetched from
        cached = Stages(stages[:2]).apply_to(list_records(payloads)).with_options(options).cache()
        numbers: Any = tf.data.Dataset.range(2**62)
        if source.shard_records is None:  # read again and again in one order
            records = tf.data.Dataset.zip((cached.repeat(), numbers)).map(lambda kept, n: _add_crop(plan, kept, n))
        else:
            records = numbers.map(lambda n: _fetch_cached(plan, cached, n), num_parallel_calls=2)
        stages = stages[2:]
    else:
        records = _repeat_records(payloads)
    options = tf_data_options(config, plan.deterministic)
    options.experimental_optimization.apply_default_optimizations = True  # a map and a batch in one, as in the pipeline
    return Stages(fuse_stages(plan, stages)).apply_to(records).with_options(options)


def list_records(payloads: list[bytes]) -> tf.data.Dataset:
    """Returns the records once, as `read` gives them."""
    numbers, seeds = tf.range(RECORDS, dtype=tf.int64), tf.zeros([RECORDS, 2], tf.int32)
    return tf.data.Dataset.from_tensor_slices(((numbers, tf.constant(payloads)), (numbers, seeds)))


def _repeat_records(payloads: list[bytes]) -> tf.data.Dataset:
    """Returns the records without end, with another seed each time, so that crops differ."""
    seven = tf.constant(7)
    return (
        list_records(payloads)
        .repeat()
        .enumerate()
        .map(
            lambda i, record: (record[0], (record[1][0], tf.stack([tf.cast(i, tf.int32), seven]))),
            num_parallel_calls=2,
        )
    )


def _fetch_cached(plan: ReadPlan, cached: tf.data.Dataset, number: tf.Tensor) -> Any:
    """Fetches an image from a cache by position, as the stage `repeat` does behind a cache."""
    flat_spec = tf.nest.flatten(cached.element_spec)
    tensors = tf.raw_ops.GetElementAtIndex(
        dataset=tf.data.experimental.to_variant(cached),
        index=number % RECORDS,
        output_types=[spec.dtype for spec in flat_spec],
        output_shapes=[spec.shape for spec in flat_spec],
    )
    return _add_crop(plan, tf.nest.pack_sequence_as(cached.element_spec, tensors), number)


def _add_crop(plan: ReadPlan, features: Any, number: tf.Tensor) -> Any:
    """Adds another seed each time, so that crops differ."""
    return add_seed(plan, features, tf.stack([tf.cast(number, tf.int32), tf.constant(7)]))


def measure_costs_us(datasets: dict[str, tf.data.Dataset]) -> dict[str, float]:
    """Returns the processor time of all threads for one image of each dataset, its record included."""
    iterators, rest = {name: iter(dataset) for name, dataset in datasets.items()}, _Rest()
    for batches in iterators.values():
        _run_turn_us(batches, rest)  # functions are made, caches filled, buffers full
    turns: list[dict[str, float]] = []
    until = time.perf_counter() + _SECONDS * len(iterators)
    while len(turns) < _MIN_TURNS or time.perf_counter() < until:
        turns.append({name: _run_turn_us(batches, rest) for name, batches in iterators.items()})
    return {name: statistics.median(turn[name] for turn in turns) for name in iterators}


def _run_turn_us(batches: Iterator[Any], rest: _Rest) -> float:
    """Takes batches for a short time, and returns the processor time of one image.

    A turn begins and ends with full buffers, so its processor time is that of its own images.
    """
    started, cpu_s, images = time.perf_counter(), time.process_time(), 0
    while not images or time.perf_counter() - started < _TURN_S:
        next(batches)
        images += BATCH
    return (rest.wait() - cpu_s) / images * 1e6


class _Rest:
    """The pause between two turns, which ends when no thread computes any more, because buffers are full."""

    def __init__(self) -> None:
        self._max_s = _MAX_REST_S

    def wait(self) -> float:
        """Waits for the end of the pause.

        Returns:
            The processor time of the process until then in seconds, without that of looking at the threads.
        """
        until, looking_s = time.perf_counter() + self._max_s, 0.0
        while time.perf_counter() < until:
            before = time.process_time()
            time.sleep(_REST_S)
            if time.process_time() - before > _REST_S / 10:
                continue
            looked_s = time.thread_time()
            rests = not has_ready_thread()
            looking_s += time.thread_time() - looked_s
            if rests:
                return time.process_time() - looking_s
        self._max_s = _SHORT_REST_S
        return time.process_time() - looking_s
