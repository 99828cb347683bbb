"""The client of object stores, against real servers on loopback."""

import multiprocessing
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.object_stores.folder_store import FolderStore, serve_to_this_process
from tests.object_stores.proxy import Answer
from tests.refusals import refusal
from tfpipe.dataset.dataset_files import check_readable
from tfpipe.errors import DataError, FormatError, MissingDependencyError
from tfpipe.storage import file_io, stores
from tfpipe.storage.ranges import Range, RangeReader

DATA = bytes(range(256)) * 4


@pytest.fixture
def store(tmp_path: Path, monkeypatch) -> Iterator[FolderStore]:
    """A store with the object gs://data/photos/a."""
    (tmp_path / "photos" / "more").mkdir(parents=True)
    (tmp_path / "photos" / "a").write_bytes(DATA)
    (tmp_path / "photos" / "b&c").write_bytes(b"")
    (tmp_path / "photos" / "more" / "d").write_bytes(b"d")
    with serve_to_this_process(tmp_path, monkeypatch) as store:
        yield store


def test_files_are_read_whole_and_in_part(store: FolderStore) -> None:
    assert file_io.read_bytes("gs://data/photos/a", 2000) == DATA
    assert file_io.read_bytes("gs://data/photos/b&c", 0) == b""
    with pytest.raises(FormatError, match=r"^gs://data/photos/a must have at most 1,023 bytes, got 1,024\.$"):
        file_io.read_bytes("gs://data/photos/a", 1023)
    with pytest.raises(FileNotFoundError, match=r"No such file or directory: 'gs://data/photos/none'$"):
        file_io.read_bytes("gs://data/photos/none", 1023)
    assert file_io.read_start("gs://data/photos/a", 2) == DATA[:2]
    assert file_io.read_start("gs://data/photos/a", 5000) == DATA
    assert file_io.read_start("gs://data/photos/b&c", 3) == b""
    assert file_io.list_names("gs://data/photos") == ["a", "b&c", "more"]
    assert file_io.list_names("gs://data/nothing") == []
    assert [file_io.exists(f"gs://data/photos{name}") for name in ("", "/a", "/none")] == [True, True, False]
    assert file_io.find("gs://data/photos/*a*") == ["gs://data/photos/a"]
    assert file_io.total_bytes(["gs://data/photos/a", "gs://data/photos/more/d"]) == 1025
    file_io.check_files(["gs://data/photos/a", "gs://data/photos/more/d"], [1024, 1])
    with pytest.raises(FormatError, match=r"^gs://data/photos/x is missing\. Copy the dataset again\.$"):
        file_io.check_files(["gs://data/photos/x"], [1])
    with pytest.raises(FormatError, match=r"^gs://data/photos/a must have 7 bytes, as its manifest says, got 1,024\."):
        file_io.check_files(["gs://data/photos/a"], [7])


@pytest.mark.needs("obstore")
def test_parts_are_read_with_what_follows_them(store: FolderStore) -> None:
    """What was asked for ahead is read without another request, once."""
    reader = RangeReader(["gs://data/photos/a"])
    reader.announce([Range(0, 10, 20, 40), Range(0, 100, 110)])
    assert [bytes(part) for part in reader.read([Range(0, 20, 30), Range(0, 10, 20)])] == [DATA[20:30], DATA[10:20]]
    assert bytes(reader.read([Range(0, 100, 110)])[0]) == DATA[100:110]
    assert sorted(seen.range for seen in store.log) == ["bytes=10-39", "bytes=100-109"]
    assert bytes(reader.read([Range(0, 30, 40)])[0]) == DATA[30:40]
    assert len(store.log) == 2
    assert bytes(reader.read([Range(0, 30, 40)])[0]) == DATA[30:40]  # it is no longer held
    assert store.log[2].range == "bytes=30-39"


@pytest.mark.needs("obstore")
def test_what_nobody_reads_is_dropped(store: FolderStore) -> None:
    reader = RangeReader(["gs://data/photos/a"])
    for begin in range(0, 100, 10):
        reader.announce([Range(0, begin, begin + 10)])
    assert reader._unread_bytes == 80  # eight times what was asked for at once
    assert bytes(reader.read([Range(0, 0, 10)])[0]) == DATA[:10]
    reader._threads.shutdown()
    assert sorted(seen.range for seen in store.log) == sorted(
        ["bytes=0-9", *(f"bytes={begin}-{begin + 9}" for begin in range(0, 100, 10))]
    )


def test_what_was_read_too_far_is_dropped(store: FolderStore) -> None:
    reader = RangeReader(["gs://data/photos/a"])
    for begin in range(0, 300, 30):
        assert bytes(reader.read([Range(0, begin, begin + 10, begin + 30)])[0]) == DATA[begin : begin + 10]
    assert reader._unread_bytes == 10 * 20 <= 8 * 30
    for begin in range(300, 600, 30):
        reader.read([Range(0, begin, begin + 10, begin + 30)])
    assert reader._unread_bytes == 8 * 30


def test_many_parts_are_waited_for_at_once(store: FolderStore, monkeypatch) -> None:
    """The store answers only when it has sixteen requests."""
    together, ask = threading.Barrier(16), store.ask

    def wait_for_others(command: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        together.wait(timeout=60)
        return ask(command, path, headers, body)

    monkeypatch.setattr(store, "ask", wait_for_others)
    RangeReader(["gs://data/photos/a"]).read([Range(0, 16 * at, 16 * at + 16) for at in range(64)])
    assert len(store.log) == 64


@pytest.mark.needs("obstore")
def test_an_error_of_the_store_is_a_sentence(store: FolderStore) -> None:
    store.harm = lambda _: 403
    reader = RangeReader(["gs://data/photos/a"])
    sentence = "gs://data/photos/a cannot be read: Permission denied, the store says: HTTP status 403, Forbidden."
    assert refusal(DataError, reader.read, [Range(0, 0, 10, 40)]) == sentence
    store.reset()
    assert bytes(reader.read([Range(0, 10, 20)])[0]) == DATA[10:20]  # an error is not held
    assert bytes(reader.read([Range(0, 5000, 5010)])[0]) == b""  # behind its end


def test_an_error_that_passes_is_not_noticed(store: FolderStore) -> None:
    store.harm = lambda seen: 503 if seen.number == 0 else None
    assert bytes(RangeReader(["gs://data/photos/a"]).read([Range(0, 0, 10)])[0]) == DATA[:10]
    assert len(store.log) == 2


def _read(reader: RangeReader, answers: object) -> None:
    try:
        answer = bytes(reader.read([Range(0, 0, 4)])[0]).hex()
    except DataError as error:
        answer = str(error)
    answers.put(answer)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_other_processes(store: FolderStore, method: str) -> None:
    """The threads that read are not there in a forked process, where a request would wait for ever."""
    reader = RangeReader(["gs://data/photos/a"])
    reader.read([Range(0, 0, 4)])
    context = multiprocessing.get_context(method)
    answers = context.SimpleQueue()
    process = context.Process(target=_read, args=(reader, answers))
    process.start()
    refused = (
        "A forked process cannot read gs://data/photos/a, because it has none of the threads that its parent reads "
        "with. Start it with the method spawn or forkserver."
    )
    assert answers.get() == ("00010203" if method == "spawn" else refused)
    process.join()
    assert pickle.loads(pickle.dumps(reader))._urls == reader._urls


def test_without_the_package(monkeypatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(stores, "_has_obstore", lambda: False)
    assert not stores.can_read("gs://data/photos/a")
    assert refusal(MissingDependencyError, check_readable, "s3://data/photos") == (
        "Reading s3://data/photos without TensorFlow needs obstore. "
        "Install it with: pip install '.[cloud]' in a checkout of tfpipe."
    )
