"""The batches of a cache in a file: the same pixels in the same order in each of its states, by every framework."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import tfpipe
from tests.engine.test_cache_file import NAME, check_equal, config_of, get_file, open_batches, plain
from tests.engine.test_cache_file import source as source
from tests.mask_files import make_mask
from tests.refusals import refusal
from tests.several_images import make_file, make_pixels, write_several
from tfpipe import fields
from tfpipe.engine.cache_file import is_filled
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.open_maker import open_maker
from tfpipe.engine.plan import plan_batches
from tfpipe.engine.record_reader import RecordReader
from tfpipe.engine.source import Source
from tfpipe.errors import ConfigError, FormatError
from tfpipe.format.manifest import Manifest
from tfpipe.readers.jax import JaxBatches
from tfpipe.readers.torch import TorchBatches, data_loader


def write_records(folder: Path, kind: str) -> Manifest:
    if kind == "several":
        return write_several(folder, count=19, number=None, num_shards=4)
    schema: dict[str, Any] = {"words": fields.Values("bytes", None), "count": fields.Values("int64", ())}
    records: list[dict[str, Any]] = [{"words": [b"w"] * (k % 4), "count": k} for k in range(19)]
    if kind == "masks":
        schema |= {"photo": fields.Image(), "classes": fields.Mask()}
        for k, record in enumerate(records):
            record |= {"photo": make_file(k, 0, "JPEG"), "classes": make_mask(k, make_pixels(k, 0).shape[1::-1])}
    tfpipe.write(records, str(folder), schema, num_shards=4, workers=0)
    return tfpipe.load_manifest(str(folder))


def open_one(source: Manifest, config: PipelineConfig) -> Any:
    return open_maker(plan_batches(Source.from_manifest(source, "train"), config))


ALL = (NAME, "image/format", "image/encoded", "image/channels")


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("photos", {"cache": "bytes", "extra_features": ALL}),
        ("photos", {"cache": "decoded", "extra_features": ALL}),
        ("photos", {"cache": "decoded", "augment": "none", "max_bad_records": 100}),
        ("photos", {"cache": "decoded", "image_dtype": "float32", "one_hot": True, "decoded_size": (19, 23)}),
        ("photos", {"cache": "bytes", "as_supervised": True}),
        ("masks", {"cache": "decoded", "extra_features": ("image/mask", "words"), "augment": "device"}),
        ("masks", {"cache": "decoded", "extra_features": ("image/mask", "count")}),
        ("masks", {"cache": "decoded", "extra_features": ("image/mask",), "augment": "none"}),
        ("masks", {"cache": "bytes", "extra_features": ("image/mask",)}),
        ("several", {"cache": "bytes", "images": 2, "extra_features": ("caption",)}),
        ("text", {"cache": "bytes", "decoded_size": None}),
    ],
    ids=str,
)
def test_records_are_the_same_in_each_state_of_the_cache(source, tmp_path, kind, options, training):
    data = source if kind == "photos" else write_records(tmp_path / "out", kind)
    settings = {"training": training, "image_size": 10, "decoded_size": 18, "batch_size": 5, **options}
    config = PipelineConfig(cache_dir=str(tmp_path / "cache"), **settings)
    whole = open_one(data, replace(config, cache_dir=str(tmp_path / "other")))
    steps = range(whole.plan.steps_per_epoch * (2 if training else 1))
    expected = []
    for step in steps:
        expected.append(whole.make(*divmod(step, whole.plan.steps_per_epoch)))
        whole._cache.flush()  # a thread that is behind leaves records out
    without = replace(config, cache_dir=None, max_bad_records=0) if training else plain(config)
    if config.cache == "bytes" or (training and "image/encoded" not in config.extra_features):
        unkept = open_one(data, without)
        for step, batch in enumerate(expected):
            check_same(unkept.make(*divmod(step, whole.plan.steps_per_epoch)), batch)
    maker = open_one(data, config)
    for step in reversed(steps):  # an empty file, a part, and all of it
        for other, each in ((maker, step), (open_one(data, config), 0), (open_one(data, config), steps[-1])):
            check_same(other.make(*divmod(each, whole.plan.steps_per_epoch), 2), expected[each])
            other._cache.flush()
    name = "image" if "image" in expected[0] else "count"
    np.testing.assert_array_equal(maker.for_rows(1, 3).make(0, 0)[name], expected[0][name][1:3])
    assert is_filled(whole.plan) or training  # an epoch of training drops what fills no batch


def check_same(got: dict[str, Any], expected: dict[str, Any]) -> None:
    ragged = {name for name, values in expected.items() if isinstance(values, list)}
    check_equal(*({k: v for k, v in one.items() if k not in ragged} for one in (got, expected)))
    for name in ragged:
        assert list(map(list, got[name])) == list(map(list, expected[name])), name


@pytest.mark.parametrize("cache", ["bytes", "decoded"])
def test_every_face_reads_and_fills_the_same_file(source: Manifest, tmp_path: Path, cache: str) -> None:
    config = config_of(tmp_path / "cache", cache, extra_features=())
    made = open_batches(source, replace(config, cache_dir=str(tmp_path / "other")))
    expected = [made.read(step) for step in range(6)]
    by_numpy, by_torch = open_batches(source, config), data_loader(TorchBatches(source, "train", config))
    by_jax = JaxBatches(source, "train", config, num_threads=2)
    by_tf = tfpipe.build_dataset(source, "train", config, epochs=0)
    faces: dict[str, Iterator[Any]] = {
        "numpy": iter([*by_numpy, *by_numpy]),
        "torch": ({**batch, "image": batch["image"].movedim(1, -1)} for _ in range(2) for batch in by_torch),
        "jax": iter([*by_jax, *by_jax]),
        "tf.data": iter(by_tf.take(6).as_numpy_iterator()),
    }
    for name, batches in faces.items():
        for step in range(6):
            batch = next(batches)
            for part in ("image", "label"):
                np.testing.assert_array_equal(np.asarray(batch[part]), expected[step][part], err_msg=name)
    assert len(list((tmp_path / "cache").iterdir())) == 1
    assert TorchBatches(source, "train", config)._maker._cache.find(np.arange(12)).all()


@pytest.mark.parametrize("start_method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_processes_of_a_loader_fill_one_file(source: Manifest, tmp_path: Path, start_method: str) -> None:
    config = config_of(tmp_path / "cache", "decoded")
    other = TorchBatches(source, "train", replace(config, cache_dir=str(tmp_path / "other")))
    alone = data_loader(other)
    expected = [batch["image"].tolist() for _ in range(2) for batch in alone]
    images = TorchBatches(source, "train", config)
    loader = data_loader(images, num_workers=2, start_method=start_method)
    assert [batch["image"].tolist() for _ in range(2) for batch in loader] == expected
    assert images._maker._cache.find(np.arange(12)).all()


def test_records_of_another_run_need_no_source(source: Manifest, tmp_path: Path, monkeypatch) -> None:
    """The file has all features, whichever the run that filled it asked for; and a run goes on at any step."""
    config = config_of(tmp_path / "cache", "decoded", extra_features=())
    batches = open_batches(source, config)
    list(batches)
    get_file(batches).flush()
    named = config_of(tmp_path / "cache", "decoded", extra_features=ALL)
    other = open_batches(source, config_of(tmp_path / "other", "decoded", extra_features=ALL))
    expected = [other.read(step) for step in range(6)]
    for name in ("_try_to_read_block", "read_payload"):
        monkeypatch.setattr(RecordReader, name, Mock(side_effect=FormatError("It was read.")))
    again = open_batches(source, named)
    for step in (5, 1, 2, 0):
        check_same(again.read(step), expected[step])
    assert set(map(bytes, again.read(3)["image/format"])) == {b"RAW"}


def test_a_transform_gets_the_images_of_both(source: Manifest, tmp_path: Path) -> None:
    config = config_of(tmp_path / "cache", training=False, batch_size=5, extra_features=())

    def measure(image: Any) -> torch.Tensor:
        return torch.tensor([image.width, image.height])

    def read(config: PipelineConfig) -> list[Any]:
        images = TorchBatches(source, "train", config, transform=measure)
        return [batch["image"].tolist() for batch in data_loader(images, num_workers=0)]

    expected = read(plain(config))
    assert read(config) == read(config) == expected
    assert expected[-1][-3:] == [[0, 0]] * 3
    with pytest.raises(ConfigError, match=r"^`transform` gets images as they are stored"):
        TorchBatches(source, "train", config_of(tmp_path, "decoded"), transform=measure)


def test_a_damaged_image_is_named(tmp_path: Path) -> None:
    broken = write_records(tmp_path / "out", "masks")
    config = config_of(tmp_path / "cache", "decoded", training=False, extra_features=("image/mask",))
    for folder, augment in ((config.cache_dir, "host"), (None, "device")):
        maker = open_one(broken, replace(config, cache_dir=folder, augment=augment))
        read = maker.read(0, 0)
        stored = read[0][1] if folder else read[-1]
        column = stored.columns["image/mask"]
        begin, size = column.values[2].tolist()
        memory = np.array(column.memory)
        memory[begin : begin + size] = 0
        stored.columns["image/mask"] = replace(column, memory=memory)
        message = refusal(FormatError, maker.decode, read)
        assert message.startswith("Record 2 of 'train': 'image/mask' cannot be used, ")
