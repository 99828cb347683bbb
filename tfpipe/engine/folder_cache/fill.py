"""Fills a cache in files: shards with the records of the source, as they are or with decoded images of one size.

    config = PipelineConfig(batch_size=256, cache="decoded", cache_dir="/local/ssd")
    manifest = fill_cache(manifest, "train", config)        # filled by the first run, found by the next ones

A cache has the source's shards and records under the same numbers. So order, seeds, resuming and the check of every
record are the same as without it, and the pixels of decoded images differ by having been resized twice. A shard appears
under its name when it is complete, with its index before it, and one that is there already is kept.

Costs: of a record one read, one write, its checksums and a SHA-256 (1 ms a MB on one core); of a decoded image also its
decoding as a whole, and 0.2 ms for the Example.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from typing import Any

import numpy as np

from tfpipe.engine.batch import BatchMaker, StoredBatch
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.folder_cache.folder import CacheFolder
from tfpipe.engine.folder_cache.squeeze import RAW, Squeezer
from tfpipe.engine.parse import BadRecord, parse_columns
from tfpipe.engine.plan import plan_batches
from tfpipe.engine.record_block import RecordBlock
from tfpipe.errors import FormatError
from tfpipe.format import manifest_json
from tfpipe.format.example import decode_example, encode_example
from tfpipe.format.manifest import Manifest, ShardInfo
from tfpipe.format.record_index import RecordWriter
from tfpipe.storage import file_io, local
from tfpipe.system import host_limits
from tfpipe.system.hash_permutation import IntArray
from tfpipe.system.progress import Observer, Progress, poll_progress

logger = logging.getLogger(__name__)

_CHUNK_BYTES, _CHUNK_RECORDS = 4 << 20, 256  # that are read and written together
_COPIES = 8  # shards at once: an object store gives one reader a fraction of what it gives several
_MAX_WRITERS, _CORES_PER_WRITER = 8, 4  # decoding keeps as many cores as busy as writing keeps one
_LOG_S = 5.0
_ADVICE = "Copy that file again, or leave `cache_dir` out and set `max_bad_records`"


def fill_cache(manifest: Manifest, split: str, config: PipelineConfig, observer: Observer | None = None) -> Manifest:
    """Fills the cache of a split in `config.cache_dir`, if it is not there yet.

    Args:
        manifest: From `load_manifest`.
        split: Name of a split in it.
        config: Options with a `cache_dir` and `cache` bytes or decoded; for decoded also how images are decoded.
        observer: The object that gets the number of finished images. None: the log gets it.

    Returns:
        A manifest of that split alone, whose `directory` is the cache. To read it, take `without_cache(config)`. Its
        blocks then follow from the size of its own records; with the options of the cache they are those of the source.

    Raises:
        ConfigError: An option cannot be used, or the disk is too small.
        FormatError: A file of the source is damaged; the message says where. Also with `max_bad_records`: leaving
            a record out here would number the rest anew, and so change their order and seeds.
        DataError: A file cannot be read or written.
    """
    folder = CacheFolder(manifest, split, config)
    folder.check()
    if (filled := folder.find()) is not None:
        return filled
    with folder.explain_errors(), folder.lock():
        return fill_locked(folder, observer)


def fill_locked(folder: CacheFolder, observer: Observer | None = None) -> Manifest:
    """Fills a cache, if it is not there yet; the caller holds its lock. It has the errors of `fill_cache`."""
    if (filled := folder.find()) is not None:
        return filled
    with folder.explain_errors():
        folder.clear()
        folder.check_disk()
        folder.source.check()
        begin = time.monotonic()
        manifest = folder.new_manifest(_Filler(folder).run(observer or _Log(folder)))
        folder.sync_names()  # every name is on the disk before the one that says so
        file_io.write_file(folder.manifest_path, manifest_json.dumps(manifest).encode())
        folder.sync_names()
        seconds = time.monotonic() - begin
        logger.info("Filled the cache in %s: %d images in %.1f s.", folder.path, folder.info.records, seconds)
        return manifest


class _Stopped(Exception):
    """The end of a thread because another one failed."""


class _Log(Observer):
    """An observer that logs every few seconds."""

    def __init__(self, folder: CacheFolder) -> None:
        self._path, self._logged = folder.path, time.monotonic()

    def progress(self, progress: Progress) -> None:
        if time.monotonic() - self._logged >= _LOG_S:
            self._logged = time.monotonic()
            logger.info("Filling the cache in %s: %d of %d images.", self._path, progress.done, progress.total)


class _Filler:
    """A writer of the shards of a cache, whose images the engine decodes on all cores."""

    def __init__(self, folder: CacheFolder) -> None:
        self._folder, source, config = folder, folder.source, folder.config
        masks = tuple(spec.name for spec in source.schema.masks) if source.has_images else ()
        # Damage is an error here, even if the pipeline leaves bad records out.
        decoding = PipelineConfig(
            batch_size=1,
            training=False,
            extra_features=masks,
            augment_options=config.augment_options,
            decoder=config.decoder,
        )
        self._maker = BatchMaker(plan_batches(source, decoding), folder.manifest, folder.split)
        self._squeezer = Squeezer(self._maker, folder.size) if folder.is_decoded else None
        self._changed = (source.image_key or "", *masks)
        self._chunk = max(1, min(_CHUNK_RECORDS, int(_CHUNK_BYTES / max(folder.record_bytes, source.record_bytes))))
        self._done = [0] * len(folder.info.shards)  # the records of each shard, whose thread alone counts them
        self._is_stopped = False

    def run(self, observer: Observer) -> tuple[ShardInfo, ...]:
        """Writes the shards that are not there yet, and returns all. The first error stops all threads."""
        # At least two writers: one alone would let the decoders wait whenever it puts a shard on disk.
        writers = min(max(host_limits.usable_cpus() // _CORES_PER_WRITER, 2), _MAX_WRITERS)
        total = self._folder.info.records
        with (
            poll_progress(lambda: Progress(sum(self._done), total), observer),
            ThreadPoolExecutor(_COPIES if self._squeezer is None else writers) as pool,
        ):
            futures = [pool.submit(self._make_shard, number) for number in range(len(self._done))]
            try:
                for future in as_completed(futures):
                    future.result()
            except BaseException:
                self._is_stopped = True
                pool.shutdown(wait=True, cancel_futures=True)
                raise
        return tuple(future.result() for future in futures)

    def _make_shard(self, number: int) -> ShardInfo:
        folder, source = self._folder, self._folder.shards[number]
        path = folder.shard_path(source)
        if (kept := folder.measure(source)) is not None:
            kept = replace(kept, sha256=local.hash_file(path))
            if folder.is_decoded or kept == source:
                self._done[number] = source.records
                return kept
        first, end = folder.source.bases[number : number + 2].tolist()
        with file_io.create(path) as file:
            writer = RecordWriter(file)
            for begin in range(first, end, self._chunk):
                if self._is_stopped:
                    raise _Stopped
                for payload in self._make_payloads(np.arange(begin, min(begin + self._chunk, end))):
                    writer.write(payload)
                    self._done[number] += 1
            made = writer.describe(source.file)
            if not folder.is_decoded and made != source:
                where = file_io.join(folder.manifest.directory, folder.info.shards[number].file)
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
            yield from (payload or b"" for payload in block.list_payloads())
            return
        try:
            yield from self._squeeze(numbers, block, self._squeezer)
        except BadRecord as error:
            raise self._name(int(numbers[error.row]), error) from None

    def _squeeze(self, numbers: IntArray, block: RecordBlock, squeezer: Squeezer) -> Iterator[bytes]:
        stored = StoredBatch(0, numbers, numbers, parse_columns(block, self._maker.kinds))
        columns = squeezer.squeeze(stored, host_limits.usable_cpus()).columns
        for row, payload in enumerate(block.list_payloads()):
            features: dict[str, Any] = dict(decode_example(payload or b""))
            features |= {name: columns[name].get_bytes(row) for name in self._changed}
            yield encode_example(features | RAW)

    def _name(self, number: int, reason: object) -> FormatError:
        place = f"{self._maker.reader.describe(number)} (byte {self._maker.reader.locate(number).offset})"
        return FormatError(f"Every record must be whole to be cached, and {place} is not: {reason}. {_ADVICE}.")
