"""A cache in a file on a local disk: records that a run has read, for its later epochs, other processes and later runs.

```
the version and the hash of everything that the bytes depend on        4096 bytes
for each record of the split where it lies: offset, bytes, their XOR   24 bytes; zeros if it is not there
the records, in the order in which they were written                   frames as in TFRecord files:
    its number, and its payload
```

All processes write the same bytes of a record, and it is trusted only if its number and all checksums hold; else the
source is read. So a process may be killed and a disk may fail at any moment.
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
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfpipe.engine.features import list_stored_features
from tfpipe.engine.parse import ReadBlock, RecordBlock, read_missing, take_memory
from tfpipe.engine.plan import BatchPlan
from tfpipe.errors import ConfigError, DataError
from tfpipe.format.manifest import Manifest
from tfpipe.format.tfrecord import FOOTER_BYTES, FRAME_BYTES, HEADER_BYTES, frame_record
from tfpipe.native.records import read_records
from tfpipe.storage import file_io
from tfpipe.storage.local import open_descriptor
from tfpipe.system import host_limits
from tfpipe.system.file_lock import hold_lock, open_no_link
from tfpipe.system.fork_lock import ForkLock
from tfpipe.system.hash_permutation import IntArray
from tfpipe.system.units import human_bytes

_VERSION = 3  # raise it when the same data would be cached as other bytes
_HEAD_BYTES, _ENTRY = 4096, struct.Struct("<3q")
_NUMBER = struct.Struct("<q")
_NUMBER_FRAME = FRAME_BYTES + _NUMBER.size
_MOST_WAITING = 3  # batches that wait to be written
_IF_FULL = "Free some space: the next run goes on to fill it."

logger = logging.getLogger(__name__)


class CacheFile:
    """A file of records of a split. Threads and processes may share it; a pickled one opens the file anew.

    `key` is the hash of all that its bytes depend on, 64 hexadecimal digits. `chosen` are the records of a view, int64
    [n].
    """

    def __init__(self, path: str, key: str, records: int, chosen: IntArray | None = None) -> None:
        self.path = path
        self._key, self._records, self._chosen = key, records, chosen
        self._head = f"tfpipe cache {_VERSION}\n{key}\n".encode()
        self._waiting = deque[tuple[IntArray, RecordBlock]]()
        self._lock = ForkLock()  # guards the two above and below
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
        """Returns whether each record is there, bool [n]."""
        return self._find(self._locate(numbers))[1]

    def announce(self, numbers: IntArray) -> None:
        """Asks the disk for records that are read soon, if the system has a call for that."""
        if hasattr(os, "posix_fadvise"):
            entries, present = self._find(self._locate(numbers))
            for offset, size, _ in entries[present].tolist():
                os.posix_fadvise(self._descriptor, offset, size + _NUMBER_FRAME, os.POSIX_FADV_WILLNEED)

    def read_block(self, numbers: IntArray, memory: NDArray[np.uint8] | None, read: ReadBlock) -> RecordBlock:
        """Reads records, those that are not there by a method of `RecordReader`."""
        located = self._locate(numbers)
        entries, present = self._find(located)
        there, rows, (offsets, sizes, _) = present.copy(), np.flatnonzero(present), entries[present].T
        whole_sizes = sizes + _NUMBER_FRAME
        ats = np.cumsum(whole_sizes) - whole_sizes
        block_memory = take_memory(int(whole_sizes.sum()), memory)
        if len(rows):
            frames = np.concatenate((ats, ats + _NUMBER_FRAME)), np.append(np.full(len(rows), _NUMBER_FRAME), sizes)
            spans = np.stack((np.full(len(rows), self._descriptor), offsets, whole_sizes, ats), axis=1)
            checks = read_records(spans, np.stack(frames, axis=1), block_memory).reshape(2, -1).all(axis=0)
            found = block_memory[(ats + HEADER_BYTES)[:, None] + np.arange(_NUMBER.size)].view("<i8")[:, 0]
            there[rows] = checks & (found == located[rows])
            damaged = located[present & ~there].tolist()
            if damaged and not self._has_warned:
                self._has_warned = True
                text = "Damaged records are read from the source, and written anew."
                logger.warning("Record %d in the cache %s is damaged. %s", damaged[0], self.path, text)
            self._damaged.update(damaged)
        begins, ends = ats + _NUMBER_FRAME + HEADER_BYTES, ats + whole_sizes - FOOTER_BYTES
        block = RecordBlock(block_memory.data, begins, ends, there[rows])
        if there.all():
            return block
        block, added = read_missing(block.choose(np.flatnonzero(there[rows])), there, numbers, memory, read)
        with self._lock:
            if not self._is_writable or len(self._waiting) >= _MOST_WAITING:  # the thread is behind
                return block
            self._waiting.append((located[~there], added))
            if self._thread is None or not self._thread.is_alive():  # as in a forked process
                # No daemon, so that a run that ends has written what it read.
                self._thread = threading.Thread(target=self._write_all, name="tfpipe-cache", daemon=False)
                with suppress(RuntimeError):  # Python ends
                    self._thread.start()
        return block

    def flush(self) -> None:
        """Waits until everything is written that was read and not left out."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()

    # The file

    def _open(self) -> bool:
        """Opens the file, and returns whether it is there and this cache."""
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
        """Makes the file, in the place of one that is not this cache. Another process may do that first."""
        with hold_lock(self.path, lambda: None) as old:
            with open(self.path, "rb") as file:
                if file.read(len(self._head)) == self._head and os.fstat(file.fileno()).st_size >= self._table_end:
                    return
            if os.fstat(old.fileno()).st_size:
                logger.warning("The cache %s is damaged or of another version: it is made anew.", self.path)
            # A name of its own, because others may have the old file in their memory.
            with open(f"{self.path}.tmp", "wb", opener=open_no_link) as file:
                file.write(self._head)
                file.truncate(self._table_end)
            os.replace(f"{self.path}.tmp", self.path)

    def _locate(self, numbers: IntArray) -> IntArray:
        """Returns the numbers that records have in the shards."""
        return numbers if self._chosen is None else self._chosen[numbers]

    def _find(self, numbers: IntArray) -> tuple[IntArray, NDArray[np.bool_]]:
        """Returns the entry of each record in the table, int64 [n, 3], and whether it is there, bool [n]."""
        entries: IntArray = self._table[numbers]
        return entries, (entries[:, 1] > 0) & (entries[:, 0] ^ entries[:, 1] == entries[:, 2])

    # The thread

    def _write_all(self) -> None:
        """Writes what waits, until nothing is left or an error comes, after which it writes no more."""
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                numbers, block = self._waiting.popleft()
            try:
                with file_io.explain_os_errors(f"write to the cache {self.path}", _IF_FULL):
                    self._write(numbers, block)
            except DataError as error:
                text = "%s What the cache lacks is read from the source."
                logger.warning(text, error)
                with self._lock:
                    self._is_writable = False
                    self._waiting.clear()
            del block  # it holds the memory of a batch

    def _write(self, numbers: IntArray, block: RecordBlock) -> None:
        """Writes records behind the others, but for damaged ones, and those that somebody has written meanwhile."""
        with hold_lock(self.path, lambda: None) as file, open(self.path, "r+b", buffering=0) as table:
            if not os.path.samestat(os.fstat(file.fileno()), os.fstat(self._descriptor)):
                raise DataError(f"The cache {self.path} was removed or made anew by another program.")
            lacks = ~self._find(numbers)[1] | np.isin(numbers, list(self._damaged))
            rows = np.flatnonzero(lacks & block.whole)
            rows = rows[np.unique(numbers[rows], return_index=True)[1]]  # copies of one record may meet in a batch
            places = zip(numbers[rows].tolist(), block.begins[rows].tolist(), block.ends[rows].tolist(), strict=True)
            begin = end = os.lseek(file.fileno(), 0, os.SEEK_END)
            entries = list[tuple[int, bytes]]()
            try:
                for number, first, last in places:
                    payload = frame_record(block.data[first:last].tobytes())
                    left = memoryview(frame_record(_NUMBER.pack(number)) + payload)
                    entries.append((number, _ENTRY.pack(end, len(payload), end ^ len(payload))))
                    end += len(left)
                    while left:
                        left = left[file.write(left) :]
            except OSError:
                with suppress(OSError):
                    os.ftruncate(file.fileno(), begin)
                raise
            for number, entry in entries:
                os.pwrite(table.fileno(), entry, _HEAD_BYTES + number * _ENTRY.size)
            self._damaged.difference_update(numbers[rows].tolist())


def open_cache_file(plan: BatchPlan, manifest: Manifest, split: str) -> CacheFile:
    """Opens the cache of a split, and makes it if it is not there."""
    manifest = manifest.keep_columns(list_stored_features(plan.source, plan.features))
    config, info = plan.config, manifest.splits[split]
    parts: list[object] = [_VERSION, manifest.fingerprint, split]
    parts.append([(shard.records, shard.sha256) for shard in info.shards])
    parts.append([column.splits[split].fingerprint for column in manifest.columns])
    if manifest.foreign is not None:
        raise ConfigError(
            f"A cache in files needs a dataset that tfpipe wrote, and {manifest.directory} describes files of others. "
            "Leave `cache_dir` out to use memory, or write them anew with `tfpipe reshard`."
        )
    if file_io.is_url(config.cache_dir or ""):
        raise ConfigError(f"A cache in files needs a local folder as `cache_dir`, got {config.cache_dir!r}.")
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", manifest.name).strip("-")[:64] or "dataset"
    assert config.cache_dir is not None
    folder = os.path.abspath(config.cache_dir)
    path = os.path.join(folder, f"{name}-{split}-{key[:16]}.cache")
    needed = round(info.stored_records * (plan.source.record_bytes + _ENTRY.size)) - max(file_io.get_size(path), 0)
    free = host_limits.free_disk_bytes(folder)
    if needed > free:
        raise ConfigError(
            f"The cache of {plan.source.name} needs {human_bytes(needed)} in {folder}, and "
            f"{human_bytes(free)} are free there. Free some, or give another `cache_dir`."
        )
    chosen = None if info.chosen is None else info.chosen.numbers
    return CacheFile(path, key, info.stored_records, chosen)


def is_filled(plan: BatchPlan) -> bool:
    """Returns whether a plan has a cache in a file, which holds all of its records."""
    manifest, split = plan.source.manifest, plan.source.split
    if plan.config.cache_dir is None or manifest is None or split is None:
        return False
    cache = open_cache_file(plan, manifest, split)
    return bool(cache.find(np.arange(plan.source.num_records or 0)).all())
