"""Every other file system that Beam knows by a scheme, such as `hdfs://`."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import IO, Any, BinaryIO, cast

from apache_beam.io.filesystems import FileSystems

from tfpipe.errors import DataError


class OtherStore:
    """A `Store`; see there.

    Args:
        url: One of its URLs.
        options: Beam's, of which the file system takes its own.

    Raises:
        DataError: No file system is installed for it.
    """

    def __init__(self, url: str, options: Any) -> None:
        FileSystems.set_options(options)
        try:
            FileSystems.get_filesystem(url)
        except ValueError as error:
            raise DataError(
                f"No file system is installed for {url.rstrip('/')}; there are gs://, s3://, and those that Apache "
                "Beam knows."
            ) from error

    def check(self, url: str) -> None:
        """Nothing to ask; the first use of the file system shows."""

    def read(self, url: str, offset: int = 0, size: int | None = None) -> bytes:
        """As `Store` says."""
        with self.open(url) as file:
            file.seek(offset)
            return file.read() if size is None else file.read(size)

    def open(self, url: str) -> BinaryIO:
        """The file, seekable, its bytes as they are whatever its ending."""
        return cast(BinaryIO, FileSystems.open(url, compression_type="uncompressed"))

    def write(self, url: str, data: bytes) -> None:
        """As `Store` says."""
        with self.create(url) as file:
            file.write(data)

    @contextlib.contextmanager
    def create(self, url: str) -> Iterator[IO[bytes]]:
        """A new file; one that is cut off by an error is removed."""
        file = FileSystems.create(url, compression_type="uncompressed")
        try:
            yield file
            file.close()
        except BaseException:
            with contextlib.suppress(Exception):
                file.close()
                FileSystems.delete([url])
            raise

    def size(self, url: str) -> int:
        """As `Store` says."""
        (match,) = FileSystems.match([url])
        return match.metadata_list[0].size_in_bytes if match.metadata_list else -1

    def list(self, prefix: str, recursive: bool = True) -> Iterator[tuple[str, int]]:
        """As `Store` says, but always recursive: what Beam finds by `*` are files alone, no folders."""
        (match,) = FileSystems.match([f"{prefix}**"])
        for found in match.metadata_list:
            if not found.path.endswith("/"):
                yield found.path, found.size_in_bytes

    def rename(self, source: str, target: str) -> None:
        """As `Store` says."""
        FileSystems.rename([source], [target])

    def delete(self, urls: Iterable[str]) -> None:
        """As `Store` says."""
        for url in urls:
            if FileSystems.exists(url):
                FileSystems.delete([url])
