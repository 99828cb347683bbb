"""Masks beside images in folders, tables, archives and pairs become features; what does not fit is quarantined."""

from pathlib import Path

import numpy as np
import pytest

from tests.beam_jobs.datasets import join_datasets, list_source, make_dataset, read_quarantine, read_records
from tests.beam_jobs.images import make_jpeg, make_png, write_files, write_tar, write_zip
from tests.beam_jobs.inputs.parquet_files import write_table
from tests.mask_files import make_classes, make_mask, make_palette
from tests.refusals import refusal
from tfpipe.errors import DataError
from tfpipe.format.schema import IMAGE_FILENAME, IMAGE_MASK
from tfpipe.images.masks import check_mask, read_mask
from tfpipe.integrity.verify import VerifyConfig, verify

MAX = 10_000


def make_files(count: int = 6) -> dict[str, bytes]:
    files = {}
    for k in range(count):
        folder, size = "cat" if k % 2 else "dog", (24 + k, 16)
        files |= {f"{folder}/{k}.jpg": make_jpeg(k, size), f"{folder}/{k}.mask.png": make_mask(k, size)}
    return files


def read_masks(output: Path) -> dict[str, np.ndarray]:
    masks = {}
    for record in read_records(output):
        masks[record[IMAGE_FILENAME][0].decode().rpartition("/")[2]] = read_mask(record[IMAGE_MASK][0], MAX)
    return masks


@pytest.mark.parametrize("kind", ["folder", "tar", "zip", "table"])
def test_masks_of_every_kind_of_input(tmp_path: Path, kind: str) -> None:
    files, source = make_files(), tmp_path / "in"
    if kind == "folder":
        write_files(source, files)
    elif kind == "tar":
        source = write_tar(tmp_path / "in.tar", files)
    elif kind == "zip":
        source = write_zip(tmp_path / "in.zip", files)
    else:
        names = [name for name in files if name.endswith(".jpg")]
        rows = [{"image": name, "mask": name.replace(".jpg", ".mask.png")} for name in names]
        source = write_table(write_files(source, files) / "t.jsonl", rows)
    stats = make_dataset(source, tmp_path / "out").splits["train"].masks[IMAGE_MASK]
    assert (stats.records, sum(stats.pixels), stats.images, stats.higher) == (6, 16 * (6 * 24 + 15), [6] * 5, 0)
    masks = read_masks(tmp_path / "out")
    assert sorted(masks) == [f"{k}.jpg" for k in range(6)]
    for k in range(6):
        np.testing.assert_array_equal(masks[f"{k}.jpg"], make_classes(k, (24 + k, 16)))
    report = verify(str(tmp_path / "out"), VerifyConfig(workers=0))
    assert (report.records, report.damaged) == (6, [])


def test_a_mask_that_does_not_fit_is_quarantined_with_its_image(tmp_path: Path) -> None:
    files = make_files() | {
        "cat/1.mask.png": make_mask(1, (5, 5)),
        "dog/2.mask.png": make_png(2, (26, 16)),
        "cat/3.mask.png": b"GIF89a",
        "dog/4.mask.png": make_palette(make_classes(4, (28, 16))),
    }
    del files["cat/5.mask.png"]
    manifest = make_dataset(write_files(tmp_path / "in", files), tmp_path / "out", max_bad=1.0)
    assert {row["path"]: row["reason"] for row in read_quarantine(tmp_path / "out")} == {
        "cat/1.jpg": "its mask has 5 x 5 pixels, the image 25 x 16",
        "dog/2.jpg": "its mask: a mask must have one channel, and this PNG has red, green and blue",
        "cat/3.jpg": "its mask: it is not a PNG",
        "cat/5.jpg": "it has no mask, and other images have one",
    }
    assert manifest.quarantined == 4
    np.testing.assert_array_equal(read_masks(tmp_path / "out")["4.jpg"], make_classes(4, (28, 16)))


def test_a_mask_without_an_image_is_counted(tmp_path: Path) -> None:
    listing = list_source(write_files(tmp_path / "in", make_files(2) | {"cat/x.mask.png": make_mask(0)}))
    assert (len(listing.images), dict(listing.skipped or {})) == (2, {"mask without an image": 1})
    alone = write_files(tmp_path / "alone", {"cat/1.jpg": make_jpeg(1), "dog/x.mask.png": make_mask(0)})
    listing = list_source(alone)
    assert (len(listing.images), listing.images.details) == (1, set())


def test_a_missing_mask_file_names_its_path(tmp_path: Path) -> None:
    source = write_files(tmp_path / "in", {**make_files(2), "t.csv": b"image,mask\ndog/0.jpg,gone.png\n"})
    assert refusal(DataError, make_dataset, source / "t.csv", tmp_path / "out") == (
        f"{source}/t.csv names 1 image, and 1 of their files does not exist: {source}/gone.png. Correct the paths, or "
        "leave these images out with `allow_missing`."
    )
    assert not (tmp_path / "out").exists()
    with pytest.raises(DataError, match="has no image that can be read"):
        make_dataset(source / "t.csv", tmp_path / "out", allow_missing=True)
    (row,) = read_quarantine(tmp_path / "out")
    assert (row["kind"], row["reason"]) == ("unreadable", "its mask gone.png cannot be read: No such file or directory")


def test_reshard_copies_masks_resizes_them_with_their_images_and_drops_them(tmp_path: Path) -> None:
    make_dataset(write_files(tmp_path / "in", make_files()), tmp_path / "a", num_shards=2)
    again = join_datasets([tmp_path / "a"], tmp_path / "b", num_shards=3)
    assert again.splits["train"].masks == make_dataset(tmp_path / "in", tmp_path / "c").splits["train"].masks
    join_datasets([tmp_path / "a"], tmp_path / "square", form_changes={"encoding": "raw", "square": 8})
    for record in read_records(tmp_path / "square"):
        assert check_mask(record[IMAGE_MASK][0], MAX) == (8, 8)
    bare = join_datasets([tmp_path / "a"], tmp_path / "bare", drop_features=(IMAGE_MASK,))
    assert dict(bare.splits["train"].masks) == {}
