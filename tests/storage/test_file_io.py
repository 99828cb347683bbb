"""Files by path and by URL; file:// stands for an object store, which goes the same way."""

import errno
import os
import re
import socket
import sys
import threading
from pathlib import Path

import pytest

from tests.refusals import refusal
from tfpipe.errors import DataError, FormatError, MissingDependencyError
from tfpipe.storage import file_io, stores

FORMS = ("", "file://")


@pytest.fixture(autouse=True)
def by_tensorflow() -> None:
    """A job of this process may have opened other stores."""
    stores.configure()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, data in (("a-0", b"0123456789"), ("a-1", b""), ("b", b"b")):
        (tmp_path / name).write_bytes(data)
    (tmp_path / "a-folder").mkdir()
    return tmp_path


@pytest.mark.parametrize("form", FORMS)
def test_files_are_read_and_found(folder: Path, form: str) -> None:
    base = f"{form}{folder}"
    path = f"{base}/a-0"
    assert file_io.is_url(path) == bool(form)
    assert file_io.read_bytes(path, 10) == b"0123456789"
    assert file_io.read_start(path, 4) == b"0123"
    assert file_io.read_start(path, 40) == b"0123456789"
    assert file_io.join(base, "a-0") == path
    assert "a-0 must have at most 9 bytes, got 10." in refusal(FormatError, file_io.read_bytes, path, 9)
    assert "nothing" in refusal(FileNotFoundError, file_io.read_bytes, f"{base}/nothing", 9)
    assert "nothing cannot be read: " in refusal(DataError, file_io.read_start, f"{base}/nothing", 9)
    assert file_io.find(f"{base}/nothing*") == file_io.find(f"{base}/nothing/*") == []
    assert file_io.find(f"{base}/a-[0-9]") == [f"{base}/a-0", f"{base}/a-1"]


def test_a_folder_fits_no_pattern_and_a_pipe_is_not_waited_for(folder: Path) -> None:
    assert file_io.find(f"{folder}/a-*") == [f"{folder}/a-0", f"{folder}/a-1"]
    os.mkfifo(folder / "pipe")
    assert "pipe must be a regular file" in refusal(FormatError, file_io.read_bytes, str(folder / "pipe"), 9)
    assert "pipe must be a regular file" in refusal(FormatError, file_io.read_start, str(folder / "pipe"), 9)
    with pytest.raises(FileNotFoundError):
        file_io.read_bytes(f"{folder}/a-0/b", 9)


def test_a_folder_that_cannot_be_listed_is_a_sentence(folder: Path, monkeypatch) -> None:
    monkeypatch.setattr(os, "listdir", os.readlink)  # fails, as for a user without the right
    assert refusal(DataError, file_io.list_names, str(folder)) == f"{folder} cannot be read: Invalid argument."


@pytest.mark.parametrize("form", FORMS)
def test_checking(folder: Path, form: str) -> None:
    paths = [f"{form}{folder}/{name}" for name in ("a-0", "a-1")]
    file_io.check_files(paths, [10, 0])
    file_io.check_files([], [])
    with pytest.raises(FormatError, match=re.escape(f"{form}{folder}/gone is missing. Copy the dataset again.")):
        file_io.check_files([*paths, f"{form}{folder}/gone"], [10, 0, 3])
    assert "other/a is missing. Copy" in refusal(FormatError, file_io.check_files, [f"{form}{folder}/other/a"], [10])
    if not form:  # of files behind a URL nobody asks for the size
        sentence = r"a-0 must have 1,234 bytes, as its manifest says, got 10\. Copy it again\."
        with pytest.raises(FormatError, match=sentence):
            file_io.check_files(paths[:1], [1234])


@pytest.mark.parametrize("local_s", [0.0, 9.0])
def test_checking_many_files(folder: Path, monkeypatch, local_s: float) -> None:
    monkeypatch.setattr(file_io, "_LOCAL_S", local_s)
    paths = [f"{folder}/{name}" for name in [*["a-0", "a-1"] * 800, "gone", "gone-too"]]
    sizes = [*[10, 0] * 800, 3, 3]
    file_io.check_files(paths[:-2], sizes[:-2])
    assert refusal(FormatError, file_io.check_files, paths, sizes).endswith("/gone is missing. Copy the dataset again.")


def test_a_url_needs_tensorflow_or_obstore(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    monkeypatch.setattr(stores, "can_read", lambda url: False)
    sentence = r"Reading gs://a/b needs TensorFlow\. Install it with: pip install '\.\[tensorflow\]' in a checkout"
    for call in (lambda: file_io.read_bytes("gs://a/b", 9), lambda: file_io.read_start("gs://a/b", 9)):
        with pytest.raises(MissingDependencyError, match=sentence):
            call()
    assert "Reading gs://a/ needs TensorFlow" in refusal(MissingDependencyError, file_io.find, "gs://a/*")


def test_a_shard_must_be_a_regular_file(tmp_path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(FormatError, match=r"fifo must be a regular file\."):
        file_io.check_files([str(tmp_path / "fifo")], [0])  # 0 bytes is what the system says of it
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(DataError, match=r"loop cannot be read: Too many levels of symbolic links\."):
        file_io.check_files([str(tmp_path / "loop")], [0])


AGAIN = "Free some and run the same command again."


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.EIO, "Input/output error", "/out/a"), "Input/output error (/out/a)."),
        (OSError(errno.ENOSPC, "No space left on device", "/out"), f"No space left on device. {AGAIN}"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), f"Disk quota exceeded. {AGAIN}"),
        (OSError("odd"), "odd."),
    ],
)
def test_os_errors_become_a_sentence(error: OSError, message: str) -> None:
    with pytest.raises(DataError) as caught, file_io.explain_os_errors("write /out"):
        raise error
    assert str(caught.value) == f"Could not write /out: {message}"
    assert caught.value.__cause__ is error


def test_the_advice_depends_on_the_error() -> None:
    for code, advice in ((errno.ENOSPC, "Free some."), (errno.EACCES, "Choose another place.")):
        explain = file_io.explain_os_errors("write", if_full="Free some.", otherwise="Choose another place.")
        with pytest.raises(DataError, match=rf"^Could not write: .*\. {advice}$"), explain:
            raise OSError(code, os.strerror(code))


def test_a_file_appears_whole_in_a_new_folder_here_and_behind_a_url(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    for folder in (str(tmp_path / "a" / "b"), f"file://{tmp_path}/c/d"):
        file_io.make_folder(folder)
        file_io.make_folder(folder)
        path = file_io.join(folder, "x")
        file_io.write_file(path, b"123")
        assert file_io.read_bytes(path, 10) == b"123"
        with pytest.raises(OSError, match="No such file or directory"):
            file_io.write_file(file_io.join(folder, "none", "x"), b"123")
        with pytest.raises(OSError, match=r"exist|directory"):
            file_io.make_folder(path)


def test_a_large_file_goes_to_the_disk_while_it_is_written(tmp_path: Path, monkeypatch) -> None:
    synced: list[tuple[bool, int]] = []
    done = threading.Event()

    def fsync(descriptor: int) -> None:
        synced.append((threading.current_thread() is threading.main_thread(), os.fstat(descriptor).st_size))
        done.set()

    monkeypatch.setattr(os, "fsync", fsync)
    part = bytes(4 << 20)
    with file_io.create(str(tmp_path / "large")) as file:
        for _ in range(3):
            file.write(part)
        assert synced == []
        file.write(part)
        assert done.wait(60)
        assert synced == [(False, 16 << 20)]
        file.write(part)
    assert synced == [(False, 16 << 20), (True, 20 << 20)]
    assert (tmp_path / "large").read_bytes() == 5 * part


def test_an_early_error_of_the_disk_is_reported_though_the_last_call_succeeds(tmp_path: Path, monkeypatch) -> None:
    def fsync(descriptor: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fsync)
    (tmp_path / "large").write_bytes(b"before")
    with pytest.raises(OSError, match="Input/output error"), file_io.create(str(tmp_path / "large")) as file:
        file.write(bytes(16 << 20))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"large": b"before"}


def test_whole_files_are_read_and_nothing_waits_for_others(tmp_path: Path) -> None:
    for name, data in (("empty", b""), ("some", b"abc" * 1000)):
        (tmp_path / name).write_bytes(data)
        assert file_io.read_regular(str(tmp_path / name)) == data
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        for other in (tmp_path, tmp_path / "pipe", tmp_path / "socket", Path("/dev/zero")):
            assert file_io.read_regular(str(other)) is None
    with pytest.raises(FileNotFoundError):
        file_io.read_regular(str(tmp_path / "none"))


@pytest.mark.skipif(
    not Path("/proc/version").exists(), reason="needs Linux's /proc, whose files say that they are empty"
)
def test_a_file_that_is_larger_than_it_says_is_read_to_its_end() -> None:
    assert file_io.read_regular("/proc/version") == Path("/proc/version").read_bytes()


@pytest.mark.parametrize(
    ("path", "root", "below"),
    [
        ("a/b", "", True),
        ("a/../b", "x", True),
        ("..a", "x", True),
        ("../b", "x", False),
        ("..", "x", False),
        ("../x/b", "/data/x", True),
        ("/data/x/b", "/data/x/", True),
        ("/data/xy", "/data/x", False),
        ("/data/x", "/data/x", False),
        ("/data/x/../b", "/data/x", False),
        ("/etc", "/", True),
        ("/etc", "", False),
        ("gs://b/x/1", "gs://b/x", True),
        ("gs://b/xy/1", "gs://b/x", False),
        ("gs://b/x/../1", "gs://b/x", False),
        ("../1", "gs://b/x", False),
        ("x/1", "gs://b", True),
        ("/etc", "gs://b", False),
        ("gs://b/1", "/", False),
    ],
)
def test_a_path_below_a_folder(path: str, root: str, below: bool) -> None:
    assert file_io.lies_below(path, root) is below


@pytest.mark.parametrize(
    ("base", "parts", "joined"),
    [
        ("/a", ("b", "c"), "/a/b/c"),
        ("", ("b",), "b"),
        ("/a", ("/b",), "/b"),
        ("/a", ("s3://x/y",), "s3://x/y"),
        ("s3://x", ("y", "z"), "s3://x/y/z"),
        ("s3://x", ("/abs",), "/abs"),
    ],
)
def test_parts_are_joined_below_paths_and_urls(base: str, parts: tuple[str, ...], joined: str) -> None:
    assert file_io.join(base, *parts) == joined


def test_a_path_becomes_absolute_and_a_url_stays(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert file_io.make_absolute("a/../b/") == f"{tmp_path}/b"
    assert file_io.make_absolute("s3://x/y/") == "s3://x/y"


def test_an_error_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def fail() -> None:
        with file_io.create(str(path), str(tmp_path / "tmp" / "a"), makes_folders=True) as out:
            out.write(b"new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert path.read_bytes() == b"old"
    assert [*(tmp_path / "tmp").iterdir()] == []


def test_sizes_are_those_of_regular_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"123")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "gone").symlink_to("nowhere")
    names = ("a", "pipe", "link", "gone", ".", "none")
    assert file_io.get_sizes([str(tmp_path / name) for name in names]) == [3, -1, 3, -1, -1, -1]
    assert [file_io.exists(str(tmp_path / name)) for name in names] == [True, True, True, False, True, False]
