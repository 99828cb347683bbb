"""Gathers what is wrong with an input in `with faults:` blocks, so that one run says all of it."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType

from tfpipe.errors import DataError
from tfpipe.system.units import human_count

ROWS_SHOWN = 5
_DETAILS = re.compile(r", got | \(|[0-9]+")  # what differs between faults of one kind


@dataclass(frozen=True)
class Rows:
    """Some rows of a table."""

    count: int = 0
    first: tuple[tuple[int, int, str], ...] = ()  # the number of the file, the row from 1, and what is wrong

    def show(self, files: Sequence[str], begin: int = 0) -> str:
        """Returns a list such as "rows 2, 7 and 30 more"; `begin` is the first row that it has."""
        rows = [
            f"{row:,} of {files[file_number]}" if len(files) > 1 else f"{row:,}"
            for file_number, row, _ in self.first[begin:]
        ]
        more = self.count - len(self.first)
        *most, last = [*rows, *([f"{more:,} more"] if more else [])]
        return f"row{'s' * (self.count - begin > 1)} {', '.join(most)}{' and ' * bool(most)}{last}"


@dataclass
class RowFaults:
    """The faults of rows, by their kind. In its block an error is kept with the row at hand."""

    file_number: int = 0
    row: int = 0  # the row at hand, from 1
    found: dict[str, Rows] = field(default_factory=dict)
    is_faulty: bool = False  # whether the row at hand is

    def begin(self, file_number: int, row: int) -> None:
        """Begins with another row."""
        self.file_number, self.row, self.is_faulty = file_number, row, False

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        if not isinstance(error, DataError):
            return False
        self.is_faulty = True
        what = str(error)
        alike = self.found.get(_DETAILS.split(what)[0], Rows())
        first = (*alike.first, (self.file_number, self.row, what))[:ROWS_SHOWN]
        self.found[_DETAILS.split(what)[0]] = Rows(alike.count + 1, first)
        return True

    def explain(self, files: Sequence[str]) -> Iterator[DataError]:
        """Yields an error for each kind of fault, in the order of the rows."""
        for rows in sorted(self.found.values(), key=lambda rows: rows.first[0]):
            file_number, row, what = rows.first[0]
            also = f" So {'do' if rows.count > 2 else 'does'} {rows.show(files, 1)}." if rows.count > 1 else ""
            yield DataError(f"{files[file_number]}, row {row}: {what}{also}")


class _ManyFaultsError(DataError):
    """All errors about one input."""

    found: tuple[DataError, ...] = ()


class Faults:
    """The errors about an input. In its block an error about the data is kept."""

    def __init__(self, source: str, found: Iterable[DataError] = ()) -> None:
        self._source, self.found = source, list(found)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        if not isinstance(error, DataError):
            return False
        self.found += error.found if isinstance(error, _ManyFaultsError) else [error]
        return True

    def check(self) -> None:
        """Raises the errors if there are some."""
        if len(self.found) == 1:
            raise self.found[0]
        if self.found:
            lines = "".join(f"\n- {error}" for error in self.found)
            many = _ManyFaultsError(f"{self._source} has {human_count(len(self.found), 'fault')}:{lines}")
            many.found = tuple(self.found)
            raise many
