"""`tfpipe.readers.grain`: dictionaries by number, and Grain itself with workers, checkpoints and restores."""

import json
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tfpipe
from tests.beam_jobs.datasets import make_dataset
from tests.beam_jobs.images import make_jpeg, write_files
from tests.format.tensors.datasets import write_tensors
from tests.integrity.made import payload, png, write_dataset
from tests.other_libraries import other_libraries as other_libraries
from tests.other_libraries import run_script
from tests.service.test_messages import check_same
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.order import ORDER_VERSION
from tfpipe.errors import ConfigError, FormatError
from tfpipe.readers.grain import GrainBatches, RecordSource
from tfpipe.readers.numpy import NumpyBatches

CONFIG = PipelineConfig(batch_size=2, image_size=4, seed=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
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
    assert (element["tokens"].tolist(), element["tokens"].dtype) == ([[3, 4], [5, 6]], np.int32)
    assert element["caption"] == "é"
    batch = source.read_batch([0, 1])
    assert (batch["caption"], [tokens.shape for tokens in batch["tokens"]]) == (["a dog", "é"], [(1, 2), (2, 2)])


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


def test_mistakes(folder: Path, tmp_path: Path) -> None:

    with pytest.raises(ConfigError, match=r"^`features` must be among image/encoded, .*, got 'caption'\.$"):
        RecordSource(folder, "train", features=("caption",))
    shutil.copytree(folder, tmp_path / "broken")
    (tmp_path / "broken" / "train-00000-of-00002.tfrecord").unlink()
    with pytest.raises(FormatError, match=r"train-00000-of-00002\.tfrecord"):
        RecordSource(tmp_path / "broken", "train")[0]


def test_a_batch_by_its_step(folder: Path) -> None:
    source, expected = GrainBatches(folder, "train", CONFIG, num_epochs=3), NumpyBatches(folder, "train", CONFIG)
    assert len(source) == 12
    for step in (0, 5, np.int64(11)):
        check_same(source[step], expected.read(int(step)))
    check_same(source[-1], expected.read(11))
    for step in (12, -13):
        with pytest.raises(IndexError) as caught:
            source[step]
        assert str(caught.value) == f"The steps of 'train' are from -12 to 11, got {step}."
    endless = GrainBatches(folder, "train", CONFIG, num_epochs=None)
    assert len(endless) == 2**31
    check_same(endless[1_000_000], expected.read(1_000_000))
    with ThreadPoolExecutor(4) as pool:
        for step, batch in enumerate(pool.map(source.__getitem__, range(12))):
            check_same(batch, expected.read(step))


def test_an_evaluation_is_one_pass(folder: Path) -> None:
    config = PipelineConfig(batch_size=6, image_size=4, training=False)
    batches = list(GrainBatches(folder, "train", config, rank=(1, 2)))  # the protocol of sequences ends it
    assert [batch["mask"].tolist() for batch in batches] == [[True, True, True], [True, False, False]]
    with pytest.raises(ConfigError, match=r"^`num_epochs` must be 1 in evaluation, where each is the same, got 2\.$"):
        GrainBatches(folder, "train", config, num_epochs=2)
    with pytest.raises(ConfigError, match=r"^`step` must be from 0 to 1 in evaluation, got 2\.$"):
        NumpyBatches(folder, "train", config).read(2)


def test_the_text_of_batches_tells_their_records_and_order(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "elsewhere")
    text = repr(GrainBatches(folder, "train", CONFIG))
    fingerprint = tfpipe.load_manifest(str(folder)).splits["train"].fingerprint[:16]
    assert text == f"<batches of 'train': 2 of {fingerprint}; seed 3, blocks of 1, order {ORDER_VERSION}>"
    elsewhere = tmp_path / "elsewhere"
    same = [
        GrainBatches(elsewhere, "train", CONFIG, num_epochs=7, rank=(1, 2), num_threads=1),
        pickle.loads(pickle.dumps(GrainBatches(elsewhere, "train", CONFIG))),
    ]
    assert {repr(source) for source in same} == {text}
    mixture = tfpipe.mix({str(folder): 1, str(elsewhere): 3})
    others = [
        GrainBatches(folder, "train", replace(CONFIG, seed=4)),
        GrainBatches(folder, "train", replace(CONFIG, block_records=2)),
        GrainBatches(folder, "train", replace(CONFIG, batch_size=4)),
        GrainBatches(folder, "train", replace(CONFIG, training=False)),
        GrainBatches(mixture, "train", replace(CONFIG, batch_size=4)),
    ]
    assert len({text, *map(repr, others)}) == 6
    assert repr(others[-1]).startswith(f"<batches of 'train': 1 of {fingerprint}, 3 of {fingerprint}; seed 3, ")


def test_a_copy_of_batches_reads_the_files_itself(folder: Path, tmp_path: Path) -> None:
    source = GrainBatches(folder, "train", CONFIG)
    check_same(pickle.loads(pickle.dumps(source))[2], source[2])
    cached = GrainBatches(folder, "train", replace(CONFIG, cache="bytes"))
    check_same(cached[2], source[2])
    with pytest.raises(ConfigError, match=r"^`cache` bytes needs threads of Grain, not worker processes: each would "):
        pickle.dumps(cached)


GRAIN = """
import itertools, json, sys
import grain
from absl import flags
from grain._src.python.dataset import base
import tfpipe
from tfpipe.readers.grain import GrainBatches, RecordSource


class Keep(grain.transforms.Map):
    def map(self, element):
        return {name: element[name] for name in ("image", "image/height")}


def make_loader(folder, workers):
    source = RecordSource(folder, "train", features=("image/height",))
    assert isinstance(source, base.SupportsBatchedReadRandomAccessDataSource)
    sampler = grain.samplers.IndexSampler(num_records=len(source), num_epochs=2, seed=3, shuffle=True)
    operations = [Keep(), grain.transforms.Batch(4)]
    return grain.DataLoader(data_source=source, sampler=sampler, operations=operations, worker_count=workers)


def load_batches(folder, workers):
    source = GrainBatches(folder, "train", CONFIG, num_epochs=3)
    sampler = grain.samplers.IndexSampler(num_records=len(source), num_epochs=1, shuffle=False)
    return grain.DataLoader(data_source=source, sampler=sampler, worker_count=workers)


def read(iterator, count=None):
    return [batch["image"].tolist() for batch in itertools.islice(iterator, count)]


def check(taken, expected, first, elsewhere=None, other=None):
    # Goes on from the state, also with the same records on another machine; other records are refused.
    iterator = iter(first)
    begun, state = read(iterator, taken), iterator.get_state()
    rest = read(iterator)
    assert expected is None or begun + rest == expected
    again = iter(first if elsewhere is None else elsewhere)
    again.set_state(state)
    assert read(again) == rest and len(rest) > 2
    if other is not None:
        try:
            iter(other).set_state(state)
            raise AssertionError("other records must be refused")
        except ValueError as error:
            assert "data source" in str(error).lower(), error


CONFIG = tfpipe.PipelineConfig(batch_size=2, image_size=4, seed=3)


def main():
    flags.FLAGS.mark_as_parsed()  # where JAX is installed, Grain reads a flag when it starts worker processes
    folders, workers = sys.argv[1:], grain.multiprocessing.MultiprocessingOptions(num_workers=2)
    source, batches = RecordSource(folders[0], "train"), GrainBatches(folders[0], "train", CONFIG, num_epochs=3)
    plain = grain.MapDataset.source(source).shuffle(seed=5).repeat(2).batch(4)
    together = grain.MapDataset.range(len(source)).shuffle(seed=5).repeat(2).batch(4).map(source.read_batch)
    for dataset in (plain, together):
        check(1, read(plain), dataset.to_iter_dataset().mp_prefetch(workers))
    expected = [batches[step]["image"].tolist() for step in range(12)]
    options = grain.ReadOptions(num_threads=2, prefetch_buffer_size=3)
    iterable = grain.MapDataset.source(batches).to_iter_dataset(options)
    for dataset in (iterable, iterable.mp_prefetch(workers)):
        check(5, expected, dataset)
    for count in (0, 2):
        check(1, None, *(make_loader(folder, count) for folder in folders))
        check(3, expected, *(load_batches(folder, count) for folder in folders))
    print("done")


if __name__ == "__main__":
    main()
"""


@pytest.mark.slow
def test_grain_reads_with_workers_and_restores_checkpoints(folder: Path, tmp_path, other_libraries: dict[str, str]):
    shutil.copytree(folder, tmp_path / "elsewhere")
    other = write_dataset(tmp_path / "other", {"train": [payload(k) for k in range(1, 9)]})
    assert run_script(GRAIN, other_libraries, tmp_path, folder, tmp_path / "elsewhere", other) == "done\n"
