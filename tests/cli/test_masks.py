"""A dataset of images with masks goes through all commands and comes back from exports."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from PIL import Image

import tfpipe as library
from tests.beam_jobs.datasets import make_dataset
from tests.beam_jobs.images import write_files
from tests.conftest import Tfpipe
from tests.flipped_bit import copy_with_flipped_bit
from tests.mask_files import MASK_NAME, make_masked_images
from tfpipe.engine.record_reader import RecordReader
from tfpipe.export.run import ExportConfig, export
from tfpipe.images.masks import read_mask
from tfpipe.integrity.repair import repair
from tfpipe.integrity.verify import VerifyConfig, verify

CLASSES = make_masked_images(12, as_classes=True)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """12 records in 3 shards, written once. Not to be changed: copy it."""
    folder = tmp_path_factory.mktemp("masks")
    make_dataset(write_files(folder / "in", make_masked_images(12)), folder / "out", num_shards=3)
    return folder / "out"


def read_masks(dataset: Path) -> dict[bytes, list[list[int]]]:
    masks = {}
    manifest = library.load_manifest(str(dataset))
    with RecordReader(str(dataset), manifest, "train") as reader:
        for record in reader:
            classes = read_mask(manifest.schema[MASK_NAME].decode(record), 100_000)
            masks[record["image/sha256"][0]] = classes.tolist()
    return masks


def test_inspect_counts_pixels_and_shows_masks(made: Path, tmp_path: Path, tfpipe: Tfpipe) -> None:
    pixels = sum(np.bincount(classes.reshape(-1), minlength=6) for classes in CLASSES.values())
    document = json.loads(tfpipe("inspect", made, "--json").out)
    stats = document["splits"]["train"]["masks"][MASK_NAME]
    assert (document["format_version"], stats["pixels"], stats["records"]) == (1, pixels.tolist(), 12)
    record = tfpipe("inspect", made, "--record", "train:0").out
    assert any(line.startswith("image/mask") and line.rstrip().endswith(" bytes") for line in record.splitlines())
    result = tfpipe("inspect", made, "--show", "12", tmp_path / "sheet.png")
    lines = [" ".join(line.split()) for line in result.out.splitlines()]
    assert f"class 2 {pixels[2] / pixels.sum():.2%} {stats['images'][2]}" in lines
    colors = np.asarray(Image.open(tmp_path / "sheet.png")).reshape(-1, 3)
    assert Image.open(tmp_path / "sheet.png").mode == "RGB"
    # Class 5 has the red 200 in the image, and 0, 114, 178 lies over it.
    assert (np.abs(colors.astype(int) - [90, 175, 100]).max(axis=1) < 4).sum() > 100


def test_a_damaged_record_is_left_out_and_the_counts_follow(made: Path, tmp_path: Path) -> None:
    damaged = copy_with_flipped_bit(made, tmp_path / "damaged", "train-00001-of-00003.tfrecord")
    assert len(verify(str(damaged), VerifyConfig(workers=0)).damaged) == 1
    repair(str(damaged), str(tmp_path / "repaired"), workers=0)
    kept, whole = read_masks(tmp_path / "repaired"), read_masks(made)
    assert len(kept) == 11
    assert kept.items() <= whole.items()
    stats = library.load_manifest(str(tmp_path / "repaired")).splits["train"].masks[MASK_NAME]
    assert stats.records == 11
    assert stats.pixels == np.bincount([c for mask in kept.values() for row in mask for c in row]).tolist()


def test_parquet_holds_masks_as_images(made: Path, tmp_path: Path) -> None:
    export(ExportConfig(str(made), str(tmp_path / "out"), "parquet", workers=0))
    (path, *_) = sorted((tmp_path / "out").glob("*.parquet"))
    table = pyarrow.parquet.read_table(path)
    assert json.loads(table.schema.metadata[b"huggingface"])["info"]["features"][MASK_NAME] == {"_type": "Image"}
    whole = read_masks(made)
    for row in table.to_pylist():
        assert read_mask(row[MASK_NAME]["bytes"], 100_000).tolist() == whole[row["image/sha256"].encode()]
