"""One line on a terminal that says what a command does at the moment."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from tfpipe.cli.shared.console import clean_line
from tfpipe.system.progress import Observer, Progress

if TYPE_CHECKING:
    from rich.progress import ProgressColumn


class StatusLine(Observer):
    """An observer that shows the phase in one line, with the progress behind it.

    Args:
        show: Shows a text in place of the one before.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show, self._phase = show, ""

    def phase(self, text: str) -> None:
        """Shows what the job does from now on."""
        self._phase = text
        self._show(text)

    def progress(self, progress: Progress) -> None:
        """Shows the phase with the units that are done."""
        self._show(f"{self._phase}: {progress.done:,} {progress.unit}")


@contextmanager
def status_line(first: str, seconds: float | None = None, *, in_log: bool = False) -> Iterator[StatusLine]:
    """Shows a line on a terminal, with the time that has passed or is left.

    Args:
        first: The text at the beginning.
        seconds: Length of the job; None if it is unknown.
        in_log: Whether each text becomes a line of its own where there is no terminal. Otherwise a log gets nothing.

    Yields:
        The observer that changes the text.
    """
    if not sys.stderr.isatty():
        yield StatusLine((lambda text: click.echo(clean_line(text), err=True)) if in_log else lambda _: None)
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.table import Column

    clock = TimeElapsedColumn() if seconds is None else _time_left(seconds)
    rest_of_line = Column(no_wrap=True, overflow="ellipsis", ratio=1)  # a long text is cut, not the clock
    columns = (SpinnerColumn(), clock, TextColumn("{task.description}", markup=False, table_column=rest_of_line))
    with Progress(*columns, console=Console(stderr=True), transient=True, expand=True) as progress:
        task = progress.add_task(clean_line(first), total=None)
        yield StatusLine(lambda text: progress.update(task, description=clean_line(text)))


def _time_left(seconds: float) -> "ProgressColumn":
    """Builds a column such as `87 s left`, of a class that needs rich to be loaded."""
    from rich.progress import ProgressColumn, Task
    from rich.text import Text

    class TimeLeft(ProgressColumn):
        max_refresh = 0.5

        def render(self, task: Task) -> Text:
            return Text(f"{max(seconds - (task.elapsed or 0.0), 0):3.0f} s left", style="progress.remaining")

    return TimeLeft()
