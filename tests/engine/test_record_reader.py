"""Random access to records, and what is said of datasets that are not whole."""

import gc
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tfpipe
from tests.beam_jobs.datasets import make_dataset
from tests.beam_jobs.images import write_files
from tests.refusals import refusal
from tfpipe.columns.add import add_column
from tfpipe.dataset.load import load_manifest
from tfpipe.engine import record_reader
from tfpipe.engine.record_reader import RecordReader
from tfpipe.errors import DataError, FormatError
from tfpipe.fields import Values
from tfpipe.format.image_form import ImageForm
from tfpipe.format.tfrecord import scan_records

MEND = "Copy the dataset again, or save the undamaged records with `tfpipe repair`."
SHARD = "train-00001-of-00002.tfrecord"
INDEX = "index/train-00001-of-00002.idx"
FEW_LINES = (
    "The index must have 6 whole lines, got 1 in 5 bytes. "
    "Run the same `tfpipe shard` or `tfpipe index` command again to write it anew."
)


@pytest.fixture
def copy(small_dataset: Path, tmp_path: Path) -> Path:
    return shutil.copytree(small_dataset, tmp_path / "copy")


def reader_of(folder: Path, split: str = "train") -> RecordReader:
    return RecordReader(str(folder), load_manifest(str(folder)), split)


def payloads(folder: Path, split: str = "train") -> list[bytes]:
    """Every record by scanning the shards, without an index."""
    payloads_of_files = []
    for path in sorted(folder.glob(f"{split}-*.tfrecord")):
        with path.open("rb") as file:
            payloads_of_files += [payload for _, payload in scan_records(file)]
    return payloads_of_files


def test_every_record_is_the_one_that_scanning_finds(small_dataset: Path) -> None:
    expected = payloads(small_dataset)
    with reader_of(small_dataset) as reader:
        assert len(reader) == len(expected) == 12
        assert [reader.read_payload(i) for i in range(12)] == expected
        assert [reader.read_payload(i) for i in (11, 0, 7, 3)] == [expected[i] for i in (11, 0, 7, 3)]
        assert [reader.read_payload(i) for i in range(-12, 0)] == expected


def test_few_files_are_open_and_few_indexes_are_kept(small_dataset: Path, monkeypatch) -> None:
    monkeypatch.setattr(record_reader, "_MAX_OPEN", 1)
    monkeypatch.setattr(record_reader, "_MAX_INDEX_BYTES", 6 * 8)
    opened: list[str] = []
    real = record_reader.open_descriptor

    def open_descriptor(path: str):
        opened.append(os.path.relpath(path, small_dataset))
        return real(path)

    monkeypatch.setattr(record_reader, "open_descriptor", open_descriptor)
    gc.collect()  # the errors of other tests hold open files
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    reader = reader_of(small_dataset)
    assert opened == []
    for index in (0, 1, 11, 10, 0):
        reader.read_payload(index)
        if before:
            assert len(os.listdir("/proc/self/fd")) == before + 1
    first, second = "train-00000-of-00002", "train-00001-of-00002"
    assert opened == [name for shard in (first, second, first) for name in (f"index/{shard}.idx", f"{shard}.tfrecord")]
    reader.close()
    if before:
        assert len(os.listdir("/proc/self/fd")) == before
    assert reader.read_payload(0) == payloads(small_dataset)[0]
    reader.close()


def test_within_bounds_files_and_indexes_are_opened_once(small_dataset: Path, monkeypatch) -> None:
    opened: list[str] = []
    real = record_reader.open_descriptor
    monkeypatch.setattr(record_reader, "open_descriptor", lambda path: opened.append(path) or real(path))
    with reader_of(small_dataset) as reader:
        for index in (0, 11, 1, 10, 2, 9):
            reader.read_payload(index)
    assert len(opened) == 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_forked_processes_read_through_one_open_file(small_dataset: Path) -> None:
    code = (
        "import os, sys; from tfpipe.dataset.load import load_manifest; from tfpipe.engine.record_reader "
        "import RecordReader\n"
        "reader = RecordReader(sys.argv[1], load_manifest(sys.argv[1]), 'train')\n"
        "want = [reader.read_payload(i) for i in range(12)]; children = []\n"
        "for k in range(3):\n"
        "    child = os.fork()\n"
        "    if not child: os._exit(any(reader.read_payload(i % 12) != want[i % 12] for i in range(2000)))\n"
        "    children.append(child)\n"
        "sys.exit(any(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(small_dataset)], check=False, capture_output=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        (SHARD, None, f" is missing. {MEND}"),
        (INDEX, None, f" is missing. {MEND}"),
        (SHARD, lambda data: data + b"more", " must have {} bytes, as manifest.json says, got {}. " + MEND),
        (INDEX, lambda data: b"9" * 1000, f" must have at most 60 bytes for 6 records, got 1000. {MEND}"),
        (INDEX, lambda data: b"0 20\n", f": {FEW_LINES}"),
    ],
    ids=["no shard", "no index", "another shard", "another index", "a damaged index"],
)
def test_a_file_that_is_missing_or_not_its_own_is_named(copy: Path, name: str, change: Any, sentence: str) -> None:
    data = (copy / name).read_bytes()
    (copy / name).unlink()
    if change is not None:
        (copy / name).write_bytes(change(data))
    with reader_of(copy) as reader:
        reader.read_payload(0)
        assert refusal(FormatError, reader.read_payload, 11) == (
            f"{copy / name}{sentence.format(len(data), len(data) + 4)}"
        )


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs here")
@pytest.mark.parametrize("name", ["manifest.json", SHARD, INDEX])
def test_a_fifo_is_refused_and_not_waited_for(copy: Path, name: str) -> None:
    (copy / name).unlink()
    os.mkfifo(copy / name)
    assert refusal(FormatError, lambda: reader_of(copy)[11]) == f"{copy / name} must be a regular file."


# A dataset that was written anew since it was opened, though all sizes are equal


RAW = ImageForm(encoding="raw", square=8)


def write_raw(folder: Path, value: int) -> str:
    pixels = b"P6 8 8 255\n" + bytes([value]) * 192
    images = write_files(folder / f"images{value}", {f"{value}{k}.ppm": pixels for k in range(8)})
    make_dataset(images, folder / "made", num_shards=4, shuffle=False, form=RAW, overwrite=True)
    return str(folder / "made")


def list_values(reader: RecordReader) -> list[int]:
    images = [record["image/encoded"] for record in reader.iterate(np.arange(8))]
    return [image[0][0] for image in images]  # type: ignore[index]


@pytest.mark.parametrize("reads", [0, 1])
def test_other_records_are_refused(tmp_path: Path, reads: int) -> None:
    dataset = write_raw(tmp_path, 1)
    reader = RecordReader(dataset, tfpipe.load_manifest(dataset), "train")
    assert [reader[k]["image/height"] for k in range(reads)] == [[8]] * reads
    write_raw(tmp_path, 2)
    sentence = f"{dataset} was written anew with other records since it was opened. Open it again."
    assert refusal(DataError, reader.__getitem__, 7) == sentence
    reader = RecordReader(dataset, tfpipe.load_manifest(dataset), "train")
    assert list_values(reader) == [2] * 8


def test_the_same_records_are_not(tmp_path: Path) -> None:
    dataset = write_raw(tmp_path, 1)
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
    dataset = write_raw(tmp_path, 1)
    add_column(dataset, "one", lambda record: 1, Values("int64"))
    reader = RecordReader(dataset, tfpipe.load_manifest(dataset), "train")
    assert reader[0]["one"] == [1]
    add_column(dataset, "one", lambda record: 2, Values("int64"), replace=True)
    with pytest.raises(DataError, match=r"columns/one-\w+ was written anew with other records since it was opened\."):
        reader[7]
