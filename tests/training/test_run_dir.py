"""The folder of a run: begun once, gone on with, and refused where it is another's."""

import json
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.training.checkpoints import Position
from tfpipe.training.run_dir import RunDir

OPTIONS = {"model": "small_cnn", "epochs": 3, "scale": (0.08, 1.0)}


def test_a_run_is_begun_and_gone_on_with(tmp_path: Path) -> None:
    path = str(tmp_path / "runs" / "one")
    assert not RunDir(path).begin(OPTIONS)
    assert json.loads((tmp_path / "runs/one/run.json").read_text()) == {
        "version": 1,
        **{"model": "small_cnn", "epochs": 3, "scale": [0.08, 1.0]},
    }
    assert RunDir(path).begin(OPTIONS)


def test_what_a_kill_left_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "run.json.123.tmp").write_text("{")
    assert not RunDir(str(tmp_path)).begin(OPTIONS)


def test_only_the_chief_writes(tmp_path: Path) -> None:
    folder = RunDir(str(tmp_path / "run"), is_chief=False)
    assert not folder.begin(OPTIONS)
    folder.write_metrics()
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
    folder = RunDir(str(tmp_path))
    folder.begin(OPTIONS)
    kinds = ["step", "step", "epoch", "step", "step", "epoch"]
    folder.metrics = [
        {"kind": kind, "epoch": i // 3, "step": step}
        for i, (kind, step) in enumerate(zip(kinds, (1, 2, 2, 3, 4, 4), strict=True))
    ]
    folder.write_metrics()
    again = RunDir(str(tmp_path))
    assert again.begin(OPTIONS)
    assert again.get_last_epoch() == {"kind": "epoch", "epoch": 1, "step": 4}
    again.go_back(Position(0, 1, 2), 2)  # the steps of the second epoch are done, its evaluation is not
    assert [(line["kind"], line["step"]) for line in again.metrics] == [
        *(("step", 1), ("step", 2), ("epoch", 2), ("step", 3), ("step", 4)),
    ]
    again.go_back(Position(0, 0, 2), 2)
    assert [line["kind"] for line in again.metrics] == ["step", "step"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="file/run"):
        RunDir(str(tmp_path / "file" / "run")).begin(OPTIONS)
