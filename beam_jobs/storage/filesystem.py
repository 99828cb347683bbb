"""The stores of a job: `tfpipe.storage.files` with the options of a Beam pipeline, the web, and Beam's file systems.

Local paths do not go through Beam. So a worker process never imports it (1.2 s and 100 MB), and opening an image costs
a tenth.
"""

from collections.abc import Iterable
from typing import Any

from tfpipe.errors import MissingDependencyError
from tfpipe.storage.buckets import SCHEMES, StoreOptions
from tfpipe.storage.file_store import FileStore
from tfpipe.storage.files import check_stores as check_stores
from tfpipe.storage.files import create as create
from tfpipe.storage.files import exists as exists
from tfpipe.storage.files import get_size as get_size
from tfpipe.storage.files import get_sizes as get_sizes
from tfpipe.storage.files import is_web as is_web
from tfpipe.storage.files import list_children as list_children
from tfpipe.storage.files import list_names as list_names
from tfpipe.storage.files import list_tree as list_tree
from tfpipe.storage.files import make_absolute as make_absolute
from tfpipe.storage.files import open_read as open_read
from tfpipe.storage.files import read_bytes as read_bytes
from tfpipe.storage.files import read_range as read_range
from tfpipe.storage.files import read_regular as read_regular
from tfpipe.storage.files import remove as remove
from tfpipe.storage.files import remove_tree as remove_tree
from tfpipe.storage.files import rename as rename
from tfpipe.storage.files import resolve_links as resolve_links
from tfpipe.storage.files import use_stores
from tfpipe.storage.files import write_bytes as write_bytes
from tfpipe.storage.store import Store
from tfpipe.system.file_io import explain_os_errors as explain_os_errors
from tfpipe.system.file_io import is_url as is_url
from tfpipe.system.file_io import join as join

_beam_args: tuple[str, ...] = ()


def configure(beam_args: Iterable[str]) -> None:
    """Gives the stores of this process the options of the pipeline, such as endpoints and credentials."""
    global _beam_args
    _beam_args = tuple(beam_args)
    use_stores(_open_store)


def get_options() -> tuple[str, ...]:
    """Returns the options that `configure` got in this process, for another process that needs the same stores."""
    return _beam_args


def _open_store(scheme: str, path: str) -> FileStore:
    if scheme in SCHEMES and not _beam_args:  # Beam need not be imported
        return Store(scheme)
    try:
        from apache_beam.options import pipeline_options
    except ImportError as error:
        raise MissingDependencyError(
            "A URL is opened through Apache Beam. Install it with: pip install 'tfpipe[beam]'."
        ) from error
    options = pipeline_options.PipelineOptions(list(_beam_args))
    if scheme in SCHEMES:
        google = options.view_as(pipeline_options.GoogleCloudOptions)
        return Store(scheme, _read_options(google, options.view_as(pipeline_options.S3Options)))
    if scheme == "http":
        from beam_jobs.storage.web import WebOptions, WebStore

        return WebStore(options.view_as(WebOptions))
    from beam_jobs.storage.beam_store import BeamStore

    return BeamStore(path, options)


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


use_stores(_open_store)  # every process of a job imports this module
