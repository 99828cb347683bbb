"""The display of a dataset in a notebook: a few of its images.

`tfpipe/__init__.py` sets the function that draws, because a manifest must not import the readers that read images.
"""

from collections.abc import Callable

draw: Callable[[object], str | None] | None = None
"""The function that returns a manifest or a reader as HTML, or None if it has no images."""


def show(shown: object) -> str | None:
    """Returns a manifest or a reader as HTML for a notebook, or None to have the notebook show its text."""
    return None if draw is None else draw(shown)
