"""`tfpipe doctor` as a user runs it."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Tfpipe
from tfpipe.cli.doctor_checks import TargetConfig
from tfpipe.cli.shared.checks import Check
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.errors import ConfigError


@pytest.fixture
def doctor(monkeypatch, tfpipe):
    """Runs the command in this process with checks that cost nothing; returns code, output and what was asked."""
    from tfpipe.cli import doctor_run

    monkeypatch.delenv("TPU_NAME", raising=False)
    monkeypatch.setenv("COLUMNS", "100")

    def call(checks: list[Check], *args: object) -> tuple[int, str, str, tuple[Any, ...]]:
        asked: list[tuple[Any, ...]] = []

        def answer(*arguments: Any) -> Any:
            asked.append(arguments)
            return iter(checks)

        monkeypatch.setattr(doctor_run, "run_checks", answer)
        return *tfpipe("doctor", *args), asked[0] if asked else ()

    return call


GOOD = Check("versions", "ok", "TensorFlow 2.20.0, Keras 3.10.0.")
DOUBT = Check("shapes", "warning", "The batch has text in it.", "Leave [it] out.")
BAD = Check("xla", "failure", "XLA does not compile.")


def test_the_report(doctor, small_dataset: Path) -> None:
    code, out, _, _ = doctor([GOOD, DOUBT, BAD, Check("batch", "skipped", "Not reached.")], small_dataset)
    assert code == 1
    assert [line.rstrip() for line in out.splitlines()] == [
        "ok       versions      TensorFlow 2.20.0, Keras 3.10.0.",
        "warning  shapes        The batch has text in it.",
        "                       → Leave [it] out.",
        "failure  xla           XLA does not compile.",
        "skipped  batch         Not reached.",
        "Not ready: 1 ok, 1 warning, 1 failure, 1 skipped.",
    ]


def test_warnings_do_not_count(doctor, small_dataset: Path) -> None:
    code, out, _, _ = doctor([GOOD, DOUBT], small_dataset)
    assert (code, out.splitlines()[-1]) == (0, "Ready: 1 ok, 1 warning, 0 failures.")


def test_json(doctor, small_dataset: Path) -> None:
    code, out, _, _ = doctor([GOOD, BAD], small_dataset, "--json")
    assert code == 1
    document = json.loads(out)
    assert document["ok"] is False
    assert document["checks"][1] == {"name": "xla", "status": "failure", "found": "XLA does not compile.", "advice": ""}
    assert json.loads(doctor([DOUBT], small_dataset, "--json")[1])["ok"] is True


def test_the_options_reach_the_checks(doctor, small_dataset: Path, tmp_path: Path) -> None:
    _, _, _, (data, split, config, target, customize) = doctor([], small_dataset)
    assert (data.name, split, target, customize) == ("images", "train", TargetConfig(), None)
    assert config == PipelineConfig(batch_size=128)
    file = tmp_path / "a.toml"
    file.write_text("batch_size = 64\nimage_size = 96\n")
    args = ["--config", file, "--split", "validation", "--num-replicas", 8, "--num-hosts", 2, "--tpu", "local"]
    _, _, _, (_, split, config, target, _) = doctor([], small_dataset, *args)
    assert split == "validation"
    assert config == PipelineConfig(batch_size=64, image_size=96)
    assert target == TargetConfig(tpu="local", num_replicas=8, num_hosts=2)
    _, _, _, (_, _, config, _, _) = doctor([], small_dataset, "--config", file, "--batch-size", 32)
    assert config == PipelineConfig(batch_size=32, image_size=96)
    file.write_text("image_size = 96\n")
    _, _, _, (_, _, config, _, _) = doctor([], small_dataset, "--config", file)
    assert config == PipelineConfig(batch_size=128, image_size=96)
    _, _, _, (source, split, _, _, _) = doctor([], small_dataset / "train-*")
    assert (source.name, split) == (str(small_dataset / "train-*"), None)


def test_the_tpu_that_the_environment_names(doctor, small_dataset: Path, monkeypatch) -> None:
    monkeypatch.setenv("TPU_NAME", "pod-7")
    assert doctor([], small_dataset)[3][3] == TargetConfig(tpu="pod-7", tpu_variables=(("TPU_NAME", "pod-7"),))


def test_an_empty_variable_is_not_set(doctor, small_dataset: Path, monkeypatch) -> None:
    for name in ("TPU_NAME", "GCS_READAHEAD_BUFFER_SIZE_BYTES"):
        monkeypatch.setenv(name, "")
    assert doctor([], small_dataset)[3][3] == TargetConfig()


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["--split", "test"], 2, "The dataset has no split 'test'; it has train, validation. Choose one with --split."),
        (["--config", "none.toml"], 2, "There is no configuration file none.toml. Check its name."),
        (["--num-replicas", 0], 2, "--num-replicas must be at least 1, got 0."),
    ],
    ids=str,
)
def test_a_wrong_option(doctor, small_dataset: Path, args: list[object], code: int, message: str) -> None:
    found, out, err, _ = doctor([], small_dataset, *args)
    assert (found, out, err) == (code, "", f"Error: {message}\n")


def test_files_have_no_splits(doctor, small_dataset: Path) -> None:
    found, _, err, _ = doctor([], small_dataset / "train-*", "--split", "train")
    assert (found, err) == (2, "Error: Files found by a pattern have no splits, got --split train. Leave it out.\n")


def test_the_default_split(small_dataset: Path, monkeypatch) -> None:
    from dataclasses import replace

    from tfpipe.cli.shared import inputs
    from tfpipe.dataset import load

    manifest = load.load_manifest(str(small_dataset))
    train, validation = manifest.splits.values()
    monkeypatch.setattr(load, "load_manifest", lambda _: replace(manifest, splits={"only": train}))
    assert inputs.open_data(str(small_dataset), None)[1] == "only"
    monkeypatch.setattr(load, "load_manifest", lambda _: replace(manifest, splits={"a": train, "b": validation}))
    with pytest.raises(ConfigError, match=r"it has a, b\. Choose one with --split\."):
        inputs.open_data(str(small_dataset), None)


def test_a_real_run(small_dataset: Path, tfpipe: Tfpipe, monkeypatch) -> None:
    monkeypatch.delenv("TPU_NAME", raising=False)
    done = tfpipe("doctor", small_dataset, "--batch-size", 8, "--tpu", "my-tpu", "--num-replicas", 8, "--json")
    assert done.code == 0
    document = done.json
    checks = {check["name"]: check for check in document["checks"]}
    assert ([name for name, check in checks.items() if check["status"] == "failure"], document["ok"]) == ([], True)
    assert checks["xla"]["status"] == "ok"
    assert checks["tpu host"]["advice"] == "Run `tfpipe doctor` with --tpu local on each of its hosts too."
    assert "Traceback" not in done.err
