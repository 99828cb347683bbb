"""S3 and what speaks its protocol, by Amazon's own client.

Not through Beam's file system, which makes a client for every file that it opens (50 ms), asks twice for each, and
makes an object out of what was written before an error. The client repeats a request after 429 and 5xx, a time-out or
a broken connection, with growing pauses; only a body that breaks off is left to its caller, so that is done here.
"""

import contextlib
import io
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import IO, Any, BinaryIO, cast

from apache_beam.utils.retry import with_exponential_backoff

from beam_jobs.storage import object_store
from beam_jobs.storage.object_store import PATIENCE, Patience
from tfpipe.errors import DataError
from tfpipe.system.extras import importing

with importing("s3://", "Amazon's client", "tfpipe[aws]"):
    import boto3
    from botocore import exceptions
    from botocore.config import Config

_DELETE_AT_ONCE = 1000  # as many as the protocol allows
_CONNECTIONS = 16
_LOGIN = (
    "s3:// needs credentials, and none were found. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or log in with "
    "`aws configure`."
)
_FAILURES = (exceptions.ClientError, exceptions.BotoCoreError)
_BROKEN_BODY = (exceptions.ResponseStreamingError, exceptions.IncompleteReadError, exceptions.ReadTimeoutError)


class S3Store:
    """A `Store`; see there.

    Args:
        options: Beam's `S3Options`: endpoint, region, keys; what they leave open comes from the variables AWS_* and
            the files of the `aws` command.
        patience: With a store that fails.
    """

    def __init__(self, options: Any, patience: Patience = PATIENCE) -> None:
        self._options, self._patience = options, patience
        self._client = self._make_client(patience.attempts)
        self._read_body = with_exponential_backoff(
            num_retries=patience.attempts - 1,
            initial_delay_secs=0.25,
            max_delay_secs=16,
            logger=_say_nothing,
            retry_filter=lambda error: isinstance(error, _BROKEN_BODY),
        )(self._read_body_once)

    def check(self, url: str) -> None:
        """As `Store` says."""
        bucket, prefix = object_store.split_url(url)
        try:
            self._make_client(self._patience.first_attempts).list_objects_v2(Bucket=bucket, Prefix=prefix, MaxKeys=1)
        except _FAILURES as error:
            raise _no_credentials(error) or object_store.first_failure(url, *_status_and_reason(error)) from error

    def read(self, url: str, offset: int = 0, size: int | None = None) -> bytes:
        """As `Store` says."""
        if size == 0:
            return b""
        bucket, key = object_store.split_url(url)
        where = {"Bucket": bucket, "Key": key}
        if offset or size is not None:
            where["Range"] = f"bytes={offset}-{'' if size is None else offset + size - 1}"
        with _explained(url):
            return cast(bytes, self._read_body(where))

    def open(self, url: str) -> BinaryIO:
        """As `Store` says."""
        return object_store.open_seekable(self, url)

    def write(self, url: str, data: bytes) -> None:
        """As `Store` says."""
        bucket, key = object_store.split_url(url)
        with _explained(url):
            self._client.put_object(Bucket=bucket, Key=key, Body=data)

    @contextlib.contextmanager
    def create(self, url: str) -> Iterator[IO[bytes]]:
        """As `Store` says."""
        upload = _Upload(self._client, url)
        with _explained(url):
            try:
                yield cast(IO[bytes], upload)
                upload.complete()
            except BaseException:
                with contextlib.suppress(*_FAILURES):  # the store removes the parts some day, if told so
                    upload.abort()
                raise

    def size(self, url: str) -> int:
        """As `Store` says."""
        bucket, key = object_store.split_url(url)
        try:
            with _explained(url):
                return cast(int, self._client.head_object(Bucket=bucket, Key=key)["ContentLength"])
        except FileNotFoundError:
            return -1

    def list(self, prefix: str, recursive: bool = True) -> Iterator[tuple[str, int]]:
        """As `Store` says."""
        bucket, key = object_store.split_url(prefix)
        base = object_store.bucket_url(prefix)
        pages = self._client.get_paginator("list_objects_v2")
        with _explained(prefix):
            for page in pages.paginate(Bucket=bucket, Prefix=key, Delimiter="" if recursive else "/"):
                for found in page.get("Contents", ()):
                    yield f"{base}/{found['Key']}", found["Size"]
                for folder in page.get("CommonPrefixes", ()):
                    yield f"{base}/{folder['Prefix']}", -1

    def rename(self, source: str, target: str) -> None:
        """As `Store` says."""
        from_bucket, from_key = object_store.split_url(source)
        bucket, key = object_store.split_url(target)
        with _explained(source):
            self._client.copy({"Bucket": from_bucket, "Key": from_key}, bucket, key)
            self._client.delete_object(Bucket=from_bucket, Key=from_key)

    def delete(self, urls: Iterable[str]) -> None:
        """As `Store` says."""
        rest = iter(urls)
        while some := list(islice(rest, _DELETE_AT_ONCE)):
            bucket = object_store.split_url(some[0])[0]
            keys = [{"Key": object_store.split_url(url)[1]} for url in some]
            with _explained(some[0]):
                answer = self._client.delete_objects(Bucket=bucket, Delete={"Objects": keys, "Quiet": True})
            for refused in answer.get("Errors", ()):
                url = f"{object_store.bucket_url(some[0])}/{refused['Key']}"
                raise PermissionError(1, f"the store says: {refused.get('Message', refused['Code'])}", url)

    def _make_client(self, attempts: int) -> Any:
        options = self._options
        config = Config(
            connect_timeout=self._patience.connect_s,
            read_timeout=self._patience.read_s,
            retries={"mode": "standard", "total_max_attempts": attempts},
            max_pool_connections=_CONNECTIONS,
        )
        try:
            return boto3.session.Session().client(
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
        except (*_FAILURES, ValueError) as error:  # a wrong endpoint, a broken file of the `aws` command
            raise DataError(f"S3's client refuses its options: {object_store.plain(str(error))}.") from error

    def _read_body_once(self, where: dict[str, str]) -> bytes:
        try:
            return cast(bytes, self._client.get_object(**where)["Body"].read())
        except exceptions.ClientError as error:
            if error.response["Error"].get("Code") == "InvalidRange":  # from behind the end
                return b""
            raise


class _Upload(io.BufferedIOBase):
    """Writes one object: in one request if it is small, else in parts that become an object at `complete`."""

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
        """Makes the object."""
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
        # At most 10,000 parts may be. They double after every thousand: enough for the largest object, 5 TiB.
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
def _explained(url: str) -> Iterator[None]:
    try:
        yield
    except _FAILURES as error:
        raise _no_credentials(error) or object_store.failure(url, *_status_and_reason(error)) from error


def _no_credentials(error: Exception) -> DataError | None:
    return DataError(_LOGIN) if isinstance(error, exceptions.NoCredentialsError) else None


def _status_and_reason(error: Any) -> tuple[int | None, str]:
    """HTTP status, where one came, and what is worth reading of a failure."""
    if not isinstance(error, exceptions.ClientError):
        return None, str(error)
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    said = error.response.get("Error", {})
    return status, f"HTTP status {status}, {said.get('Message') or said.get('Code') or 'no reason given'}"


def _say_nothing(*_: object) -> None:
    """In place of Beam's warning with a traceback for every repetition."""
