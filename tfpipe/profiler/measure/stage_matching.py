"""Matches tf.data's nodes to the named stages.

Nodes do not carry the names that one may give to a dataset. But each stage knows its operations: the datasets between
the one that it was handed and the one that it returned, in order. tf.data runs nearly the same chain: it may put a map
and a batch into one operation, leave out what does nothing, and add a prefetch. So the two chains are aligned with as
many agreements as possible (longest common subsequence). An operation that tf.data has added belongs to its neighbor.
No list of operations stands here that could go out of date when a stage changes.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import tensorflow as tf

from tfpipe.pipeline.steps import CALL_NAME

_FUSED = {"MapAndBatch": ("Batch", "Map"), "ShuffleAndRepeat": ("Repeat", "Shuffle")}
"""The operations that tf.data makes of two, with the later of the two first."""

_PYTHON_OPERATIONS = ("PyFunc", "PyFuncStateless", "EagerPyFunc")


@dataclass(frozen=True)
class BuiltStage:
    """A stage with its datasets.

    Attributes:
        name: The stage's name.
        before: The dataset that the stage took; None for the first stage.
        dataset: The dataset that it returned.
        random: Whether it draws anew in each epoch, as `Stage.random` says.
        per_image: Whether it treats each image for itself, as `Stage.per_image` says.
    """

    name: str
    before: Any
    dataset: Any
    random: bool | None = None
    per_image: bool | None = None

    def list_datasets(self) -> list[Any]:
        """Returns the datasets that the stage has made, the last one first."""
        datasets, dataset = [], self.dataset
        while dataset is not None and dataset is not self.before:
            datasets.append(dataset)
            dataset = _get_input(dataset, self.before)
        return datasets


class PlannedOperation(NamedTuple):
    """An operation that a stage is made of.

    Attributes:
        kind: The operation's kind, as `get_operation_kind` names it.
        stage: The stage's name.
        batch_size: The number of elements that it collects into one; None if it is not a batch of a known size.
    """

    kind: str
    stage: str
    batch_size: int | None = None


class Match(NamedTuple):
    """The stages of a node.

    Attributes:
        stage: The stage to which the node's work belongs.
        giver: The stage whose elements leave the node. It is a later one if tf.data has fused operations of two stages.
        batch_size: The number of elements that the node collects into one; None if that is unknown.
    """

    stage: str
    giver: str
    batch_size: int | None


def list_planned_operations(stages: Iterable[BuiltStage]) -> list[PlannedOperation]:
    """Returns the operations of the stages, from the last one back to the source.

    A stage that fetches from a cache begins anew: what comes before it does not run in the same chain. A map that gives
    what it gets is left out, as tf.data does.
    """
    operations: list[PlannedOperation] = []
    for stage in stages:
        datasets = [dataset for dataset in stage.list_datasets() if not _does_nothing(dataset)]
        before = operations if stage.before is None or _leads_to(stage.dataset, stage.before) else []
        operations = [*(_describe(dataset, stage.name) for dataset in datasets), *before]
    return operations


def find_python_stages(stages: Iterable[BuiltStage]) -> set[str]:
    """Returns the names of the stages in which a Python function runs."""
    # Every class of tf.data has `_functions`. Only the graphs of a dataset's functions tell what runs in it.
    return {
        stage.name
        for stage in stages
        for dataset in stage.list_datasets()
        if any(_calls_python(wrapper.function.graph) for wrapper in dataset._functions())
    }


def get_operation_kind(name: str) -> str:
    """Returns the part that the names of a Python class and of its node have in common.

    `_ParallelMapDataset` and `ParallelMapV2` are both a `Map`; `_RepeatDataset` and `ForeverRepeat` are a `Repeat`.
    """
    name = re.sub(r"^_|Dataset$|V\d+$", "", name)
    name = re.sub(r"V\d+$", "", name.removesuffix("Dataset"))
    name = re.sub(r"^(Parallel|Forever|Finite)", "", name)
    return "Cache" if "Cache" in name else name


def match_stages(nodes: Sequence[str], planned: Sequence[PlannedOperation]) -> list[Match]:
    """Returns the stages of each node.

    Args:
        nodes: Names of the nodes, from the last operation back to the source, without the root.
        planned: The operations of the stages, from `list_planned_operations`.

    Returns:
        One match for each node. The work of what tf.data has fused belongs to the earlier stage: a batch in one
        operation with a map is part of `augment`, or of `decode` where no other stage comes between.
    """
    parts = [(part, i) for i, name in enumerate(nodes) for part in _FUSED.get(name, (get_operation_kind(name),))]
    matched: list[list[PlannedOperation]] = [[] for _ in nodes]
    for (_, node), operation in _align(parts, planned):
        matched[node].append(operation)
    last = next((operations[0].stage for operations in matched if operations), "")
    matches = []
    for operations in matched:
        giver = operations[0].stage if operations else last
        last = operations[-1].stage if operations else last
        size = next((operation.batch_size for operation in operations if operation.batch_size), None)
        matches.append(Match(last, giver, size))
    return matches


def _does_nothing(dataset: Any) -> bool:
    """Returns whether a dataset is a map that gives the parts of an element as they are, in the same order."""
    if get_operation_kind(type(dataset).__name__) != "Map":
        return False
    (wrapper,) = dataset._functions()
    graph = wrapper.function.graph
    sources = []
    for output in graph.outputs:
        while output.op.type == "Identity":
            output = output.op.inputs[0]
        sources.append(output)
    is_pure = all(operation.type in ("Placeholder", "Identity") for operation in graph.get_operations())
    same = len(sources) == len(graph.inputs) and all(map(operator.is_, sources, graph.inputs))
    return is_pure and same


def _describe(dataset: Any, stage: str) -> PlannedOperation:
    # Every dataset that makes batches of a fixed size has `_batch_size`.
    size = getattr(dataset, "_batch_size", None)
    size = None if size is None else tf.get_static_value(size)
    return PlannedOperation(get_operation_kind(type(dataset).__name__), stage, None if size is None else int(size))


def _get_input(dataset: Any, before: Any) -> Any:
    """Returns the dataset that a dataset was built on, or None for a source.

    Of the inputs of a zip it is the one that leads back to the stage before.
    """
    # Every class of tf.data has `_inputs`; there is no public way back.
    inputs = dataset._inputs()
    return next((parent for parent in inputs if _leads_to(parent, before)), inputs[0] if inputs else None)


def _leads_to(dataset: Any, before: Any) -> bool:
    return dataset is before or any(_leads_to(parent, before) for parent in dataset._inputs())


def _calls_python(graph: Any) -> bool:
    """Returns whether a function, or a function that it calls, has an operation that runs Python.

    The calls of the engine do not count: what takes time in them lets go of Python's lock.
    """
    nodes = [(operation.type, operation.name) for operation in graph.get_operations()]
    for function in graph._functions.values():
        nodes += [(node.op, node.name) for node in function.cached_definition.node_def]
    return any(kind in _PYTHON_OPERATIONS and not name.startswith(CALL_NAME) for kind, name in nodes)


def _align(
    parts: Sequence[tuple[str, int]], planned: Sequence[PlannedOperation]
) -> list[tuple[tuple[str, int], PlannedOperation]]:
    """Returns the pairs of a longest common subsequence; of several, the one that matches latest toward the source."""
    rows, columns = len(parts), len(planned)
    best = [[0] * (columns + 1) for _ in range(rows + 1)]
    for i in range(rows):
        for j in range(columns):
            same = parts[i][0] == planned[j].kind
            best[i + 1][j + 1] = best[i][j] + 1 if same else max(best[i][j + 1], best[i + 1][j])
    pairs, i, j = [], rows, columns
    while i and j:
        if parts[i - 1][0] == planned[j - 1].kind and best[i][j] == best[i - 1][j - 1] + 1:
            pairs.append((parts[i - 1], planned[j - 1]))
            i, j = i - 1, j - 1
        elif best[i - 1][j] >= best[i][j - 1]:
            i -= 1
        else:
            j -= 1
    return pairs[::-1]
