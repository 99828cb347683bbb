"""`tfpipe doctor` as a user runs it, and its checks of versions and of a TPU VM, with facts written by hand."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Ran, Tfpipe
from tfpipe.cli.doctor_checks import TargetConfig, check_tpu_host, check_versions
from tfpipe.cli.shared import inputs
from tfpipe.cli.shared.checks import Check, fail_check
from tfpipe.dataset import load
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.errors import ConfigError


@pytest.fixture
def doctor(monkeypatch, tfpipe):
    """Runs the command in this process with checks that cost nothing; returns what it printed and what was asked."""
    from tfpipe.cli import doctor_run

    monkeypatch.delenv("TPU_NAME", raising=False)
    monkeypatch.setenv("COLUMNS", "100")

    def call(checks: list[Check], *args: object) -> tuple[Ran, tuple[Any, ...]]:
        asked: list[tuple[Any, ...]] = []
        monkeypatch.setattr(doctor_run, "run_checks", lambda *given: asked.append(given) or iter(checks))
        return tfpipe("doctor", *args), asked[0] if asked else ()

    return call


GOOD = Check("versions", "ok", "TensorFlow 2.20.0, Keras 3.10.0.")
DOUBT = Check("shapes", "warning", "The batch has text in it.", "Leave [it] out.")
BAD = Check("xla", "failure", "XLA does not compile.")


def test_the_report(doctor, small_dataset: Path) -> None:
    done, _ = doctor([GOOD, DOUBT, BAD, Check("batch", "skipped", "Not reached.")], small_dataset)
    assert done.code == 1
    assert done.lines == [
        "ok       versions      TensorFlow 2.20.0, Keras 3.10.0.",
        "warning  shapes        The batch has text in it.",
        "                       → Leave [it] out.",
        "failure  xla           XLA does not compile.",
        "skipped  batch         Not reached.",
        "Not ready: 1 ok, 1 warning, 1 failure, 1 skipped.",
    ]
    done, _ = doctor([GOOD, DOUBT], small_dataset)  # warnings do not count
    assert (done.code, done.lines[-1]) == (0, "Ready: 1 ok, 1 warning, 0 failures.")
    done, _ = doctor([GOOD, BAD], small_dataset, "--json")
    assert (done.code, done.json["ok"]) == (1, False)
    failure = {"name": "xla", "status": "failure", "found": "XLA does not compile.", "advice": ""}
    assert done.json["checks"][1] == failure
    assert doctor([DOUBT], small_dataset, "--json")[0].json["ok"] is True


def test_the_options_reach_the_checks(doctor, small_dataset: Path, tmp_path: Path) -> None:
    def ask(*args: object) -> tuple[Any, ...]:
        return doctor([], *args)[1]

    data, split, config, target, customize = ask(small_dataset)
    assert (data.name, split, target, customize) == ("images", "train", TargetConfig(), None)
    assert config == PipelineConfig(batch_size=128)
    file = tmp_path / "a.toml"
    file.write_text("batch_size = 64\nimage_size = 96\n")
    args = ["--config", file, "--split", "validation", "--num-replicas", 8, "--num-hosts", 2, "--tpu", "local"]
    _, split, config, target, _ = ask(small_dataset, *args)
    assert (split, config) == ("validation", PipelineConfig(batch_size=64, image_size=96))
    assert target == TargetConfig(tpu="local", num_replicas=8, num_hosts=2)
    config = ask(small_dataset, "--config", file, "--batch-size", 32)[2]
    assert config == PipelineConfig(batch_size=32, image_size=96)
    file.write_text("image_size = 96\n")
    assert ask(small_dataset, "--config", file)[2] == PipelineConfig(batch_size=128, image_size=96)
    source, split, *_ = ask(small_dataset / "train-*")
    assert (source.name, split) == (str(small_dataset / "train-*"), None)


def test_the_tpu_that_the_environment_names(doctor, small_dataset: Path, monkeypatch) -> None:
    for name in ("TPU_NAME", "GCS_READAHEAD_BUFFER_SIZE_BYTES"):  # an empty variable is not set
        monkeypatch.setenv(name, "")
    assert doctor([], small_dataset)[1][3] == TargetConfig()
    monkeypatch.setenv("TPU_NAME", "pod-7")
    assert doctor([], small_dataset)[1][3] == TargetConfig(tpu="pod-7", tpu_variables=(("TPU_NAME", "pod-7"),))


def test_the_default_split(small_dataset: Path, monkeypatch) -> None:
    manifest = load.load_manifest(str(small_dataset))
    train, validation = manifest.splits.values()
    monkeypatch.setattr(load, "load_manifest", lambda _: replace(manifest, splits={"only": train}))
    assert inputs.open_data(str(small_dataset), None)[1] == "only"
    monkeypatch.setattr(load, "load_manifest", lambda _: replace(manifest, splits={"a": train, "b": validation}))
    with pytest.raises(ConfigError, match=r"it has a, b\. Choose one with --split\."):
        inputs.open_data(str(small_dataset), None)


def test_a_real_run(small_dataset: Path, tfpipe: Tfpipe, monkeypatch) -> None:
    monkeypatch.delenv("TPU_NAME", raising=False)
    done = tfpipe("doctor", small_dataset, "--batch-size", 8, "--tpu", "my-tpu", "--num-replicas", 8, "--json").ok
    document = done.json
    checks = {check["name"]: check for check in document["checks"]}
    assert ([name for name, check in checks.items() if check["status"] == "failure"], document["ok"]) == ([], True)
    assert checks["xla"]["status"] == "ok"
    assert checks["tpu host"]["advice"] == "Run `tfpipe doctor` with --tpu local on each of its hosts too."
    assert "Traceback" not in done.err


HERE, LOCAL_TPU, REMOTE_TPU = TargetConfig(), TargetConfig(tpu="local"), TargetConfig(tpu="my-tpu")
PLAIN = {"tensorflow": "2.20.0", "keras": "3.10.0"}
FOR_TPU = {"tensorflow-tpu": "2.20.0", "libtpu": "0.0.21", "keras": "3.10.0"}


OTHER_SIDE = "It must be TensorFlow 2.20.0 on 'my-tpu' too, which cannot be seen from here."
PLAIN_FOUND = "TensorFlow 2.20.0, Keras 3.10.0"
TPU_FOUND = f"{PLAIN_FOUND}, libtpu 0.0.21"


@pytest.mark.parametrize(
    ("tensorflow", "installed", "target", "status", "found", "advice"),
    [
        ("2.20.0", PLAIN, HERE, "ok", PLAIN_FOUND, ""),
        ("2.18.0rc1", PLAIN, HERE, "ok", "TensorFlow 2.18.0rc1, Keras 3.10.0", ""),
        ("2.20.0", FOR_TPU, LOCAL_TPU, "ok", TPU_FOUND, ""),
        ("2.20.0", FOR_TPU, REMOTE_TPU, "ok", TPU_FOUND, OTHER_SIDE),
        ("2.20.0", PLAIN, REMOTE_TPU, "warning", f"{PLAIN_FOUND}, no libtpu on this machine", OTHER_SIDE),
        (
            *("2.20.0", {**FOR_TPU, "tensorflow": "2.21.0"}, HERE, "failure"),
            "tensorflow 2.21.0 and tensorflow-tpu 2.20.0 are both installed, each over files of the other",
            "pip uninstall -y tensorflow tensorflow-tpu; then install one: tensorflow-tpu for a TPU.",
        ),
        ("2.17.1", PLAIN, HERE, "failure", "TensorFlow must be 2.18 or newer, got 2.17.1", "Install a newer one."),
        (
            *("2.20.0", {**PLAIN, "keras": "2.15.0"}, HERE, "failure", "Keras must be 3 or newer, got 2.15.0"),
            "pip install -U keras.",
        ),
        (
            *("2.20.0", PLAIN, LOCAL_TPU, "failure", f"{PLAIN_FOUND}, but no libtpu, without which no TPU can be used"),
            "pip install tensorflow-tpu, which brings it, in place of tensorflow.",
        ),
        (
            *("2.20.0", {**PLAIN, "libtpu": "0.0.21"}, LOCAL_TPU, "warning"),
            f"{TPU_FOUND}, but a TensorFlow that may have no TPU in it",
            "If the TPU is not found, install tensorflow-tpu in place of tensorflow.",
        ),
    ],
)
def test_versions(tensorflow: str, installed: dict[str, str], target: TargetConfig, status, found, advice):
    assert check_versions(tensorflow, installed, target) == Check("versions", status, f"{found}.", advice)


CHIPS = ("/dev/accel0", "/dev/accel1", "/dev/accel2", "/dev/accel3")


@pytest.mark.parametrize(
    ("chips", "pids", "target", "status", "found", "advice"),
    [
        (CHIPS, (), {}, "ok", "4 chips, and no other process uses the TPU.", ""),
        (CHIPS, (), {"TPU_NAME": "local"}, "ok", "4 chips, and no other process uses the TPU.", ""),
        (
            *((), (), {}, "failure", "This machine has no TPU: /dev/accel* and /dev/vfio/* are not there."),
            "Run it on the TPU VM itself; on this machine the other checks still count.",
        ),
        (
            *(CHIPS, (17, 23), {}, "failure", "The TPU is in use by another process (17, 23)."),
            "End it first. Start one process on each host: it takes all chips.",
        ),
        (
            *(CHIPS, (), {"TPU_NAME": "pod-7"}, "warning"),
            "TPU_NAME is 'pod-7', so TensorFlow looks for a TPU on the network.",
            "Set it to local, or unset it, on the TPU VM itself.",
        ),
        (
            *(CHIPS, (), {"TPU_VISIBLE_CHIPS": "0"}, "warning"),
            "TPU_VISIBLE_CHIPS gives a process a part of the chips.",
            "Unset it: tfpipe starts one process on each host, which takes all chips.",
        ),
        (
            *(CHIPS, (), "pod-7", "ok", "The TPU 'pod-7' is on other machines, which this one cannot see."),
            "Run `tfpipe doctor` with `tpu` local on each of its hosts too.",
        ),
    ],
)
def test_the_host(chips, pids, target, status: str, found: str, advice: str) -> None:
    """The target is the name of a TPU, or the environment of one that is local."""
    named = target if isinstance(target, str) else "local"
    variables = () if isinstance(target, str) else tuple(target.items())
    config = TargetConfig(tpu=named, tpu_variables=variables)
    assert check_tpu_host(chips, pids, config) == Check("tpu host", status, found, advice)


def test_a_tpu_with_a_name_is_elsewhere() -> None:
    here = (None, "local", "grpc://localhost:8470", "127.0.0.1", "[::1]:8470")
    assert [tpu for tpu in here if TargetConfig(tpu=tpu).tpu_elsewhere] == []
    named = ("my-tpu", "localhost-of-mine", "grpc://10.0.0.2:8470")
    assert [tpu for tpu in named if TargetConfig(tpu=tpu).tpu_elsewhere] == [*named]


def test_an_error_is_what_was_found_and_what_to_do() -> None:
    error = ConfigError("`num_hosts` must be 8, got 2.5 (v1.2). Use num_hosts=8. Or not.")
    assert fail_check("batch", error) == Check(
        "batch", "failure", "`num_hosts` must be 8, got 2.5 (v1.2).", "Use num_hosts=8. Or not."
    )
    assert fail_check("batch", ConfigError("Bad.")) == Check("batch", "failure", "Bad.")
