"""Which of tf.data's nodes belong to which named stage.

Nodes do not carry the names that one may give to a dataset. But the stages know what they are made of: the datasets
between what a stage was handed and what it returned, in order. tf.data runs nearly the same chain: it may put a map
and a batch into one operation, leave out what does nothing, and add a prefetch. So the two chains are laid beside each
other so that as many as possible agree (longest common subsequence), and what was added belongs to its neighbour.
No list of operations stands here that could go out of date when a stage changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

_FUSED = {"MapAndBatch": ("Batch", "Map"), "ShuffleAndRepeat": ("Repeat", "Shuffle")}
"""Operations that tf.data makes of two, the later one first."""


_PYTHON = ("PyFunc", "PyFuncStateless", "EagerPyFunc")


def planned_chain(stages: Iterable[tuple[str, Any, Any]]) -> list[tuple[str, str]]:
    """What the stages are made of, from the last operation back to the source.

    Args:
        stages: In order: the name, the dataset before (None for the first) and the one after.

    Returns:
        Class of each dataset, and the name of its stage.
    """
    chain: list[tuple[str, str]] = []
    for name, before, dataset in stages:
        own = []
        while dataset is not None and dataset is not before:
            own.append((kind_of(type(dataset).__name__), name))
            dataset = _input(dataset, before)
        chain = own + chain
    return chain


def python_stages(stages: Iterable[tuple[str, Any, Any]]) -> set[str]:
    """Names of the stages in whose functions a Python function runs; arguments as `planned_chain`."""
    found = set()
    for name, before, dataset in stages:
        while dataset is not None and dataset is not before:
            # Every class of tf.data has this method too; the graphs of its functions are all that knows.
            if any(_calls_python(wrapper.function.graph) for wrapper in dataset._functions()):
                found.add(name)
            dataset = _input(dataset, before)
    return found


def _input(dataset: Any, before: Any) -> Any:
    """What a dataset was built on, None for a source; of a zip that which leads back to the stage before."""
    # Every class of tf.data has this method; there is no public way back.
    inputs = dataset._inputs()
    return next((one for one in inputs if _leads_to(one, before)), inputs[0] if inputs else None)


def _leads_to(dataset: Any, before: Any) -> bool:
    return dataset is before or any(_leads_to(one, before) for one in dataset._inputs())


def _calls_python(graph: Any) -> bool:
    """Whether an operation of a function, or of the functions that it calls, is one of Python's."""
    if any(operation.type in _PYTHON for operation in graph.get_operations()):
        return True
    return any(node.op in _PYTHON for one in graph._functions.values() for node in one.cached_definition.node_def)


def kind_of(name: str) -> str:
    """The name that a Python class, `_ParallelMapDataset`, and its node, `ParallelMapV2`, have in common: `Map`."""
    name = re.sub(r"^_|Dataset$|V\d+$", "", name)
    name = re.sub(r"V\d+$", "", name.removesuffix("Dataset")).removeprefix("Parallel")
    return "Cache" if "Cache" in name else name


def stages_of(nodes: Sequence[str], planned: Sequence[tuple[str, str]]) -> list[str]:
    """The stage of each node.

    Args:
        nodes: Names, from the last operation back to the source, without the root.
        planned: From `planned_chain`.

    Returns:
        As many names. What tf.data has fused belongs to the earlier stage: a batch in one operation with a map is
        part of `augment`, or of `decode` where nothing comes between.
    """
    parts = [(part, i) for i, name in enumerate(nodes) for part in _FUSED.get(name, (kind_of(name),))]
    found: list[str | None] = [None] * len(nodes)
    for (_, node), stage in _aligned(parts, planned):
        found[node] = stage
    last = next((stage for stage in found if stage is not None), "")
    filled = []
    for one in found:
        last = last if one is None else one
        filled.append(last)
    return filled


def _aligned(parts: Sequence[tuple[str, int]], planned: Sequence[tuple[str, str]]) -> list[tuple[tuple[str, int], str]]:
    """Pairs of a longest common subsequence; of several, that with the latest matches on the side of the source."""
    rows, columns = len(parts), len(planned)
    best = [[0] * (columns + 1) for _ in range(rows + 1)]
    for i in range(rows):
        for j in range(columns):
            same = parts[i][0] == planned[j][0]
            best[i + 1][j + 1] = best[i][j] + 1 if same else max(best[i][j + 1], best[i + 1][j])
    pairs, i, j = [], rows, columns
    while i and j:
        if parts[i - 1][0] == planned[j - 1][0] and best[i][j] == best[i - 1][j - 1] + 1:
            pairs.append((parts[i - 1], planned[j - 1][1]))
            i, j = i - 1, j - 1
        elif best[i - 1][j] >= best[i][j - 1]:
            i -= 1
        else:
            j -= 1
    return pairs[::-1]
