"""`tfpipe shard --seekable` and `reshard --seekable`: every JPEG becomes seekable, and no pixel changes."""

import hashlib
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from beam_jobs import shard_job
from beam_jobs.config import ShardConfig
from tests.beam_jobs.datasets import join_datasets, make_dataset, read_images, read_quarantine, read_records, read_tree
from tests.beam_jobs.images import write_files
from tests.conftest import Tfpipe
from tests.native.conftest import Draw
from tests.native.test_jpeg import read_pixels
from tfpipe.dataset.load import load_manifest
from tfpipe.format.image_form import ImageForm
from tfpipe.images.seekable import choose_interval, has_chosen_interval
from tfpipe.integrity.verify import VerifyConfig, verify
from tfpipe.native.jpeg import make_seekable

SEEKABLE = ImageForm(seekable=True)


@pytest.fixture(scope="module")
def photos(draw_jpeg: Draw, tmp_path_factory) -> Path:
    """A folder of every kind of image that is kept, one that is converted, and two that are damaged."""
    jpegs = {
        "420.jpg": draw_jpeg(60, 480),
        "444.jpg": draw_jpeg(61, 300, subsampling=0),
        "422.jpg": draw_jpeg(40, 500, subsampling=1),
        "gray.jpg": draw_jpeg(50, 200, mode="L"),
        "progressive.jpg": draw_jpeg(80, 210, progressive=True),
        "small.jpg": draw_jpeg(1, 1),
        "cmyk.jpg": draw_jpeg(30, 100, mode="CMYK"),
        "no-end.jpg": draw_jpeg(70, 90)[:-2],
        "cut.jpg": draw_jpeg(90, 90)[:-400],
        "text.jpg": b"text",
        "has-markers.jpg": draw_jpeg(33, 480, restart_marker_blocks=6),
        "other-markers.jpg": draw_jpeg(34, 480, restart_marker_blocks=7),
    }
    png = io.BytesIO()
    Image.fromarray(read_pixels(jpegs["420.jpg"])).save(png, "PNG")
    files = {**{f"a/{name}": data for name, data in jpegs.items()}, "b/x.png": png.getvalue()}
    return write_files(tmp_path_factory.mktemp("seekable") / "in", files)


@pytest.fixture(scope="module")
def dataset(photos: Path, tmp_path_factory) -> Path:
    """The dataset that a real run with Beam makes, in two processes."""
    output = tmp_path_factory.mktemp("seekable") / "out"
    shard_job.run(ShardConfig(str(photos), str(output), num_shards=3, workers=2, form=SEEKABLE))
    return output


def test_no_pixel_and_no_digest_changes(photos: Path, dataset: Path) -> None:
    files = read_tree(photos)
    images = read_images(dataset)
    assert files.keys() - images.keys() == {"a/cut.jpg", "a/text.jpg"}
    assert (images["b/x.png"], images["a/has-markers.jpg"]) == (files["b/x.png"], files["a/has-markers.jpg"])
    for name in images.keys() - {"b/x.png", "a/cmyk.jpg"}:
        assert has_chosen_interval(images[name]), name
        whole = files[name].removesuffix(b"\xff\xd9") + b"\xff\xd9"
        np.testing.assert_array_equal(read_pixels(images[name]), read_pixels(whole))
    assert has_chosen_interval(images["a/cmyk.jpg"])
    for record in read_records(dataset):
        name = bytes(record["image/filename"][0]).decode()
        assert bytes(record["image/sha256"][0]).decode() == hashlib.sha256(files[name]).hexdigest()


def test_the_manifest_says_what_was_done(photos: Path, dataset: Path) -> None:
    manifest = load_manifest(str(dataset))
    split = manifest.splits["train"]
    assert (split.formats, split.seekable, split.seekable_jpegs) == ({"JPEG": 10, "PNG": 1}, True, 10)
    assert manifest.changed == {"cmyk_to_rgb": 1, "eoi_appended": 1, "made_seekable": 8}
    assert (manifest.noticed, manifest.quarantined) == ({}, 2)
    assert manifest.image == SEEKABLE.to_json()
    plain = photos.parent / "plain"
    make_dataset(photos, plain, num_shards=3)
    assert read_quarantine(dataset) == read_quarantine(plain)
    assert verify(str(dataset), VerifyConfig(workers=0)).damaged == []


def test_a_finished_dataset_becomes_seekable(photos: Path, dataset: Path, tmp_path: Path, tfpipe: Tfpipe) -> None:
    make_dataset(photos, tmp_path / "plain", num_shards=2)
    done = tfpipe("reshard", tmp_path / "plain", tmp_path / "out", "--seekable", "--workers", 1)
    assert done.code == 0, done.err
    before, after = read_images(tmp_path / "plain"), read_images(tmp_path / "out")
    assert before.keys() == after.keys()
    for name, data in after.items():
        np.testing.assert_array_equal(read_pixels(data), read_pixels(before[name]))
    split = load_manifest(str(tmp_path / "out")).splits["train"]
    assert (split.seekable, split.seekable_jpegs) == (True, 10)
    digests = [
        {bytes(record["image/filename"][0]): bytes(record["image/sha256"][0]) for record in read_records(folder)}
        for folder in (tmp_path / "out", dataset)
    ]
    assert digests[0] == digests[1]
    merged = join_datasets([tmp_path / "out", tmp_path / "plain"], tmp_path / "merged")
    assert not merged.splits["train"].seekable
    assert merged.splits["train"].seekable_jpegs == 11  # one file of `photos` has the markers itself


@pytest.mark.parametrize(
    ("mcu_width", "options"), [(8, {"subsampling": 0}), (16, {"subsampling": 2}), (8, {"mode": "L"})], ids=str
)
def test_python_and_the_native_library_choose_the_same_interval(draw_jpeg: Draw, mcu_width: int, options) -> None:
    for width in (*range(1, 2000, 61), *range(mcu_width, 50 * mcu_width, mcu_width)):
        seekable = make_seekable(draw_jpeg(8, width, **options))
        at = seekable.index(b"\xff\xdd\x00\x04")
        assert int.from_bytes(seekable[at + 4 : at + 6], "big") == choose_interval(width, mcu_width)
        assert has_chosen_interval(seekable)
