"""One line that says what is going on, while somebody watches."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tfpipe.cli.shared.params import one_line

if TYPE_CHECKING:
    from rich.progress import ProgressColumn


@contextmanager
def status_line(first: str, seconds: float | None = None) -> Iterator[Callable[[str], None]]:
    """Shows a line on a terminal, with the time that has passed, or is left; nothing in a log.

    Args:
        first: What it says at the beginning.
        seconds: How long it will take; None where that is not known.

    Yields:
        What to call with each new text.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.table import Column

    clock = TimeElapsedColumn() if seconds is None else _time_left(seconds)
    rest = Column(no_wrap=True, overflow="ellipsis", ratio=1)  # of the line: what is long is cut, not the clock
    columns = (SpinnerColumn(), clock, TextColumn("{task.description}", markup=False, table_column=rest))
    with Progress(*columns, console=Console(stderr=True), transient=True, expand=True) as progress:
        task = progress.add_task(one_line(first), total=None)
        yield lambda text: progress.update(task, description=one_line(text))


def _time_left(seconds: float) -> "ProgressColumn":
    """`87 s left`; a class that is made only where rich is loaded."""
    from rich.progress import ProgressColumn, Task
    from rich.text import Text

    class TimeLeft(ProgressColumn):
        max_refresh = 0.5

        def render(self, task: Task) -> Text:
            return Text(f"{max(seconds - (task.elapsed or 0.0), 0):3.0f} s left", style="progress.remaining")

    return TimeLeft()
