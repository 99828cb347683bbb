"""The batches while a cache in files is filled: the same pixels in the same order, by every framework."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tfpipe
from tfpipe.engine.batch import BatchMaker
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.folder_cache.batch import FolderCacheMaker
from tfpipe.engine.folder_cache.fill import fill_cache
from tfpipe.engine.folder_cache.folder import CacheFolder, without_cache
from tfpipe.format.manifest import Manifest
from tfpipe.native import library
from tfpipe.readers.jax import DeviceBatches
from tfpipe.readers.numpy import NumpyBatches
from tfpipe.readers.torch import ShardedImages, data_loader

NAME = "image/filename"


def folder_of(source: Manifest, place: Path, cache: str = "decoded", **options: Any) -> CacheFolder:
    """The cache of a config with decoded records so large that their own size would give another order."""
    config = {"global_batch_size": 4, "image_size": 14, "decoded_size": 160, "extra_features": (NAME,), **options}
    return CacheFolder(source, "train", PipelineConfig(cache=cache, cache_dir=str(place), **config))


def open_batches(folder: CacheFolder, **options: Any) -> NumpyBatches:
    return NumpyBatches(folder.manifest, folder.split, folder.config, num_threads=2, **options)


def fill(folder: CacheFolder) -> Manifest:
    return fill_cache(folder.manifest, folder.split, folder.config)


@contextmanager
def nobody_fills(folder: CacheFolder) -> Iterator[None]:
    """Holds the lock, so that no process is started."""
    os.makedirs(folder.parent, exist_ok=True)
    with folder.lock():
        yield


def copy_shard(whole: Manifest, folder: CacheFolder, number: int) -> None:
    """Puts a complete shard of one cache into another, as the filling process does: the index first."""
    shard = folder.info.shards[number]
    Path(folder.path, "index").mkdir(parents=True, exist_ok=True)
    for path in (folder.index_path(shard), folder.shard_path(shard)):
        shutil.copy(Path(whole.directory, Path(path).relative_to(folder.path)), f"{path}.tmp")
        os.replace(f"{path}.tmp", path)


def check_equal(got: dict[str, Any], expected: dict[str, Any]) -> None:
    assert got.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(got[name], values, err_msg=name)


def make(batches: NumpyBatches, step: int) -> dict[str, Any]:
    return batches._maker.make(*divmod(step, len(batches)), 2)


def count_cached(batches: NumpyBatches) -> int:
    assert isinstance(batches._maker, FolderCacheMaker)
    return int(batches._maker._complete.find(np.arange(12)).sum())


# The same batches


@pytest.mark.parametrize(
    "options",
    [
        {"cache": "bytes"},
        {"cache": "decoded"},
        {"cache": "decoded", "extra_features": (NAME, "image/format", "image/encoded", "image/channels")},
        {"cache": "decoded", "augment": "none", "on_bad_record": "skip"},
        {"cache": "decoded", "training": False, "image_dtype": "float32", "global_batch_size": 5},
        {"cache": "bytes", "training": False, "global_batch_size": 5, "as_supervised": True, "extra_features": ()},
    ],
    ids=str,
)
def test_batches_are_the_same_before_during_and_after_filling(
    source: Manifest, tmp_path: Path, options: dict[str, Any]
) -> None:
    filled, live = (folder_of(source, tmp_path / name, **options) for name in ("filled", "live"))
    whole = fill(filled)
    after = open_batches(filled)
    assert isinstance(after._maker, BatchMaker)
    steps = range(9) if filled.config.training else range(len(after))
    expected = [make(after, step) for step in steps]
    plain = NumpyBatches(source, "train", without_cache(filled.config))
    if NAME in filled.config.extra_features:
        assert [plain.read(step)[NAME] for step in steps] == [after.read(step)[NAME] for step in steps]
    with nobody_fills(live):
        batches = open_batches(live)
        for present, shards in ((0, ()), (6, (1,)), (12, (0,))):
            for shard in shards:
                copy_shard(whole, live, shard)
            for step in steps:
                check_equal(make(batches, step), expected[step])
            assert count_cached(batches) == present
        shutil.rmtree(source.directory)
        for step in steps:
            check_equal(make(batches, step), expected[step])


def test_every_face_reads_while_the_cache_is_filled(source: Manifest, tmp_path: Path) -> None:
    filled, live = (folder_of(source, tmp_path / name, decoded_size=20) for name in ("filled", "live"))
    whole = fill(filled)
    expected = [open_batches(filled).read(step) for step in range(6)]
    with nobody_fills(live):
        copy_shard(whole, live, 1)
        by_numpy, by_torch = open_batches(live), data_loader(ShardedImages(source, "train", live.config))
        by_jax = DeviceBatches(source, "train", replace(live.config, extra_features=()), num_threads=2)
        faces: dict[str, Iterator[Any]] = {
            "numpy": iter([*by_numpy, *by_numpy]),
            "torch": ({**batch, "image": batch["image"].movedim(1, -1)} for _ in range(2) for batch in by_torch),
            "jax": iter([*by_jax, *by_jax]),
        }
        if library.is_available():
            by_tf = tfpipe.build_dataset(source, "train", live.config)
            assert by_tf.element_spec == tfpipe.build_dataset(source, "train", filled.config).element_spec
            faces["tf.data"] = iter(by_tf.as_numpy_iterator())
        for name, batches in faces.items():
            for step in range(6):
                batch = next(batches)
                for part in ("image", "label"):
                    np.testing.assert_array_equal(np.asarray(batch[part]), expected[step][part], err_msg=name)
