"""A working folder keeps what its job wrote, and its result appears as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfpipe.errors import ConfigError, DataError
from tfpipe.writer.working_folder import WorkingFolder, check_output


class Rows(WorkingFolder):
    parts = ("rows",)


def stop_within(folder: Path) -> None:
    with Rows(str(folder)).open("a", "works"):
        (folder / "rows" / "1").touch()
        (folder / "other").touch()
        raise KeyboardInterrupt


def test_a_run_goes_on_with_what_was_kept(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    with pytest.raises(KeyboardInterrupt):
        stop_within(folder)
    with Rows(str(folder)).open("a", "works"):
        assert sorted(path.name for path in folder.iterdir()) == ["lock", "plan.json", "rows"]
        assert [path.name for path in (folder / "rows").iterdir()] == ["1"]
    assert not folder.exists()


def test_another_job_begins_anew(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    with pytest.raises(KeyboardInterrupt):
        stop_within(folder)
    with Rows(str(folder)).open("b", "works"):
        assert list((folder / "rows").iterdir()) == []


def test_one_process_at_a_time(tmp_path: Path) -> None:
    folder = WorkingFolder(str(tmp_path / "work"))
    with (
        folder.open("a", "works into out"),
        pytest.raises(DataError, match=r"^Another process works into out; wait for it or choose another name\.$"),
        folder.open("a", "works into out"),
    ):
        pass


def test_a_result_takes_the_place_of_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "work" / "data").mkdir(parents=True)
    (tmp_path / "work" / "data" / "file").write_text("whole")
    (tmp_path / "out").mkdir()
    WorkingFolder(str(tmp_path / "work")).publish(str(tmp_path / "out"))
    assert (tmp_path / "out" / "file").read_text() == "whole"
    assert not (tmp_path / "work" / "data").exists()


def test_outputs(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "link").symlink_to("in")
    (tmp_path / "done").mkdir()
    (tmp_path / "done" / "report").touch()
    source, done = str(tmp_path / "in"), str(tmp_path / "done")
    assert check_output(str(tmp_path / "link"), str(tmp_path / "new"), "report") == (source, str(tmp_path / "new"))
    assert check_output(source, done, "report") == (source, done)
    with pytest.raises(ConfigError, match=r"done must not exist yet; choose another name\.$"):
        check_output(source, done, "other")
    for inside in (source, f"{source}/out", str(tmp_path)):
        with pytest.raises(ConfigError, match=r"^The output must lie outside of the dataset, got "):
            check_output(source, inside, "report")
