"""Counts the appended images and names that a dataset had before, by the facts that lie beside the shards."""

from __future__ import annotations

import importlib.util
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

from tfpipe.dataset.history import load_history
from tfpipe.errors import DataError
from tfpipe.format.manifest import Manifest
from tfpipe.storage import file_io
from tfpipe.writer import record_facts as facts


class Repeated(NamedTuple):
    """The records of an appended layer that the dataset had before.

    Attributes:
        images: The number of those whose originals it had, byte for byte.
        names: The number of the others whose names it had, each with another image.
    """

    images: int
    names: int


def count_repeated(dataset: str, layer: int) -> Repeated | None:
    """Counts the records of an appended layer that the dataset had before. It reads no shard.

    Args:
        dataset: The directory of the dataset.
        layer: The number of the layer.

    Returns:
        The counts. None: they take PyArrow, and the facts of all shards on this machine.
    """
    if file_io.is_url(dataset) or importlib.util.find_spec("pyarrow") is None:
        return None
    history = load_history(dataset)
    before, after = (history.load_state(number, number, with_columns=False) for number in (layer - 1, layer))
    columns = [name for name in (facts.DIGEST, facts.NAME) if name in facts.list_columns(after)]
    if facts.DIGEST not in columns:
        return None
    try:
        new = _read(after.parts[max(len(before.parts), 1) :], columns)
        old = facts.find_values(before, {name: set(values) - {None} for name, values in new.items()})
    except DataError:
        return None
    had_image = [digest in old[facts.DIGEST] for digest in new[facts.DIGEST]]
    had_name = (
        [name in old[facts.NAME] for name in new[facts.NAME]] if facts.NAME in columns else [False] * len(had_image)
    )
    return Repeated(sum(had_image), sum(map(operator.gt, had_name, had_image)))


def _read(manifests: Sequence[Manifest], columns: Sequence[str]) -> dict[str, list[Any]]:
    """Reads columns of the facts about all records of some datasets."""
    values: dict[str, list[Any]] = {name: [] for name in columns}
    for manifest in manifests:
        for split in manifest.splits:
            for found in facts.read_shown(manifest, split, columns):
                for name in columns:
                    values[name] += found[name]
    return values
