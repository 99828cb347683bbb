"""A folder with archives in it, read by one process and by several."""

from __future__ import annotations

from pathlib import Path

import pytest

from beam_jobs.inputs import tree
from beam_jobs.inputs.archive import Member
from beam_jobs.inputs.tree import list_tree
from tests.beam_jobs.images import write_files, write_tar, write_zip
from tests.observers import Recorder
from tfpipe.errors import DataError
from tfpipe.system.progress import Progress


@pytest.fixture
def side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "_SIDE_BY_SIDE_FROM_BYTES", 0)


def archives(folder: Path, count: int) -> Path:
    for k in range(count):
        images = {f"{i}.jpg": f"{k} {i}".encode() for i in range(k + 1)}
        if k % 3 == 2:
            write_zip(folder / f"class{k}.zip", images)
        else:
            write_tar(folder / f"class{k}.tar{'.gz' * (k % 3)}", {**images, "notes.txt": b"x"}, ("w", "w:gz")[k % 3])
    return write_files(folder, {"loose/1.jpg": b"1", "loose/.hidden": b"2"})


def test_archives_count_as_folders(tmp_path: Path) -> None:
    write_tar(tmp_path / "cat.tar", {"1.jpg": b"one"})
    write_zip(tmp_path / "in" / "dog.zip", {"2.jpg": b"two"})
    (tmp_path / ".hidden.tar").write_bytes(b"no tar at all")
    (tmp_path / "folder.tar").mkdir()
    found = list_tree(str(tmp_path))
    assert {ref.path: ref.location for ref in found.refs} == {"cat/1.jpg": "cat.tar", "in/dog/2.jpg": "in/dog.zip"}
    assert found.folders.counts() == {"cat": 1, "in/dog": 1}
    assert found.skipped == {"hidden": 1}


@pytest.mark.usefixtures("side_by_side")
def test_several_processes_find_the_same_in_the_same_order(tmp_path: Path) -> None:
    source = str(archives(tmp_path, 7))
    one, two = list_tree(source, workers=1), list_tree(source, workers=2)
    assert list(one.refs) == list(two.refs)
    assert len(one.refs) == 1 + sum(range(8))
    assert [one.folders[i] for i in range(len(one.refs))] == [two.folders[i] for i in range(len(two.refs))]
    assert one.skipped == two.skipped == {"*.txt": 5, "hidden": 1}


@pytest.mark.usefixtures("side_by_side")
def test_a_damaged_archive_among_several(tmp_path: Path) -> None:
    source = archives(tmp_path, 3)
    (source / "class9.zip").write_bytes(b"PK no zip")
    with pytest.raises(DataError) as caught:
        list_tree(str(source), workers=2)
    assert str(caught.value) == (
        f"{source / 'class9.zip'} is damaged or no archive of its kind (File is not a zip file)."
    )


def test_listing_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    members = [Member(f"cat/{i}.jpg", 1) for i in range(2500)]
    monkeypatch.setattr(tree, "list_folder", lambda _: members)
    observer = Recorder()
    list_tree(str(tmp_path), observer=observer)
    assert observer.progresses == [Progress(1000), Progress(2000)]
