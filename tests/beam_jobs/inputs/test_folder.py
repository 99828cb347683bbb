"""What a walk through a real folder finds: links, loops and pipes among the files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from beam_jobs.inputs.archive import Member
from beam_jobs.inputs.folder import list_folder
from tests.beam_jobs.images import write_files
from tfpipe.errors import DataError


def walk(folder: Path) -> list[Member]:
    return sorted(list_folder(str(folder)))


def test_files_by_name(tmp_path: Path) -> None:
    write_files(tmp_path, {"b/2.jpg": b"22", "b/10.jpg": b"x", "a/deep/er/1.jpg": b"1", "0.jpg": b""})
    assert walk(tmp_path) == [
        Member("0.jpg", 0),
        Member("a/deep/er/1.jpg", 1),
        Member("b/10.jpg", 1),
        Member("b/2.jpg", 2),
    ]


def test_a_name_that_is_no_utf8(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"caf\xe9.jpg")).write_bytes(b"x")
    assert walk(tmp_path) == [Member("caf\udce9.jpg", 1)]


def test_links_are_followed(tmp_path: Path) -> None:
    write_files(tmp_path / "far", {"x/1.jpg": b"123"})
    root = tmp_path / "root"
    root.mkdir()
    (root / "cat").symlink_to(tmp_path / "far" / "x")
    (root / "dog").symlink_to(tmp_path / "far" / "x")  # the same folder twice is no loop
    (root / "one.jpg").symlink_to(tmp_path / "far" / "x" / "1.jpg")
    assert walk(root) == [Member("cat/1.jpg", 3), Member("dog/1.jpg", 3), Member("one.jpg", 3)]


def test_the_root_may_be_a_link(tmp_path: Path) -> None:
    write_files(tmp_path / "real", {"1.jpg": b"1"})
    (tmp_path / "link").symlink_to("real")
    assert walk(tmp_path / "link") == [Member("1.jpg", 1)]


@pytest.mark.parametrize("target", [".", "..", "../.."])
def test_a_loop_is_refused(tmp_path: Path, target: str) -> None:
    root = write_files(tmp_path / "root", {"cat/old/1.jpg": b"1"})
    loop = root / "cat" / "old" / "zz"
    loop.symlink_to(target)
    with pytest.raises(DataError) as caught:
        walk(root)
    assert str(caught.value) == f"Folders must not loop, but {loop} leads back to one above it."


def test_links_to_nothing_are_left_for_the_reader(tmp_path: Path) -> None:
    (tmp_path / "gone.jpg").symlink_to("nowhere")
    (tmp_path / "self.jpg").symlink_to("self.jpg")
    assert walk(tmp_path) == [Member("gone.jpg", 0), Member("self.jpg", 0)]


def test_a_pipe_is_passed_over(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "1.jpg")
    os.mkfifo(tmp_path / "2.tar")
    (tmp_path / "zero.jpg").symlink_to("/dev/zero")
    skip = "not a regular file"
    assert walk(tmp_path) == [
        Member("1.jpg", 0, skip=skip),
        Member("2.tar", 0, skip=skip),
        Member("zero.jpg", 0, skip=skip),
    ]


@pytest.mark.parametrize(("name", "what"), [("nothing", "does not exist"), ("file.png", "is none of these")])
def test_no_folder(tmp_path: Path, name: str, what: str) -> None:
    (tmp_path / "file.png").write_bytes(b"")
    with pytest.raises(DataError) as caught:
        walk(tmp_path / name)
    assert str(caught.value) == (
        "The input must be a folder, a .csv, .jsonl or .parquet manifest, or a .tar, .tar.gz or .zip archive; "
        f"{tmp_path / name} {what}."
    )
