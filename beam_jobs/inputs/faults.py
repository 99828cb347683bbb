"""Collects the faults of a table's rows, so that one run reports them together."""

import re
from collections import Counter
from collections.abc import Sequence

from tfpipe.errors import ConfigError, DataError
from tfpipe.system.units import human_count

_ROWS_SHOWN = 5
_DETAILS = re.compile(r", got | \(|[0-9]+")  # what differs between faults of one kind


def _show_rows(rows: Sequence[tuple[int, int]], count: int, files: Sequence[str]) -> str:
    """Returns text such as "rows 2, 7 and 30 more" for `count` rows, the first of which are (file number, row)."""
    shown = [f"{row:,} of {files[file_number]}" if len(files) > 1 else f"{row:,}" for file_number, row in rows]
    more = count - len(rows)
    *most, last = [*shown, *([f"{more:,} more"] if more else [])]
    return f"row{'s' * (count > 1)} {', '.join(most)}{' and ' * bool(most)}{last}"


class RowFaults:
    """The first fault of each faulty row, by its kind."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[str, list[tuple[int, int]]]] = {}  # first error and first rows, by kind
        self._counts = Counter[str]()  # of all rows, by kind

    def add(self, error: DataError | ConfigError, file_number: int, row: int) -> None:
        """Adds the fault of a row, whose number counts from 1."""
        kind = _DETAILS.split(str(error))[0]
        self._counts[kind] += 1
        rows = self._found.setdefault(kind, (str(error), []))[1]
        if len(rows) < _ROWS_SHOWN:
            rows.append((file_number, row))

    def raise_all(self, source: str, files: Sequence[str]) -> None:
        """Raises one error about all faults, in the order of the rows, if there are any."""
        sentences: list[str] = []
        found = sorted((rows, what, kind) for kind, (what, rows) in self._found.items())
        for ((file_number, row), *others), what, kind in found:
            count = self._counts[kind] - 1
            also = f" So {'do' if count > 1 else 'does'} {_show_rows(others, count, files)}." if count else ""
            sentences.append(f"{files[file_number]}, row {row}: {what}{also}")
        if len(sentences) > 1:
            sentences = [f"{source} has {human_count(len(sentences), 'fault')}:", *sentences]
        if sentences:
            raise DataError("\n- ".join(sentences))
