"""The layers of a dataset as rows, the oldest first."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tfpipe.dataset.history import History


@dataclass(frozen=True)
class LogRow:
    """A layer.

    Attributes:
        layer: The number of the layer.
        when: The time of the change, as 2026-11-26T07:40:00Z; None for the first layer, which does not say it.
        what: The change: "shard", "append", "delete" or "rollback".
        change: The number of records of each split that were appended or hidden; empty for a rollback.
        to: The number of the layer whose state a rollback gave back; else None.
        records: The number of records of each split that can be read at the layer.
        bytes: The size of these records.
    """

    layer: int
    when: str | None
    what: str
    change: dict[str, int]
    to: int | None
    records: dict[str, int]
    bytes: int

    def to_json(self) -> dict[str, Any]:
        """Returns the row as JSON values."""
        return asdict(self)


def list_rows(history: History) -> list[LogRow]:
    """Lists the layers of a dataset.

    Raises:
        FormatError: A layer is damaged.
    """
    rows = []
    for number in range(1, history.newest + 1):
        layer = history.layers[number - 2] if number > 1 else None
        splits = history.load_state(number, number, with_columns=False).splits
        records = {name: info.records for name, info in splits.items()}
        num_bytes = sum(info.bytes for info in splits.values())
        if layer is None:
            rows.append(LogRow(number, None, "shard", records, None, records, num_bytes))
        else:
            rows.append(
                LogRow(number, layer.when, layer.kind, dict(layer.records), layer.to or None, records, num_bytes)
            )
    return rows
