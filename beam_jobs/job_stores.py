"""The stores of a job: how `file_io` opens a URL in each of its processes, by the options of the pipeline.

Local paths and buckets do not go through Beam. So a worker process imports it (1.2 s and 100 MB) only for what Beam
alone knows.
"""

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import IO, Any, BinaryIO, cast

from tfpipe.errors import ConfigError, DataError
from tfpipe.storage import stores
from tfpipe.storage.buckets import SCHEMES, StoreOptions
from tfpipe.storage.file_store import FileStore
from tfpipe.storage.hugging_face import SCHEME, HuggingFaceStore
from tfpipe.storage.store import Store
from tfpipe.storage.stores import TensorFlowStore
from tfpipe.system.extras import importing


def configure(beam_args: Iterable[str]) -> None:
    """Gives the stores of this process the options of the pipeline, such as endpoints and credentials."""
    global _beam_args, _is_configured
    _beam_args, _is_configured = tuple(beam_args), True
    stores.configure(_open_store)


def get_options() -> tuple[str, ...]:
    """Returns the options that `configure` got in this process, for another process that needs the same stores."""
    return _beam_args


def share_options() -> Callable[[], None] | None:
    """Returns the function that configures another process as this one; None if it was not configured."""
    return partial(configure, _beam_args) if _is_configured else None


def adopt(beam_args: tuple[str, ...]) -> None:
    """Gives this process the options that another one got, unless it has them or there are none."""
    if beam_args and beam_args != _beam_args:
        configure(beam_args)


_beam_args: tuple[str, ...] = ()
_is_configured = False


def _open_store(scheme: str, path: str) -> FileStore:
    if scheme == SCHEME:
        return HuggingFaceStore(path)
    if scheme in ("http", "https"):
        raise ConfigError(
            f"Files must be on a disk or in a bucket, got {path}. Download it first: img2dataset downloads the images "
            "that a table names into tars, which `tfpipe shard` reads."
        )
    if scheme in SCHEMES and not _beam_args:  # Beam need not be imported
        return Store(scheme, StoreOptions(credentials="needed" if _is_configured else "optional"))
    with importing("Opening a URL", "Apache Beam", "tfpipe[beam]"):
        from apache_beam.options import pipeline_options
    options = pipeline_options.PipelineOptions(list(_beam_args))
    if scheme in SCHEMES:
        google = options.view_as(pipeline_options.GoogleCloudOptions)
        return Store(scheme, _read_options(google, options.view_as(pipeline_options.S3Options)))
    try:
        return BeamStore(path, options)
    except DataError:
        if "tensorflow" in sys.modules:  # a trainer that also ran a job: TensorFlow may know the scheme
            with contextlib.suppress(DataError):
                return TensorFlowStore(path)
        raise


class BeamStore(FileStore):
    """A `FileStore` for the other file systems that Beam knows by a scheme, such as `hdfs://`."""

    def __init__(self, url: str, options: Any) -> None:
        from apache_beam.io.filesystems import FileSystems

        FileSystems.set_options(options)
        self._files: Any = FileSystems
        try:
            FileSystems.get_filesystem(url)
        except ValueError as error:
            raise DataError(
                f"No file system is installed for {url.rstrip('/')}; there are gs://, s3://, az://, and those that "
                "Apache Beam knows."
            ) from error

    def open(self, url: str) -> BinaryIO:
        """Opens the file for reading at any place. Compressed files are not unpacked."""
        return cast(BinaryIO, self._files.open(url, compression_type="uncompressed"))

    @contextlib.contextmanager
    def create(self, url: str) -> Iterator[IO[bytes]]:
        """Opens a new file; one that is cut off by an error is removed."""
        file = self._files.create(url, compression_type="uncompressed")
        try:
            yield file
            file.close()
        except BaseException:
            with contextlib.suppress(Exception):
                file.close()
                self._files.delete([url])
            raise

    def size(self, url: str) -> int:
        """Implements `FileStore.size`."""
        (match,) = self._files.match([url])
        return match.metadata_list[0].size_in_bytes if match.metadata_list else -1

    def list(self, folder: str, recursive: bool = True) -> Iterator[tuple[str, int]]:
        """Implements `FileStore.list`, but always recursive: by `*`, Beam finds files alone, and no folders."""
        (match,) = self._files.match([f"{folder}**"])
        for metadata in match.metadata_list:
            if not metadata.path.endswith("/"):
                yield metadata.path, metadata.size_in_bytes

    def rename(self, source: str, target: str) -> None:
        """Implements `FileStore.rename`."""
        self._files.rename([source], [target])

    def delete(self, urls: Iterable[str]) -> None:
        """Implements `FileStore.delete`."""
        for url in urls:
            if self._files.exists(url):
                self._files.delete([url])


def _read_options(google: Any, amazon: Any) -> StoreOptions:
    """Returns what Beam's `GoogleCloudOptions` and `S3Options` say about a store."""
    return StoreOptions(
        credentials="none" if google.no_auth else "needed",
        impersonate=google.impersonate_service_account,
        endpoint=amazon.s3_endpoint_url,
        region=amazon.s3_region_name,
        access_key_id=amazon.s3_access_key_id,
        secret_access_key=amazon.s3_secret_access_key,
        session_token=amazon.s3_session_token,
        disable_ssl=bool(amazon.s3_disable_ssl),
        verify=amazon.s3_verify,
    )


stores.configure(_open_store)  # a worker that gets no options needs Beam's file systems all the same
