"""The memory that stages of a pipeline hold, and how long the first batch waits for it. Nothing runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tfpipe.profiler.measure.datasets import BuiltStage
from tfpipe.profiler.types import Held, Profile
from tfpipe.system.units import parse_bytes

_WAITING_BATCHES = 2
"""The finished batches that wait where the number is left to tf.data or to the engine."""


def find_held(profile: Profile, built: Sequence[BuiltStage], element_bytes: Mapping[str, float]) -> tuple[Held, ...]:
    """Returns what the stages hold, the most bytes first.

    Args:
        profile: The figures of a run and of its stages.
        built: The stages of tf.data with their datasets.
        element_bytes: The bytes of an element that a stage gives, of those that were tried.
    """
    held = [*_find_buffers(profile, built, element_bytes), *_find_cache(profile)]
    return tuple(sorted(held, key=lambda each: -each.num_bytes))


def _find_buffers(profile: Profile, built: Sequence[BuiltStage], element_bytes: Mapping[str, float]) -> Iterator[Held]:
    config, dataset = profile.config, profile.dataset
    records = dataset.records or dataset.counted_records
    us_before = 0.0  # a core's time for an image up to a stage
    timings = {stage.name: stage for stage in profile.stages}
    for stage in built:
        us_before += timings[stage.name].cpu_us_per_image.median if stage.name in timings else 0.0
        number, size = stage.count_buffered(), element_bytes.get(stage.name, dataset.record_bytes)
        if stage.name == "shuffle" or (stage.is_own and number):
            if stage.name == "shuffle":
                number = dataset.shuffled_records
            elif not config.training:  # a training repeats in front of it, so it is full of several epochs
                number = min(number, records or number)
            reading_us = timings["read"].wait_us_per_image if "read" in timings else 0.0
            threads = max(profile.host.pipeline_cores, 1)
            fill_s = number * (us_before / threads + reading_us / max(dataset.cycle_length, 1)) / 1e6
            what = "records" if stage.name == "shuffle" else "elements"
            yield Held(stage.name, what, number, number * size, min(fill_s, profile.first_batch_s))
    batches = _WAITING_BATCHES if config.prefetch_batches is None else config.prefetch_batches
    images = [stage.bytes_out_per_image for stage in profile.stages if stage.name in ("decode", "batch", "transform")]
    if batches and images:
        size = images[-1] * profile.step.images_per_step
        yield Held("prefetch", "batches", batches, batches * size)


def _find_cache(profile: Profile) -> Iterator[Held]:
    config, dataset = profile.config, profile.dataset
    records = dataset.records or dataset.counted_records or 0
    if config.cache == "none" or config.cache_dir is not None:
        return
    height, width = dataset.decoded_size
    image_bytes = height * width * 3 if config.cache == "decoded" else dataset.record_bytes
    num_bytes = records * image_bytes
    if config.cache_bytes is not None:
        num_bytes = min(num_bytes, parse_bytes(config.cache_bytes, "cache_bytes"))
    yield Held("cache", "records" if config.cache == "bytes" else "images", records, num_bytes)
