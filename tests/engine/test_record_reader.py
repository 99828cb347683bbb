"""Random access to records, one at a time and many at once, and what is said of datasets that are not whole."""

import errno
import gc
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from tests.beam_jobs.commands import run_python
from tests.beam_jobs.datasets import make_dataset, read_payloads
from tests.beam_jobs.images import write_files
from tests.flipped_bit import flip_bit
from tests.integrity.damaged import framed
from tests.integrity.made import payload, png, write_dataset
from tests.refusals import refusal
from tfpipe.columns.add import add_column
from tfpipe.dataset.load import load_manifest
from tfpipe.engine import record_reader
from tfpipe.engine.cache import BytesCache
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.parse import RecordBlock
from tfpipe.engine.record_reader import RecordReader
from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.fields import Values
from tfpipe.format.example import decode_example, encode_example
from tfpipe.format.image_form import ImageForm
from tfpipe.integrity.foreign.index import IndexConfig, index
from tfpipe.readers.numpy import NumpyBatches

MEND = "Copy the dataset again, or save the undamaged records with `tfpipe repair`."
SHARD = "train-00001-of-00002.tfrecord"
INDEX = "index/train-00001-of-00002.idx"
ANEW = "Run the same `tfpipe shard` or `tfpipe index` command again to write it anew."


def reader_of(folder: Path | str, split: str = "train") -> RecordReader:
    return RecordReader(str(folder), load_manifest(str(folder)), split)


def test_every_record_is_the_one_that_scanning_finds(small_dataset: Path) -> None:
    expected = read_payloads(small_dataset)  # without an index
    with reader_of(small_dataset) as reader:
        assert len(reader) == len(expected) == 12
        assert [reader.read_payload(i) for i in range(12)] == expected
        assert [reader.read_payload(i) for i in (11, 0, 7, 3)] == [expected[i] for i in (11, 0, 7, 3)]
        assert [reader.read_payload(i) for i in range(-12, 0)] == expected


@pytest.fixture
def opened(monkeypatch) -> list[str]:
    """Gets the paths of all files that are opened."""
    opened: list[str] = []
    real = record_reader.open_descriptor
    monkeypatch.setattr(record_reader, "open_descriptor", lambda path: opened.append(path) or real(path))
    return opened


def test_few_files_are_open_and_few_indexes_are_kept(small_dataset: Path, monkeypatch, opened: list[str]) -> None:
    monkeypatch.setattr(record_reader, "_MAX_OPEN", 1)
    monkeypatch.setattr(record_reader, "_MAX_INDEX_BYTES", 6 * 8)
    gc.collect()  # the errors of other tests hold open files
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    reader = reader_of(small_dataset)
    assert opened == []
    for number in (0, 1, 11, 10, 0):
        reader.read_payload(number)
        if before:
            assert len(os.listdir("/proc/self/fd")) == before + 1
    first, second = "train-00000-of-00002", "train-00001-of-00002"
    names = [name for shard in (first, second, first) for name in (f"index/{shard}.idx", f"{shard}.tfrecord")]
    assert opened == [str(small_dataset / name) for name in names]
    reader.close()
    if before:
        assert len(os.listdir("/proc/self/fd")) == before
    assert reader.read_payload(0) == read_payloads(small_dataset)[0]
    reader.close()


def test_within_bounds_files_and_indexes_are_opened_once(small_dataset: Path, opened: list[str]) -> None:
    with reader_of(small_dataset) as reader:
        for number in (0, 11, 1, 10, 2, 9):
            reader.read_payload(number)
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
        (INDEX, lambda data: b"0 20\n", f": The index must have 6 whole lines, got 1 in 5 bytes. {ANEW}"),
    ],
    ids=["no shard", "no index", "another shard", "another index", "a damaged index"],
)
def test_a_file_that_is_missing_or_not_its_own_is_named(pets: str, name: str, change: Any, sentence: str) -> None:
    path = Path(pets, name)
    data = path.read_bytes()
    path.unlink()
    if change is not None:
        path.write_bytes(change(data))
    with reader_of(pets) as reader:
        reader.read_payload(0)
        said = sentence.format(len(data), len(data) + 4)
        assert refusal(FormatError, reader.read_payload, 11) == f"{path}{said}"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs here")
@pytest.mark.parametrize("name", ["manifest.json", SHARD, INDEX])
def test_a_fifo_is_refused_and_not_waited_for(pets: str, name: str) -> None:
    Path(pets, name).unlink()
    os.mkfifo(Path(pets, name))
    assert refusal(FormatError, lambda: reader_of(pets)[11]) == f"{pets}/{name} must be a regular file."


def write_raw(folder: Path, value: int) -> str:
    """Writes a dataset anew, as large as before."""
    pixels = b"P6 8 8 255\n" + bytes([value]) * 192
    images = write_files(folder / f"images{value}", {f"{value}{k}.ppm": pixels for k in range(8)})
    make_dataset(images, folder / "made", num_shards=4, shuffle=False, form=ImageForm("raw", square=8), overwrite=True)
    return str(folder / "made")


def list_values(reader: RecordReader) -> list[int]:
    images = [record["image/encoded"] for record in reader.iterate(np.arange(8))]
    return [image[0][0] for image in images]


@pytest.mark.parametrize("reads", [0, 1])
def test_other_records_are_refused(tmp_path: Path, reads: int) -> None:
    dataset = write_raw(tmp_path, 1)
    reader = reader_of(dataset)
    assert [reader[k]["image/height"] for k in range(reads)] == [[8]] * reads
    write_raw(tmp_path, 2)
    sentence = f"{dataset} was written anew with other records since it was opened. Open it again."
    assert refusal(DataError, reader.__getitem__, 7) == sentence
    reader = reader_of(dataset)
    assert list_values(reader) == [2] * 8


def test_the_same_records_are_not(tmp_path: Path) -> None:
    dataset = write_raw(tmp_path, 1)
    reader = reader_of(dataset)
    reader[0]
    os.utime(Path(dataset, "manifest.json"))
    assert list_values(reader) == [1] * 8
    reader = reader_of(dataset)
    shutil.copytree(dataset, tmp_path / "copy")
    shutil.rmtree(dataset)
    Path(tmp_path, "copy").rename(dataset)
    assert list_values(reader) == [1] * 8


def test_a_column_that_was_replaced_is_refused(tmp_path: Path) -> None:
    dataset = write_raw(tmp_path, 1)
    add_column(dataset, "one", lambda record: 1, Values("int64"))
    reader = reader_of(dataset)
    assert reader[0]["one"] == [1]
    add_column(dataset, "one", lambda record: 2, Values("int64"), replace=True)
    with pytest.raises(DataError, match=r"columns/one-\w+ was written anew with other records since it was opened\."):
        reader[7]


SHARDS = [f"train-{k:05d}-of-00003.tfrecord" for k in range(3)]
PAYLOADS = [payload(k, text="x" * (k * 37 % 90)) for k in range(30)]
CHOSEN = [29, 0, 7, 7, -1, 12, 13, 14, 3, -30, 20, 9, 10]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shards = {"train": PAYLOADS[:10], "train:1": PAYLOADS[10:11], "train:2": PAYLOADS[11:]}
    return write_dataset(tmp_path / "pets", shards)


def damage(folder: Path, number: int, at: int) -> None:
    """Damages one byte of a record, counted from the begin of its frame."""
    place = reader_of(folder).locate(number)
    flip_bit(folder / place.shard.file, place.offset + at)


def say(call: Callable[[], object]) -> str:
    """Returns the kind and the message of an error."""
    with pytest.raises((FormatError, DataError)) as caught:
        call()
    return f"{type(caught.value).__name__}: {caught.value}"


@pytest.mark.parametrize("numbers", [CHOSEN, np.array(CHOSEN, np.int32), range(30), np.array([3, 1], np.uint64), []])
def test_payloads_come_in_the_order_of_the_numbers(folder: Path, numbers: list[int]) -> None:
    with reader_of(folder) as reader:
        assert reader.read_payloads(numbers) == [PAYLOADS[k] for k in numbers]
        assert [repr(one) for one in reader.read_examples(numbers)] == [repr(reader[k]) for k in numbers]


def test_each_example_is_the_callers_own(folder: Path) -> None:
    with reader_of(folder) as reader:
        one, other, third = reader.read_examples([4, 4, 5])
        one["image/height"][0] = 99
        one["image/class/text"].append(b"more")
        del one["image/width"]
        assert [other["image/height"].tolist(), third["image/height"].tolist()] == [[4], [4]]
        assert repr(other) == repr(reader[4])


@pytest.mark.parametrize("at", [0, 9, 12, 60, -1])
def test_damage_is_told_as_for_one_record(folder: Path, at: int) -> None:
    with reader_of(folder) as reader:
        sizes = [reader.locate(number).size for number in (12, 3)]
    for number, size in zip((12, 3), sizes, strict=True):
        damage(folder, number, at % size)
    with reader_of(folder) as reader:
        assert reader.read_payloads([11, 13, 2]) == [PAYLOADS[k] for k in (11, 13, 2)]
        for numbers, first in (([5, 12, 3], 12), ([3, 5, 12], 3), ([0, 1, 12], 12)):
            expected = say(lambda number=first: reader[number])
            assert str(folder / SHARDS[2 if first == 12 else 0]) in expected
            assert "is damaged: the checksum of its " in expected
            assert say(lambda chosen=numbers: reader.read_payloads(chosen)) == expected
            assert say(lambda chosen=numbers: reader.read_examples(chosen)) == expected
            assert say(lambda chosen=numbers: reader.read_columns(chosen, ["image/encoded"])) == expected


def test_a_file_that_shrinks_while_it_is_open_is_named(folder: Path) -> None:
    with reader_of(folder) as reader:
        size = reader.locate(29).size
        reader.read_payloads(range(30))
        path = folder / SHARDS[2]
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size - 20)
        assert reader.read_payloads([27, 28]) == PAYLOADS[27:29]
        message = say(lambda: reader.read_payloads([28, 29, 0]))
        assert message == say(lambda: reader[29])
        assert message.endswith(f"must have {size} bytes, only {size - 20} could be read. {MEND}")


def test_a_missing_file_is_named_unless_an_earlier_record_is_damaged(folder: Path) -> None:
    (folder / SHARDS[1]).unlink()
    damage(folder, 3, 20)
    with reader_of(folder) as reader:
        assert say(lambda: reader.read_examples([0, 10, 3])) == f"FormatError: {folder / SHARDS[1]} is missing. {MEND}"
        assert say(lambda: reader.read_examples([0, 3, 10])) == say(lambda: reader[3])
        assert reader.read_payloads([0, 20]) == [PAYLOADS[0], PAYLOADS[20]]


def test_bytes_that_are_not_an_example_are_named(tmp_path: Path) -> None:
    bad = [payload(0), b"\x0a\x05ab", payload(2), encode_example({"k": [b"x"]}).replace(b"k", b"\xff")]
    with reader_of(write_dataset(tmp_path / "pets", {"train": bad})) as reader:
        assert reader.read_payloads(range(4)) == bad
        assert [repr(example) for example in reader.read_examples([2, 0])] == [repr(reader[2]), repr(reader[0])]
        for number in (1, 3):
            message = say(lambda chosen=number: reader.read_examples([0, chosen, 2]))
            assert message == say(lambda chosen=number: reader[chosen])
            assert message.startswith(f"FormatError: Record {number} of 'train': Not a tf.train.Example: ")


@pytest.mark.parametrize(
    ("name", "value"), [*(("_MAX_BLOCK_BYTES", most) for most in (900, 450, 1)), ("_MAX_BLOCK_FILES", 1)]
)
def test_blocks_of_few_bytes_or_files_give_the_same(folder: Path, monkeypatch, name: str, value: int) -> None:
    monkeypatch.setattr(record_reader, name, value)
    with reader_of(folder) as reader:
        assert reader.read_payloads(CHOSEN) == [PAYLOADS[k] for k in CHOSEN]
        assert reader.read_payloads(range(30)) == PAYLOADS
    if value == 900:
        damage(folder, 20, 30)
        with reader_of(folder) as reader:
            assert say(lambda: reader.read_payloads(CHOSEN)) == say(lambda: reader[20])


def test_neighbors_are_read_together_and_little_more_than_was_asked_for(folder: Path, monkeypatch) -> None:
    calls: list[tuple[int, int]] = []
    real = record_reader.read_records

    def read_records(spans: np.ndarray, *others: np.ndarray) -> object:
        calls.append((len(spans), int(spans[:, 2].sum())))
        return real(spans, *others)

    monkeypatch.setattr(record_reader, "read_records", read_records)
    with reader_of(folder) as reader:
        sizes = [reader.locate(k).size for k in range(30)]
        for numbers, reads, num_bytes in (
            (range(30), 3, sum(sizes)),
            ([2, 1, 2, 0], 1, sum(sizes[:3])),
            ([4, 6], 2 if sizes[5] > (sizes[4] + sizes[6]) // 2 else 1, None),
            ([0, 9], 2, sizes[0] + sizes[9]),
        ):
            assert reader.read_payloads(numbers) == [PAYLOADS[k] for k in numbers]
            assert calls[-1][0] == reads
            assert num_bytes is None or calls[-1][1] == num_bytes
        rng = np.random.default_rng(3)
        for _ in range(100):
            numbers = rng.integers(0, 30, rng.integers(1, 20))
            assert reader.read_payloads(numbers) == [PAYLOADS[k] for k in numbers]
            assert calls[-1][1] <= 2 * sum(sizes[k] for k in set(numbers.tolist()))


def test_unusual_examples_among_usual_ones(tmp_path: Path) -> None:
    unpacked = bytes.fromhex("0a0d0a0b0a016b12061a0408050807")
    assert decode_example(unpacked)["k"].tolist() == [5, 7]
    odd = [
        encode_example(
            {"k": [1.5, 2.5], "texts": [b"a", b"", b"c"], "none": None, "no floats": np.empty(0, np.float32)}
        ),
        unpacked,
        b"",
        encode_example({"größe": [2**63 - 1, -(2**63), 300], "k": list(range(200))}),
        encode_example({"k": [b"x"]}) * 2,
        encode_example({str(k): k for k in range(70)}),
        encode_example({"k": [b""] * 12_000}),
        payload(3),
        encode_example({"k": 2**40}),
    ]
    with reader_of(write_dataset(tmp_path / "pets", {"train": odd})) as reader:
        examples = reader.read_examples(range(len(odd)))
        for example, data in zip(examples, odd, strict=True):
            assert list(example) == list(decode_example(data))
            assert repr(example) == repr(decode_example(data))
        for array in itertools.chain(*(example.values() for example in examples)):
            assert not isinstance(array, np.ndarray) or array.flags.writeable


def test_a_loop_reads_ahead_as_much_as_it_has_yielded(folder: Path, monkeypatch) -> None:
    damage(folder, 12, 30)
    asked: list[int] = []
    real = record_reader.parse_records

    def parse_records(block: RecordBlock) -> object:
        asked.append(len(block.begins))
        return real(block)

    monkeypatch.setattr(record_reader, "parse_records", parse_records)
    with reader_of(folder) as reader:
        loop = iter(reader)
        assert [repr(next(loop)) for _ in range(12)] == [repr(reader[k]) for k in range(12)]
        assert asked == [1, 2, 4, 8]
        assert say(lambda: next(loop)) == say(lambda: reader[12])
        chosen = np.array([3, 20, 3, 1])
        assert [repr(one) for one in reader.iterate(chosen)] == [repr(reader[k]) for k in chosen]
        monkeypatch.setattr(record_reader, "_MAX_AHEAD", 2)
        asked.clear()
        assert len(list(reader.iterate(range(11)))) == 11
        assert asked == [1, *[2] * 5]


def test_threads_share_files(folder: Path, monkeypatch) -> None:
    monkeypatch.setattr(record_reader, "_MAX_OPEN", 1)  # a file leaves while others read from it
    batches = [[k * 7 % 30, k * 11 % 30, k % 30] for k in range(400)]
    with reader_of(folder) as reader, ThreadPoolExecutor(8) as pool:
        expected = [[PAYLOADS[k] for k in batch] for batch in batches]
        assert list(pool.map(reader.read_payloads, batches)) == expected


COLUMNS = ["image/encoded", "image/class/text", "image/height", "image/class/label"]


def list_column(values: object) -> list[object]:
    """Returns the values of a column, with bytes instead of arrays of bytes."""
    return [value.tobytes() if isinstance(values, list) else value.item() for value in values]


@pytest.mark.parametrize("memory_bytes", [None, 0, 700, 1 << 20])
def test_columns_are_the_values_of_the_examples(folder: Path, memory_bytes: int | None, monkeypatch) -> None:
    monkeypatch.setattr(record_reader, "_MAX_BLOCK_BYTES", 2000)  # several blocks
    memory = None if memory_bytes is None else np.zeros(memory_bytes, np.uint8)
    with reader_of(folder) as reader:
        columns = reader.read_columns(CHOSEN, COLUMNS, memory)
        assert list(columns) == COLUMNS
        for name, values in columns.items():
            assert list_column(values) == [reader[k][name][0] for k in CHOSEN]
        assert isinstance(columns["image/height"], np.ndarray)
        assert columns["image/height"].dtype == np.int64
        assert list_column(reader.read_columns([], COLUMNS, memory)["image/encoded"]) == []
        assert reader.read_columns([1, 2], []) == {}


def test_memory_is_used_again(folder: Path) -> None:
    memory = np.zeros(1 << 16, np.uint8)
    with reader_of(folder) as reader:
        first = reader.read_columns([3], ["image/encoded"], memory)["image/encoded"][0]
        assert np.shares_memory(first, memory)
        before = first.tobytes()
        reader.read_columns([4], ["image/encoded"], memory)
        assert first.tobytes() != before


def test_a_large_record_and_an_unusual_one_have_columns(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(record_reader, "_MAX_BLOCK_BYTES", 2000)
    twice = payload(1) + encode_example({"image/class/label": 5})  # the second list adds to the first
    folder = write_dataset(tmp_path / "pets", {"train": [payload(0), payload(1, text="y" * 4000), twice]})
    with reader_of(folder) as reader:
        assert decode_example(twice)["image/class/label"].tolist() == [5]
        texts = list_column(reader.read_columns([1, 0], ["image/class/text"])["image/class/text"])
        assert texts == [b"y" * 4000, b"cat"]
        assert list_column(reader.read_columns([2, 0], ["image/class/label"])["image/class/label"]) == [5, 0]


def test_floats_have_a_column(tmp_path: Path) -> None:
    payloads = [encode_example({"image": png(k), "weight": k + 0.5, "list": [1, 2]}) for k in range(3)]
    (tmp_path / "a.tfrecord").write_bytes(framed(payloads))
    index(IndexConfig(str(tmp_path)))
    with reader_of(tmp_path) as reader:
        weights = reader.read_columns([2, 0], ["weight"])["weight"]
        assert (weights.dtype, weights.tolist()) == (np.float32, [2.5, 0.5])
        sentence = "A column must be a feature with one value, of image, weight; got 'list'."
        assert refusal(ConfigError, reader.read_columns, [0], ["list"]) == sentence


def test_a_record_without_the_value_is_named(tmp_path: Path) -> None:
    rows = [payload(0), encode_example({"image/class/label": [b"cat"]}), encode_example({"image/class/label": [1, 2]})]
    with reader_of(write_dataset(tmp_path / "pets", {"train": rows})) as reader:
        for number, name, must in (
            (1, "image/encoded", "one value of 'image/encoded', got 0"),
            (1, "image/class/label", "int64 values of 'image/class/label', got bytes"),
            (2, "image/class/label", "one value of 'image/class/label', got 2"),
        ):
            sentence = f"Record {number} of 'train': it must have {must}."
            assert refusal(FormatError, reader.read_columns, [0, number], [name]) == sentence


@pytest.mark.parametrize(
    "memory", [b"abc", np.zeros(9, np.int8), np.zeros((3, 3), np.uint8), np.zeros(9, np.uint8)[::2]]
)
def test_memory_of_another_form_is_refused(folder: Path, memory: np.ndarray) -> None:
    sentence = f"`memory` must be a writable uint8 array of one axis, in one piece, got {memory!r:.80}."
    with reader_of(folder) as reader:
        assert refusal(ConfigError, reader.read_columns, [0], ["image/encoded"], memory) == sentence


@pytest.mark.parametrize("memory_bytes", [10_000, 900, 0])
def test_a_cache_of_a_part_copies_only_what_it_keeps(folder: Path, memory_bytes: int, monkeypatch) -> None:
    slots = np.full(30, -1)
    slots[[7, 3, 12, 29]] = np.arange(4)
    cache, memory = BytesCache(slots), np.empty(memory_bytes, np.uint8)
    with reader_of(folder) as reader:
        numbers = np.array([29, 0, 7, 7, 12, 13, 14, 3, 20, 9, 10])
        copied: list[int] = []
        list_payloads = RecordBlock.list_payloads
        monkeypatch.setattr(
            RecordBlock, "list_payloads", lambda self: copied.append(len(self.begins)) or list_payloads(self)
        )
        for _ in range(3):
            block = cache.read_block(numbers, memory, reader.read_block)
            assert list_payloads(block) == [PAYLOADS[k] for k in numbers]
        assert cache.read_block(np.array([3, 29]), memory, lambda *_: pytest.fail("read")).whole.all()
        if memory_bytes == 10_000:
            assert np.may_share_memory(np.asarray(block.data), memory)
            assert copied == [5, 0, 0]  # those that are kept, when they are read


LIMIT = 256

FACES = {
    "NumpyBatches": "tfpipe.NumpyBatches(folder, 'train', config, start)",
    "data_loader": "tfpipe.data_loader(tfpipe.TorchBatches(folder, 'train', config, start))",
    "JaxBatches": "tfpipe.JaxBatches(folder, 'train', config, start)",
    "build_dataset": "tfpipe.build_dataset(folder, 'train', config, start_step=start)",
}

PROGRAM = f"""
import os, resource, sys
import numpy as np
import tfpipe
from tfpipe import NumpyBatches
face, folder, batch_size, start = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
getattr(tfpipe, face)  # its library is loaded before
resource.setrlimit(resource.RLIMIT_NOFILE, ({LIMIT}, {LIMIT}))
config = tfpipe.PipelineConfig(batch_size=batch_size, image_size=8, extra_features=("image/class/label",))
"""

READ = """
for step, batch in zip(range(start, start + 2), {batches}):
    epoch, place = divmod(step, len(NumpyBatches(folder, "train", config)))
    numbers = NumpyBatches(folder, "train", config)._maker.plan.list_numbers(epoch, place)
    np.testing.assert_array_equal(np.asarray(batch["image/class/label"]), numbers)
print(len(os.listdir("/proc/self/fd")) < 128)
"""

FULL = """
def fill():
    try:
        while True:
            held.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass
held = []
one, other = (NumpyBatches(folder, "train", config) for _ in range(2))
expected = one.read(start)["image/class/label"].tolist()
print(other.read(start)["image/class/label"].tolist() == expected)
fill()
print(other.read(start)["image/class/label"].tolist() == expected)
print(one.read(start)["image/class/label"].tolist() == expected)
for batches in (one, other):
    batches._maker.reader.close()
fill()
try:
    one.read(start)
except tfpipe.DataError as error:
    print("as many open files as it may have" in str(error))
"""


def write_shards(folder: Path, count: int) -> Path:
    """Writes shards of one record each, which has its number as its class."""
    return write_dataset(folder, {f"train:{k}": [payload(k, label=k)] for k in range(count)})


def run(program: str, *args: object) -> tuple[int, str, str]:
    done = run_python("-c", PROGRAM + program, *args, TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")
    return done.returncode, done.stdout, done.stderr[-2000:]


def test_a_batch_may_have_records_of_more_shards_than_can_be_open(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "pets", 700)
    assert run(READ.format(batches=FACES["NumpyBatches"]), "NumpyBatches", folder, 350, 1) == (0, "True\n", "")


def test_what_readers_keep_open_is_closed_before_one_fails(tmp_path: Path) -> None:
    assert run(FULL, "NumpyBatches", write_shards(tmp_path / "pets", 200), 100, 0) == (0, "True\n" * 4, "")


@pytest.fixture(scope="module")
def many_shards(tmp_path_factory) -> Path:
    return write_shards(tmp_path_factory.mktemp("many") / "pets", 100_000)


@pytest.mark.slow
@pytest.mark.parametrize("face", FACES)
def test_a_hundred_thousand_shards_are_read_with_256_files(many_shards: Path, face: str) -> None:
    code, out, err = run(READ.format(batches=FACES[face]), face, many_shards, 2048, 47)
    assert (code, out) == (0, "True\n"), err


FULL_TABLE = (
    "opened: this process has as many open files as it may have. Close some, or raise the limit by `ulimit -n`."
)


@pytest.mark.parametrize(
    ("number", "reason", "bad_records"),
    [(errno.EMFILE, FULL_TABLE, 0), (errno.EACCES, "read: Permission denied.", 0), (errno.EMFILE, FULL_TABLE, 100)],
)
def test_what_is_not_damage_is_not_called_damage(tmp_path: Path, monkeypatch, number, reason, bad_records) -> None:
    folder = write_dataset(tmp_path / "pets", {"train": [payload(k) for k in range(4)]})
    config = PipelineConfig(batch_size=4, image_size=8, max_bad_records=bad_records)
    batches = NumpyBatches(folder, "train", config)
    batches.read(0)
    batches._maker.reader.close()
    refuse = Mock(side_effect=OSError(number, os.strerror(number)))
    monkeypatch.setattr(record_reader, "open_descriptor", refuse)
    shard = folder / load_manifest(str(folder)).splits["train"].shards[0].file
    assert refusal(DataError, batches.read, 1) == f"{shard} cannot be {reason}"
    assert not bad_records or len(batches._maker.bad_records) == 0


def test_many_readers_keep_few_files_open(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "pets", 70)
    before = len(os.listdir("/proc/self/fd"))
    readers = [reader_of(folder) for _ in range(5)]
    expected = readers[0].read_payloads(range(70))
    for reader in readers * 2:
        assert reader.read_payloads(range(70)) == expected
        assert len(os.listdir("/proc/self/fd")) - before <= 256
    for reader in readers:
        reader.close()
