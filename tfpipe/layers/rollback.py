"""Goes back to the state of an older layer, by a new entry. Nothing is removed, so one can go forth again."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tfpipe.dataset.history import History
from tfpipe.errors import ConfigError
from tfpipe.writer.layers import open_layers, start_layer, write_layer


@dataclass(frozen=True)
class RolledBack:
    """The result of going back.

    Attributes:
        layer: The number of the newest layer.
        to: The number of the layer whose state it has.
        gone: The number of records that can be read no longer.
        back: The number of records that can be read again.
        unhidden: The number of those that come back and were hidden; others were appended.
    """

    layer: int
    to: int
    gone: int
    back: int
    unhidden: int


def roll_back(dataset: str | os.PathLike[str], to: int) -> RolledBack:
    """Gives a dataset the state that it had at a layer.

    Args:
        dataset: The dataset.
        to: The number of the layer.

    Raises:
        ConfigError: There is no such layer, or its state is that of the dataset.
        DataError: There is no dataset, or another process changes its layers.
        FormatError: A layer is damaged.
    """
    with open_layers(dataset, "changes the layers of") as history:
        if not 1 <= to < history.newest:
            older = f"1 to {history.newest - 1}" if history.newest > 1 else "none"
            raise ConfigError(
                f"`to` must be the number of an older layer of {dataset}, of which there are {older}, got {to}."
            )
        if history.states[to - 1] == history.states[-1]:
            raise ConfigError(f"{dataset} has the state of layer {to} already, got `to` {to}.")
        layer = replace(start_layer(history, "rollback"), to=to)
        counts = np.sum([_compare(history, to, split) for split in _list_splits(history, to)], axis=0)
        write_layer(history, layer)
        return RolledBack(layer.number, to, *counts.tolist())


def _list_splits(history: History, to: int) -> list[str]:
    return list({**history.join_shards(history.newest).splits, **history.join_shards(to).splits})


def _compare(history: History, to: int, split: str) -> tuple[int, int, int]:
    """Counts the records of a split that go, that come back, and that were hidden."""
    now, then = (_find_visible(history, number, split) for number in (history.newest, to))
    shared = history.count_shared(history.newest, to, split)
    unhidden = int((then[:shared] & ~now[:shared]).sum())
    hidden = int((now[:shared] & ~then[:shared]).sum())
    return hidden + int(now[shared:].sum()), unhidden + int(then[shared:].sum()), unhidden


def _find_visible(history: History, number: int, split: str) -> NDArray[np.bool_]:
    info = history.join_shards(number).splits.get(split)
    visible = np.ones(0 if info is None else info.records, np.bool_)
    visible[history.list_hidden(number, split).numbers] = False
    return visible
