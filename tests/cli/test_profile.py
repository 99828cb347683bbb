"""`tfpipe profile` as a user runs it, and `--stages`, which `tfpipe doctor` takes too."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.beam_jobs.commands import run_python
from tests.conftest import PATH_OF_REPOSITORY, DrawImages, Tfpipe
from tests.profiler.profiles import make_profile
from tfpipe.engine.config import toml_json
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.errors import DataError
from tfpipe.format.example import encode_example
from tfpipe.format.tfrecord import record_footer, record_header
from tfpipe.system.options import get_value

OPTIONS = ("--step-ms", "2", "--batch-size", "4", "--seconds", "0.5")


def test_the_page_is_written_and_its_path_printed(small_dataset: Path, tmp_path: Path, tfpipe, monkeypatch) -> None:
    page = tmp_path / "report.html"
    monkeypatch.setattr("tfpipe.profiler.report.text_json.to_json", lambda report: {"is there before": page.exists()})
    done = tfpipe("profile", small_dataset, *OPTIONS, "--json", "--html", page, "--max-idle", "100%")
    assert (done.code, done.lines, done.err.splitlines()[-1]) == (0, [done.out.rstrip()], f"Wrote {page}.")
    assert done.json == {"is there before": True}
    html = page.read_text(encoding="utf-8")
    assert html.startswith("<!doctype html>")
    assert html.endswith("</html>")
    assert 'id="timeline"' in html
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_the_command_prints_json_and_fails_above_max_idle(small_dataset: Path, tfpipe: Tfpipe, monkeypatch) -> None:
    for name in ("jinja2", "tfpipe.profiler.report.html"):  # loading them would fail
        monkeypatch.setitem(sys.modules, name, None)
    options = ("--batch-size", 4, "--step-ms", 1, "--seconds", 0.5, "--json", "--max-idle", "0.1%")
    done = tfpipe("profile", small_dataset, *options)
    document = done.json
    assert (document["version"], document["required_images_per_second"]) == (6, pytest.approx(4000))
    assert {"read", "parse", "decode", "batch"} <= {stage["name"] for stage in document["stages"]}
    assert document["idle_fraction"] > 0.001  # 4,000 images/s, on two cores that run other tests too
    idle = f"{document['idle_fraction']:.1%}"
    assert (done.code, done.err.splitlines()[-1]) == (1, f"The accelerator is idle for {idle}, more than 0.1%.")


def test_an_image_that_cannot_be_decoded_ends_the_command(tmp_path: Path, tfpipe: Tfpipe) -> None:
    payload = encode_example({"image/encoded": [b"\xff\xd8\xff no more"], "image/class/label": [1]})
    (tmp_path / "train-00000").write_bytes(8 * (record_header(len(payload)) + payload + record_footer(payload)))
    done = tfpipe("profile", tmp_path / "train-*", "--step-ms", 5, "--batch-size", 4)
    # TensorFlow's own threads write too, and may do so last.
    (said,) = [line for line in done.err.splitlines() if line.startswith("Error: ")]
    assert said.startswith("Error: The pipeline failed: ")
    assert said.endswith(" If it is a record or an image, `tfpipe verify` names it.")
    assert (done.code, done.out) == (1, "")


SHORT_RUN = ("--step-ms", 1, "--seconds", 0.5, "--json")


@pytest.fixture
def begin(tmp_path: Path) -> PipelineConfig:
    (tmp_path / "begin.toml").write_text("batch_size = 4\nimage_dtype = 'float32'\nas_supervised = true\n")
    return PipelineConfig.from_file(tmp_path / "begin.toml")


def test_the_options_that_help_are_written(small_dataset, tmp_path, tfpipe, begin: PipelineConfig, monkeypatch):
    def measure(_data: Any, _split: Any, config: PipelineConfig, *_: Any) -> tuple[float, float]:
        if config.cache != "none":
            raise DataError("There is no memory.")
        return (1000.0 if config == begin else 1500.0), 0.0

    monkeypatch.setattr("tfpipe.profiler.measure.profile.measure_rate", measure)
    costs = {"uint8": 3500.0, "device": 2000.0}  # what a real profile proposes depends on the other tests
    known = make_profile(config=begin, dataset={"records": 1000}, option_costs=costs)
    monkeypatch.setattr("tfpipe.profiler.measure.profile.profile_pipeline", lambda *_: known)
    path = tmp_path / "a.toml"
    done = tfpipe("profile", small_dataset, "--config", tmp_path / "begin.toml", *SHORT_RUN, "--apply", path).ok
    kept = [fix for fix in done.json["fixes"] if fix["kept"]]
    assert kept[0]["measured_gain"] == {"median": 1.5, "low": 1.5, "high": 1.5}
    assert done.json["after_images_per_second"] == 1500
    best = PipelineConfig.from_file(path)
    assert best != begin
    for name, value in kept[0]["changes"].items():
        assert get_value(best, name) == value
    options, notes = toml_json.read_with_notes(path)
    changed = {name.partition(".")[0] for fix in kept for name in fix["changes"]}
    assert set(options) == {"batch_size", "image_dtype", "as_supervised", *changed}
    assert options["as_supervised"] is True
    assert (notes["split"], notes["images_per_second"]) == ("train", 1500)
    assert done.err.splitlines()[-1] == f"Wrote {path}."
    assert re.search("^Not tried: cache = .* There is no memory.$", done.err, re.MULTILINE)
    before = (tmp_path / "begin.toml").read_text()  # which something else wrote, so it stays
    done = tfpipe("profile", small_dataset, *SHORT_RUN, "--apply", tmp_path / "begin.toml")
    assert (done.code, (tmp_path / "begin.toml").read_text()) == (2, before)
    assert "begin.toml is there already and `tfpipe profile --apply` did not write it. Move it away" in done.err


@pytest.mark.slow
def test_real_turns(small_dataset: Path, tmp_path: Path, tfpipe: Tfpipe, begin: PipelineConfig) -> None:
    path = tmp_path / "a.json"
    done = tfpipe("profile", small_dataset, "--config", tmp_path / "begin.toml", *SHORT_RUN, "--apply", path)
    assert (done.code, done.err) == (0, f"Wrote {path}.\n")
    tried = [fix for fix in done.json["fixes"] if fix["kept"] is not None]
    assert tried
    assert all(fix["measured_images_per_second"] > 0 for fix in tried)
    kept = {name for fix in tried if fix["kept"] for name in fix["changes"]}
    assert (PipelineConfig.from_file(path) != begin) == bool(kept)


def test_without_a_step_the_rate_is_told(small_dataset: Path, tfpipe: Tfpipe, monkeypatch) -> None:
    monkeypatch.setattr("tfpipe.profiler.measure.clocks._read_machine_s", lambda: None)  # other tests run
    done = tfpipe("profile", small_dataset, "--batch-size", 4, "--image-size", 16, "--seconds", 0.3).ok
    assert re.fullmatch(r"\S.* limits? this pipeline: [\d,]+ images/s\.", done.lines[0])
    assert re.search(r"^This pipeline gives [\d,]+ images/s; this host's cores allow [\d,]+", done.out, re.MULTILINE)
    assert re.search(r"^decode +[\d,]+ +\d+%", done.out, re.MULTILINE)
    assert "idle" not in done.out


LOADER = """
import glob, os, time
import numpy as np
from PIL import Image
from torch.utils.data import DataLoader

FILES = sorted(glob.glob(os.path.join(os.path.dirname(__file__), "images/train/*/*")))
FILES = [file for file in FILES if "broken" not in file]

class Photos:
    def __len__(self):
        return 500

    def __getitem__(self, number):
        time.sleep(0.002)
        with Image.open(FILES[number % len(FILES)]) as image:
            return np.asarray(image.convert("RGB").resize((32, 24)))

def make():
    return DataLoader(Photos(), batch_size=4)

def step(batch):
    time.sleep(0.001)
"""


@pytest.fixture
def folder(tmp_path: Path, draw_images: DrawImages, monkeypatch) -> Path:
    draw_images(tmp_path / "images")
    (tmp_path / "own_loader.py").write_text(LOADER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own_loader", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.needs("torch")
def test_a_report_in_text_and_a_share_of_idle_time_that_is_too_large(folder: Path, tfpipe: Tfpipe) -> None:
    """An image waits far longer than a busy machine keeps a thread waiting."""
    (folder / "own_loader.py").write_text(LOADER.replace("0.002", "0.1"))
    done = tfpipe("profile", "--loader", "own_loader:make", "--step-ms", "5", "--seconds", "1").ok
    first = done.lines[done.lines[0].startswith("Busy neighbors: ")]  # other tests
    assert first.startswith("Bottleneck: too few workers (own_loader.py:")
    assert "The accelerator needs 800 images/s, and this pipeline gives " in done.out
    assert "1. num_workers=" in done.out
    line = ["profile", "--loader", "own_loader:make", "--step-ms", "1", "--seconds", "1", "--json", "--max-idle"]
    done = tfpipe(*line, "5")
    idle = f"{done.json['idle_fraction']:.1%}"
    assert (done.code, done.err.splitlines()[-1]) == (1, f"The accelerator is idle for {idle}, more than 5.0%.")


@pytest.mark.needs("torch")
def test_the_options_that_were_kept(folder: Path, tfpipe: Tfpipe, monkeypatch) -> None:
    monkeypatch.setattr("tfpipe.profiler.trials.ROUNDS", 1)
    line = ["profile", "--loader", "own_loader:make", "--train", "own_loader:step", "--seconds", "0.4", "--json"]
    done = tfpipe(*line, "--apply", folder / "kept.json")
    assert (done.code, done.err.splitlines()[-1]) == (0, f"Wrote {folder / 'kept.json'}.")
    report = done.json
    assert (report["version"], report["loader"], report["method"]) == (6, "PyTorch DataLoader", "train")
    kept = {name: value for fix in report["fixes"] if fix["kept"] for name, value in fix["changes"].items()}
    assert json.loads((folder / "kept.json").read_text()) == kept
    assert report["fixes"][0]["measured_gain"] is not None


def test_options_of_a_loader_go_to_a_new_file_and_only_if_a_fix_helps(tmp_path: Path, tfpipe: Tfpipe, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("quick.py").write_text("make = [[1, 2]] * 9")
    Path("mine.toml").write_text("batch_size = 4")
    line = ["profile", "--loader", "quick.py:make", "--step-ms", "20", "--seconds", "0.1"]
    refused = tfpipe(*line, "--apply", "mine.toml")
    assert refused.err == "Error: mine.toml is there already. Move it away, or name another file.\n"
    assert (refused.code, Path("mine.toml").read_text()) == (2, "batch_size = 4")
    monkeypatch.setattr("tfpipe.profiler.diagnose.diagnosis.list_loader_fixes", lambda *_: ())
    done = tfpipe(*line, "--apply", "a.toml").ok
    assert done.err.splitlines()[-1] == "No fix helped: a.toml is not written."
    assert not Path("a.toml").exists()


# The stage leaves a file for each value that comes out of it, so that a test sees which pixels a process made.
STAGES = """
import os, sys
import numpy as np
import tensorflow as tf
from tfpipe.pipeline.stage import Stage, Stages

def blacken(stages):
    def apply(dataset):
        def change(image):
            open(f"pixels-{os.getpid()}-0", "w").close()
            return np.zeros_like(image)

        def change_example(example):
            image = tf.numpy_function(change, [example["image"]], example["image"].dtype)
            return {**example, "image": tf.ensure_shape(image, example["image"].shape)}

        return dataset.map(change_example)

    return Stages((*stages, Stage("blacken", apply)), stages.options)

def miss(stages):
    return stages.insert_after("augment", *stages[-1:])

def raise_error(stages):
    def apply(dataset):
        return dataset.map(lambda example: {**example, "image": tf.reshape(example["image"], [7])})

    return Stages((*stages, Stage("broken", apply)), stages.options)
"""


@pytest.fixture
def run(tfpipe: Tfpipe, tmp_path: Path, monkeypatch) -> Iterator[Tfpipe]:
    """Runs a command in this process, in a folder with the module of the stages."""
    (tmp_path / "user_stages.py").write_text(STAGES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tfpipe
    sys.modules.pop("user_stages", None)


def test_doctor_checks_the_changed_pipeline(small_dataset: Path, tmp_path: Path, run: Tfpipe) -> None:
    assert run("doctor", small_dataset, "--batch-size", 4, "--stages", "user_stages:blacken", "--json").ok
    assert len(list(tmp_path.glob("pixels-*-0"))) == 1  # processes
    broken = run("doctor", small_dataset, "--batch-size", 4, "--stages", "user_stages:raise_error")
    assert broken.code == 1
    assert "failure  shapes        The pipeline failed: " in broken.out
    assert "Not ready: " in broken.out


def test_errors_of_the_users_stages_are_sentences(small_dataset: Path, run: Tfpipe) -> None:
    options = ("profile", small_dataset, "--step-ms", 5)
    done = run(*options, "--batch-size", 4, "--stages", "user_stages:raise_error")
    assert done.code == 1
    assert "Error: The pipeline failed: " in done.err
    assert "Cannot reshape a tensor" in done.err
    assert "Traceback" not in done.err
    Path("exact.toml").write_text("order = 'exact'\nbatch_size = 4\n")
    done = run(*options, "--config", "exact.toml", "--stages", "user_stages:miss")
    assert done.code == 2
    assert "This pipeline has no stage 'augment'; it has list, read, decode, batch, prefetch. With " in done.err


def test_errors_of_the_users_functions_are_sentences(small_dataset, tmp_path, tfpipe, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own_functions.py").write_text("def one(image):\n    return image\n\ndef bad(batch):\n    return batch['x']\n")
    for option, name, message in (
        ("--transform", "one", "TypeError: one() takes 1 positional argument but 2 were given"),
        ("--batch-transform", "bad", "KeyError: 'x'"),
    ):
        done = tfpipe("profile", small_dataset, *OPTIONS, option, f"own_functions.py:{name}")
        assert (done.code, done.err.splitlines()[-1]) == (
            2,
            f"Error: {option}: own_functions.py:{name} raises {message}",
        )


@pytest.mark.slow
def test_a_profile_of_the_users_stages_prints_nothing_but_the_report(small_dataset: Path, tmp_path: Path) -> None:
    """The user's module loads TensorFlow, whose libraries log as they start."""
    options = ("--step-ms", 5, "--batch-size", 4, "--seconds", 0.5, "--stages", "user_stages:blacken", "--json")
    (tmp_path / "user_stages.py").write_text(STAGES)
    environment = {"PYTHONPATH": PATH_OF_REPOSITORY, "CUDA_VISIBLE_DEVICES": ""}
    done = run_python("-m", "tfpipe", "profile", small_dataset, *options, cwd=tmp_path, **environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["dataset"]["own_stages"] == ["blacken"]
