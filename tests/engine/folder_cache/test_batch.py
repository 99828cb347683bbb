"""The batches while a cache in files is filled: the same pixels in the same order, by every framework."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tfpipe
from tests.mask_files import make_mask
from tests.several_images import make_file, make_pixels, write_several
from tfpipe.engine.batch import BatchMaker
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.folder_cache.batch import FolderCacheMaker
from tfpipe.engine.folder_cache.fill import fill_cache
from tfpipe.engine.folder_cache.folder import CacheFolder, without_cache
from tfpipe.engine.mixed_batch import AnyMaker
from tfpipe.engine.open_maker import open_maker
from tfpipe.engine.plan import plan_batches
from tfpipe.errors import ConfigError
from tfpipe.format.manifest import Manifest
from tfpipe.readers.jax import JaxBatches
from tfpipe.readers.numpy import NumpyBatches
from tfpipe.readers.torch import TorchBatches, data_loader

NAME = "image/filename"


def folder_of(source: Manifest, place: Path, cache: str = "decoded", **options: Any) -> CacheFolder:
    """The cache of a config with decoded records so large that their own size would give another order."""
    config = {"batch_size": 4, "image_size": 14, "decoded_size": 160, "extra_features": (NAME,), **options}
    return CacheFolder(source, "train", PipelineConfig(cache=cache, cache_dir=str(place), **config))


def open_batches(folder: CacheFolder, **options: Any) -> NumpyBatches:
    return NumpyBatches(folder.manifest, folder.split, folder.config, num_threads=2, **options)


def fill(folder: CacheFolder) -> Manifest:
    return fill_cache(folder.manifest, folder.split, folder.config)


@contextmanager
def nobody_fills(folder: CacheFolder) -> Iterator[None]:
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
        if isinstance(values, list):
            assert list(map(list, got[name])) == list(map(list, values)), name
            continue
        np.testing.assert_array_equal(got[name], values, err_msg=name)


def make(batches: NumpyBatches, step: int) -> dict[str, Any]:
    return batches._maker.make(*divmod(step, len(batches)), 2)


def count_cached(batches: NumpyBatches) -> int:
    assert isinstance(batches._maker, FolderCacheMaker)
    return int(batches._maker._complete.find(np.arange(12)).sum())


@pytest.mark.parametrize(
    "options",
    [
        {"cache": "bytes"},
        {"cache": "decoded"},
        {"cache": "decoded", "extra_features": (NAME, "image/format", "image/encoded", "image/channels")},
        {"cache": "decoded", "augment": "none", "max_bad_records": 100},
        {"cache": "decoded", "training": False, "image_dtype": "float32", "batch_size": 5},
        {"cache": "bytes", "training": False, "batch_size": 5, "as_supervised": True, "extra_features": ()},
    ],
    ids=str,
)
def test_batches_are_the_same_before_during_and_after_filling(source: Manifest, tmp_path, options: dict[str, Any]):
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
        by_numpy, by_torch = open_batches(live), data_loader(TorchBatches(source, "train", live.config))
        by_jax = JaxBatches(source, "train", replace(live.config, extra_features=()), num_threads=2)
        faces: dict[str, Iterator[Any]] = {
            "numpy": iter([*by_numpy, *by_numpy]),
            "torch": ({**batch, "image": batch["image"].movedim(1, -1)} for _ in range(2) for batch in by_torch),
            "jax": iter([*by_jax, *by_jax]),
        }
        by_tf = tfpipe.build_dataset(source, "train", live.config)
        assert by_tf.element_spec == tfpipe.build_dataset(source, "train", filled.config).element_spec
        faces["tf.data"] = iter(by_tf.as_numpy_iterator())
        for name, batches in faces.items():
            for step in range(6):
                batch = next(batches)
                for part in ("image", "label"):
                    np.testing.assert_array_equal(np.asarray(batch[part]), expected[step][part], err_msg=name)


def open_folder(folder: CacheFolder) -> AnyMaker:
    return open_maker(plan_batches(folder.source, folder.config))


def write_records(folder: Path, kind: str) -> Manifest:
    if kind == "several":
        return write_several(folder, count=19, number=None, num_shards=4)
    schema: dict[str, Any] = {"words": tfpipe.Values("bytes", None), "count": tfpipe.Values("int64", ())}
    records: list[dict[str, Any]] = [{"words": [b"w"] * (k % 4), "count": k} for k in range(19)]
    if kind == "masks":
        schema |= {"photo": tfpipe.Image(), "classes": tfpipe.Mask()}
        for k, record in enumerate(records):
            record |= {"photo": make_file(k, 0, "JPEG"), "classes": make_mask(k, make_pixels(k, 0).shape[1::-1])}
    tfpipe.write(records, str(folder), schema, num_shards=4, workers=0)
    return tfpipe.load_manifest(str(folder))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("masks", {"cache": "decoded", "extra_features": ("image/mask", "words"), "augment": "device"}),
        ("masks", {"cache": "decoded", "extra_features": ("image/mask", "count")}),
        ("masks", {"cache": "bytes", "extra_features": ("image/mask",)}),
        ("several", {"cache": "bytes", "images": 2, "extra_features": ("caption",)}),
        ("text", {"cache": "bytes"}),
    ],
    ids=str,
)
def test_any_records_are_the_same_in_each_state_of_the_cache(tmp_path, kind, options, training):
    source = write_records(tmp_path / "out", kind)
    settings = {"training": training, "image_size": 10, "decoded_size": 18, "batch_size": 6, **options}
    if kind == "text":
        settings |= {"decoded_size": None}
    filled, live = (
        CacheFolder(source, "train", PipelineConfig(**{**settings, "cache_dir": str(tmp_path / name)}))
        for name in ("filled", "live")
    )
    whole = fill(filled)
    after = open_folder(filled)
    expected = [after.make(0, step) for step in range(after.plan.steps_per_epoch)]
    assert training or not expected[-1]["mask"].all()
    with nobody_fills(live):
        maker = open_folder(live)
        for shard in (None, 2, 0, 3, 1):
            if shard is not None:
                copy_shard(whole, live, shard)
            for step, batch in enumerate(expected):
                check_equal(maker.make(0, step), batch)


def test_a_transform_gets_the_images_of_both(source: Manifest, tmp_path: Path) -> None:
    filled, live = (
        folder_of(source, tmp_path / name, "bytes", training=False, batch_size=5) for name in ("filled", "live")
    )
    whole = fill(filled)

    def measure(image: Any) -> torch.Tensor:
        return torch.tensor([image.width, image.height])

    def read(folder: CacheFolder) -> list[Any]:
        images = TorchBatches(source, "train", folder.config, transform=measure)
        return [batch["image"].tolist() for batch in data_loader(images, num_workers=0)]

    with nobody_fills(live):
        copy_shard(whole, live, 1)
        assert read(live) == read(filled)
        assert read(live)[-1][-3:] == [[0, 0]] * 3
    with pytest.raises(ConfigError, match=r"^`transform` gets images as they are stored"):
        TorchBatches(source, "train", folder_of(source, tmp_path).config, transform=measure)


@pytest.mark.slow
def test_processes_of_a_loader_share_a_cache_in_files(source: Manifest, tmp_path: Path) -> None:
    filled, live = (folder_of(source, tmp_path / name) for name in ("filled", "live"))
    whole = fill(filled)
    expected = [batch["image"].tolist() for batch in data_loader(TorchBatches(source, "train", filled.config))]
    with nobody_fills(live):
        copy_shard(whole, live, 0)
        loader = data_loader(TorchBatches(source, "train", live.config), num_workers=2, start_method="spawn")
        assert [batch["image"].tolist() for batch in loader] == expected


def test_a_mixture_has_no_cache_in_files(source: Manifest, tmp_path: Path) -> None:
    config = PipelineConfig(batch_size=4, cache="bytes", cache_dir=str(tmp_path))
    with pytest.raises(ConfigError) as caught:
        NumpyBatches(tfpipe.mix({source.directory: 1, f"{source.directory}/": 1}), "train", config)
    assert str(caught.value) == "A mixture cannot be cached in files as a whole. Take its datasets one by one."
