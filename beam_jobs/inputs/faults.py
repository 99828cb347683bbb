"""Collects the faults of an input, so that one run reports all of them."""

import contextlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType

from tfpipe.errors import ConfigError, DataError
from tfpipe.system.units import human_count

ROWS_SHOWN = 5
_DETAILS = re.compile(r", got | \(|[0-9]+")  # what differs between faults of one kind


def show_rows(rows: Sequence[tuple[int, int]], count: int, files: Sequence[str]) -> str:
    """Returns text such as "rows 2, 7 and 30 more" for `count` rows, the first of which are (file number, row)."""
    shown = [f"{row:,} of {files[file_number]}" if len(files) > 1 else f"{row:,}" for file_number, row in rows]
    more = count - len(rows)
    *most, last = [*shown, *([f"{more:,} more"] if more else [])]
    return f"row{'s' * (count > 1)} {', '.join(most)}{' and ' * bool(most)}{last}"


@dataclass
class RowFaults:
    """The faults of rows, by kind. A `with` block stores an error of tfpipe with the current row, and goes on."""

    current: tuple[int, int] = (0, 0)  # the file number, and the current row, from 1
    found: dict[str, tuple[str, list[tuple[int, int]]]] = field(default_factory=dict)  # first error and rows, by kind
    counts: Counter[str] = field(default_factory=Counter)  # of all rows, by kind
    is_faulty: bool = False  # whether the current row is faulty

    def begin(self, file_number: int, row: int) -> None:
        """Sets the current row."""
        self.current, self.is_faulty = (file_number, row), False

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        if not isinstance(error, DataError | ConfigError):
            return False
        self.is_faulty = True
        name = _DETAILS.split(str(error))[0]
        self.counts[name] += 1
        rows = self.found.setdefault(name, (str(error), []))[1]
        rows += [self.current] if len(rows) < ROWS_SHOWN else []
        return True

    def explain(self, files: Sequence[str]) -> Iterator[DataError]:
        """Yields an error for each kind of fault, in the order of the rows."""
        found = sorted((rows, what, name) for name, (what, rows) in self.found.items())
        for ((file_number, row), *others), what, name in found:
            count = self.counts[name] - 1
            also = f" So {'do' if count > 1 else 'does'} {show_rows(others, count, files)}." if count else ""
            yield DataError(f"{files[file_number]}, row {row}: {what}{also}")


class _ManyFaultsError(DataError):
    """An error that joins all errors about one input."""

    found: tuple[DataError, ...] = ()


@contextlib.contextmanager
def keeping(found: list[DataError]) -> Iterator[None]:
    """Adds an error about the data in the block to `found`, in place of raising it."""
    try:
        yield
    except DataError as error:
        found += error.found if isinstance(error, _ManyFaultsError) else [error]


def raise_all(source: str, found: Sequence[DataError]) -> None:
    """Raises the errors about an input, several as one, if there are any."""
    if len(found) == 1:
        raise found[0]
    if found:
        lines = "".join(f"\n- {error}" for error in found)
        many = _ManyFaultsError(f"{source} has {human_count(len(found), 'fault')}:{lines}")
        many.found = tuple(found)
        raise many
