"""Caches in memory: the same batches, and nothing is read or decoded twice."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tfpipe
from tests.beam_jobs.datasets import make_dataset
from tests.beam_jobs.images import write_files
from tests.engine.test_cache_file import check_equal
from tests.engine.test_every_face import draw_image
from tests.refusals import refusal
from tfpipe.engine.config.pipeline_config import AugmentOptions, PipelineConfig
from tfpipe.engine.encoded_images import Decoding, resize_pixels
from tfpipe.engine.record_reader import RecordReader
from tfpipe.errors import ConfigError
from tfpipe.format.image_form import ImageForm
from tfpipe.readers.numpy import NumpyBatches
from tfpipe.readers.torch import TorchBatches, data_loader
from tfpipe.system import host_limits

OPTIONS = {"batch_size": 8, "image_size": 12, "seed": 3, "extra_features": ("image/filename",)}
STEPS = range(12)  # three epochs of four


@pytest.fixture(scope="module")
def make(tmp_path_factory) -> Callable[..., tfpipe.Manifest]:

    def write(kind: str, form: ImageForm, offset: int = 0) -> tfpipe.Manifest:
        names = ("cat", "dog", "owl")
        images = {f"{names[k % 3]}/{k}.{kind.lower()}": draw_image(offset + k, kind) for k in range(35)}
        folder = tmp_path_factory.mktemp("cache")
        make_dataset(write_files(folder / "in", images), folder / "out", num_shards=3, form=form)
        return tfpipe.load_manifest(str(folder / "out"))

    return write


@pytest.fixture(scope="module")
def jpegs(make: Callable[..., tfpipe.Manifest]) -> tfpipe.Manifest:
    return make("JPEG", ImageForm())


@pytest.fixture(scope="module")
def raw(make: Callable[..., tfpipe.Manifest]) -> tfpipe.Manifest:
    return make("PNG", ImageForm("raw", square=20))


def open_batches(data: Any, rank: tuple[int, int] = (0, 1), **options: Any) -> NumpyBatches:
    return NumpyBatches(data, "train", PipelineConfig(**{**OPTIONS, **options}), rank=rank, num_threads=2)


BYTES = (
    {"cache": "bytes"},
    {"cache": "bytes", "cache_bytes": 20_000},
    {"cache": "bytes", "max_bad_records": 100, "image_dtype": "float32"},
)
DECODED = (
    {"cache": "decoded"},
    {"cache": "decoded", "cache_bytes": 30_000},
    {"cache": "decoded", "image_dtype": "float32", "one_hot": True},
)


@pytest.mark.parametrize(
    ("kind", "options"),
    [*(("jpegs", each) for each in BYTES), *(("raw", each) for each in (*BYTES, *DECODED))],  # raw ones as they are
    ids=str,
)
def test_a_cache_changes_nothing(kind: str, options: dict[str, Any], request) -> None:
    data = request.getfixturevalue(kind)
    without = {name: value for name, value in options.items() if not name.startswith("cache")}
    cached, plain = open_batches(data, **options), open_batches(data, **without)
    for step in STEPS:
        check_equal(cached.read(step), plain.read(step))


def test_a_crop_is_cut_out_of_the_squeezed_image(jpegs: tfpipe.Manifest) -> None:
    options = {"decoded_size": (20, 26), "augment_options": AugmentOptions(flip=False, dct_scaling=False)}
    whole = open_batches(jpegs, augment="none", image_size=(20, 26), augment_options=AugmentOptions(dct_scaling=False))
    cached = open_batches(jpegs, cache="decoded", **options)
    maker, decoding = cached._maker, Decoding(ImageForm(), None, (12, 12), "uint8", AugmentOptions())
    for step in STEPS:
        batch, pixels = cached.read(step), whole.read(step)
        assert (batch["image/filename"], batch["image"].shape) == (pixels["image/filename"], (8, 12, 12, 3))
        position = divmod(step, len(cached))
        numbers = maker.plan.list_numbers(*position)
        sizes = maker._cache.sizes[maker._cache.slots[numbers]]
        boxes = maker.choose_crops(position[0], numbers, sizes, (20, 26), None).boxes
        for row, (y, x, height, width) in enumerate(boxes.tolist()):
            out = np.empty((12, 12, 3), np.uint8)
            resize_pixels(pixels["image"][row, y : y + height, x : x + width], out, decoding, flip=False)
            np.testing.assert_array_equal(batch["image"][row], out)


@pytest.fixture
def read(monkeypatch) -> list[int]:
    """Gets the numbers of all records that are read."""
    read: list[int] = []
    read_block = RecordReader.read_block

    def count(self: RecordReader, numbers: Any, *memory: Any, **options: Any) -> Any:
        read.extend(numbers.tolist())
        return read_block(self, numbers, *memory, **options)

    monkeypatch.setattr(RecordReader, "read_block", count)
    return read


@pytest.mark.parametrize("cache", ["bytes", "decoded"])
def test_nothing_is_read_twice(jpegs: tfpipe.Manifest, cache: str, read: list[int]) -> None:
    batches = open_batches(jpegs, cache=cache)
    for _ in range(5):
        assert len(list(batches)) == 4
    known = set(read)
    read.clear()
    for _ in range(5):
        assert len(list(batches)) == 4
    assert not known & set(read)
    assert len(known) >= 32


def test_what_does_not_fit_is_read_again(jpegs: tfpipe.Manifest, read: list[int]) -> None:
    batches = open_batches(jpegs, training=False, cache="decoded", cache_bytes=9 * (12 * 12 * 3 + 200))
    list(batches)
    assert sorted(read) == list(range(35))
    read.clear()
    list(batches)
    assert sorted(read) == list(range(9, 35))
    read.clear()
    trained = open_batches(jpegs, cache="decoded", cache_bytes=9 * (14 * 14 * 3 + 200))
    for step in range(8):
        trained.read(step)
    again = [number for number in set(read) if read.count(number) == 2]
    assert set(again) <= set(range(9, 35))
    assert len(again) >= 32 - 9 - 3


@pytest.mark.parametrize("options", [{"cache": "bytes", "cache_bytes": 60_000}, {"cache": "decoded"}], ids=str)
def test_a_mixture_has_a_cache_of_each_dataset(make, raw: tfpipe.Manifest, options: dict[str, Any]):
    mixture = tfpipe.mix({raw.directory: 2, make("PNG", ImageForm("raw", square=20), offset=100).directory: 1})
    cached, plain = open_batches(mixture, **options), open_batches(mixture)
    for step in STEPS:
        check_equal(cached.read(step), plain.read(step))


def test_what_a_cache_excludes(jpegs: tfpipe.Manifest, monkeypatch) -> None:
    images = TorchBatches(jpegs, "train", PipelineConfig(**OPTIONS, cache="bytes"))
    assert refusal(ConfigError, data_loader, images, num_workers=2) == (
        "`cache` bytes needs `num_workers` 0, got 2: each process would have a cache of its own. Leave one of them out."
    )
    found = refusal(ConfigError, open_batches, jpegs, cache="bytes", cache_bytes=5)
    assert found.startswith("`cache_bytes` must hold a record, of which the first takes ")
    monkeypatch.setattr(host_limits, "available_memory_bytes", lambda: 10_000)
    sentence = r"^`cache` decoded of 'train' of .* of memory, and 10\.0 KB are free, of which a cache may take 90 %\."
    with pytest.raises(ConfigError, match=sentence):
        open_batches(jpegs, cache="decoded")
