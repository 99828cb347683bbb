"""A cache in files: a local dataset of one split, which the pipeline reads as it reads any other.

    config = PipelineConfig(global_batch_size=256, cache="decoded", cache_dir="/local/ssd")
    manifest = fill_cache(manifest, "train", config)        # filled by the first run, found by the next ones

It has the source's shards and records under the same numbers, so order, seeds, resuming and the check of every
record are the same as without a cache; the pixels of cache="decoded" differ by having been resized twice.

```
/local/ssd/
  flowers-train-0123456789abcdef/    a whole cache, renamed at the end: shards, index/, manifest.json
  .partial-0123456789abcdef/         a cache that is being filled, or whose process died: the next one goes on with it
  .lock-0123456789abcdef             an empty file that stays
```

The number stands for the content: other data, another size or other decoding get a folder of their own, and none
is ever removed. One process fills; the others wait for its lock, an flock(2), which the kernel drops when the
process ends, however it ends: there are no stale locks. On a network folder that all hosts share the lock holds where
that file system knows flock, as NFS does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Iterator
from functools import cached_property

from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.format import file_names, manifest_json
from tfpipe.format.manifest import Manifest, ShardInfo, SplitInfo
from tfpipe.pipeline.config.pipeline_config import PipelineConfig
from tfpipe.pipeline.file_cache.copy_shards import copy_shards
from tfpipe.pipeline.file_cache.decode_shards import decode_shards
from tfpipe.pipeline.file_cache.fill_threads import FillCounter
from tfpipe.pipeline.plan.read_plan import ReadPlan
from tfpipe.pipeline.plan.source import Source
from tfpipe.system import file_io, host_limits
from tfpipe.system.progress import Observer
from tfpipe.system.units import human_bytes

logger = logging.getLogger(__name__)

_VERSION = 1
"""The version of the cache's bytes. Raise it when the same data would be cached as other bytes."""

_RECORD_BYTES = 500  # of a decoded record without its pixels
_IF_DISK_FULL = "Free some space and run again: finished shards are kept. Or remove the folder."


def fill_cache(manifest: Manifest, split: str, config: PipelineConfig, observer: Observer | None = None) -> Manifest:
    """Fills the cache of a split in `config.cache_dir`, if it is not there yet.

    Args:
        manifest: From `load_manifest`.
        split: Name of a split in it.
        config: Options with a `cache_dir` and `cache` bytes or decoded; for decoded also how images are decoded.
        observer: The object that gets the number of finished images.

    Returns:
        A manifest of that split alone, whose `directory` is the cache. To read it, take `without_cache(config)`.

    Raises:
        ConfigError: An option cannot be used, or the disk is too small.
        FormatError: A file of the source is damaged; the message says where. Also with on_bad_record="skip": leaving
            a record out here would number the rest anew, and so change their order and seeds.
        DataError: A file cannot be read or written.
    """
    cache = _Cache(manifest, split, config)
    cache.check()
    filled = cache.find()
    if filled is None:
        action = f"write the cache in {cache.folder}"
        with file_io.explain_os_errors(action, if_full=_IF_DISK_FULL, otherwise="Give another `cache_dir`."):
            os.makedirs(cache.parent, exist_ok=True)
            with _lock(cache):
                filled = cache.find() or _fill(cache, observer or Observer())
    return filled


def without_cache(config: PipelineConfig) -> PipelineConfig:
    """Returns the config for reading from a filled cache."""
    return dataclasses.replace(config, cache="none", cache_dir=None)


@dataclasses.dataclass(frozen=True)
class _Cache:
    """A cache in files: its split and its folder.

    Attributes:
        manifest: The manifest of the source.
        split: The name of the split.
        config: The options of the pipeline.
    """

    manifest: Manifest
    split: str
    config: PipelineConfig

    @property
    def info(self) -> SplitInfo:
        """The source's split."""
        return self.manifest.splits[self.split]

    @cached_property
    def source(self) -> Source:
        return Source.from_manifest(self.manifest, self.split)

    @cached_property
    def plan(self) -> ReadPlan:
        """The read plan of the source for decoding."""
        # Damage is an error here, even if the pipeline leaves bad records out.
        config = dataclasses.replace(without_cache(self.config), training=False, on_bad_record="raise")
        return ReadPlan(self.source, config)

    @property
    def decoded(self) -> bool:
        return self.config.cache == "decoded"

    @cached_property
    def size(self) -> tuple[int, int]:
        """The height and width of decoded images."""
        return self.plan.decoded_size

    @property
    def parent(self) -> str:
        assert self.config.cache_dir is not None
        return self.config.cache_dir

    @cached_property
    def fingerprint(self) -> str:
        """The hash of everything that the cache's bytes depend on: 64 hexadecimal digits."""
        parts: list[object] = [_VERSION, self.manifest.fingerprint, self.split, self.config.cache]
        parts.append([(shard.records, shard.sha256) for shard in self.info.shards])
        if self.decoded:
            parts += [self.size, self.config.dct_scaling, self.config.augment_options.antialias]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    @property
    def key(self) -> str:
        return self.fingerprint[:16]

    @property
    def folder(self) -> str:
        """The folder of the whole cache."""
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", self.manifest.name).strip("-")[:64] or "dataset"
        return os.path.join(self.parent, f"{name}-{self.split}-{self.key}")

    @property
    def partial(self) -> str:
        """The folder of the cache while it is being filled."""
        return os.path.join(self.parent, f".partial-{self.key}")

    @property
    def needed_bytes(self) -> int:
        """The estimated bytes of the cache, indexes included."""
        index = 24 * self.info.records
        if not self.decoded:
            return self.info.bytes + index
        height, width = self.size
        return self.info.records * (height * width * 3 + _RECORD_BYTES) + index

    def check(self) -> None:
        """Refuses a dataset, a split or an option that excludes a cache in files.

        Raises:
            ConfigError: The dataset, the split or an option cannot be used.
        """
        cache, folder = self.config.cache, self.config.cache_dir
        if self.manifest.foreign is not None:
            raise ConfigError(
                f"A cache in files needs a dataset that tfpipe wrote, and {self.manifest.directory} describes files of "
                "others. Leave `cache_dir` out to use memory, or write them anew with `tfpipe reshard`."
            )
        if cache == "none" or folder is None or file_io.is_url(folder):
            raise ConfigError(
                "A cache in files needs `cache` bytes or decoded and a local folder as `cache_dir`, got "
                f"{cache!r} and {folder!r}."
            )
        height, width = self.size
        if self.decoded and height != width:
            raise ConfigError(
                f"A decoded cache in files needs a square `decoded_size`, got {height} x {width}: manifests know raw "
                f"images as squares only. Set `decoded_size` to {max(height, width)}, or leave `cache_dir` out."
            )

    def find(self) -> Manifest | None:
        """Returns the manifest of the complete cache, after a check of the shards' sizes; None if there is none."""
        path = os.path.join(self.folder, file_names.MANIFEST)
        try:
            text = file_io.read_bytes(path, manifest_json.MAX_BYTES).decode()
            manifest = dataclasses.replace(manifest_json.loads(text, path), directory=self.folder)
        except FileNotFoundError:
            return None
        except (FormatError, DataError, UnicodeDecodeError) as error:
            logger.warning("The cache in %s is filled anew: %s", self.folder, error)
            return None
        if manifest.fingerprint != self.new_fingerprint or set(manifest.splits) != {self.split}:
            return None
        for shard in manifest.splits[self.split].shards:
            index = os.path.join(self.folder, file_names.index_name(shard.file))
            if file_io.get_file_size(os.path.join(self.folder, shard.file)) != shard.bytes or not os.path.exists(index):
                logger.warning("The cache in %s is filled anew: %s is not whole.", self.folder, shard.file)
                return None
        return manifest

    @property
    def new_fingerprint(self) -> str:
        """The fingerprint in the cache's manifest: equal ones promise equal shards, so a copy keeps the source's."""
        return self.fingerprint if self.decoded else self.manifest.fingerprint

    def new_manifest(self, shards: tuple[ShardInfo, ...]) -> Manifest:
        """Makes the manifest of the cache with these shards."""
        info = dataclasses.replace(self.info, shards=shards)
        image = dict(self.manifest.image)
        if self.decoded:
            info = dataclasses.replace(info, formats={"RAW": info.records})
            image |= {"encoding": "raw", "square": self.size[0], "resize_short": None}
        return dataclasses.replace(
            self.manifest,
            splits={self.split: info},
            image=image,
            fingerprint=self.new_fingerprint,
            directory=self.folder,
        )


@contextlib.contextmanager
def _lock(cache: _Cache) -> Iterator[None]:
    """Waits until this process is the only one that fills."""
    with open(os.path.join(cache.parent, f".lock-{cache.key}"), "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.info("Waiting for another process that fills the cache in %s.", cache.folder)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield  # closing the file unlocks it


def _fill(cache: _Cache, observer: Observer) -> Manifest:
    """Fills the partial folder and gives it its name; the caller holds the lock."""
    if os.path.lexists(cache.folder):
        shutil.rmtree(cache.folder)  # damaged, or `find` would have taken it
    partial = cache.partial
    os.makedirs(os.path.join(partial, file_names.INDEX_DIR), exist_ok=True)
    _check_disk(cache, _clear(cache))
    counter = FillCounter(f"the cache in {cache.folder}", cache.info.records, observer)
    if cache.decoded:
        shards = decode_shards(cache.plan, cache.info.shards, partial, counter)
    else:
        shards = copy_shards(cache.manifest.directory, cache.info.shards, partial, counter)
    manifest = cache.new_manifest(shards)
    file_io.write_file(os.path.join(partial, file_names.MANIFEST), manifest_json.dumps(manifest).encode())
    for folder in (os.path.join(partial, file_names.INDEX_DIR), partial):
        _sync_folder(folder)
    os.rename(partial, cache.folder)
    _sync_folder(cache.parent)
    counter.finish()
    return manifest


def _clear(cache: _Cache) -> int:
    """Removes the rest of a dead process, but keeps complete shards and indexes. Returns the bytes of these shards."""
    shards = {shard.file for shard in cache.info.shards}
    indexes = {file_names.index_name(file) for file in shards}
    kept_bytes = 0
    for place in ("", file_names.INDEX_DIR):
        for entry in list(os.scandir(os.path.join(cache.partial, place))):
            name = os.path.join(place, entry.name)
            if name in shards:
                kept_bytes += entry.stat().st_size
            elif name not in indexes and name != file_names.INDEX_DIR:
                os.remove(entry.path)
    return kept_bytes


def _check_disk(cache: _Cache, kept_bytes: int) -> None:
    """Refuses a cache that would not fit.

    Raises:
        ConfigError: The cache needs more space than is free.
    """
    needed, free = max(cache.needed_bytes - kept_bytes, 0), host_limits.free_disk_bytes(cache.parent)
    if needed > free:
        advice = "Free some, use a smaller `decoded_size`," if cache.decoded else "Free some,"
        raise ConfigError(
            f"The cache of {cache.source.name} needs {human_bytes(needed)} in {cache.parent}, and {human_bytes(free)} "
            f"are free there. {advice} or give another `cache_dir`."
        )


def _sync_folder(path: str) -> None:
    """Writes a folder's names to the disk, after its files."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
