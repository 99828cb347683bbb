"""A cache in files: a local dataset of one split, which the pipeline reads as it reads any other.

    config = PipelineConfig(global_batch_size=256, cache="decoded", cache_dir="/local/ssd")
    manifest = fill_cache(manifest, "train", config)        # filled by the first run, found by the next ones

It has the source's shards and records under the same numbers, so order, seeds, resuming and the check of every
record are the same as without a cache; the pixels of cache="decoded" differ by having been resized twice.

```
/local/ssd/
  flowers-train-0123456789abcdef/    a cache
    train-00000-of-00002.tfrecord    a shard: it appears when it is complete, behind its index
    train-00001-of-....4711.tmp      a shard that is being written, or whose process died
    index/
    manifest.json                    written last: the cache is whole
  .lock-0123456789abcdef             an empty file that stays
```

The number stands for the content: other data, another size or other decoding get a folder of their own, and none
is ever removed. One process fills; the others wait for its lock, an flock(2), which the kernel drops when the
process ends, however it ends: there are no stale locks. A process that goes on where another one died keeps the
shards that are there. On a network folder that all hosts share the lock holds where that file system knows flock, as
NFS does.

A pipeline need not wait for a whole cache: `live_fill` reads the source, and each shard from the cache once it is
there. So a folder never changes its name, and a complete shard stays, or is replaced by an equal one. Only a whole
cache that was damaged later is emptied, and its manifest goes last: shards beside no manifest are good ones.
"""

from __future__ import annotations

import os
import shutil

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.format import file_names, manifest_json
from tfpipe.format.manifest import Manifest
from tfpipe.pipeline.file_cache.cache_folder import CacheFolder
from tfpipe.pipeline.file_cache.copy_shards import copy_shards
from tfpipe.pipeline.file_cache.decode_shards import decode_shards
from tfpipe.pipeline.file_cache.fill_threads import FillCounter
from tfpipe.system import file_io
from tfpipe.system.progress import Observer


def fill_cache(manifest: Manifest, split: str, config: PipelineConfig, observer: Observer | None = None) -> Manifest:
    """Fills the cache of a split in `config.cache_dir`, if it is not there yet.

    Args:
        manifest: From `load_manifest`.
        split: Name of a split in it.
        config: Options with a `cache_dir` and `cache` bytes or decoded; for decoded also how images are decoded.
        observer: The object that gets the number of finished images.

    Returns:
        A manifest of that split alone, whose `directory` is the cache. To read it, take `without_cache(config)`. The
        blocks of the order then follow from the size of its own records; `build_dataset` keeps those of the source.

    Raises:
        ConfigError: An option cannot be used, or the disk is too small.
        FormatError: A file of the source is damaged; the message says where. Also with on_bad_record="skip": leaving
            a record out here would number the rest anew, and so change their order and seeds.
        DataError: A file cannot be read or written.
    """
    cache = CacheFolder(manifest, split, config)
    cache.check()
    if (filled := cache.find()) is not None:
        return filled
    with cache.explain_errors():
        os.makedirs(cache.parent, exist_ok=True)
        with cache.lock():
            return fill_locked(cache, observer or Observer())


def fill_locked(cache: CacheFolder, observer: Observer) -> Manifest:
    """Fills a cache, if it is not there yet; the caller holds its lock. It has the errors of `fill_cache`."""
    if (filled := cache.find()) is not None:
        return filled
    with cache.explain_errors():
        return _fill(cache, observer)


def _fill(cache: CacheFolder, observer: Observer) -> Manifest:
    """Fills the folder."""
    if os.path.lexists(cache.manifest_path):
        _empty(cache)  # damaged, or `find` would have taken it
    index_folder = os.path.join(cache.path, file_names.INDEX_DIR)
    os.makedirs(index_folder, exist_ok=True)
    _clear(cache)
    cache.check_disk()
    counter = FillCounter(f"the cache in {cache.path}", cache.info.records, observer)
    if cache.is_decoded:
        shards = decode_shards(cache.plan, cache.info.shards, cache.path, counter)
    else:
        shards = copy_shards(cache.manifest.directory, cache.info.shards, cache.path, counter)
    # Every name is on the disk before the one that says so.
    for folder in (index_folder, cache.path, cache.parent):
        _sync_folder(folder)
    manifest = cache.new_manifest(shards)
    file_io.write_file(cache.manifest_path, manifest_json.dumps(manifest).encode())
    _sync_folder(cache.path)
    counter.finish()
    return manifest


def _empty(cache: CacheFolder) -> None:
    """Removes all of a damaged cache, its manifest last."""
    for entry in list(os.scandir(cache.path)):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        elif entry.path != cache.manifest_path:
            os.remove(entry.path)
    if os.path.lexists(cache.manifest_path):
        os.remove(cache.manifest_path)


def _clear(cache: CacheFolder) -> None:
    """Removes the rest of a dead process, but keeps complete shards and indexes."""
    shards = {shard.file for shard in cache.info.shards}
    kept = {*shards, *map(file_names.index_name, shards), file_names.INDEX_DIR}
    for place in ("", file_names.INDEX_DIR):
        for entry in list(os.scandir(os.path.join(cache.path, place))):
            if os.path.join(place, entry.name) not in kept:
                os.remove(entry.path)


def _sync_folder(path: str) -> None:
    """Writes a folder's names to the disk, after its files."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
