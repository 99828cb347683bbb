"""S3 and other stores with its protocol, by Amazon's own client.

Beam's file system makes a client for every file that it opens (50 ms), asks twice for each, and makes an object of the
bytes that were written before an error. Amazon's client repeats a request after 429 and 5xx, a time-out or a broken
connection, with growing pauses. It leaves a body that breaks off to its caller, so this module reads that again.
"""

import contextlib
import io
import random
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from typing import IO, Any, BinaryIO, cast

from apache_beam.utils.retry import with_exponential_backoff

from beam_jobs.storage import object_store
from beam_jobs.storage.object_store import RETRIES, RetryConfig
from tfpipe.errors import DataError
from tfpipe.system.extras import importing

with importing("s3://", "Amazon's client", "tfpipe[aws]"):
    import boto3
    from botocore import exceptions
    from botocore.config import Config

_DELETE_AT_ONCE = 1000  # the protocol allows no more
_CONNECTIONS = 16
_LONGEST_PAUSE_S = 16
_TOO_MANY_REQUESTS = 429
_LOGIN = (
    "s3:// needs credentials, and none were found. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or log in with "
    "`aws configure`."
)
_FAILURES = (exceptions.ClientError, exceptions.BotoCoreError)
_BROKEN_BODY = (exceptions.ResponseStreamingError, exceptions.IncompleteReadError, exceptions.ReadTimeoutError)


class S3Store:
    """A `Store` for `s3://`; `Store` describes the methods.

    Args:
        options: Beam's `S3Options`: endpoint, region, keys. The client takes options that are not given from the
            variables AWS_* and the files of the `aws` command.
        retries: The limits on time and attempts.
    """

    def __init__(self, options: Any, retries: RetryConfig = RETRIES) -> None:
        self._options, self._retries = options, retries
        self._session: Any = None  # it keeps the description of the protocol, which takes 60 ms to read
        self._client = self._make_client(retries.attempts)
        self._read_body = with_exponential_backoff(
            num_retries=retries.attempts - 1,
            initial_delay_secs=retries.first_pause_s,
            max_delay_secs=_LONGEST_PAUSE_S,
            logger=object_store.ignore_warning,
            retry_filter=lambda error: isinstance(error, _BROKEN_BODY),
        )(self._read_body_once)

    def check(self, url: str) -> None:
        """Implements `Store.check`."""
        bucket, prefix = object_store.split_url(url)
        try:
            self._make_client(self._retries.first_attempts).list_objects_v2(Bucket=bucket, Prefix=prefix, MaxKeys=1)
        except _FAILURES as error:
            raise _explain_first(url, error) from error

    def read(self, url: str, offset: int = 0, size: int | None = None) -> bytes:
        """Implements `Store.read`."""
        if size == 0:
            return b""
        bucket, key = object_store.split_url(url)
        request = {"Bucket": bucket, "Key": key}
        if offset or size is not None:
            request["Range"] = f"bytes={offset}-{'' if size is None else offset + size - 1}"
        with _explain_failures(url):
            return cast(bytes, self._read_body(request))

    def open(self, url: str) -> BinaryIO:
        """Implements `Store.open`."""
        return object_store.open_seekable(self, url)

    def write(self, url: str, data: bytes) -> None:
        """Implements `Store.write`."""
        bucket, key = object_store.split_url(url)
        with _explain_failures(url):
            self._client.put_object(Bucket=bucket, Key=key, Body=data)

    @contextlib.contextmanager
    def create(self, url: str) -> Iterator[IO[bytes]]:
        """Implements `Store.create`."""
        upload = _Upload(self._client, url)
        with _explain_failures(url):
            try:
                yield cast(IO[bytes], upload)
                upload.complete()
            except BaseException:
                with contextlib.suppress(*_FAILURES):  # a lifecycle rule of the bucket can remove parts that stay
                    upload.abort()
                raise

    def size(self, url: str) -> int:
        """Implements `Store.size`."""
        bucket, key = object_store.split_url(url)
        try:
            with _explain_failures(url):
                return cast(int, self._client.head_object(Bucket=bucket, Key=key)["ContentLength"])
        except FileNotFoundError:
            return -1

    def list(self, prefix: str, recursive: bool = True) -> Iterator[tuple[str, int]]:
        """Implements `Store.list`."""
        bucket, key = object_store.split_url(prefix)
        base = object_store.get_bucket_url(prefix)
        pages = self._client.get_paginator("list_objects_v2")
        with _explain_failures(prefix):
            for page in pages.paginate(Bucket=bucket, Prefix=key, Delimiter="" if recursive else "/"):
                for entry in page.get("Contents", ()):
                    yield f"{base}/{entry['Key']}", entry["Size"]
                for folder in page.get("CommonPrefixes", ()):
                    yield f"{base}/{folder['Prefix']}", -1

    def rename(self, source: str, target: str) -> None:
        """Implements `Store.rename`."""
        from_bucket, from_key = object_store.split_url(source)
        bucket, key = object_store.split_url(target)
        with _explain_failures(source):
            self._client.copy({"Bucket": from_bucket, "Key": from_key}, bucket, key)
            self._client.delete_object(Bucket=from_bucket, Key=from_key)

    def delete(self, urls: Iterable[str]) -> None:
        """Implements `Store.delete`."""
        remaining = iter(urls)
        while chunk := list(islice(remaining, _DELETE_AT_ONCE)):
            bucket = object_store.split_url(chunk[0])[0]
            keys = [{"Key": object_store.split_url(url)[1]} for url in chunk]
            with _explain_failures(chunk[0]):
                answer = self._client.delete_objects(Bucket=bucket, Delete={"Objects": keys, "Quiet": True})
            for refused in answer.get("Errors", ()):
                url = f"{object_store.get_bucket_url(chunk[0])}/{refused['Key']}"
                raise PermissionError(1, f"the store says: {refused.get('Message', refused['Code'])}", url)

    def _make_client(self, attempts: int) -> Any:
        options = self._options
        config = Config(
            connect_timeout=self._retries.connect_s,
            read_timeout=self._retries.read_s,
            retries={"mode": "standard", "total_max_attempts": attempts},
            max_pool_connections=_CONNECTIONS,
        )
        try:
            self._session = self._session or boto3.session.Session()
            client = self._session.client(
                "s3",
                region_name=options.s3_region_name,
                api_version=options.s3_api_version,
                use_ssl=not options.s3_disable_ssl,
                verify=options.s3_verify,
                endpoint_url=options.s3_endpoint_url,
                aws_access_key_id=options.s3_access_key_id,
                aws_secret_access_key=options.s3_secret_access_key,
                aws_session_token=options.s3_session_token,
                config=config,
            )
            client.meta.events.register("needs-retry.s3", partial(_wait_after_429, attempts))
            return client
        except (*_FAILURES, ValueError) as error:  # a wrong endpoint, or a damaged file of the `aws` command
            raise DataError(f"S3's client refuses its options: {object_store.shorten(str(error))}.") from error

    def _read_body_once(self, request: dict[str, str]) -> bytes:
        try:
            return cast(bytes, self._client.get_object(**request)["Body"].read())
        except exceptions.ClientError as error:
            if error.response["Error"].get("Code") == "InvalidRange":  # the range begins behind the end
                return b""
            raise


def _wait_after_429(
    most_attempts: int, response: tuple[Any, Any] | None = None, attempts: int = 1, **_: Any
) -> float | None:
    """Returns the seconds before the next attempt of a request that was one too many, and None for other requests.

    Amazon's stores say so with 503, and other stores with 429. Before release 1.44 the client repeats a request after
    429 only if the store names the reason in Amazon's words. A newer one answers before it asks this function.
    """
    if response is None or response[0].status_code != _TOO_MANY_REQUESTS or attempts >= most_attempts:
        return None
    return random.uniform(0, min(2 ** (attempts - 1), _LONGEST_PAUSE_S))


class _Upload(io.BufferedIOBase):
    """A writer of one object: by one request if it is small, else in parts that become an object at `complete`."""

    def __init__(self, client: Any, url: str) -> None:
        super().__init__()
        self._client = client
        bucket, key = object_store.split_url(url)
        self._object = {"Bucket": bucket, "Key": key}
        self._buffer = bytearray()
        self._parts: list[dict[str, Any]] = []
        self._upload: dict[str, str] | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._buffer += data
        while len(self._buffer) >= self._part_bytes():
            self._send_part()
        return len(data)

    def complete(self) -> None:
        """Makes the object appear."""
        if self._upload is None:
            self._client.put_object(**self._object, Body=bytes(self._buffer))
            return
        if self._buffer:
            self._send_part()
        self._client.complete_multipart_upload(**self._upload, MultipartUpload={"Parts": self._parts})

    def abort(self) -> None:
        """Removes the parts."""
        if self._upload is not None:
            self._client.abort_multipart_upload(**self._upload)

    def _part_bytes(self) -> int:
        # An object has 10,000 parts at most. Their size doubles after every thousand: enough for 5 TiB, S3's limit.
        return object_store.PART_BYTES << (len(self._parts) // 1000)

    def _send_part(self) -> None:
        if self._upload is None:
            started = self._client.create_multipart_upload(**self._object)
            self._upload = {**self._object, "UploadId": started["UploadId"]}
        size, number = self._part_bytes(), len(self._parts) + 1
        sent = self._client.upload_part(**self._upload, PartNumber=number, Body=bytes(self._buffer[:size]))
        self._parts.append({"PartNumber": number, "ETag": sent["ETag"]})
        del self._buffer[:size]


@contextlib.contextmanager
def _explain_failures(url: str) -> Iterator[None]:
    """Turns an error of the client into one of the file or of the store."""
    try:
        yield
    except _FAILURES as error:
        raise _find_missing_credentials(error) or object_store.make_error(url, *_read_failure(error)) from error


def _explain_first(url: str, error: Exception) -> DataError:
    return _find_missing_credentials(error) or object_store.make_first_error(url, *_read_failure(error))


def _find_missing_credentials(error: Exception) -> DataError | None:
    return DataError(_LOGIN) if isinstance(error, exceptions.NoCredentialsError) else None


def _read_failure(error: Any) -> tuple[int | None, str]:
    """Returns the HTTP status, if there is one, and the part of the message that is worth reading."""
    if not isinstance(error, exceptions.ClientError):
        return None, str(error)
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    details = error.response.get("Error", {})
    return status, f"HTTP status {status}, {details.get('Message') or details.get('Code') or 'no reason given'}"
