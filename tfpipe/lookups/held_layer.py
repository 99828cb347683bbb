"""The layer of a dataset that a run holds: the one it began with, without what was deleted since.

```
held = find_held("/data/flowers", lambda manifest: manifest.splits["train"].fingerprint == saved)
held.manifest      # what the run reads from now on
```
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tfpipe.dataset.history import load_history
from tfpipe.dataset.load import split_address
from tfpipe.dataset.parts import load_view
from tfpipe.format.manifest import Manifest
from tfpipe.system.units import human_count


@dataclass(frozen=True)
class HeldLayer:
    """The layer that a run holds.

    Attributes:
        begun: The records that it began with. Those that were deleted since are withheld.
        manifest: The records that it reads from now on.
        note: A sentence that says so.
    """

    begun: Manifest
    manifest: Manifest
    note: str

    @property
    def has_changed(self) -> bool:
        """Whether records were deleted since."""
        return any(len(numbers) for numbers in self.begun.withheld.values())


def find_held(address: str, fits: Callable[[Manifest], bool]) -> HeldLayer | None:
    """Finds the state of a dataset that a run began with; None if there is none.

    Args:
        address: The dataset or a view of it, without the number of a layer.
        fits: A function that tells whether a state is the one.

    Raises:
        DataError: There is no dataset or no view.
        FormatError: A layer, a column or the view is damaged.
    """
    directory, name = split_address(address)
    if name.isdecimal():
        return None
    history = load_history(directory)
    view = load_view(history.base, name) if name else None
    found = history.find_state(fits, view) if history.newest > 1 else None
    if found is None:
        return None
    number, hidden_at = found
    begun, now = (history.load_state(number, each, view) for each in (hidden_at, history.newest))
    withheld = _compare(begun, now)
    notes = []
    if history.list_layers("append", number) != history.list_layers("append", history.newest):
        notes.append(
            f"The run holds layer {number} of {directory}, which it began with; the newest is {history.newest}."
        )
    if count := sum(map(len, withheld.values())):
        notes.append(
            f"{human_count(count, 'record')} of those it began with were deleted since, so it reads them no more."
        )
    return HeldLayer(replace(begun, withheld=withheld), now, " ".join(notes))


def _compare(begun: Manifest, now: Manifest) -> Mapping[str, NDArray[np.int64]]:
    """Returns the numbers of the records of each split that are there no more."""
    return {name: np.setdiff1d(_list_numbers(begun, name), _list_numbers(now, name)) for name in begun.splits}


def _list_numbers(manifest: Manifest, split: str) -> NDArray[np.int64]:
    info = manifest.splits[split]
    return np.arange(info.records) if info.chosen is None else info.chosen.numbers
