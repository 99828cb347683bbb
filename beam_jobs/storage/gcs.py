"""Google Cloud Storage by Google's own client.

Not through Beam's file system, which makes a client for every file that it opens, asks twice for each, and without
credentials tries for 18 s before it goes on as nobody. The client repeats a request after 408, 429 and 5xx, a
time-out or a broken connection, with growing pauses, and goes on in the middle of a body.
"""

import contextlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any, BinaryIO, cast

from beam_jobs.storage import object_store
from beam_jobs.storage.object_store import PATIENCE, Patience
from tfpipe.errors import DataError
from tfpipe.system.extras import importing

with importing("gs://", "Google's client", "tfpipe[dataflow]"):
    import google.auth.exceptions
    import requests
    from google.api_core import exceptions
    from google.cloud import storage
    from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
    from google.cloud.storage.retry import DEFAULT_RETRY

_THREADS = 8  # below the ten connections that the client keeps
_LISTED = "items(name,size),prefixes,nextPageToken"
_LOGIN = (
    "gs:// needs credentials, and none were found. Log in with `gcloud auth application-default login`, or name a key "
    "file in GOOGLE_APPLICATION_CREDENTIALS; a public bucket can be read with -- --no_auth."
)


class GcsStore:
    """A `Store`; see there.

    Args:
        options: Beam's `GoogleCloudOptions`, of which these count: project, no_auth, impersonate_service_account.
        patience: With a store that fails.

    Raises:
        DataError: There are no credentials.
    """

    def __init__(self, options: Any, patience: Patience = PATIENCE) -> None:
        self._client = _make_client(options)
        self._first = _retry(patience.first_s)
        self._again: dict[str, Any] = {
            "retry": _retry(patience.retry_s),
            "timeout": (patience.connect_s, patience.read_s),
        }

    def check(self, url: str) -> None:
        """As `Store` says."""
        bucket, prefix = object_store.split_url(url)
        patience = {**self._again, "retry": self._first}
        try:
            next(iter(self._client.list_blobs(bucket, prefix=prefix, max_results=1, fields=_LISTED, **patience)), None)
        except _FAILURES as error:
            raise object_store.first_failure(url, *_status_and_reason(error)) from error

    def read(self, url: str, offset: int = 0, size: int | None = None) -> bytes:
        """As `Store` says."""
        if size == 0:
            return b""
        end = None if size is None else offset + size - 1
        try:  # raw: as it is stored, whatever encoding its metadata names
            return cast(
                bytes,
                self._blob(url).download_as_bytes(start=offset or None, end=end, raw_download=True, **self._again),
            )
        except exceptions.RequestRangeNotSatisfiable:
            return b""
        except _FAILURES as error:
            raise object_store.failure(url, *_status_and_reason(error)) from error

    def open(self, url: str) -> BinaryIO:
        """As `Store` says."""
        return object_store.open_seekable(self, url)

    def write(self, url: str, data: bytes) -> None:
        """As `Store` says."""
        with _explained(url):
            self._blob(url).upload_from_string(data, "application/octet-stream", **self._again)

    @contextlib.contextmanager
    def create(self, url: str) -> Iterator[IO[bytes]]:
        """As `Store` says."""
        file = self._blob(url).open("wb", chunk_size=object_store.PART_BYTES, ignore_flush=True, **self._again)
        with _explained(url):
            try:
                yield file
                file.close()
            except BaseException:
                with contextlib.suppress(*_FAILURES):  # the store forgets the parts after a week, if not told now
                    file.terminate()
                # Else the garbage collector would close the file, and so make an object of what was sent.
                file._buffer.close()
                raise

    def size(self, url: str) -> int:
        """As `Store` says."""
        bucket, name = object_store.split_url(url)
        with _explained(url):
            blob = self._client.bucket(bucket).get_blob(name, **self._again)
        return -1 if blob is None else cast(int, blob.size)

    def list(self, prefix: str, recursive: bool = True) -> Iterator[tuple[str, int]]:
        """As `Store` says."""
        bucket, name = object_store.split_url(prefix)
        base = object_store.bucket_url(prefix)
        with _explained(prefix):
            found = self._client.list_blobs(
                bucket, prefix=name, delimiter=None if recursive else "/", fields=_LISTED, **self._again
            )
            for blob in found:
                yield f"{base}/{blob.name}", blob.size
            for folder in found.prefixes:
                yield f"{base}/{folder}", -1

    def rename(self, source: str, target: str) -> None:
        """As `Store` says."""
        token = None
        with _explained(source):
            while True:  # an object of gigabytes may take several requests
                token, _, _ = self._blob(target).rewrite(self._blob(source), token=token, **self._again)
                if token is None:
                    break
        self._delete(source)

    def delete(self, urls: Iterable[str]) -> None:
        """As `Store` says."""
        with ThreadPoolExecutor(_THREADS) as pool:
            for _ in pool.map(self._delete, urls):
                pass

    def _delete(self, url: str) -> None:
        with contextlib.suppress(FileNotFoundError), _explained(url):
            self._blob(url).delete(**self._again)

    def _blob(self, url: str) -> Any:
        bucket, name = object_store.split_url(url)
        return self._client.bucket(bucket).blob(name)


_FAILURES = (
    exceptions.GoogleAPIError,
    google.auth.exceptions.GoogleAuthError,
    requests.RequestException,
    InvalidResponse,
    DataCorruption,
)


def _make_client(options: Any) -> Any:
    if options.no_auth:
        return storage.Client.create_anonymous_client()
    try:
        if options.impersonate_service_account:
            from apache_beam.io.gcp.gcsio import create_storage_client

            return create_storage_client(options)
        return storage.Client(project=options.project)
    except google.auth.exceptions.DefaultCredentialsError as error:
        if "default credentials were not found" not in str(error):  # a file is named, but it is not there or no key
            raise DataError(f"Google's credentials cannot be used: {object_store.plain(str(error))}.") from error
        raise DataError(_LOGIN) from error
    except google.auth.exceptions.GoogleAuthError as error:
        raise DataError(f"Google's credentials cannot be used: {object_store.plain(str(error))}.") from error


def _retry(seconds: float) -> Any:
    return DEFAULT_RETRY.with_delay(initial=0.25, maximum=16.0, multiplier=2.0).with_timeout(seconds)


@contextlib.contextmanager
def _explained(url: str) -> Iterator[None]:
    try:
        yield
    except _FAILURES as error:
        raise object_store.failure(url, *_status_and_reason(error)) from error


def _status_and_reason(error: Any) -> tuple[int | None, str]:
    """HTTP status, where one came, and what is worth reading of a failure."""
    if isinstance(error, exceptions.RetryError) and error.cause is not None:
        error = error.cause
    if isinstance(error, InvalidResponse):
        return error.response.status_code, f"HTTP status {error.response.status_code}"
    if isinstance(error, exceptions.GoogleAPICallError):
        return error.code, f"HTTP status {error.code}, {error.message}"
    denied = isinstance(error, google.auth.exceptions.GoogleAuthError) and not isinstance(
        error, google.auth.exceptions.TransportError
    )
    return (401 if denied else None), _innermost(error)


def _innermost(error: BaseException) -> str:
    """What the network said, out of the exceptions that three libraries wrapped it in."""
    while True:
        below = getattr(error, "reason", None) or next((one for one in error.args if isinstance(one, Exception)), None)
        if not isinstance(below, BaseException):
            return str(error) or type(error).__name__
        error = below
