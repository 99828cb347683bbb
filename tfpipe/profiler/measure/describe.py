"""Describes the data, the stages and their buffers for the diagnosis. The pipeline does not run."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import tensorflow as tf

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.features import list_stored_features
from tfpipe.engine.plan import plan_batches
from tfpipe.engine.source import Source, get_source
from tfpipe.format.manifest import Manifest
from tfpipe.format.schema import CLASS_LABEL, IMAGE_ENCODED, image_schema
from tfpipe.pipeline.stage import STAGE_NAMES
from tfpipe.pipeline.steps import CALL_NAME, count_batches_read
from tfpipe.pipeline.textbook import count_files_at_once, count_shuffled_records
from tfpipe.pipeline.textbook_choice import is_by_engine
from tfpipe.profiler.measure.option_costs import count_records, measure_unread, sample_records
from tfpipe.profiler.types import Buffer, DatasetInfo, PipelineProfile
from tfpipe.system.units import parse_bytes

_CAN_DROP = {"Filter", "FlatMap", "IgnoreErrors", "Interleave", "Unique"}
"""Kinds of operations that can drop an element."""
_COLLECTS = {"Batch", "GroupByReducer", "GroupByWindow", "PaddedBatch", "Rebatch", "Window"}
"""Kinds of operations that make one element of several."""
_PYTHON_OPERATIONS = ("PyFunc", "PyFuncStateless", "EagerPyFunc")
_CLEARLY_SMALLER = 0.9
_WORTH_DROPPING = 0.02  # the share of the bytes read below which no fix drops a feature
_WAITING_BATCHES = 2  # the assumed number of prefetched batches if tf.data or the engine chooses it


@dataclass(frozen=True)
class BuiltStage:
    """A stage, with the datasets before and after it."""

    name: str
    before: Any  # the dataset that it took; None for the first stage
    dataset: Any  # the dataset that it returned
    random: bool | None = None  # as `Stage.random`
    per_image: bool | None = None  # as `Stage.per_image`

    @property
    def is_own(self) -> bool:
        """Whether the user added the stage."""
        return self.name not in STAGE_NAMES

    @property
    def kinds(self) -> set[str]:
        """The kinds of the stage's operations, as `get_kind` names them."""
        return {get_kind(dataset) for dataset in self.list_datasets()}

    @property
    def calls_python(self) -> bool:
        """Whether a Python function runs in the stage."""
        # Every class of tf.data has `_functions`. Only the graphs of a dataset's functions show what runs in it.
        # Calls of the engine do not count, because they release Python's lock.
        graphs = [wrapper.function.graph for dataset in self.list_datasets() for wrapper in dataset._functions()]
        nodes = chain.from_iterable(map(_list_nodes, graphs))
        return any(kind in _PYTHON_OPERATIONS and not name.startswith(CALL_NAME) for kind, name in nodes)

    @property
    def can_drop(self) -> bool:
        """Whether the stage can drop single images; grouping images into batches does not count."""
        return bool(self.kinds & _CAN_DROP) and ("Unbatch" in self.kinds or not self.kinds & _COLLECTS)

    def list_datasets(self) -> list[Any]:
        """Returns the datasets that the stage has made, the last one first."""
        datasets, dataset = [], self.dataset
        while dataset is not None and dataset is not self.before:
            datasets.append(dataset)
            # Every class of tf.data has `_inputs`; there is no public way back. A zip has several inputs.
            inputs = dataset._inputs()
            dataset = next((one for one in inputs if _leads_to(one, self.before)), inputs[0] if inputs else None)
        return datasets

    def count_buffered(self) -> int:
        """Counts the elements in the buffers of the stage's shuffles."""
        sizes = [getattr(each, "_buffer_size", None) for each in self.list_datasets() if get_kind(each) == "Shuffle"]
        return sum(int(tf.get_static_value(size) or 0) for size in sizes if size is not None)

    def count_grouped(self) -> int:
        """Counts the elements that the stage groups into one."""
        sizes = [each._batch_size for each in self.list_datasets() if hasattr(each, "_batch_size")]
        return math.prod(int(tf.get_static_value(size) or 1) for size in sizes)

    def get_ratio(self) -> float | None:
        """Returns the stage's output elements per input element; None if only running the stage can tell."""
        return 1 / self.count_grouped() if self.kinds <= {"Map", "Batch", "Prefetch"} else None

    def get_map(self) -> Callable[..., Any] | None:
        """Returns the function of a stage that is a single map; None for any other stage."""
        datasets = self.list_datasets()
        if len(datasets) != 1 or get_kind(datasets[0]) != "Map":
            return None
        function = datasets[0]._map_func.function  # both names are private
        spec = datasets[0].element_spec

        def call(*element: Any) -> Any:
            return tf.nest.pack_sequence_as(spec, tf.nest.flatten(function(*tf.nest.flatten(element))), True)

        plain: Callable[..., Any] = tf.autograph.experimental.do_not_convert(call)
        return plain

    def count_threads(self, most: int, autotunes: bool) -> int:
        """Counts the calls that run at once: `most` if tf.data chooses the number, but 1 for a map with a state."""
        counts = [1]
        for dataset in self.list_datasets():
            asked = getattr(dataset, "_num_parallel_calls", None)
            if asked is not None:
                value = tf.get_static_value(asked)
                counts.append(most if value is None or value < 1 else int(value))
            elif get_kind(dataset) == "Map" and autotunes and not _has_state(dataset._map_func.function.graph):
                counts.append(most)
        return max(counts)


def find_late_caches(stages: Sequence[BuiltStage]) -> tuple[str, ...]:
    """Returns the user's stages that cache augmented images, the last one first."""
    names = [stage.name for stage in stages]
    after = stages[names.index("augment") + 1 :] if "augment" in names else []
    return tuple(stage.name for stage in reversed(after) if stage.is_own and "Cache" in stage.kinds)


def get_kind(dataset: Any) -> str:
    """Returns the kind of a dataset's operation: `_MapDataset` and `_ParallelMapDataset` are both a "Map"."""
    name = re.sub(r"^_|Dataset$|V\d+$", "", type(dataset).__name__)
    name = re.sub(r"^(Parallel|Forever|Finite)", "", name.removesuffix("Dataset"))
    return "Cache" if "Cache" in name else name


def _leads_to(dataset: Any, before: Any) -> bool:
    return dataset is before or any(_leads_to(parent, before) for parent in dataset._inputs())


def _list_nodes(graph: Any) -> Iterable[tuple[str, str]]:
    for operation in graph.get_operations():
        yield operation.type, operation.name
    for function in graph._functions.values():
        for node in function.cached_definition.node_def:
            yield node.op, node.name


def _has_state(graph: Any) -> bool:
    from tensorflow.python.framework import op_def_registry

    definitions = (op_def_registry.get(kind) for kind, _ in _list_nodes(graph))
    return any(definition is not None and definition.is_stateful for definition in definitions)


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
