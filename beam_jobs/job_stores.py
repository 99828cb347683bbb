"""Opens URLs in each process of a job with the credentials and endpoints in Beam's pipeline options.

Beam reads and writes no file, so a worker process imports Beam (1.2 s and 100 MB) only to parse pipeline options.
"""

import contextlib
import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from tfpipe.errors import DataError
from tfpipe.storage import stores
from tfpipe.storage.buckets import SCHEMES, StoreOptions
from tfpipe.storage.file_store import FileStore
from tfpipe.storage.hugging_face import SCHEME, HuggingFaceStore
from tfpipe.storage.store import Store
from tfpipe.system.extras import importing


def configure(beam_args: Iterable[str]) -> None:
    """Configures the stores of this process with pipeline options, such as endpoints and credentials."""
    global _beam_args
    _beam_args = tuple(beam_args)
    stores.configure(_open_store)


def get_options() -> tuple[str, ...]:
    """Returns the pipeline options that `configure` got, for another process that needs the same stores."""
    return _beam_args or ()


def share_options() -> Callable[[], None] | None:
    """Returns a function that configures the stores of another process as here; None if these were not configured."""
    return None if _beam_args is None else partial(configure, _beam_args)


def adopt(beam_args: tuple[str, ...]) -> None:
    """Configures the stores with another process's options, unless these are empty or in use already."""
    if beam_args and beam_args != _beam_args:
        configure(beam_args)


_beam_args: tuple[str, ...] | None = None


def _open_store(scheme: str, path: str) -> FileStore:
    if scheme == SCHEME:
        return HuggingFaceStore(path)
    if scheme in SCHEMES and not _beam_args:  # Beam need not be imported
        return Store(scheme, StoreOptions(credentials="optional" if _beam_args is None else "needed"))
    if scheme in SCHEMES:
        with importing("Opening a URL", "Apache Beam", "tfpipe[beam]"):
            from apache_beam.options import pipeline_options
        options = pipeline_options.PipelineOptions(list(_beam_args or ()))
        google = options.view_as(pipeline_options.GoogleCloudOptions)
        return Store(scheme, _read_options(google, options.view_as(pipeline_options.S3Options)))
    if "tensorflow" in sys.modules:  # a trainer that also ran a job: TensorFlow may know the scheme
        with contextlib.suppress(DataError):
            return stores.TensorFlowStore(path)
    raise DataError(
        f"Files must be on a disk, or at gs://, s3://, az:// or hf://, got {path}. Mount its store as a folder, or "
        "download it first: img2dataset downloads the images that a table names into tars, which `tfpipe shard` reads."
    )


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


stores.configure(_open_store)  # also in a worker that gets no options
