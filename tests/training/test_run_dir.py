"""The folder of a run: begun once, resumed, and refused where it belongs to another run."""

import json
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.training.run_dir import RunDir

OPTIONS = {"model": "small_cnn", "epochs": 3, "scale": (0.08, 1.0)}


def test_a_run_begins_and_goes_on(tmp_path: Path) -> None:
    path = str(tmp_path / "runs" / "one")
    assert not RunDir(path).begin(OPTIONS)
    assert json.loads((tmp_path / "runs/one/run.json").read_text()) == {
        "version": 1,
        **{"model": "small_cnn", "epochs": 3, "scale": [0.08, 1.0]},
        "lock": None,
    }
    assert RunDir(path).begin(OPTIONS, {"seed": 3})  # what it was begun with stays


def test_a_temporary_file_of_a_killed_run_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "run.json.123.tmp").write_text("{")
    assert not RunDir(str(tmp_path)).begin(OPTIONS)


def test_only_the_chief_writes(tmp_path: Path) -> None:
    run_dir = RunDir(str(tmp_path / "run"), is_chief=False)
    assert not run_dir.begin(OPTIONS)
    run_dir.write_metrics()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "is damaged. Delete"), ("[]", "is damaged. Delete"), ('{"version": 2}', "has version 2, and this tfpipe")],
)
def test_a_damaged_description_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(FormatError, match=message):
        RunDir(str(tmp_path)).begin(OPTIONS)


def test_other_options_are_refused_with_both_values(tmp_path: Path) -> None:
    RunDir(str(tmp_path)).begin(OPTIONS)
    with pytest.raises(ConfigError) as caught:
        RunDir(str(tmp_path)).begin({**OPTIONS, "model": "resnet50"})
    assert str(caught.value) == (
        f"The run in {tmp_path} was begun with model small_cnn, got resnet50. Ask for the same to go on, or choose "
        "another folder."
    )


def test_lines_after_the_checkpoint_are_dropped(tmp_path: Path) -> None:
    run_dir = RunDir(str(tmp_path))
    run_dir.begin(OPTIONS)
    kinds = ["step", "step", "epoch", "step", "step", "epoch"]
    run_dir.metrics = [
        {"kind": kind, "epoch": i // 3, "step": step}
        for i, (kind, step) in enumerate(zip(kinds, (1, 2, 2, 3, 4, 4), strict=True))
    ]
    run_dir.write_metrics()
    reopened = RunDir(str(tmp_path))
    assert reopened.begin(OPTIONS)
    assert reopened.get_last_epoch() == {"kind": "epoch", "epoch": 1, "step": 4}
    reopened.go_back(1, 4)  # the steps of the second epoch are done, its evaluation is not
    assert [(line["kind"], line["step"]) for line in reopened.metrics] == [
        *(("step", 1), ("step", 2), ("epoch", 2), ("step", 3), ("step", 4)),
    ]
    reopened.go_back(0, 2)
    assert [line["kind"] for line in reopened.metrics] == ["step", "step"]


def test_a_folder_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="file/run"):
        RunDir(str(tmp_path / "file" / "run")).begin(OPTIONS)
