"""The folder of a cache in files: its name, its lock, what it holds, and whether it is whole.

```
/local/ssd/
  flowers-train-0123456789abcdef/    a cache: a local dataset of one split, with the source's shards and records
    train-00000-of-00002.tfrecord    a shard: it appears when it is complete, behind its index
    train-00001-of-....4711.tmp      a shard that is being written, or whose process died
    index/
    manifest.json                    written last: the cache is whole
  .lock-0123456789abcdef             an empty file that stays
```

The number stands for the content: other data, another size or other decoding get a folder of their own, and none is
ever removed. One process fills, and the others wait for its lock, an flock(2), which the kernel drops when the process
ends, however it ends. On a network folder that all hosts share the lock holds where that file system knows flock, as
NFS does. Whoever goes on where a process died keeps the shards that are there: shards beside no manifest are good ones.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import cached_property
from typing import BinaryIO

from tfpipe.dataset.load import load_manifest
from tfpipe.dataset.parts import check_readable
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.source import Source
from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.format import file_names
from tfpipe.format.manifest import Manifest, ShardInfo, SplitInfo
from tfpipe.format.record_index import decode_index, max_index_bytes
from tfpipe.storage import file_io, local
from tfpipe.system import host_limits
from tfpipe.system.file_lock import hold_lock, open_no_link
from tfpipe.system.units import human_bytes

logger = logging.getLogger(__name__)

_VERSION = 2
"""The version of the cache's bytes. Raise it when the same data would be cached as other bytes."""

_RECORD_BYTES = 500  # of a decoded record without its pixels
_IF_DISK_FULL = "Free some space and run again: finished shards are kept. Or remove the folder."


def without_cache(config: PipelineConfig) -> PipelineConfig:
    """Returns the config for reading the source, or a filled cache."""
    return dataclasses.replace(config, cache="none", cache_dir=None, cache_bytes=None)


@dataclasses.dataclass(frozen=True)
class CacheFolder:
    """The folder of a cache in files.

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
    def shards(self) -> tuple[ShardInfo, ...]:
        """The source's shards, each by its name in the cache, which has no layers."""
        shards = self.info.shards
        names = (file_names.shard_name(self.split, number, len(shards)) for number in range(len(shards)))
        return tuple(dataclasses.replace(shard, file=name) for shard, name in zip(shards, names, strict=True))

    @cached_property
    def source(self) -> Source:
        """The source, which is read to fill the cache."""
        return Source.from_manifest(self.manifest, self.split)

    @property
    def is_decoded(self) -> bool:
        """Whether the cache keeps decoded images."""
        return self.config.cache == "decoded"

    @cached_property
    def size(self) -> tuple[int, int]:
        """The height and width of decoded images."""
        stored = self.source.images.size
        return self.config.resolve_decoded_size(None if stored is None else stored[0])

    @property
    def record_bytes(self) -> float:
        """The mean size of a record in the cache; an estimate for decoded images."""
        height, width = self.size
        return height * width * 3 + _RECORD_BYTES if self.is_decoded else self.source.record_bytes

    # Names

    @property
    def parent(self) -> str:
        """The folder of all caches."""
        assert self.config.cache_dir is not None
        return os.path.abspath(self.config.cache_dir)

    @cached_property
    def fingerprint(self) -> str:
        """The hash of everything that the cache's bytes depend on: 64 hexadecimal digits."""
        parts: list[object] = [_VERSION, self.manifest.fingerprint, self.split, self.config.cache]
        parts.append([(shard.records, shard.sha256) for shard in self.info.shards])
        if self.is_decoded:
            parts += [self.size, self.config.augment_options.dct_scaling, self.config.augment_options.antialias]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    @cached_property
    def path(self) -> str:
        """The path of the folder, whose name ends with the key of its content."""
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", self.manifest.name).strip("-")[:64] or "dataset"
        return os.path.join(self.parent, f"{name}-{self.split}-{self.fingerprint[:16]}")

    @property
    def manifest_path(self) -> str:
        """The path of the manifest, which only a whole cache has."""
        return os.path.join(self.path, file_names.MANIFEST)

    @property
    def _lock_path(self) -> str:
        return os.path.join(self.parent, f".lock-{self.fingerprint[:16]}")

    def shard_path(self, shard: ShardInfo) -> str:
        """Returns the path of a shard in the cache."""
        return os.path.join(self.path, shard.file)

    def index_path(self, shard: ShardInfo) -> str:
        """Returns the path of a shard's index in the cache."""
        return os.path.join(self.path, file_names.index_name(shard.file))

    # Checks

    def check(self) -> None:
        """Refuses a dataset, a split or an option that excludes a cache in files."""
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
        if self.is_decoded and self.manifest.has_several_images:
            raise ConfigError("`cache` decoded in files keeps one image a record, and these have several. Use bytes.")
        height, width = self.size
        if self.is_decoded and height != width:
            raise ConfigError(
                f"A decoded cache in files needs a square `decoded_size`, got {height} x {width}: manifests know raw "
                f"images as squares only. Set `decoded_size` to {max(height, width)}, or leave `cache_dir` out."
            )
        check_readable(self.manifest.directory)

    def check_disk(self) -> None:
        """Refuses a cache that would not fit on the disk; what the folder holds already needs no more space."""
        paths = (os.path.join(folder, name) for folder, _, names in os.walk(self.path) for name in names)
        used = sum(max(file_io.get_size(path), 0) for path in paths)
        needed = max(round(self.info.records * (self.record_bytes + 24)) - used, 0)  # with 24 bytes of index
        free = host_limits.free_disk_bytes(self.parent)
        if needed > free:
            advice = "Free some, use a smaller `decoded_size`," if self.is_decoded else "Free some,"
            raise ConfigError(
                f"The cache of {self.source.name} needs {human_bytes(needed)} in {self.parent}, and "
                f"{human_bytes(free)} are free there. {advice} or give another `cache_dir`."
            )

    # Content

    def find(self) -> Manifest | None:
        """Returns the manifest of the whole cache, and None if there is none. It logs what is wrong with the cache."""
        try:
            return self.read_manifest()
        except (FormatError, DataError) as error:
            logger.warning("The cache in %s is filled anew: %s", self.path, error)
            return None

    def read_manifest(self) -> Manifest | None:
        """Returns the manifest of the whole cache, after a check of the shards' sizes; None if it is not whole.

        Raises:
            FormatError: The manifest is damaged, or a shard or its index is.
            DataError: The manifest cannot be read.
        """
        if not os.path.lexists(self.manifest_path):
            return None
        manifest = load_manifest(self.path)
        if manifest.fingerprint != self._new_fingerprint or set(manifest.splits) != {self.split}:
            return None
        for shard in manifest.splits[self.split].shards:
            size = file_io.get_size(self.shard_path(shard))
            if size != shard.bytes or not os.path.exists(self.index_path(shard)):
                raise FormatError(f"{shard.file} is not whole.")
        return dataclasses.replace(manifest, columns=self.manifest.columns)  # which stay where they are

    def measure(self, shard: ShardInfo) -> ShardInfo | None:
        """Returns a shard of the source with the size that it has in the cache; None if it is not complete there."""
        num_bytes = file_io.get_size(self.shard_path(shard))
        if num_bytes < 0 or (not self.is_decoded and num_bytes != shard.bytes):
            return None
        try:
            index = file_io.read_bytes(self.index_path(shard), max_index_bytes(num_bytes, shard.records))
            decode_index(index, num_bytes, shard.records)
        except (FileNotFoundError, FormatError, DataError):
            return None
        return dataclasses.replace(shard, bytes=num_bytes)

    @property
    def _new_fingerprint(self) -> str:
        """The fingerprint in the cache's manifest: equal ones promise equal shards, so a copy keeps the source's."""
        return self.fingerprint if self.is_decoded else self.manifest.fingerprint

    def new_manifest(self, shards: tuple[ShardInfo, ...]) -> Manifest:
        """Makes the manifest of the cache with these shards."""
        info = dataclasses.replace(self.info, shards=shards)
        image = dict(self.manifest.image)
        if self.is_decoded:
            info = dataclasses.replace(info, formats={"RAW": info.records})
            image |= {"encoding": "raw", "square": self.size[0], "resize_short": None}
        return dataclasses.replace(
            self.manifest,
            splits={self.split: info},
            image=image,
            fingerprint=self._new_fingerprint,
            directory=self.path,
            parts=(),
            version="",
        )

    # Writing

    @contextlib.contextmanager
    def explain_errors(self) -> Iterator[None]:
        """Turns errors of the system in the block, which writes the cache, into a sentence or two.

        Raises:
            DataError: A file cannot be written.
        """
        action = f"write the cache in {self.path}"
        with file_io.explain_os_errors(action, if_full=_IF_DISK_FULL, otherwise="Give another `cache_dir`."):
            yield

    def prepare(self) -> None:
        """Makes the folder of all caches and the lock, so that one which cannot be written is found at once.

        Raises:
            ConfigError: The disk is too small.
            DataError: A file cannot be written.
        """
        with self.explain_errors():
            os.makedirs(self.parent, exist_ok=True)
            open(self._lock_path, "ab", opener=open_no_link).close()
        self.check_disk()

    def clear(self) -> None:
        """Makes the folder, and removes what a dead process left, but keeps complete shards and indexes.

        Of a damaged cache it removes all, the manifest last.

        Raises:
            DataError: The folder holds a link to another one.
        """
        file_io.refuse_links(self.parent, [os.path.basename(self.path)])
        os.makedirs(os.path.join(self.path, file_names.INDEX_DIR), exist_ok=True)
        shards = [] if os.path.lexists(self.manifest_path) else [shard.file for shard in self.shards]
        kept = {*shards, *map(file_names.index_name, shards), file_names.INDEX_DIR, file_names.MANIFEST}
        for place in (file_names.INDEX_DIR, ""):
            for entry in list(os.scandir(os.path.join(self.path, place))):
                if os.path.join(place, entry.name) not in kept:
                    os.remove(entry.path)
        with contextlib.suppress(FileNotFoundError):
            os.remove(self.manifest_path)

    def sync_names(self) -> None:
        """Writes the names of all files to the disk, behind their bytes."""
        for path in (os.path.join(self.path, file_names.INDEX_DIR), self.path, self.parent):
            local.sync_folder(path)

    def lock(self) -> AbstractContextManager[BinaryIO]:
        """Waits until this process is the only one that fills: in the block, or as long as a child has the file open.

        Raises:
            OSError: The file of the lock cannot be written, or its file system knows no locks.
        """
        text = "Waiting for another process that fills the cache in %s."
        return hold_lock(self._lock_path, lambda: logger.info(text, self.path))
