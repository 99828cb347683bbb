"""The exceptions for refused images, and the check of a size against the limit."""


class BadImage(Exception):
    """An image that cannot be stored. A job puts it into quarantine and goes on."""

    def __init__(self, reason: str) -> None:
        """Takes `reason` as the only argument, so that the exception can be pickled."""
        super().__init__(reason)
        self.reason = reason


class Surplus(BadImage):
    """A JPEG with more data before a marker than its blocks need. `normalize` may repair it."""


def check_size(width: int, height: int, max_pixels: int) -> None:
    """Checks the size in a header, before memory is allocated for the pixels."""
    if width <= 0 or height <= 0:
        raise BadImage(f"{width} x {height} pixels, which is not a valid size")
    if width * height > max_pixels:
        raise BadImage(f"{width} x {height} pixels, more than `max_pixels` {max_pixels} allows")
