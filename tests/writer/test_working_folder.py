"""A working folder keeps what its job wrote, and its result appears as a whole."""

from pathlib import Path

import pytest

from tfpipe.errors import ConfigError, DataError
from tfpipe.writer.working_folder import WorkingFolder, check_output


class Rows(WorkingFolder):
    ending = ".rows"
    folders = ("rows",)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "out.rows"


def make(folder: Path) -> Rows:
    return Rows(str(folder.with_name("out")))


def stop_within(folder: Path) -> None:
    with make(folder).open("a", "works"):
        (folder / "rows" / "1").touch()
        (folder / "other").touch()
        raise KeyboardInterrupt


def test_a_run_goes_on_with_what_was_kept(folder: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        stop_within(folder)
    with make(folder).open("a", "works"):
        assert sorted(path.name for path in folder.iterdir()) == ["lock", "plan.json", "rows"]
        assert [path.name for path in (folder / "rows").iterdir()] == ["1"]
    assert not folder.exists()


def test_a_lock_leaves_nothing_where_nothing_was_written(folder: Path) -> None:
    class Inside(WorkingFolder):
        ending = "/.work"

    with Inside(str(folder)).lock("works"):
        assert (folder / ".work" / "lock").exists()
    assert not folder.exists()
    folder.mkdir()
    with Inside(str(folder)).lock("works"):
        pass
    assert list(folder.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_a_sentence(folder: Path) -> None:
    folder.touch()
    with pytest.raises(DataError, match=r"^Could not write to .*/out: File exists \(.*/out\.rows\)\.$"):
        make(folder).open("a", "works").__enter__()


def test_a_result_takes_the_place_of_an_empty_folder(folder: Path, tmp_path: Path) -> None:
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "file").write_text("whole")
    (tmp_path / "out").mkdir()
    make(folder).publish()
    assert (tmp_path / "out" / "file").read_text() == "whole"
    assert not (folder / "data").exists()


def test_outputs(tmp_path: Path) -> None:
    for name in ("in", "done", "mixed"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to("in")
    for name in ("done/report", "mixed/report", "mixed/notes"):
        (tmp_path / name).touch()
    source, done, mixed = (str(tmp_path / name) for name in ("in", "done", "mixed"))
    is_ours = "report".__eq__
    assert check_output(str(tmp_path / "new")) == str(tmp_path / "new")
    assert check_output(str(tmp_path / "link")) == source  # empty
    assert check_output(done, [source], is_ours, alone=True) == done
    assert check_output(mixed, [source], is_ours) == mixed
    for arguments, name in (((done,), "report"), ((done, [], "other".__eq__), "report")):
        with pytest.raises(ConfigError, match=rf"done must be empty or not exist yet, and holds {name}\. Choose "):
            check_output(*arguments)
    with pytest.raises(ConfigError, match=r"mixed must be empty or not exist yet, and holds notes\. Choose "):
        check_output(mixed, [source], is_ours, alone=True)
    with pytest.raises(ConfigError, match=r"^The output must be a directory, but .*/report is a file\.$"):
        check_output(f"{done}/report")
    for inside in (source, f"{source}/out", str(tmp_path / "link")):
        with pytest.raises(ConfigError, match=rf"^The output must not lie inside the input, got {inside} in {source}"):
            check_output(inside, [source])
