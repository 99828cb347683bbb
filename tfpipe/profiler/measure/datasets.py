"""The parts that the datasets of a stage are made of: kinds of operations, Python functions, buffers. Nothing runs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfpipe.pipeline.stage import STAGE_NAMES
from tfpipe.pipeline.steps import CALL_NAME

_CAN_DROP = {"Filter", "FlatMap", "IgnoreErrors", "Interleave", "Unique"}
"""Kinds of operations that can drop an element."""
_COLLECTS = {"Batch", "GroupByReducer", "GroupByWindow", "PaddedBatch", "Rebatch", "Window"}
"""Kinds of operations that make one element of several."""
_PYTHON_OPERATIONS = ("PyFunc", "PyFuncStateless", "EagerPyFunc")


@dataclass(frozen=True)
class BuiltStage:
    """A stage with its datasets."""

    name: str
    before: Any  # the dataset that it took; None for the first stage
    dataset: Any  # the dataset that it returned
    random: bool | None = None  # as `Stage.random`
    per_image: bool | None = None  # as `Stage.per_image`

    @property
    def is_own(self) -> bool:
        """Whether the user has put it in."""
        return self.name not in STAGE_NAMES

    @property
    def kinds(self) -> set[str]:
        """The kinds of its operations, as `get_kind` names them."""
        return {get_kind(dataset) for dataset in self.list_datasets()}

    @property
    def calls_python(self) -> bool:
        """Whether a Python function runs in it."""
        # Every class of tf.data has `_functions`. Only the graphs of a dataset's functions tell what runs in it.
        return any(
            _calls_python(wrapper.function.graph)
            for dataset in self.list_datasets()
            for wrapper in dataset._functions()
        )

    @property
    def can_drop(self) -> bool:
        """Whether it can drop single images; fewer batches than images are not dropped images."""
        return bool(self.kinds & _CAN_DROP) and ("Unbatch" in self.kinds or not self.kinds & _COLLECTS)

    def list_datasets(self) -> list[Any]:
        """Returns the datasets that the stage has made, the last one first."""
        datasets, dataset = [], self.dataset
        while dataset is not None and dataset is not self.before:
            datasets.append(dataset)
            dataset = _get_input(dataset, self.before)
        return datasets

    def count_buffered(self) -> int:
        """Counts the elements that its shuffles hold."""
        sizes = [getattr(each, "_buffer_size", None) for each in self.list_datasets() if get_kind(each) == "Shuffle"]
        return sum(int(tf.get_static_value(size) or 0) for size in sizes if size is not None)

    def count_grouped(self) -> int:
        """Counts the elements that it makes one of."""
        sizes = [each._batch_size for each in self.list_datasets() if hasattr(each, "_batch_size")]
        return math.prod(int(tf.get_static_value(size) or 1) for size in sizes)

    def get_ratio(self) -> float | None:
        """Returns the elements that it gives for each that it takes; None if only running it can tell."""
        return 1 / self.count_grouped() if self.kinds <= {"Map", "Batch", "Prefetch"} else None

    def get_map(self) -> Callable[..., Any] | None:
        """Returns the function of a stage that is one map; None for any other."""
        datasets = self.list_datasets()
        if len(datasets) != 1 or get_kind(datasets[0]) != "Map":
            return None
        function = datasets[0]._map_func.function  # neither has a public name
        spec = datasets[0].element_spec

        def call(*element: Any) -> Any:
            return tf.nest.pack_sequence_as(spec, tf.nest.flatten(function(*tf.nest.flatten(element))), True)

        plain: Callable[..., Any] = tf.autograph.experimental.do_not_convert(call)
        return plain

    def count_threads(self, most: int, autotunes: bool) -> int:
        """Counts the calls that run at once: `most` where tf.data chooses, but 1 of a map that keeps a state."""
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
    """Returns the user's stages that cache what `augment` has made, the last one first."""
    names = [stage.name for stage in stages]
    after = stages[names.index("augment") + 1 :] if "augment" in names else []
    return tuple(stage.name for stage in reversed(after) if stage.is_own and "Cache" in stage.kinds)


def get_kind(dataset: Any) -> str:
    """Returns the kind of a dataset's operation: `_MapDataset` and `_ParallelMapDataset` are both a "Map"."""
    name = re.sub(r"^_|Dataset$|V\d+$", "", type(dataset).__name__)
    name = re.sub(r"^(Parallel|Forever|Finite)", "", name.removesuffix("Dataset"))
    return "Cache" if "Cache" in name else name


def _get_input(dataset: Any, before: Any) -> Any:
    """Returns the dataset that a dataset was built on, or None for a source.

    Of the inputs of a zip it is the one that leads back to the stage before.
    """
    # Every class of tf.data has `_inputs`; there is no public way back.
    inputs = dataset._inputs()
    return next((parent for parent in inputs if _leads_to(parent, before)), inputs[0] if inputs else None)


def _leads_to(dataset: Any, before: Any) -> bool:
    return dataset is before or any(_leads_to(parent, before) for parent in dataset._inputs())


def _list_nodes(graph: Any) -> Iterable[tuple[str, str]]:
    """Yields the kind and the name of each operation of a graph, and of the functions that it calls."""
    for operation in graph.get_operations():
        yield operation.type, operation.name
    for function in graph._functions.values():
        for node in function.cached_definition.node_def:
            yield node.op, node.name


def _calls_python(graph: Any) -> bool:
    """Returns whether an operation runs Python. The calls of the engine do not count: they let go of Python's lock."""
    return any(kind in _PYTHON_OPERATIONS and not name.startswith(CALL_NAME) for kind, name in _list_nodes(graph))


def _has_state(graph: Any) -> bool:
    from tensorflow.python.framework import op_def_registry

    definitions = (op_def_registry.get(kind) for kind, _ in _list_nodes(graph))
    return any(definition is not None and definition.is_stateful for definition in definitions)
