"""A cache in a file on a local disk: records that a run has read, for its later epochs, other processes and later runs.

```
the version and the hash of everything that the bytes depend on        4096 bytes
for each record of the split: its offset, its size, and their XOR      24 bytes; zeros if it is not there
the records, in the order in which they were written                   frames as in TFRecord files:
    its number, and its payload, in which a decoded image is its pixels
```

All processes write the same bytes for a record. A record is trusted only if its number and all checksums are right;
else it is read from the source. So a process may be killed, and a disk may fail, at any moment.
"""

from __future__ import annotations

import hashlib
import json
import logging
import mmap
import os
import re
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tfpipe.engine.features import list_stored_features
from tfpipe.engine.parse import ReadBlock, RecordBlock, read_missing, take_memory
from tfpipe.engine.plan import BatchPlan
from tfpipe.errors import ConfigError, DataError
from tfpipe.format.tfrecord import FOOTER_BYTES, FRAME_BYTES, HEADER_BYTES, frame_record
from tfpipe.native.records import read_records
from tfpipe.storage import file_io
from tfpipe.storage.local import open_descriptor
from tfpipe.system import host_limits
from tfpipe.system.file_lock import lock_file, open_no_link
from tfpipe.system.fork_lock import make_fork_lock
from tfpipe.system.hash_permutation import IntArray
from tfpipe.system.units import human_bytes

_VERSION = 4  # raise it when the same data would be cached as other bytes
_HEAD_BYTES, _ENTRY = 4096, struct.Struct("<3q")
_NUMBER = struct.Struct("<q")
_NUMBER_FRAME = FRAME_BYTES + _NUMBER.size
_MOST_WAITING = 3  # batches that may wait to be written
_RECORD_BYTES = 500  # of a decoded record besides its pixels, roughly
_IF_FULL = "Free some space: the next run goes on to fill it."

Payloads: TypeAlias = Iterable[bytes | None]
"""The bytes of records, each computed only when it is written; None for a damaged record."""

logger = logging.getLogger(__name__)


class CacheFile:
    """A cache of a split's records in a file. Threads and processes may share it; a pickled copy opens the file anew.

    `key` is the hash of all that its bytes depend on, 64 hexadecimal digits. `chosen` are the records of a view, int64
    [n].
    """

    def __init__(self, path: str, key: str, records: int, chosen: IntArray | None = None) -> None:
        self.path = path
        self._key, self._records, self._chosen = key, records, chosen
        self._head = f"tfpipe cache {_VERSION}\n{key}\n".encode()
        self._waiting = deque[tuple[IntArray, Payloads]]()
        self._lock = make_fork_lock()  # guards `_waiting`, `_thread` and `_is_writable`
        self._thread: threading.Thread | None = None
        self._is_writable, self._has_warned, self._damaged = True, False, set[int]()
        self._table_end = _HEAD_BYTES + records * _ENTRY.size
        with file_io.explain_os_errors(f"open the cache {path}", _IF_FULL, "Give another `cache_dir`."):
            while not self._open():
                self._make()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self._key, self._records, self._chosen)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # when Python ends, `os` may be gone
        if (descriptor := getattr(self, "_descriptor", None)) is not None:
            close(descriptor)

    def find(self, numbers: IntArray) -> NDArray[np.bool_]:
        """Returns whether the file has each record, bool [n]."""
        return self._find(self._locate(numbers))[1]

    def announce(self, numbers: IntArray) -> None:
        """Asks the system to read records ahead, if it has a call for that."""
        if hasattr(os, "posix_fadvise"):
            entries, present = self._find(self._locate(numbers))
            for offset, size, _ in entries[present].tolist():
                os.posix_fadvise(self._descriptor, offset, size + _NUMBER_FRAME, os.POSIX_FADV_WILLNEED)

    def read_block(self, numbers: IntArray, memory: NDArray[np.uint8] | None, read: ReadBlock) -> RecordBlock:
        """Reads stored records from the file; those that it lacks come from `read`, and are offered to the file."""
        block = self.read(numbers, memory)
        there = block.whole
        if there.all():
            return block
        block, added = read_missing(block.choose(np.flatnonzero(there)), there, numbers, memory, read)

        spans = zip(added.begins.tolist(), added.ends.tolist(), added.whole.tolist(), strict=True)
        payloads = (added.data[begin:end].tobytes() if whole else None for begin, end, whole in spans)
        self.offer(numbers[~there], payloads)
        return block

    def read(self, numbers: IntArray, memory: NDArray[np.uint8] | None = None) -> RecordBlock:
        """Reads the records that the file has; the block marks all others as not whole."""
        numbers = self._locate(numbers)
        entries, whole = self._find(numbers)
        rows, (offsets, sizes, _) = np.flatnonzero(whole), entries[whole].T
        whole_sizes = sizes + _NUMBER_FRAME
        ats = np.cumsum(whole_sizes) - whole_sizes
        memory = take_memory(int(whole_sizes.sum()), memory)
        begins, ends = np.zeros((2, len(numbers)), np.int64)
        if len(rows):
            frames = np.concatenate((ats, ats + _NUMBER_FRAME)), np.append(np.full(len(rows), _NUMBER_FRAME), sizes)
            spans = np.stack((np.full(len(rows), self._descriptor), offsets, whole_sizes, ats), axis=1)
            checks = read_records(spans, np.stack(frames, axis=1), memory).reshape(2, -1).all(axis=0)
            found = memory[(ats + HEADER_BYTES)[:, None] + np.arange(_NUMBER.size)].view("<i8")[:, 0]
            whole[rows] = checks & (found == numbers[rows])
            begins[rows] = ats + _NUMBER_FRAME + HEADER_BYTES
            ends[rows] = ats + whole_sizes - FOOTER_BYTES
            damaged = numbers[rows[~whole[rows]]].tolist()
            if damaged and not self._has_warned:
                self._has_warned = True
                text = "Damaged records are read from the source, and written anew."
                logger.warning("Record %d in the cache %s is damaged. %s", damaged[0], self.path, text)
            self._damaged.update(damaged)
        return RecordBlock(memory.data, begins, ends, whole)

    def offer(self, numbers: IntArray, payloads: Payloads) -> None:
        """Gives missing or damaged records to the writing thread, or drops them if too many batches wait for it."""
        with self._lock:
            if not self._is_writable or len(self._waiting) >= _MOST_WAITING:
                return
            self._waiting.append((self._locate(numbers), payloads))
            if self._thread is None or not self._thread.is_alive():  # as in a forked process
                # No daemon, so that a run that ends has written what it read.
                self._thread = threading.Thread(target=self._write_all, name="tfpipe-cache", daemon=False)
                with suppress(RuntimeError):  # no thread starts while Python ends
                    self._thread.start()

    def flush(self) -> None:
        """Waits until everything that was offered is written."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()

    # The file

    def _open(self) -> bool:
        """Opens the file, and returns whether it exists and is this cache."""
        try:
            descriptor = open_descriptor(self.path)
        except FileNotFoundError:
            return False
        head, size = os.pread(descriptor, len(self._head), 0), os.fstat(descriptor).st_size
        if head != self._head or size < self._table_end:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        table = mmap.mmap(descriptor, self._table_end, access=mmap.ACCESS_READ)  # it shows what other processes write
        self._table = np.frombuffer(table, "<i8", 3 * self._records, _HEAD_BYTES).reshape(-1, 3)
        return True

    def _make(self) -> None:
        """Creates the file, in place of one that is another cache, unless another process has done so first."""
        with lock_file(self.path, lambda: None) as old:
            with open(self.path, "rb") as file:
                if file.read(len(self._head)) == self._head and os.fstat(file.fileno()).st_size >= self._table_end:
                    return
            if os.fstat(old.fileno()).st_size:
                logger.warning("The cache %s is damaged or of another version: it is made anew.", self.path)
            # Under a temporary name, because other processes may have the old file mapped into memory.
            with open(f"{self.path}.tmp", "wb", opener=open_no_link) as file:
                file.write(self._head)
                file.truncate(self._table_end)
            os.replace(f"{self.path}.tmp", self.path)

    def _locate(self, numbers: IntArray) -> IntArray:
        """Converts the numbers of a view's records to their numbers in the shards."""
        return numbers if self._chosen is None else self._chosen[numbers]

    def _find(self, numbers: IntArray) -> tuple[IntArray, NDArray[np.bool_]]:
        """Returns each record's entry in the table, int64 [n, 3], and whether the file has the record, bool [n]."""
        entries: IntArray = self._table[numbers]
        return entries, (entries[:, 1] > 0) & (entries[:, 0] ^ entries[:, 1] == entries[:, 2])

    # The thread

    def _write_all(self) -> None:
        """Writes the offered records until none is left; after an error the cache takes no more."""
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                numbers, payloads = self._waiting.popleft()
            try:
                with file_io.explain_os_errors(f"write to the cache {self.path}", _IF_FULL):
                    self._write(numbers, payloads)
            except DataError as error:
                logger.warning("%s What the cache lacks is read from the source.", error)
                with self._lock:
                    self._is_writable = False
                    self._waiting.clear()
            del payloads  # they hold the memory of a batch

    def _write(self, numbers: IntArray, payloads: Payloads) -> None:
        """Appends records to the file, without those that another process has written meanwhile."""
        with lock_file(self.path, lambda: None) as file, open(self.path, "r+b", buffering=0) as table:
            if not os.path.samestat(os.fstat(file.fileno()), os.fstat(self._descriptor)):
                raise DataError(f"The cache {self.path} was removed or made anew by another program.")
            begin = end = os.lseek(file.fileno(), 0, os.SEEK_END)
            entries, is_there = dict[int, bytes](), self._find(numbers)[1].tolist()
            try:
                for number, there, payload in zip(numbers.tolist(), is_there, payloads, strict=True):
                    # A batch may hold copies of one record.
                    if payload is None or number in entries or (there and number not in self._damaged):
                        continue
                    left = memoryview(frame_record(_NUMBER.pack(number)) + frame_record(payload))
                    size = len(left) - _NUMBER_FRAME
                    entries[number] = _ENTRY.pack(end, size, end ^ size)
                    end += len(left)
                    while left:
                        left = left[file.write(left) :]
            except OSError:
                with suppress(OSError):
                    os.ftruncate(file.fileno(), begin)
                raise
            for number, entry in entries.items():
                os.pwrite(table.fileno(), entry, _HEAD_BYTES + number * _ENTRY.size)
            self._damaged -= entries.keys()


def open_cache_file(plan: BatchPlan) -> CacheFile:
    """Opens the cache file of a plan's split, and creates it if it does not exist."""
    config, manifest, split = plan.config, plan.source.manifest, plan.source.split
    assert manifest is not None
    assert split is not None
    manifest = manifest.keep_columns(list_stored_features(plan.source, plan.features))
    info = manifest.splits[split]
    hashed: list[object] = [_VERSION, manifest.fingerprint, split, config.cache]
    hashed.append([(shard.records, shard.sha256) for shard in info.shards])
    hashed.append([column.splits[split].fingerprint for column in manifest.columns])
    record_bytes = plan.source.record_bytes
    if manifest.foreign is not None:
        raise ConfigError(
            f"A cache in files needs a dataset that tfpipe wrote, and {manifest.directory} describes files of others. "
            "Leave `cache_dir` out to use memory, or write them anew with `tfpipe reshard`."
        )
    if file_io.is_url(config.cache_dir or ""):
        raise ConfigError(
            "A cache in files needs `cache` bytes or decoded and a local folder as `cache_dir`, got "
            f"{config.cache!r} and {config.cache_dir!r}."
        )
    if config.cache == "decoded" and manifest.has_several_images:
        raise ConfigError("`cache` decoded in files keeps one image a record, and these have several. Use bytes.")
    if config.cache == "decoded":
        height, width = plan.decoded_size
        options = config.augment_options
        hashed += [height, width, options.dct_scaling is not False, options.antialias]
        record_bytes = height * width * 3 + _RECORD_BYTES
    key = hashlib.sha256(json.dumps(hashed).encode()).hexdigest()
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", manifest.name).strip("-")[:64] or "dataset"
    assert config.cache_dir is not None
    folder = os.path.abspath(config.cache_dir)
    path = os.path.join(folder, f"{name}-{split}-{key[:16]}.cache")
    needed = round(info.stored_records * (record_bytes + _ENTRY.size)) - max(file_io.get_size(path), 0)
    free = host_limits.free_disk_bytes(folder)
    if needed > free:
        advice = "Free some, use a smaller `decoded_size`," if config.cache == "decoded" else "Free some,"
        raise ConfigError(
            f"The cache of {plan.source.name} needs {human_bytes(needed)} in {folder}, and "
            f"{human_bytes(free)} are free there. {advice} or give another `cache_dir`."
        )
    return CacheFile(path, key, info.stored_records, None if info.chosen is None else info.chosen.numbers)


def is_filled(plan: BatchPlan) -> bool:
    """Returns whether a plan has a cache file, and the file holds all of the plan's records."""
    if plan.config.cache_dir is None or plan.source.manifest is None:
        return False
    return bool(open_cache_file(plan).find(np.arange(plan.source.num_records or 0)).all())
