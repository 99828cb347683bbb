"""The object store of a URL scheme. Errors become sentences; an object whose writing fails never appears."""

import contextlib
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, islice, pairwise
from typing import IO, Any, BinaryIO, TypeVar, cast

from tfpipe.errors import DataError
from tfpipe.storage import failures
from tfpipe.storage.buckets import REQUIREMENT, Bucket, StoreOptions, check_not_forked, open_bucket
from tfpipe.storage.failures import RETRIES, RetryConfig, explain, repeat
from tfpipe.storage.file_store import FileStore, get_bucket_url, open_seekable, split_url
from tfpipe.system.aside import run_aside
from tfpipe.system.extras import check_installed
from tfpipe.system.fork_lock import make_fork_lock

Result = TypeVar("Result")
_TOO_LARGE_TO_COPY = 400  # HTTP status: Amazon copies 5 GiB at most; a larger object goes through this machine
_DELETE_AT_ONCE = 1000  # no store allows more
_THREADS = 8

PART_BYTES = 16 * 2**20
"""The bytes that a writer collects before it sends them: above 5 MiB, the least of all stores."""

_MOST_PARTS = 10_000  # of one object, the limit of Google's and Amazon's stores


class _Upload(io.BufferedIOBase):
    """A writer of one object, which collects bytes for obstore's writer."""

    def __init__(self, url: str, writer: Any) -> None:
        super().__init__()
        self._url, self._writer = url, writer
        self._written = 0
        self._buffer = bytearray()

    def writable(self) -> bool:
        """Returns True."""
        return True

    def write(self, data: Any) -> int:
        """Takes bytes, and sends those that fill a part."""
        self._buffer += data
        self._written += len(data)
        if self._written > _MOST_PARTS * PART_BYTES:
            most = _MOST_PARTS * PART_BYTES / 2**30
            raise DataError(f"{self._url} would have more than {most:,.0f} GiB. Write more shards, each smaller.")
        if len(self._buffer) >= PART_BYTES:
            self._send()
        return len(data)

    def tell(self) -> int:
        """Returns the number of bytes that were written."""
        return self._written

    def complete(self) -> None:
        """Makes the object appear."""
        self._send()
        self._await(self._writer.close)

    def _send(self) -> None:
        self._await(partial(self._writer.write, self._buffer))
        self._buffer = bytearray()  # a new one, because obstore sends from the old one

    def _await(self, call: Callable[[], Any]) -> None:
        """Makes a call of obstore, and waits for it in a way that Ctrl-C interrupts."""
        with explain(self._url):
            run_aside(call, "tfpipe-upload").result()


class Store(FileStore):
    """A store of objects by URL. Threads may share it; a forked process may not."""

    def __init__(self, scheme: str, options: StoreOptions = StoreOptions(), retries: RetryConfig = RETRIES) -> None:  # noqa: B008
        check_installed("obstore", f"{scheme}://", "obstore", REQUIREMENT)
        self._scheme, self._options, self._retries = scheme, options, retries
        self._buckets: dict[str, Bucket] = {}
        self._opening = make_fork_lock()

    def check(self, url: str) -> None:
        """Checks, with few retries, that the bucket can be reached."""
        import obstore
        from obstore.exceptions import BaseError

        bucket, key = self._find(url)
        try:
            repeat(lambda: next(iter(obstore.list(bucket.once, key or None)), None), self._retries, is_first=True)
        except (BaseError, OSError) as error:
            raise failures.make_first_error(url, error) from error

    def read(self, url: str, offset: int = 0, size: int | None = None) -> bytes:
        """Returns `size` bytes of the object from `offset`, by default all; fewer only at the end of the object."""
        import obstore

        if size == 0:
            return b""
        bucket, key = self._find(url)
        options: Any = {}
        if offset or size is not None:
            options = {"range": {"offset": offset} if size is None else (offset, offset + size)}

        def ask() -> bytes:
            try:
                return bytes(obstore.get(bucket.once, key, options=options).bytes())
            except Exception as error:
                if failures.read_failure(error)[0] == failures.BEHIND_THE_END:
                    return b""
                raise

        return self._ask(url, ask)

    def open(self, url: str) -> BinaryIO:
        """Opens an object for reading at any offset."""
        return open_seekable(partial(self.read, url), self._head(url)["size"])

    def write(self, url: str, data: bytes) -> None:
        """Writes a small object."""
        self._put(url, data)

    def write_new(self, url: str, data: bytes) -> bool:
        """Writes a small object unless it exists, and returns whether it did. Of several processes one does."""
        return self._put(url, data, "create")

    @contextlib.contextmanager
    def create(self, url: str) -> Iterator[IO[bytes]]:
        """Opens a new object that appears when the block ends without an error, and otherwise never."""
        import obstore

        bucket, key = self._find_to_write(url)
        writer = obstore.open_writer(bucket.patient, key, buffer_size=PART_BYTES, max_concurrency=1)
        file = _Upload(url, writer)
        try:
            yield cast(IO[bytes], file)
            file.complete()
        except BaseException as error:
            with contextlib.suppress(Exception):  # a rule of the bucket can remove parts that stay
                run_aside(partial(writer.__exit__, type(error), error, None), "tfpipe-upload").result()
            raise

    def size(self, url: str) -> int:
        """Returns the bytes of an object, or -1 if there is none."""
        meta = self._find_meta(url)
        return -1 if meta is None else int(meta["size"])

    def version(self, url: str) -> str | None:
        """Returns a text that changes with the content of an object; None if there is none."""
        meta = self._find_meta(url)
        return None if meta is None else f"{meta['size']}:{meta['e_tag'] or meta['last_modified']}"

    def get_replaceable(self, url: str) -> Any:
        """Returns the version of an object, for `replace`; None if there is no object."""
        meta = self._find_meta(url)
        return meta and {name: meta[name] for name in ("e_tag", "version") if meta[name] is not None}

    def replace(self, url: str, data: bytes, expected: Any) -> bool:
        """Writes an object if `get_replaceable` still gives `expected`; returns whether it did."""
        # The answer to an earlier attempt may have been lost.
        return self._put(url, data, "create" if expected is None else expected) or self.read(url) == data

    def _put(self, url: str, data: bytes, mode: Any = None) -> bool:
        """Writes a small object if the condition `mode` holds, and returns whether it did."""
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        bucket, key = self._find_to_write(url)

        def put() -> bool:
            try:
                obstore.put(bucket.once, key, data, use_multipart=False, mode=mode)
                return True
            except (AlreadyExistsError, PreconditionError):
                return False

        return self._ask(url, put)

    def _find_meta(self, url: str) -> Any:
        """Returns what obstore knows of an object; None if there is none."""
        with contextlib.suppress(FileNotFoundError):
            return self._head(url)
        return None

    def list(self, folder: str, recursive: bool = True) -> Iterator[tuple[str, int]]:
        """Implements `FileStore.list`."""
        import obstore

        bucket, key = self._find(folder)
        base, prefix = get_bucket_url(folder), key.rstrip("/")
        if recursive:
            for name, num_bytes in _without_markers(self._list_all(folder, bucket, prefix)):
                yield f"{base}/{name}", num_bytes
            return
        found = self._ask(folder, lambda: obstore.list_with_delimiter(bucket.once, prefix or None))
        for entry in found["objects"]:
            if entry["path"] != prefix:
                yield f"{base}/{entry['path']}", entry["size"]
        for name in found["common_prefixes"]:
            yield f"{base}/{name}/", -1

    def rename(self, source: str, target: str) -> None:
        """Gives an object another name within its bucket, by a copy and a removal."""
        import obstore

        bucket, key = self._find_to_write(source)
        new_key = split_url(target)[1]
        with explain(source):
            try:
                repeat(lambda: obstore.copy(bucket.once, key, new_key), self._retries)
            except Exception as error:
                if failures.read_failure(error)[0] != _TOO_LARGE_TO_COPY:
                    raise
                with self.create(target) as file:
                    for part in obstore.get(bucket.patient, key).stream(min_chunk_size=PART_BYTES):
                        file.write(part)
        self.delete([source])

    def delete(self, urls: Iterable[str]) -> None:
        """Removes objects of one bucket; one that does not exist is ignored."""
        remaining = iter(urls)
        while chunk := list(islice(remaining, _DELETE_AT_ONCE)):
            requests = [[url] for url in chunk] if self._scheme == "gs" else [chunk]  # Google's takes one per request
            with ThreadPoolExecutor(_THREADS) as pool:
                list(pool.map(self._delete, requests))

    def _delete(self, urls: Sequence[str]) -> None:
        import obstore

        bucket, _ = self._find_to_write(urls[0])
        keys = [split_url(url)[1] for url in urls]
        with contextlib.suppress(FileNotFoundError):
            self._ask(urls[0], lambda: obstore.delete(bucket.once, keys))

    def _head(self, url: str) -> Any:
        import obstore

        bucket, key = self._find(url)
        return self._ask(url, lambda: obstore.head(bucket.once, key))

    def _list_all(self, folder: str, bucket: Bucket, prefix: str) -> Iterator[tuple[str, int]]:
        """Yields name and bytes of all objects, page by page. A page that fails is asked for again."""
        import obstore

        pages: Any = None
        last: str | None = None

        def ask() -> Any:
            nonlocal pages
            pages = pages or iter(obstore.list(bucket.once, prefix or None, offset=last, chunk_size=1000))
            try:
                return next(pages, None)
            except BaseException:
                pages = None
                raise

        while (page := self._ask(folder, ask)) is not None:
            for entry in page:
                last = entry["path"]
                if last != prefix:
                    yield last, entry["size"]

    def _ask(self, url: str, call: Callable[[], Result]) -> Result:
        with explain(url):
            return repeat(call, self._retries)

    def _find_to_write(self, url: str) -> tuple[Bucket, str]:
        """Returns what `_find` does; refuses Google's store without credentials, to which obstore cannot write."""
        bucket, key = self._find(url)
        if self._scheme == "gs" and bucket.once.config.get("skip_signature"):
            raise DataError(
                f"{get_bucket_url(url)} cannot be written without credentials. Log in with `gcloud auth "
                "application-default login`, and leave --no_auth out."
            )
        return bucket, key

    def _find(self, url: str) -> tuple[Bucket, str]:
        """Returns the bucket of a URL, opened when it is first needed, and the name of the object in it."""
        name, key = split_url(url)
        check_not_forked(url)
        with self._opening:
            if name not in self._buckets:
                self._buckets[name] = open_bucket(self._scheme, name, self._options, self._retries)
            return self._buckets[name], key


def _without_markers(entries: Iterator[tuple[str, int]]) -> Iterator[tuple[str, int]]:
    """Leaves out the empty objects by which other tools mark a folder. obstore drops the slash at their end."""
    for entry, (following, _) in pairwise(chain(entries, [("", 0)])):
        if entry[1] or not following.startswith(f"{entry[0]}/"):
            yield entry
