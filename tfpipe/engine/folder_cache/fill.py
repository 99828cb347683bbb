"""Fills a cache in files: shards with the records of the source, as they are or with decoded images of one size.

    config = PipelineConfig(global_batch_size=256, cache="decoded", cache_dir="/local/ssd")
    manifest = fill_cache(manifest, "train", config)        # filled by the first run, found by the next ones

A cache has the source's shards and records under the same numbers. So order, seeds, resuming and the check of every
record are the same as without it, and the pixels of decoded images differ by having been resized twice. A shard appears
under its name when it is complete, with its index before it, and one that is there already is kept.

Costs: of a record one read, one write, its checksums and a SHA-256 (1 ms a MB on one core); of a decoded image also its
decoding as a whole, and 0.2 ms for the Example.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from tfpipe.engine.batch import BatchMaker, StoredBatch
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.folder_cache.folder import CacheFolder, without_cache
from tfpipe.engine.folder_cache.squeeze import RAW, Squeezer
from tfpipe.engine.parse import BadRecord, parse_columns
from tfpipe.engine.plan import BatchPlan
from tfpipe.engine.record_block import RecordBlock
from tfpipe.errors import FormatError
from tfpipe.format import manifest_json
from tfpipe.format.example import decode_example, encode_example
from tfpipe.format.manifest import Manifest, ShardInfo
from tfpipe.format.record_writer import RecordWriter
from tfpipe.system import file_io, host_limits
from tfpipe.system.hash_permutation import IntArray
from tfpipe.system.progress import Observer, Progress, poll_progress

logger = logging.getLogger(__name__)

_CHUNK_BYTES, _CHUNK_RECORDS = 4 << 20, 256  # that are read and written together
_COPIES = 8  # shards at once: an object store gives one reader a fraction of what it gives several
_MAX_WRITERS, _CORES_PER_WRITER = 8, 4  # decoding keeps as many cores as busy as writing keeps one
_LOG_S = 5.0
_ADVICE = "Copy that file again, or leave `cache_dir` out and set `on_bad_record` to skip"

_Result = TypeVar("_Result")


def fill_cache(manifest: Manifest, split: str, config: PipelineConfig, observer: Observer | None = None) -> Manifest:
    """Fills the cache of a split in `config.cache_dir`, if it is not there yet.

    Args:
        manifest: From `load_manifest`.
        split: Name of a split in it.
        config: Options with a `cache_dir` and `cache` bytes or decoded; for decoded also how images are decoded.
        observer: The object that gets the number of finished images.

    Returns:
        A manifest of that split alone, whose `directory` is the cache. To read it, take `without_cache(config)`. Runs
        and lanes then follow from the size of its own records; with the cache's options they are those of the source.

    Raises:
        ConfigError: An option cannot be used, or the disk is too small.
        FormatError: A file of the source is damaged; the message says where. Also with on_bad_record="skip": leaving
            a record out here would number the rest anew, and so change their order and seeds.
        DataError: A file cannot be read or written.
    """
    folder = CacheFolder(manifest, split, config)
    folder.check()
    if (filled := folder.find()) is not None:
        return filled
    with folder.explain_errors():
        os.makedirs(folder.parent, exist_ok=True)
        with folder.lock():
            return fill_locked(folder, observer or Observer())


def fill_locked(folder: CacheFolder, observer: Observer) -> Manifest:
    """Fills a cache, if it is not there yet; the caller holds its lock. It has the errors of `fill_cache`."""
    if (filled := folder.find()) is not None:
        return filled
    with folder.explain_errors():
        folder.clear()
        folder.check_disk()
        folder.source.check()
        counter = _Counter(folder, observer)
        with poll_progress(counter.read, counter):
            shards = _Filler(folder, counter).run()
        manifest = folder.new_manifest(shards)
        folder.sync_names()  # every name is on the disk before the one that says so
        file_io.write_file(folder.manifest_path, manifest_json.dumps(manifest).encode())
        folder.sync_names()
        counter.log_end()
        return manifest


class _Stopped(Exception):
    """The end of a thread because another one failed."""


class _Counter(Observer):
    """A count of finished images over all threads, for an observer and the log. It also stops the threads together."""

    def __init__(self, folder: CacheFolder, observer: Observer) -> None:
        self._name, self._total, self._observer = f"the cache in {folder.path}", folder.info.records, observer
        self._lock = threading.Lock()
        self._done = self._kept = 0
        self._stopped = False
        self._begin = self._logged = time.monotonic()

    def add(self, images: int, kept: bool = False) -> None:
        """Counts images; `kept` are those of an earlier run.

        Raises:
            _Stopped: Another thread failed.
        """
        with self._lock:
            if self._stopped:
                raise _Stopped
            self._done += images
            self._kept += images if kept else 0

    def run(self, tasks: Sequence[Callable[[], _Result]], threads: int) -> list[_Result]:
        """Runs all tasks, at most `threads` at once; the first error stops the rest and is raised."""
        with ThreadPoolExecutor(threads) as pool:
            futures = [pool.submit(task) for task in tasks]
            try:
                for future in as_completed(futures):
                    future.result()
            except BaseException:
                self._stopped = True
                pool.shutdown(wait=True, cancel_futures=True)
                raise
            return [future.result() for future in futures]

    def read(self) -> Progress:
        """Returns what is finished."""
        return Progress(self._done, self._total)

    def progress(self, progress: Progress) -> None:
        """Tells the observer, and every few seconds the log."""
        self._observer.progress(progress)
        now = time.monotonic()
        if now - self._logged >= _LOG_S:
            self._logged = now
            rate = (self._done - self._kept) / (now - self._begin)
            left = f"{(self._total - self._done) / rate:.0f} s left" if rate else "no estimate yet"
            logger.info("Filling %s: %d of %d images, %.0f/s, %s.", self._name, self._done, self._total, rate, left)

    def log_end(self) -> None:
        """Logs that the cache is filled."""
        seconds, images = time.monotonic() - self._begin, self._total - self._kept
        rate = images / max(seconds, 1e-9)
        logger.info("Filled %s: %d images in %.1f s (%.0f/s).", self._name, images, seconds, rate)


class _Filler:
    """Writes the shards of a cache, with images that the engine decodes on all cores."""

    def __init__(self, folder: CacheFolder, counter: _Counter) -> None:
        self._folder, self._counter, source = folder, counter, folder.source
        masks = tuple(spec.name for spec in source.schema.masks) if source.has_images else ()
        # Damage is an error here, even if the pipeline leaves bad records out.
        config = replace(
            without_cache(folder.config),
            **{"training": False, "on_bad_record": "raise", "one_hot": False, "as_supervised": False},
            **{"extra_features": masks, "pad_to": (), "multi_hot": ()},
        )
        self._maker = BatchMaker(BatchPlan(source, config, None, 1, range(1)), folder.manifest, folder.split)
        self._squeezer = Squeezer(self._maker, folder.size) if folder.is_decoded else None
        self._changed = (source.image_key or "", *masks)
        self._chunk = max(1, min(_CHUNK_RECORDS, int(_CHUNK_BYTES / max(folder.record_bytes, source.record_bytes))))

    def run(self) -> tuple[ShardInfo, ...]:
        """Writes the shards that are not there yet, and returns all."""
        # At least two writers: one alone would let the decoders wait whenever it puts a shard on disk.
        writers = min(max(host_limits.usable_cpus() // _CORES_PER_WRITER, 2), _MAX_WRITERS)
        numbers = range(len(self._folder.info.shards))
        tasks = [partial(self._make_shard, number) for number in numbers]
        return tuple(self._counter.run(tasks, _COPIES if self._squeezer is None else writers))

    def _make_shard(self, number: int) -> ShardInfo:
        folder, source = self._folder, self._folder.info.shards[number]
        path = folder.shard_path(source)
        if (kept := folder.measure(source)) is not None:
            kept = replace(kept, sha256=file_io.hash_file(path))
            if folder.is_decoded or kept == source:
                self._counter.add(source.records, kept=True)
                return kept
        first, end = folder.source.bases[number : number + 2].tolist()
        with file_io.new_file(path) as file:
            writer = RecordWriter(file)
            for begin in range(first, end, self._chunk):
                for payload in self._make_payloads(np.arange(begin, min(begin + self._chunk, end))):
                    writer.write(payload)
                    self._counter.add(1)
            made = writer.describe(source.file)
            if not folder.is_decoded and made != source:
                where = file_io.join(folder.manifest.directory, source.file)
                raise FormatError(
                    f"{where} must have the SHA-256 of its manifest, {source.sha256}, and has another one. {_ADVICE}."
                )
            file_io.write_file(folder.index_path(source), writer.index)
        return made

    def _make_payloads(self, numbers: IntArray) -> Iterator[bytes]:
        """Yields some records as the cache has them."""
        reader = self._maker.reader
        reader.announce(numbers)
        block = reader.read_what_is_whole(numbers)
        if not block.whole.all():
            raise self._name(int(numbers[np.argmin(block.whole)]), "it is damaged, or its file cannot be read")
        if self._squeezer is None:
            yield from filter(None, block.list_payloads())
            return
        try:
            yield from self._squeeze(numbers, block, self._squeezer)
        except BadRecord as error:
            raise self._name(int(numbers[error.row]), error) from None

    def _squeeze(self, numbers: IntArray, block: RecordBlock, squeezer: Squeezer) -> Iterator[bytes]:
        stored = StoredBatch(0, numbers, numbers, parse_columns(block, self._maker.kinds), 0.0, 0.0)
        columns = squeezer.squeeze(stored, host_limits.usable_cpus()).columns
        for row, payload in enumerate(block.list_payloads()):
            features: dict[str, Any] = dict(decode_example(payload or b""))
            changed = {name: columns[name].get_bytes(row) for name in self._changed}
            yield encode_example({**features, **changed, **RAW})

    def _name(self, number: int, reason: object) -> FormatError:
        place = f"{self._maker.reader.describe(number)} (byte {self._maker.reader.locate(number).offset})"
        return FormatError(f"Every record must be whole to be cached, and {place} is not: {reason}. {_ADVICE}.")
