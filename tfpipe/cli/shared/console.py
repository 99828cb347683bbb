"""The console of commands: a status line, and text from files made safe to print."""

import sys
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tfpipe.system.progress import Observer, Progress
from tfpipe.system.units import human_text

if TYPE_CHECKING:
    from rich.console import Console


_Self = TypeVar("_Self", bound="Display")


class Display(Observer):
    """A status line with a bar and the elapsed time on a terminal. Elsewhere, as in a log, only notes are printed."""

    def __init__(self, title: str) -> None:
        self._phase = title
        self._live: Any = None

    def __enter__(self: _Self) -> _Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
            from rich.table import Column

            rest = Column(no_wrap=True, overflow="ellipsis", ratio=1)  # a long text is cut, not the clock
            text = TextColumn("{task.description}", markup=False, table_column=rest)
            columns = (BarColumn(bar_width=8), TimeElapsedColumn(), text)
            self._live = Progress(*columns, console=Console(stderr=True), transient=True, expand=True)
            self._live.add_task(clean_line(self._phase), total=None)
            self._live.start()
        return self

    def __exit__(self, kind: object = None, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, text: str, done: int = 0, total: int | None = None) -> None:
        """Shows a text on a terminal."""
        if self._live is not None:
            self._live.update(self._live.task_ids[0], description=clean_line(text), completed=done, total=total)

    def phase(self, text: str) -> None:
        """Shows what the job does from now on."""
        self._phase = text
        self.show(text)

    def progress(self, progress: Progress) -> None:
        """Shows the phase and the number of units that are done."""
        self.show(f"{self._phase}: {progress.done:,} {progress.unit}")

    def note(self, text: str) -> None:
        """Prints a sentence."""
        if self._live is None:
            echo(text, err=True)
        else:  # above the line
            self._live.console.print(clean_text(text), highlight=False, markup=False, soft_wrap=True)


def new_console() -> "Console":
    """Builds a console on standard output that prints names from files as they are: no markup, no highlighting."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)


def echo(text: str, err: bool = False) -> None:
    """Prints a text after replacing control characters, which names from files may hold."""
    click.echo(clean_text(text), err=err)


def clean_text(text: str) -> str:
    """Replaces control characters in all lines of a text, as `clean_line` does."""
    return "\n".join(map(clean_line, text.split("\n")))


def clean_line(text: str) -> str:
    """Replaces control characters in a text out of a file, and escapes what is not UTF-8."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in human_text(text))
