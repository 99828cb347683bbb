"""The other file systems that Beam knows by a scheme, such as `hdfs://`."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import IO, Any, BinaryIO, cast

from apache_beam.io.filesystems import FileSystems

from tfpipe.errors import DataError
from tfpipe.storage.file_store import FileStore


class BeamStore(FileStore):
    """A `FileStore` for the file systems of Beam; `FileStore` describes the methods."""

    def __init__(self, url: str, options: Any) -> None:
        FileSystems.set_options(options)
        try:
            FileSystems.get_filesystem(url)
        except ValueError as error:
            raise DataError(
                f"No file system is installed for {url.rstrip('/')}; there are gs://, s3://, az://, and those that "
                "Apache Beam knows."
            ) from error

    def open(self, url: str) -> BinaryIO:
        """Opens the file for reading at any place. Compressed files are not unpacked."""
        return cast(BinaryIO, FileSystems.open(url, compression_type="uncompressed"))

    @contextlib.contextmanager
    def create(self, url: str) -> Iterator[IO[bytes]]:
        """Opens a new file; one that is cut off by an error is removed."""
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
        """Implements `FileStore.size`."""
        (match,) = FileSystems.match([url])
        return match.metadata_list[0].size_in_bytes if match.metadata_list else -1

    def list(self, folder: str, recursive: bool = True) -> Iterator[tuple[str, int]]:
        """Implements `FileStore.list`, but always recursive: by `*`, Beam finds files alone, and no folders."""
        (match,) = FileSystems.match([f"{folder}**"])
        for metadata in match.metadata_list:
            if not metadata.path.endswith("/"):
                yield metadata.path, metadata.size_in_bytes

    def rename(self, source: str, target: str) -> None:
        """Implements `FileStore.rename`."""
        FileSystems.rename([source], [target])

    def delete(self, urls: Iterable[str]) -> None:
        """Implements `FileStore.delete`."""
        for url in urls:
            if FileSystems.exists(url):
                FileSystems.delete([url])
