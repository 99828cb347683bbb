"""Folders: links, loops and pipes among the files, and archives that are read by one process or by several."""

import os
from pathlib import Path

import pytest

from beam_jobs.inputs import folder as folder_input
from beam_jobs.inputs.archive import ListedFile
from beam_jobs.inputs.folder import list_folder, list_tree
from tests.beam_jobs.images import make_tar, write_files, write_tar, write_zip
from tests.observers import Recorder
from tests.refusals import refusal
from tfpipe.errors import DataError
from tfpipe.system.progress import Progress


def list_sorted(folder: Path) -> list[ListedFile]:
    return sorted(list_folder(str(folder)))


def test_links_are_followed(tmp_path: Path) -> None:
    write_files(tmp_path / "far", {"x/1.jpg": b"123"})
    root = tmp_path / "root"
    root.mkdir()
    (root / "cat").symlink_to(tmp_path / "far" / "x")
    (root / "dog").symlink_to(tmp_path / "far" / "x")  # the same folder twice is not a loop
    (root / "one.jpg").symlink_to(tmp_path / "far" / "x" / "1.jpg")
    assert list_sorted(root) == [ListedFile("cat/1.jpg", 3), ListedFile("dog/1.jpg", 3), ListedFile("one.jpg", 3)]
    write_files(tmp_path / "real", {"1.jpg": b"1"})
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "real/gone.jpg").symlink_to("nowhere")
    (tmp_path / "real/self.jpg").symlink_to("self.jpg")
    assert list_sorted(tmp_path / "link") == [
        ListedFile("1.jpg", 1),
        ListedFile("gone.jpg", 0),
        ListedFile("self.jpg", 0),
    ]


@pytest.mark.parametrize("target", [".", "..", "../.."])
def test_a_loop_is_refused(tmp_path: Path, target: str) -> None:
    root = write_files(tmp_path / "root", {"cat/old/1.jpg": b"1"})
    loop = root / "cat" / "old" / "zz"
    loop.symlink_to(target)
    assert refusal(DataError, list_sorted, root) == f"Folders must not loop, but {loop} leads back to one above it."


def test_empty_folders_are_counted(tmp_path: Path) -> None:
    """An empty folder of a class would shift the labels of the classes behind it."""
    for name in ("ant", "bee/new", ".git/refs"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "cat.jpg").touch()
    assert list_sorted(tmp_path) == [
        ListedFile("ant/", 0, skip="empty folder"),
        ListedFile("bee/new/", 0, skip="empty folder"),
        ListedFile("cat.jpg", 0),
    ]


def test_a_pipe_is_passed_over(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "1.jpg")
    os.mkfifo(tmp_path / "2.tar")
    (tmp_path / "zero.jpg").symlink_to("/dev/zero")
    names = ("1.jpg", "2.tar", "zero.jpg")
    assert list_sorted(tmp_path) == [ListedFile(name, 0, skip="not a regular file") for name in names]


@pytest.mark.parametrize(("name", "fault"), [("nothing", "does not exist"), ("file.png", "is none of these")])
def test_an_input_that_is_not_a_folder_is_refused(tmp_path: Path, name: str, fault: str) -> None:
    (tmp_path / "file.png").write_bytes(b"")
    assert refusal(DataError, list_sorted, tmp_path / name) == (
        "The input must be a folder, a .csv, .tsv, .jsonl or .parquet manifest, or a .tar, .tar.gz or .zip archive; "
        f"{tmp_path / name} {fault}."
    )


@pytest.fixture
def side_by_side(monkeypatch) -> None:
    """Lets several processes read archives of any size."""
    monkeypatch.setattr(folder_input, "_SIDE_BY_SIDE_FROM_BYTES", 0)


def write_archives(folder: Path, count: int) -> Path:
    """Writes archives of three kinds in turn, with one image more in each, and two loose files."""
    for k in range(count):
        images = {f"{i}.jpg": f"{k} {i}".encode() for i in range(k + 1)}
        if k % 3 == 2:
            write_zip(folder / f"class{k}.zip", images)
        else:
            write_tar(folder / f"class{k}.tar{'.gz' * (k % 3)}", {**images, "notes.txt": b"x"}, ("w", "w:gz")[k % 3])
    return write_files(folder, {"loose/1.jpg": b"1", "loose/.hidden": b"2"})


@pytest.mark.usefixtures("side_by_side")
def test_several_processes_list_the_same_in_the_same_order(tmp_path: Path) -> None:
    source = str(write_archives(tmp_path, 7))
    by_one, by_two = list_tree(source, workers=1), list_tree(source, workers=2)
    assert list(by_one.images) == list(by_two.images)
    assert len(by_one.images) == 1 + sum(range(8))
    assert by_one.skipped == by_two.skipped == {"*.txt": 5, "hidden": 1}


@pytest.mark.usefixtures("side_by_side")
def test_a_damaged_archive_among_several_is_named(tmp_path: Path) -> None:
    source = write_archives(tmp_path, 3)
    (source / "class9.zip").write_bytes(b"PK no zip")
    assert refusal(DataError, list_tree, str(source), workers=2) == (
        f"{source / 'class9.zip'} is damaged or is not a valid archive of its kind (File is not a zip file)."
    )


def test_equal_names_in_one_archive_keep_the_last_and_leave_the_others(tmp_path: Path) -> None:
    old, new = make_tar({"cat/1.jpg": b"old", "cat/2.jpg": b"two"})[:2048], make_tar({"cat/1.jpg": b"newer"})
    (tmp_path / "a.tar").write_bytes(old + new)
    assert [(image.path, image.size, image.label) for image in list_tree(str(tmp_path / "a.tar")).images] == [
        ("cat/2.jpg", 3, "cat"),
        ("cat/1.jpg", 5, "cat"),
    ]


def test_listing_tells_how_far_it_is(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(folder_input, "_FILES_AT_ONCE", 2)
    monkeypatch.setattr("beam_jobs.plan.image_table._TELL_EVERY", 2)
    write_files(tmp_path, {f"cat/{i}.jpg": b"1" for i in range(3)})
    write_tar(tmp_path / "dog.tar", {f"{i}.jpg": b"1" for i in range(4)})
    observer = Recorder()
    list_tree(str(tmp_path), observer=observer)
    assert observer.progresses == [Progress(2), Progress(3), Progress(7)]
    list_tree(str(tmp_path / "dog.tar"), observer=observer)
    assert observer.progresses[3:] == [Progress(2), Progress(4)]
