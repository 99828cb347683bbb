"""The record that a source gives for a planned image, or the reason why it gives none."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from beam_jobs.inputs.read_image import MAX_SOURCE_BYTES, UnreadableError
from beam_jobs.plan.image_ref import PlannedImage
from tfpipe.images.errors import BadImage
from tfpipe.images.normalize import PreparedImage
from tfpipe.writer.record_form import make_image_features


class NewRecord(NamedTuple):
    """A record that is ready to be written."""

    payload: bytes
    features: Mapping[str, Any]  # of the payload, decoded or not yet encoded
    images: tuple[PreparedImage, ...]  # as they are stored
    sha256: bytes  # of the original file; of several, of their SHA-256; without an image, of the source's bytes
    name: str  # of the original file


class RejectedImage(Exception):
    """An image of which no record can be made."""

    def __init__(self, kind: Literal["bad", "unreadable"], reason: str, data: bytes = b"") -> None:
        super().__init__(reason)
        self.kind, self.reason, self.data = kind, reason, data


@contextlib.contextmanager
def rejecting(what: str = "") -> Iterator[None]:
    """Turns an `UnreadableError` or a `BadImage` into a `RejectedImage`, with `what` before the reason."""
    try:
        yield
    except UnreadableError as error:
        raise RejectedImage("unreadable", f"{what}{error}") from error
    except BadImage as error:
        raise RejectedImage("bad", f"{what}{error.reason}") from error


def check_source_size(planned: PlannedImage) -> None:
    """Refuses an image that is too large for a record, before it is read."""
    if planned.size > MAX_SOURCE_BYTES:
        raise RejectedImage("bad", f"{planned.size} bytes, more than the {MAX_SOURCE_BYTES} that one record can hold")


def make_list_features(images: Sequence[PreparedImage]) -> dict[str, Any]:
    """Returns the features of a record that describe its several images."""
    rows = [make_image_features(image) for image in images]
    return {name: [row[name] for row in rows] for name in rows[0]}
