"""The facts about the data and its stages that the diagnosis needs, and the memory that stages hold. Nothing runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.features import list_stored_features
from tfpipe.engine.plan import BatchPlan, plan_batches
from tfpipe.engine.source import Source, get_source
from tfpipe.errors import FormatError
from tfpipe.format.manifest import Manifest
from tfpipe.format.schema import CLASS_LABEL, IMAGE_ENCODED, image_schema
from tfpipe.pipeline.steps import count_batches_read
from tfpipe.pipeline.textbook import count_files_at_once, count_shuffled_records
from tfpipe.pipeline.textbook_choice import is_by_engine
from tfpipe.profiler.measure.datasets import BuiltStage, find_late_caches
from tfpipe.profiler.measure.samples import RecordCount, count_records, measure_unread, sample_records
from tfpipe.profiler.types import DatasetFacts, Held, OwnStage, Profile
from tfpipe.system.units import parse_bytes

_CLEARLY_SMALLER = 0.9
_WORTH_DROPPING = 0.02
"""The share of the bytes read below which a feature that nobody reads is not worth its place in a command."""
_WAITING_BATCHES = 2  # the finished batches that wait where the number is left to tf.data or to the engine


def get_dataset_facts(
    data: Manifest | Source, split: str | None, config: PipelineConfig, stages: Sequence[BuiltStage]
) -> DatasetFacts:
    """Returns the facts about the data of a pipeline."""
    source = get_source(data, split)
    plan, by_engine = plan_batches(source, config), is_by_engine(source, config)
    payloads = sample_records(source, [feature.name for feature in plan.features])
    unread = _measure_unread(data, plan, payloads)
    counted = count_records(source) if source.num_records is None else None
    own = [stage for stage in stages if stage.is_own]
    mean_size = None
    if isinstance(data, Manifest) and split is not None and source.images.size is None:
        sizes = data.splits[split].sizes
        mean_size = (sizes.mean_height, sizes.mean_width)
    return DatasetFacts(
        name=source.name,
        address=data.address if isinstance(data, Manifest) else source.name,
        records=source.num_records,
        files=len(source.files),
        record_bytes=source.record_bytes,
        formats=tuple(sorted(source.images.formats)),
        stored_size=source.images.size,
        mean_size=mean_size,
        short_side=_compute_short_side(mean_size or (source.images.size if by_engine else None), config),
        decoded_size=plan.decoded_size,
        cycle_length=count_batches_read(plan) if by_engine else count_files_at_once(plan),
        exact=config.training and by_engine,
        by_engine=by_engine,
        shuffled_records=count_shuffled_records(plan) if config.training and not by_engine else 0,
        own_stages=tuple(stage.name for stage in own),
        declared={stage.name: OwnStage(stage.random, stage.per_image) for stage in own},
        late_caches=find_late_caches(stages),
        filters=tuple(stage.name for stage in own if stage.can_drop),
        unread_features=tuple(unread),
        unread_share=sum(unread.values()),
        foreign=not isinstance(data, Manifest) or data.foreign is not None,
        described=isinstance(data, Manifest),
        compression=source.compression,
        counted_records=counted.records if counted else None,
        unpacked_record_bytes=_compute_record_bytes(source, payloads, counted),
        unit=source.unit,
    )


def _measure_unread(data: Manifest | Source, plan: BatchPlan, payloads: Sequence[bytes]) -> dict[str, float]:
    """Returns the share of the bytes read of each feature that nobody reads and that can be left out."""
    own = set(image_schema(labeled=True, boxes=False, box_labels=False).names)
    if not isinstance(data, Manifest) or data.foreign is not None:
        own -= {IMAGE_ENCODED, CLASS_LABEL}
    read = {*list_stored_features(plan.source, plan.features), *own}  # a dataset has tfpipe's own in any case
    try:
        unread = measure_unread(payloads, read)
    except FormatError:  # the pipeline itself says so, or leaves the record out
        return {}
    return {name: share for name, share in unread.items() if share >= _WORTH_DROPPING and name in plan.source.schema}


def _compute_record_bytes(source: Source, payloads: Sequence[bytes], counted: RecordCount | None) -> float:
    """Returns the mean size of a record in memory: as counted, from a sample if they are compressed, or as stored."""
    if counted is not None:
        return counted.payload_bytes
    if source.compression and payloads:
        return sum(map(len, payloads)) / len(payloads)
    return source.record_bytes


def _compute_short_side(size: tuple[float, float] | None, config: PipelineConfig) -> int | None:
    """Returns the short side to store images with: 8/7 of the model's input; None if images are hardly larger."""
    if size is None:
        return None
    short_side = round(max(config.size) * 8 / 7)
    return short_side if short_side < _CLEARLY_SMALLER * min(size) else None


def find_held(profile: Profile, built: Sequence[BuiltStage], element_bytes: Mapping[str, float]) -> tuple[Held, ...]:
    """Returns what the stages hold, the most bytes first."""
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
