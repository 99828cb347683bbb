"""Describes the data and the buffers of the stages for the diagnosis. The pipeline does not run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.features import list_stored_features
from tfpipe.engine.plan import plan_batches
from tfpipe.engine.source import Source, get_source
from tfpipe.format.manifest import Manifest
from tfpipe.format.schema import CLASS_LABEL, IMAGE_ENCODED, image_schema
from tfpipe.pipeline.steps import count_batches_read
from tfpipe.pipeline.textbook import count_files_at_once, count_shuffled_records
from tfpipe.pipeline.textbook_choice import is_by_engine
from tfpipe.profiler.measure.option_costs import count_records, measure_unread, sample_records
from tfpipe.profiler.measure.textbook import BuiltStage
from tfpipe.profiler.types import Buffer, DatasetInfo, PipelineProfile
from tfpipe.system.units import parse_bytes

_CLEARLY_SMALLER = 0.9
_WORTH_DROPPING = 0.02  # the share of the bytes read below which no fix drops a feature
_WAITING_BATCHES = 2  # the assumed number of prefetched batches if tf.data or the engine chooses it


def find_late_caches(stages: Sequence[BuiltStage]) -> tuple[str, ...]:
    """Returns the user's stages that cache augmented images, the last one first."""
    names = [stage.name for stage in stages]
    after = stages[names.index("augment") + 1 :] if "augment" in names else []
    return tuple(stage.name for stage in reversed(after) if stage.is_own and "Cache" in stage.kinds)


def describe_dataset(
    data: Manifest | Source, split: str | None, config: PipelineConfig, stages: Sequence[BuiltStage]
) -> DatasetInfo:
    """Returns the properties of a pipeline's data and stages; reads a few records."""
    source = get_source(data, split)
    plan, by_engine = plan_batches(source, config), is_by_engine(source, config)
    payloads = sample_records(source, [feature.name for feature in plan.features])
    kept = set(image_schema(labeled=True, boxes=False, box_labels=False).names)  # tfpipe's own features
    if not isinstance(data, Manifest) or data.foreign is not None:
        kept -= {IMAGE_ENCODED, CLASS_LABEL}
    unread = measure_unread(payloads, kept.union(list_stored_features(plan.source, plan.features)))
    unread = {name: share for name, share in unread.items() if share >= _WORTH_DROPPING and name in source.schema}
    counted = count_records(source) if source.num_records is None else None
    own = [stage for stage in stages if stage.is_own]
    unpacked_bytes = counted[1] if counted else source.record_bytes
    if source.compression and payloads and not counted:
        unpacked_bytes = sum(map(len, payloads)) / len(payloads)
    mean_size = None
    if isinstance(data, Manifest) and split is not None and source.images.size is None:
        sizes = data.splits[split].sizes
        mean_size = (sizes.mean_height, sizes.mean_width)
    size, short_side = mean_size or (source.images.size if by_engine else None), round(max(config.size) * 8 / 7)
    is_larger = size is not None and short_side < _CLEARLY_SMALLER * min(size)
    return DatasetInfo(
        name=source.name,
        address=data.address if isinstance(data, Manifest) else source.name,
        records=counted[0] if counted else source.num_records,
        record_bytes=source.record_bytes,
        formats=tuple(sorted(source.images.formats)),
        stored_size=source.images.size,
        mean_size=mean_size,
        short_side=short_side if is_larger else None,  # 8/7 of the model's input
        decoded_size=plan.decoded_size,
        cycle_length=count_batches_read(plan) if by_engine else count_files_at_once(plan),
        by_engine=by_engine,
        shuffled_records=count_shuffled_records(plan) if config.training and not by_engine else 0,
        own_stages=tuple(stage.name for stage in own),
        declared={stage.name: {"random": stage.random, "per_image": stage.per_image} for stage in own},
        late_caches=find_late_caches(stages),
        filters=tuple(stage.name for stage in own if stage.can_drop),
        unread_features=tuple(unread),
        unread_share=sum(unread.values()),
        described=isinstance(data, Manifest),
        compression="" if source.shard_records is not None else source.compression,
        unpacked_record_bytes=unpacked_bytes,
        unit=source.unit,
    )


def find_buffers(
    profile: PipelineProfile, built: Sequence[BuiltStage], element_bytes: Mapping[str, float]
) -> tuple[Buffer, ...]:
    """Returns the items that the stages keep in memory, the largest first."""
    buffers: list[Buffer] = []
    config, dataset = profile.config, profile.dataset
    records = dataset.records
    for stage in built:
        number, size = stage.count_buffered(), element_bytes.get(stage.name, dataset.record_bytes)
        if stage.name == "shuffle":
            buffers.append(Buffer(stage.name, "records", dataset.shuffled_records, dataset.shuffled_records * size))
        elif stage.is_own and number:
            # In training the records repeat before this stage, so elements of several epochs fill its buffer.
            number = number if config.training else min(number, records or number)
            buffers.append(Buffer(stage.name, "elements", number, number * size))
    batches = _WAITING_BATCHES if config.prefetch_batches is None else config.prefetch_batches
    images = [stage.bytes_out_per_image for stage in profile.stages if stage.name in ("decode", "batch", "transform")]
    if batches and images:
        size = images[-1] * profile.step.images_per_step
        buffers.append(Buffer("prefetch", "batches", batches, batches * size))
    if config.cache != "none" and config.cache_dir is None:
        height, width = dataset.decoded_size
        image_bytes = height * width * 3 if config.cache == "decoded" else dataset.record_bytes
        num_bytes = (records or 0) * image_bytes
        if config.cache_bytes is not None:
            num_bytes = min(num_bytes, parse_bytes(config.cache_bytes, "cache_bytes"))
        buffers.append(Buffer("cache", "records" if config.cache == "bytes" else "images", records or 0, num_bytes))
    return tuple(sorted(buffers, key=lambda each: -each.num_bytes))
