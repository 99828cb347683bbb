"""The position of a run, which a loader keeps in a checkpoint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from tfpipe.engine.order import ORDER_VERSION, check_version
from tfpipe.errors import ConfigError
from tfpipe.format.manifest import Manifest
from tfpipe.system.arguments import check_count

_LAYER = "layer"
Split: TypeAlias = tuple[Manifest, str]
"""A dataset's manifest, and the name of the split that is read."""
_LEAST_LOOK, _LARGEST_LOOK = 4, 24


class Position(NamedTuple):
    """The position of the batch that comes next."""

    epoch: int
    step: int

    def state(self, seed: int, data: int, layers: Sequence[int] = ()) -> dict[str, int]:
        """Returns the state from which a run resumes. It holds no layer of a dataset that is at its first layer."""
        named = {_name_layer(k): layer for k, layer in enumerate(layers) if layer > 1}
        return {"seed": seed, "epoch": self.epoch, "step": self.step, "order": ORDER_VERSION, "data": data, **named}


def find_position(step: int, steps_per_epoch: int) -> Position:
    """Returns the position of a global step of a run, of 31 bits: workers of PyTorch share it in 32."""
    if step >= 2**31:
        raise ConfigError(f"A run must have at most {2**31:,} steps, got step {step:,}.")
    return Position(*divmod(step, steps_per_epoch))


def count_look(steps: int) -> int:
    """Returns how many batches of a pass a framework takes ahead at most while it only looks at the first one.

    Keras looks at a batch before it trains. A strategy of TensorFlow then takes 3 ahead, and a parallel `map` 16.
    """
    return max(_LEAST_LOOK, min(_LARGEST_LOOK, steps // 2))


def number_data(splits: Sequence[Split]) -> int:
    """Returns a fingerprint of the records of splits, wherever these are stored: 48 bits of a hash."""
    hashed = []
    for manifest, split in splits:
        info = manifest.splits[split]
        shards = [(shard.records, shard.sha256) for shard in info.shards]  # file names and sizes may differ in a copy
        hashed.append([shards, None if info.chosen is None else info.chosen.digest])
    return int(hashlib.sha256(json.dumps(hashed).encode()).hexdigest()[:12], 16)


def get_layer(data: Manifest) -> int:
    """Returns the layer that a position belongs to: 1 for a view, whose records stay the same when data is added."""
    return data.layer if data.view in ("", str(data.layer)) else 1


def check_layers(state: Mapping[str, int], datasets: Sequence[Manifest]) -> None:
    """Refuses a position in another layer of a dataset that has grown, where other records have that position."""
    if not isinstance(state, Mapping):
        raise ConfigError(f"A position must be a dict of seed, epoch, step, order and data, got {state!r:.100}.")
    for number, data in enumerate(datasets):
        saved, here = state.get(_name_layer(number), 1), get_layer(data)
        if saved != here and data.layer == here:
            raise ConfigError(
                f"The position is of layer {saved} of {data.directory}, and this is layer {here}, which has other "
                f"records. Open {data.directory}@{saved} to go on with the same batches."
            )


def read_state(state: Mapping[str, int], seed: int, steps_per_epoch: int) -> Position:
    """Reads the position from a state that was saved."""
    if {name for name in state if not str(name).startswith(_LAYER)} != {"seed", "epoch", "step", "order", "data"}:
        got = ", ".join(map(str, state)) or "nothing"
        raise ConfigError(f"A position must have seed, epoch, step, order and data, got {got}.")
    check_version(state["order"], "The position")
    if state["seed"] != seed:
        raise ConfigError(f"The position must be of a run with seed {seed}, got seed {state['seed']}.")
    epoch, step, _ = (check_count(f"state[{name!r}]", state[name]) for name in ("epoch", "step", "data"))
    if step >= steps_per_epoch:
        raise ConfigError(
            f"The position must lie in an epoch of {steps_per_epoch} steps, got epoch {epoch} and step {step}. Use the "
            "batch size and the data that it was saved with."
        )
    return find_position(epoch * steps_per_epoch + step, steps_per_epoch)


def _name_layer(number: int) -> str:
    """Returns the key of a dataset's layer in a state; `number` counts the datasets of a mixture from 0."""
    return _LAYER if number == 0 else f"{_LAYER}_{number + 1}"
