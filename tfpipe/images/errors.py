"""The one exception by which an image is refused, and the limits every format shares."""

from __future__ import annotations


class BadImage(Exception):
    """An image that cannot be stored: to be quarantined, not to stop a job.

    Attributes:
        reason: One sentence for the person who owns the file, without its path.
    """

    def __init__(self, reason: str) -> None:
        """Keep `reason` as the only argument, so that the exception can be pickled."""
        super().__init__(reason)
        self.reason = reason


def check_size(width: int, height: int, max_pixels: int) -> None:
    """Refuse a size promised by a header before anything is allocated for it.

    Raises:
        BadImage: A side is not positive, or there are more than `max_pixels` pixels.
    """
    if width <= 0 or height <= 0:
        raise BadImage(f"{width} x {height} pixels, which is no image")
    if width * height > max_pixels:
        raise BadImage(f"{width} x {height} pixels, more than `max_pixels` {max_pixels} allows")
