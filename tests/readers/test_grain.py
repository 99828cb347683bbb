"""`tfpipe.readers.grain`: dictionaries by number, and Grain itself with workers, checkpoints and restores."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.beam_jobs.datasets import make_dataset
from tests.beam_jobs.images import make_jpeg, write_files
from tests.format.tensors.datasets import write_tensors
from tests.integrity.made import payload, png, write_dataset
from tests.other_libraries import other_libraries as other_libraries
from tests.other_libraries import run_script
from tfpipe.errors import ConfigError, FormatError
from tfpipe.integrity.foreign.index import IndexConfig, index
from tfpipe.readers.grain import RecordSource


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight records in two shards. Not to be changed: copy it."""
    shards = {"train": [payload(k) for k in range(5)], "train:1": [payload(k) for k in range(5, 8)]}
    return write_dataset(tmp_path_factory.mktemp("records") / "pets", shards)


def test_an_element(folder: Path) -> None:
    source = RecordSource(folder, "train", features=("image/filename", "image/height"))
    assert len(source) == 8
    element = source[np.int64(6)]
    assert element.keys() == {"image", "label", "image/filename", "image/height"}
    assert (element["label"], element["label"].dtype) == (0, np.int32)
    assert (element["image/filename"], element["image/height"]) == (b"cat/6.png", 4)
    assert (element["image"].dtype, element["image"].shape) == (np.uint8, (4, 5, 3))
    assert RecordSource(folder, "train", decode=False)[-1] == {"image": png(7), "label": 1}
    with pytest.raises(IndexError, match=r"must have an index from -8 to 7, got 8\.$"):
        source[8]


def test_several_elements_at_once(folder: Path) -> None:
    source = RecordSource(folder, "train", decode=False)
    numbers = np.array([7, 0, 7, 3])
    assert source.__getitems__(numbers) == source._getitems(numbers) == [source[k] for k in numbers]
    batch = source.read_batch(numbers)
    assert batch["image"] == [png(k) for k in numbers]
    assert (batch["label"].tolist(), batch["label"].dtype) == ([1, 0, 1, 1], np.int32)
    pixels = RecordSource(folder, "train").read_batch(numbers)["image"]
    assert (pixels.shape, pixels.dtype) == ((4, 4, 5, 3), np.uint8)
    assert source.read_batch([]) == {}


def test_lists_and_images_of_several_sizes(tmp_path: Path) -> None:
    write_files(tmp_path, {"0.jpg": make_jpeg(0, (24, 16)), "1.jpg": make_jpeg(1, (16, 24))})
    rows = [{"image": f"{k}.jpg", "words": ["ab"] * k, "box": [0.5, 0.25], "values": [1] * k} for k in range(2)]
    (tmp_path / "table.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    make_dataset(tmp_path / "table.jsonl", tmp_path / "out")
    source = RecordSource(tmp_path / "out", "train", features=("words", "box", "values", "image/filename"))
    batch = source.read_batch([0, 1])
    assert "label" not in batch
    order = [int(name[:1]) for name in batch["image/filename"]]
    assert [image.shape for image in batch["image"]] == [((16, 24, 3), (24, 16, 3))[k] for k in order]
    assert [words.tolist() for words in batch["words"]] == [[b"ab"] * k for k in order]
    assert (batch["box"].tolist(), batch["box"].dtype) == ([[0.5, 0.25]] * 2, np.float32)
    assert [values.tolist() for values in batch["values"]] == [[1] * k for k in order]


def test_tensors_and_text(tmp_path: Path) -> None:
    write_tensors(tmp_path)
    source = RecordSource(tmp_path, "train", features=("tokens", "caption"))
    element = source[1]
    assert element.keys() == {"tokens", "caption"}
    assert (element["tokens"].tolist(), element["tokens"].dtype, element["caption"]) == (
        [[3, 4], [5, 6]],
        np.int32,
        "é",
    )
    batch = source.read_batch([0, 1])
    assert (batch["caption"], [tokens.shape for tokens in batch["tokens"]]) == (["a dog", "é"], [(1, 2), (2, 2)])


def test_records_of_others(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "train-0.tfrecord").write_bytes((folder / "train-00000-of-00002.tfrecord").read_bytes())
    index(IndexConfig(str(tmp_path / "*.tfrecord"), label_base="0"))
    source = RecordSource(tmp_path, "train", decode=False, features=("image/class/text",))
    assert source[3] == {"image": png(3), "label": 1, "image/class/text": b"dog"}


def test_the_text_of_a_source_tells_its_records_but_not_their_place(folder: Path, tmp_path: Path) -> None:
    source = RecordSource(folder, "train")
    shutil.copytree(folder, tmp_path / "elsewhere")
    assert repr(RecordSource(tmp_path / "elsewhere", "train")) == repr(source)
    assert repr(pickle.loads(pickle.dumps(source))) == repr(source)
    assert str(folder) not in repr(source)
    assert repr(source).startswith("<8 records of 'train', ")
    other = write_dataset(tmp_path / "other", {"train": [payload(k) for k in range(1, 9)]})
    assert repr(RecordSource(other, "train")) != repr(source)
    assert repr(RecordSource(folder, "train", decode=False)) != repr(source)


def test_a_copy_reads_the_files_itself(folder: Path) -> None:
    source = RecordSource(folder, "train", decode=False)
    copy = pickle.loads(pickle.dumps(source))
    source.close()
    assert copy[2] == source[2]


def test_mistakes(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^The dataset has no split 'val'; it has train\.$"):
        RecordSource(folder, "val")
    with pytest.raises(ConfigError, match=r"^`features` must be among image/encoded, .*, got 'caption'\.$"):
        RecordSource(folder, "train", features=("caption",))
    shutil.copytree(folder, tmp_path / "broken")
    (tmp_path / "broken" / "train-00000-of-00002.tfrecord").unlink()
    with pytest.raises(FormatError, match=r"train-00000-of-00002\.tfrecord"):
        RecordSource(tmp_path / "broken", "train")[0]


def test_it_needs_no_grain() -> None:
    code = "import sys; sys.modules['grain'] = None; import tfpipe.readers.grain; print('tensorflow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


GRAIN = """
import itertools, json, sys
import grain
from absl import flags
from grain._src.python.dataset import base
from tfpipe.readers.grain import RecordSource


class Keep(grain.transforms.Map):
    def map(self, element):
        return {name: element[name] for name in ("image", "image/height")}


def make_loader(folder, workers):
    source = RecordSource(folder, "train", features=("image/height",))
    assert isinstance(source, base.SupportsBatchedReadRandomAccessDataSource)
    sampler = grain.samplers.IndexSampler(num_records=len(source), num_epochs=2, seed=3, shuffle=True)
    operations = [Keep(), grain.transforms.Batch(4)]
    return grain.DataLoader(data_source=source, sampler=sampler, operations=operations, worker_count=workers)


def read(iterator, count=None):
    return [batch["image"].tolist() for batch in itertools.islice(iterator, count)]


def main():
    flags.FLAGS.mark_as_parsed()  # where JAX is installed, Grain reads a flag when it starts worker processes
    folder, elsewhere, other = sys.argv[1:]
    orders = {}
    for workers in (0, 2):
        iterator = iter(make_loader(folder, workers))
        first = read(iterator, 1)
        state = iterator.get_state()
        rest = read(iterator)
        again = iter(make_loader(elsewhere, workers))  # the same records on another machine
        again.set_state(state)
        assert read(again) == rest and len(rest) == 3, workers
        try:
            iter(make_loader(other, workers)).set_state(state)
            raise AssertionError("other records must be refused")
        except ValueError as error:
            assert "data source" in str(error).lower(), error
    source = RecordSource(folder, "train")
    plain = grain.MapDataset.source(source).shuffle(seed=5).repeat(2).batch(4)
    together = grain.MapDataset.range(len(source)).shuffle(seed=5).repeat(2).batch(4).map(source.read_batch)
    batches = read(plain)
    assert read(together) == batches
    for dataset in (plain, together):
        workers = grain.multiprocessing.MultiprocessingOptions(num_workers=2)
        iterable = dataset.to_iter_dataset().mp_prefetch(workers)
        iterator = iter(iterable)
        assert read(iterator, 2) == batches[:2]
        state = iterator.get_state()
        again = iter(iterable)
        again.set_state(state)
        assert read(again) == batches[2:]
    print("done")


if __name__ == "__main__":
    main()
"""


@pytest.mark.slow
def test_grain_reads_with_workers_and_restores_checkpoints(
    folder: Path, tmp_path: Path, other_libraries: dict[str, str]
) -> None:
    shutil.copytree(folder, tmp_path / "elsewhere")
    other = write_dataset(tmp_path / "other", {"train": [payload(k) for k in range(1, 9)]})
    assert run_script(GRAIN, other_libraries, tmp_path, folder, tmp_path / "elsewhere", other) == "done\n"
