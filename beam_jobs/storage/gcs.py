"""Google Cloud Storage by Google's own client.

Beam's file system makes a client for every file that it opens, and asks twice for each. Without credentials it tries
for 18 s and then goes on without any. Google's client repeats a request after 408, 429 and 5xx, a time-out or a broken
connection, with growing pauses, and continues a body that broke off.
"""

import contextlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any, BinaryIO, cast

from beam_jobs.storage import object_store
from beam_jobs.storage.object_store import RETRIES, RetryConfig
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
_LIST_FIELDS = "items(name,size),prefixes,nextPageToken"
_LOGIN = (
    "gs:// needs credentials, and none were found. Log in with `gcloud auth application-default login`, or name a key "
    "file in GOOGLE_APPLICATION_CREDENTIALS; a public bucket can be read with -- --no_auth."
)


class GcsStore:
    """A `Store` for `gs://`; `Store` describes the methods.

    Args:
        options: Beam's `GoogleCloudOptions`. The store reads project, no_auth and impersonate_service_account.
        retries: The limits on time and attempts.

    Raises:
        DataError: There are no credentials.
    """

    def __init__(self, options: Any, retries: RetryConfig = RETRIES) -> None:
        self._client = _make_client(options)
        self._first_retry = _make_retry(retries.first_s, retries.first_pause_s)
        self._retries: dict[str, Any] = {
            "retry": _make_retry(retries.retry_s, retries.first_pause_s),
            "timeout": (retries.connect_s, retries.read_s),
        }

    def check(self, url: str) -> None:
        """Implements `Store.check`."""
        bucket, prefix = object_store.split_url(url)
        retries = {**self._retries, "retry": self._first_retry}
        try:
            blobs = self._client.list_blobs(bucket, prefix=prefix, max_results=1, fields=_LIST_FIELDS, **retries)
            next(iter(blobs), None)
        except _FAILURES as error:
            raise object_store.make_first_error(url, *_read_failure(error)) from error

    def read(self, url: str, offset: int = 0, size: int | None = None) -> bytes:
        """Implements `Store.read`."""
        if size == 0:
            return b""
        end = None if size is None else offset + size - 1
        try:  # raw: the stored bytes, whatever encoding the metadata names
            return cast(
                bytes,
                self._blob(url).download_as_bytes(start=offset or None, end=end, raw_download=True, **self._retries),
            )
        except exceptions.RequestRangeNotSatisfiable:
            return b""
        except _FAILURES as error:
            raise object_store.make_error(url, *_read_failure(error)) from error

    def open(self, url: str) -> BinaryIO:
        """Implements `Store.open`."""
        return object_store.open_seekable(self, url)

    def write(self, url: str, data: bytes) -> None:
        """Implements `Store.write`."""
        with _explain_failures(url):
            self._blob(url).upload_from_string(data, "application/octet-stream", **self._retries)

    @contextlib.contextmanager
    def create(self, url: str) -> Iterator[IO[bytes]]:
        """Implements `Store.create`."""
        file = self._blob(url).open("wb", chunk_size=object_store.PART_BYTES, ignore_flush=True, **self._retries)
        with _explain_failures(url):
            try:
                yield file
                file.close()
            except BaseException:
                with contextlib.suppress(*_FAILURES):  # if this fails, the store forgets the parts after a week
                    file.terminate()
                # The garbage collector would close the file otherwise, which makes an object of the parts.
                file._buffer.close()
                raise

    def size(self, url: str) -> int:
        """Implements `Store.size`."""
        bucket, name = object_store.split_url(url)
        with _explain_failures(url):
            blob = self._client.bucket(bucket).get_blob(name, **self._retries)
        return -1 if blob is None else cast(int, blob.size)

    def list(self, prefix: str, recursive: bool = True) -> Iterator[tuple[str, int]]:
        """Implements `Store.list`."""
        bucket, name = object_store.split_url(prefix)
        base = object_store.get_bucket_url(prefix)
        with _explain_failures(prefix):
            blobs = self._client.list_blobs(
                bucket, prefix=name, delimiter=None if recursive else "/", fields=_LIST_FIELDS, **self._retries
            )
            for blob in blobs:
                yield f"{base}/{blob.name}", blob.size
            for folder in blobs.prefixes:
                yield f"{base}/{folder}", -1

    def rename(self, source: str, target: str) -> None:
        """Implements `Store.rename`."""
        token = None
        with _explain_failures(source):
            while True:  # an object of gigabytes may take several requests
                token, _, _ = self._blob(target).rewrite(self._blob(source), token=token, **self._retries)
                if token is None:
                    break
        self._delete(source)

    def delete(self, urls: Iterable[str]) -> None:
        """Implements `Store.delete`."""
        with ThreadPoolExecutor(_THREADS) as pool:
            for _ in pool.map(self._delete, urls):
                pass

    def _delete(self, url: str) -> None:
        with contextlib.suppress(FileNotFoundError), _explain_failures(url):
            self._blob(url).delete(**self._retries)

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
        # The message is another one if a key file is named, but it is missing or not valid.
        if "default credentials were not found" not in str(error):
            raise DataError(f"Google's credentials cannot be used: {object_store.shorten(str(error))}.") from error
        raise DataError(_LOGIN) from error
    except google.auth.exceptions.GoogleAuthError as error:
        raise DataError(f"Google's credentials cannot be used: {object_store.shorten(str(error))}.") from error


def _make_retry(seconds: float, first_pause_s: float) -> Any:
    return DEFAULT_RETRY.with_delay(initial=first_pause_s, maximum=16.0, multiplier=2.0).with_timeout(seconds)


@contextlib.contextmanager
def _explain_failures(url: str) -> Iterator[None]:
    """Turns an error of the client into one of the file or of the store."""
    try:
        yield
    except _FAILURES as error:
        raise object_store.make_error(url, *_read_failure(error)) from error


def _read_failure(error: Any) -> tuple[int | None, str]:
    """Returns the HTTP status, if there is one, and the part of the message that is worth reading."""
    if isinstance(error, exceptions.RetryError) and error.cause is not None:
        error = error.cause
    if isinstance(error, InvalidResponse):
        return error.response.status_code, f"HTTP status {error.response.status_code}"
    if isinstance(error, exceptions.GoogleAPICallError):
        return error.code, f"HTTP status {error.code}, {error.message}"
    is_denied = isinstance(error, google.auth.exceptions.GoogleAuthError) and not isinstance(
        error, google.auth.exceptions.TransportError
    )
    return (401 if is_denied else None), _find_cause(error)


def _find_cause(error: BaseException) -> str:
    """Returns the message of the network's error, which three libraries wrapped in theirs."""
    while True:
        inner = getattr(error, "reason", None) or next((arg for arg in error.args if isinstance(arg, Exception)), None)
        if not isinstance(inner, BaseException):
            return str(error) or type(error).__name__
        error = inner
