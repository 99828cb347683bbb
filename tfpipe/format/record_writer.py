"""Writes records to a file, and keeps what its index and the manifest need: the sizes and the SHA-256."""

import hashlib
from typing import IO, Any

from tfpipe.format.manifest import ShardInfo
from tfpipe.format.record_index import encode_index
from tfpipe.format.tfrecord import FRAME_BYTES, record_footer, record_header


class RecordWriter:
    """A writer of one file of records.

    Attributes:
        file: The open file. Its owner closes it.
        sizes: The bytes of each record in the file.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.sizes: list[int] = []
        self._digest: Any = hashlib.sha256()

    def write(self, payload: bytes) -> None:
        """Writes one record."""
        for part in self.frame(payload):
            self.file.write(part)

    def frame(self, payload: bytes) -> tuple[bytes, bytes, bytes]:
        """Counts a record, and returns its bytes in the file: what comes before the payload, that, and what follows."""
        header, footer = record_header(len(payload)), record_footer(payload)
        update = self._digest.update
        update(header)
        update(payload)
        update(footer)
        self.sizes.append(len(payload) + FRAME_BYTES)
        return header, payload, footer

    @property
    def index(self) -> bytes:
        """The content of the index of the file."""
        return encode_index(self.sizes)

    def describe(self, name: str) -> ShardInfo:
        """Returns the manifest's entry for the file under this name."""
        return ShardInfo(name, len(self.sizes), sum(self.sizes), self._digest.hexdigest())
