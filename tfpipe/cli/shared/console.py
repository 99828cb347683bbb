"""The console that commands print on, text that is safe to print, and a line that says what happens at the moment."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from tfpipe.system.progress import Observer, Progress
from tfpipe.system.units import human_text

if TYPE_CHECKING:
    from rich.console import Console


class _StatusLine(Observer):
    """An observer that shows the phase in one line, with the progress behind it."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show, self._phase = show, ""

    def phase(self, text: str) -> None:
        """Shows what the job does from now on."""
        self._phase = text
        self._show(text)

    def progress(self, progress: Progress) -> None:
        """Shows the phase with the units that are done."""
        self._show(f"{self._phase}: {progress.done:,} {progress.unit}")

    def note(self, text: str) -> None:
        """Prints a sentence."""
        echo(text, err=True)


@contextmanager
def status_line(first: str) -> Iterator[_StatusLine]:
    """Shows a line on a terminal, with the time that has passed; a log gets nothing."""
    if not sys.stderr.isatty():
        yield _StatusLine(lambda _: None)
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.table import Column

    rest_of_line = Column(no_wrap=True, overflow="ellipsis", ratio=1)  # a long text is cut, not the clock
    columns = (
        SpinnerColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False, table_column=rest_of_line),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True, expand=True) as progress:
        task = progress.add_task(clean_line(first), total=None)
        yield _StatusLine(lambda text: progress.update(task, description=clean_line(text)))


def new_console() -> "Console":
    """Builds a console on standard output that prints names from files as they are: no markup, no highlighting."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)


def echo(text: str, err: bool = False) -> None:
    """Prints a text that may hold names out of files: without what controls a terminal."""
    click.echo(clean_text(text), err=err)


def clean_text(text: str) -> str:
    """Returns a text whose lines are all clean."""
    return "\n".join(map(clean_line, text.split("\n")))


def clean_line(text: str) -> str:
    """Replaces control characters in a text out of a file, and escapes what is not UTF-8."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in human_text(text))
