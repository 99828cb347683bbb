"""Files by path or URL as a job reaches them: `file_io` with the endpoints and credentials of the pipeline's options.

Local paths and buckets do not go through Beam. So a worker process imports it (1.2 s and 100 MB) only for what Beam
alone knows.
"""

import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from typing import IO, Any

from tfpipe.errors import DataError
from tfpipe.storage import file_io, stores
from tfpipe.storage.buckets import SCHEMES, StoreOptions
from tfpipe.storage.file_io import check_stores as check_stores
from tfpipe.storage.file_io import exists as exists
from tfpipe.storage.file_io import explain_os_errors as explain_os_errors
from tfpipe.storage.file_io import get_size as get_size
from tfpipe.storage.file_io import get_sizes as get_sizes
from tfpipe.storage.file_io import is_url as is_url
from tfpipe.storage.file_io import is_web as is_web
from tfpipe.storage.file_io import join as join
from tfpipe.storage.file_io import list_children as list_children
from tfpipe.storage.file_io import list_names as list_names
from tfpipe.storage.file_io import list_tree as list_tree
from tfpipe.storage.file_io import make_absolute as make_absolute
from tfpipe.storage.file_io import open_read as open_read
from tfpipe.storage.file_io import read_range as read_range
from tfpipe.storage.file_io import read_regular as read_regular
from tfpipe.storage.file_io import remove as remove
from tfpipe.storage.file_io import remove_tree as remove_tree
from tfpipe.storage.file_io import rename as rename
from tfpipe.storage.file_io import resolve_links as resolve_links
from tfpipe.storage.file_store import FileStore
from tfpipe.storage.hugging_face import SCHEME, HuggingFaceStore
from tfpipe.storage.store import Store
from tfpipe.storage.tensorflow_store import TensorFlowStore
from tfpipe.system.extras import importing


def configure(beam_args: Iterable[str]) -> None:
    """Gives the stores of this process the options of the pipeline, such as endpoints and credentials."""
    global _beam_args, _is_configured
    _beam_args, _is_configured = tuple(beam_args), True
    stores.configure(_open_store)


def get_options() -> tuple[str, ...]:
    """Returns the options that `configure` got in this process, for another process that needs the same stores."""
    return _beam_args


def read_bytes(path: str) -> bytes:
    """Returns the whole file."""
    return file_io.read_whole(path)


def create(path: str, temporary: str | None = None) -> AbstractContextManager[IO[bytes]]:
    """Opens a new file as `file_io.create`, and makes the local folders of both names."""
    return file_io.create(path, temporary, makes_folders=True)


def write_bytes(path: str, data: bytes, temporary: str | None = None) -> None:
    """Writes a whole file and makes its folder; arguments as for `create`."""
    file_io.write_file(path, data, temporary, makes_folders=True)


_beam_args: tuple[str, ...] = ()
_is_configured = False


def _open_store(scheme: str, path: str) -> FileStore:
    if scheme == SCHEME:
        return HuggingFaceStore(path)
    if scheme in SCHEMES and not _beam_args:  # Beam need not be imported
        return Store(scheme, StoreOptions(credentials="needed" if _is_configured else "optional"))
    with importing("Opening a URL", "Apache Beam", "tfpipe[beam]"):
        from apache_beam.options import pipeline_options
    options = pipeline_options.PipelineOptions(list(_beam_args))
    if scheme in SCHEMES:
        google = options.view_as(pipeline_options.GoogleCloudOptions)
        return Store(scheme, _read_options(google, options.view_as(pipeline_options.S3Options)))
    if scheme in ("http", "https"):
        from beam_jobs.storage.web import WebOptions, WebStore

        return WebStore(options.view_as(WebOptions))
    from beam_jobs.storage.beam_store import BeamStore

    try:
        return BeamStore(path, options)
    except DataError:
        if "tensorflow" in sys.modules:  # a trainer that also ran a job: TensorFlow may know the scheme
            with suppress(DataError):
                return TensorFlowStore(path)
        raise


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


stores.configure(_open_store)  # a worker that gets no options needs the web and Beam's file systems all the same
