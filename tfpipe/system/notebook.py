"""The way in which a notebook shows a dataset: as a few of its images.

`tfpipe` sets the function that draws, because what is shown stands on lower floors than the readers.
"""

from collections.abc import Callable

draw: Callable[[object], str | None] | None = None
"""The function that makes HTML of a manifest or of a reader; None for what has no images."""


def show(shown: object) -> str | None:
    """Returns the HTML of a manifest or of a reader for a notebook; None leaves it to show the text."""
    return None if draw is None else draw(shown)
