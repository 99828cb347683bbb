"""The console that commands print on, and text that is safe to print."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def new_console() -> "Console":
    """Builds a console on standard output that prints names from files as they are: no markup, no highlighting."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)


def clean_line(text: str) -> str:
    """Replaces control characters and line breaks in a text that comes out of a file."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
