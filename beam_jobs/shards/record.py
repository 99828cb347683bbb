"""The record that a source gives for a planned image, or the reason why it gives none."""

from typing import Literal, NamedTuple

from tfpipe.format import schema as keys
from tfpipe.format.example import FeatureLike
from tfpipe.images.normalize import PreparedImage


class Record(NamedTuple):
    """A record that is ready to be written.

    Attributes:
        payload: The serialized Example.
        image: The image as it is stored.
        sha256: The SHA-256 of the original file, 32 bytes.
        label: The number of its class; -1 if it has none.
        name: The name of the original file.
    """

    payload: bytes
    image: PreparedImage
    sha256: bytes
    label: int
    name: str


class RejectedImage(Exception):
    """An image of which no record can be made.

    Attributes:
        kind: `bad` if the image itself is wrong, `unreadable` if another run may be able to read it.
        reason: The fault in words, without a capital letter and without a full stop.
        data: The bytes of the file, as far as they were read.
    """

    def __init__(self, kind: Literal["bad", "unreadable"], reason: str, data: bytes = b"") -> None:
        super().__init__(reason)
        self.kind, self.reason, self.data = kind, reason, data


def make_image_features(image: PreparedImage) -> dict[str, FeatureLike]:
    """Returns the features of a record that describe its stored image."""
    return {
        keys.IMAGE_ENCODED: image.encoded,
        keys.IMAGE_FORMAT: image.format,
        keys.IMAGE_HEIGHT: image.height,
        keys.IMAGE_WIDTH: image.width,
        keys.IMAGE_CHANNELS: image.channels,
        keys.IMAGE_COLORSPACE: image.colorspace,
    }
