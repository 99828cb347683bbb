"""A reader that was opened before its dataset was written anew gives no other records, though all sizes are equal."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import tfpipe
from tests.beam_jobs.datasets import make_dataset
from tests.beam_jobs.images import write_files
from tests.refusals import refusal
from tfpipe.columns.add import add_column
from tfpipe.engine.record_reader import RecordReader
from tfpipe.errors import DataError
from tfpipe.fields import Values
from tfpipe.format.image_form import ImageForm

RAW = ImageForm(encoding="raw", square=8)


def make(folder: Path, value: int) -> str:
    pixels = b"P6 8 8 255\n" + bytes([value]) * 192
    images = write_files(folder / f"images{value}", {f"{value}{k}.ppm": pixels for k in range(8)})
    make_dataset(images, folder / "made", num_shards=4, shuffle=False, form=RAW, overwrite=True)
    return str(folder / "made")


def list_values(reader: RecordReader) -> list[int]:
    images = [record["image/encoded"] for record in reader.iterate(np.arange(8))]
    return [image[0][0] for image in images]  # type: ignore[index]


@pytest.mark.parametrize("reads", [0, 1])
def test_other_records_are_refused(tmp_path: Path, reads: int) -> None:
    dataset = make(tmp_path, 1)
    reader = RecordReader(dataset, tfpipe.load_manifest(dataset), "train")
    assert [reader[k]["image/height"] for k in range(reads)] == [[8]] * reads
    make(tmp_path, 2)
    sentence = f"{dataset} was written anew with other records since it was opened. Open it again."
    assert refusal(DataError, reader.__getitem__, 7) == sentence
    reader = RecordReader(dataset, tfpipe.load_manifest(dataset), "train")
    assert list_values(reader) == [2] * 8


def test_the_same_records_are_not(tmp_path: Path) -> None:
    dataset = make(tmp_path, 1)
    reader = RecordReader(dataset, tfpipe.load_manifest(dataset), "train")
    reader[0]
    os.utime(Path(dataset, "manifest.json"))
    assert list_values(reader) == [1] * 8
    reader = RecordReader(dataset, tfpipe.load_manifest(dataset), "train")
    shutil.copytree(dataset, tmp_path / "copy")
    shutil.rmtree(dataset)
    Path(tmp_path, "copy").rename(dataset)
    assert list_values(reader) == [1] * 8


def test_a_column_that_was_replaced_is_refused(tmp_path: Path) -> None:
    dataset = make(tmp_path, 1)
    add_column(dataset, "one", lambda record: 1, Values("int64"))
    reader = RecordReader(dataset, tfpipe.load_manifest(dataset), "train")
    assert reader[0]["one"] == [1]
    add_column(dataset, "one", lambda record: 2, Values("int64"), replace=True)
    with pytest.raises(DataError, match=r"columns/one-\w+ was written anew with other records since it was opened\."):
        reader[7]
