"""A cache that is filled while its source is read: the first batch need not wait for the last image.

    plan.filling = start_live_fill(cache)      # a FillingCache, for the stages `read` and `decode`

A thread of this process looks twice a second which shards are complete, and sets their places in a variable that the
pipeline looks them up in. So a shard is read from the cache as soon as it is there, whichever process wrote it. If no
process fills, this one starts a `FillProcess`, once. If that fails, a warning says why, and what is missing comes from
the source until the end of this process. The next one tries again.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tensorflow as tf

from tfpipe.errors import DataError, FormatError
from tfpipe.format.manifest import Manifest
from tfpipe.format.record_index import decode_index, max_index_bytes
from tfpipe.pipeline.file_cache.cache_folder import CacheFolder
from tfpipe.pipeline.file_cache.fill_process import FillProcess
from tfpipe.pipeline.plan.filling_cache import FillingCache
from tfpipe.system import file_io

logger = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.5
_STOP_LIMIT_S = 5.0

_running: dict[str, LiveFill] = {}
_lock = threading.Lock()


def start_live_fill(cache: CacheFolder) -> FillingCache:
    """Begins to fill a cache beside this process; several pipelines of a process share one filling.

    Raises:
        ConfigError: The disk is too small.
        DataError: The folder of all caches cannot be written.
    """
    with _lock:
        path = os.path.abspath(cache.path)
        if path not in _running:
            cache.prepare()
            _running[path] = LiveFill(cache)
        return _running[path].reading


def close_all() -> None:
    """Ends every filling of this process. Pipelines read on, from the shards that are there and from the sources."""
    with _lock:
        fills = list(_running.values())
    for fill in fills:
        fill.close()


class LiveFill:
    """A cache that is being filled, and the thread that watches it.

    Args:
        cache: The cache.

    Attributes:
        reading: The cache as the pipeline reads it.
        process: The process that fills; None where another process does, or none.
    """

    def __init__(self, cache: CacheFolder) -> None:
        self._cache = cache
        source = cache.source
        shards = cache.info.shards
        size = len(shards) + (source.num_records or 0)
        self.reading = FillingCache(
            files=tuple(map(cache.shard_path, shards)),
            places=_make_variable(size),
            source_images=source.images if cache.is_decoded else None,
        )
        self.process: FillProcess | None = None
        self._may_start, self._others_fill = True, False
        self._missing = list(range(len(shards)))
        self._stop, self._owner = threading.Event(), os.getpid()
        self._thread = threading.Thread(target=self._run, name="tfpipe-cache", daemon=True)
        # Before Python ends: a thread that is then in TensorFlow would take the process down.
        atexit.register(self.close)
        self._thread.start()

    def close(self) -> None:
        """Ends the process and the thread."""
        if os.getpid() == self._owner:  # and not a fork of it
            self._stop.set()
            self._thread.join(_STOP_LIMIT_S)

    def _run(self) -> None:
        # The processes that this thread starts inherit it; Python handles the signal in the main thread.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with tf.device("/CPU:0"):
                while not self._look() and not self._stop.wait(_LOOK_EVERY_S):
                    pass
        except Exception as error:  # nothing here may end the training
            self._warn(f"{type(error).__name__}: {error}")
        finally:
            if self.process is not None:
                self.process.close()
            with _lock:
                _running.pop(os.path.abspath(self._cache.path), None)
            atexit.unregister(self.close)

    def _look(self) -> bool:
        """Starts or hears the process, and takes the shards that are complete. Returns whether all is done."""
        if self.process is not None:
            self._hear()
        whole, is_damaged = self._read_manifest()
        if whole is None and self.process is None and self._may_start:
            self._start()
        if not is_damaged:
            self._missing = [number for number in self._missing if not self._take(number)]
        if whole is None or self.process is not None:
            return False
        if self._missing:
            self._warn(f"The index of {self._cache.info.shards[self._missing[0]].file} is damaged.")
        return True

    def _read_manifest(self) -> tuple[Manifest | None, bool]:
        """Returns the manifest of a whole cache, and whether there is a damaged one, whose shards must not be taken."""
        try:
            whole = self._cache.read_manifest()
        except (FormatError, DataError):
            return None, True
        return whole, whole is None and os.path.lexists(self._cache.manifest_path)

    def _start(self) -> None:
        """Starts the process, unless another one fills."""
        try:
            lock = self._cache.try_lock()
            if lock is None:
                if not self._others_fill:
                    logger.info("Another process fills the cache in %s.", self._cache.path)
                self._others_fill = True
                return
            with lock:
                if self._read_manifest()[0] is None:  # or the other process has just finished
                    self._may_start = False
                    self.process = FillProcess(self._cache, lock.fileno())
        except OSError as error:
            self._may_start = False
            self._warn(f"Its process could not be started: {error.strerror or error}.")

    def _hear(self) -> None:
        """Logs what the process has to say, also about its end."""
        assert self.process is not None
        has_ended = self.process.poll() is not None
        self.process.relay_log()
        if not has_ended:
            return
        if reason := self.process.explain_end():
            self._warn(reason)
        self.process.close()
        self.process = None

    def _take(self, number: int) -> bool:
        """Lets the pipeline read a shard from the cache, if it is complete there. Returns whether it is."""
        shard = self._cache.info.shards[number]
        num_bytes = file_io.get_file_size(self._cache.shard_path(shard))
        if num_bytes < 0 or (not self._cache.is_decoded and num_bytes != shard.bytes):
            return False
        try:
            index = file_io.read_bytes(self._cache.index_path(shard), max_index_bytes(num_bytes, shard.records))
            begins = decode_index(index, num_bytes, shard.records)[:, 0]
        except (FileNotFoundError, FormatError, DataError):
            return False
        first = int(self._cache.source.bases[number]) + number
        places = np.append(begins, num_bytes).astype(np.int64)
        self.reading.places[first : first + len(places)].assign(places)
        return True

    def _warn(self, reason: str) -> None:
        logger.warning(
            "The cache in %s is not filled any further, and what it lacks is read from the source: %s",
            self._cache.path,
            reason,
        )


def _make_variable(size: int) -> tf.Variable:
    """Makes a variable of -1 in the memory of this host, int64 [size].

    In a thread, because the scope of a strategy, which holds for the caller's thread, would make a copy for each
    replica of it.
    """

    def make() -> tf.Variable:
        with tf.device("/CPU:0"):
            return tf.Variable(tf.fill([size], tf.constant(-1, tf.int64)), trainable=False)

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(make).result()
