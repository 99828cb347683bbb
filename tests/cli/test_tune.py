"""`tfpipe tune` as a user runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PATH_OF_REPOSITORY
from tfpipe.engine.config import toml_json
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.config.tf_data_options import TfDataOptions
from tfpipe.profiler.measure.simulated_accelerator import Accelerator
from tfpipe.tuning import tuned_file
from tfpipe.tuning.paired_benchmark import Interval
from tfpipe.tuning.search import Tuned
from tfpipe.tuning.trials import PipelineJob, Trial

CONFIG = PipelineConfig(batch_size=64)
FASTER = PipelineConfig(batch_size=64, tf_data=TfDataOptions(cycle_length=16))
NOTHING = Interval(1.0, 1.0, 1.0)
GAIN = Interval(1.5, 1.4, 1.6)
TRIALS = (
    Trial({"tf_data.cycle_length": 16}, 1500.0, GAIN, True),
    Trial({"tf_data.num_parallel_calls": None}, 1490.0, Interval(0.99, 0.97, 1.01), False),
    Trial({"cache": "bytes"}, None, None, False, "The cache takes about 200 s to fill, and 20 s are left for it."),
)
FOUND = Tuned(FASTER, 1000.0, 1500.0, GAIN, TRIALS, 58.3, False)


@pytest.fixture
def tune(monkeypatch: pytest.MonkeyPatch, tfpipe, tmp_path: Path):
    """Runs the command in this process, in a folder of its own, with a search that is over at once.

    Returns code, output, errors and what was searched.
    """
    from tfpipe.tuning import search

    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # the command changes it
    monkeypatch.chdir(tmp_path)

    def call(found: Tuned | BaseException, *args: object) -> tuple[int, str, str, tuple[Any, ...]]:
        asked: list[tuple[Any, ...]] = []

        def answer(*arguments: Any) -> Tuned:
            asked.append(arguments)
            if isinstance(found, BaseException):
                raise found
            return found

        monkeypatch.setattr(search, "tune", answer)
        return *tfpipe("tune", *args), asked[0] if asked else ()

    return call


def test_the_report_and_the_file(tune, small_dataset: Path, tmp_path: Path) -> None:
    code, out, err, (job, config, seconds, may_change, _) = tune(FOUND, small_dataset, "--output", "a.toml")
    assert (code, err) == (0, "")
    assert [line.rstrip() for line in out.splitlines()] == [
        "           images/s  gain (97 %)            change",
        "kept          1,500  x 1.50 (1.40 to 1.60)  tf_data.cycle_length = 16",
        "no gain       1,490  x 0.99 (0.97 to 1.01)  tf_data.num_parallel_calls = auto",
        "not tried                                   cache = 'bytes'",
        "                                            The cache takes about 200 s to fill, and 20 s are left",
        "                                            for it.",
        "",
        "1,000 -> 1,500 images/s, x 1.50 (1.40 to 1.60), in 58 s.",
        "There is more to try: give more --seconds, or run it again.",
        'Written to a.toml. Load it with PipelineConfig.from_file("a.toml").',
    ]
    assert PipelineConfig.from_file("a.toml") == FASTER
    noted = toml_json.read_with_notes("a.toml")[1]
    assert (noted["images_per_second"], noted["gain"]["ratio"]) == (1500.0, 1.5)
    assert (job.split, job.accelerator) == ("train", Accelerator(1e-9, 128))
    assert (config, seconds, may_change) == (PipelineConfig(batch_size=128), 120.0, False)


def test_the_options_reach_the_search(tune, small_dataset: Path) -> None:
    CONFIG.to_file("begin.json")
    args = ("--config", "begin.json", "--seconds", 40, "--images-per-second", 3200, "--input-may-change")
    _, _, _, (job, config, seconds, may_change, _) = tune(FOUND, small_dataset, *args, "--split", "validation")
    assert job == PipelineJob(job.data, "validation", Accelerator(0.02, 64))
    assert (config, seconds, may_change) == (CONFIG, 40.0, True)


def test_json(tune, small_dataset: Path) -> None:
    code, out, _, _ = tune(FOUND, small_dataset, "--json")
    document = json.loads(out)
    assert (code, document["version"], document["finished"]) == (0, 1, False)
    assert document["changes"] == {"batch_size": 64, "tf_data.cycle_length": 16}
    assert document["path"].endswith(f"-{tuned_file.get_place(*_data(small_dataset)).key}.toml")
    assert PipelineConfig.from_file(document["path"]) == FASTER


def _data(folder: Path) -> tuple[Any, str]:
    from tfpipe.dataset.load import load_manifest

    return load_manifest(str(folder)), "train"


def test_a_second_run_goes_on_from_the_first(tune, small_dataset: Path) -> None:
    path = json.loads(tune(FOUND, small_dataset, "--json")[1])["path"]
    _, _, err, (_, config, *_) = tune(FOUND, small_dataset)
    assert (err, config) == (f"Starting from the options in {path}.\n", FASTER)
    _, _, err, (_, config, *_) = tune(FOUND, small_dataset, "--batch-size", 32)
    assert config == PipelineConfig(batch_size=32, tf_data=TfDataOptions(cycle_length=16))
    CONFIG.to_file("begin.toml")
    _, _, err, (_, config, *_) = tune(FOUND, small_dataset, "--config", "begin.toml")
    assert (err, config) == ("", CONFIG)


def test_what_is_said_where_nothing_helps(tune, small_dataset: Path) -> None:
    _, out, _, _ = tune(Tuned(CONFIG, 1000.0, 1000.0, NOTHING, (), 40.0, True), small_dataset)
    assert out.splitlines()[0] == "No change was faster than the first options: 1,000 images/s."
    _, out, _, _ = tune(
        Tuned(CONFIG, 995.0, 995.0, NOTHING, (), 9.0, True), small_dataset, "--images-per-second", "1000"
    )
    assert out.splitlines()[0] == "The pipeline already delivers the 1,000 images/s that the accelerator consumes."


def test_interrupted(tune, small_dataset: Path, tmp_path: Path) -> None:
    code, out, err, _ = tune(KeyboardInterrupt(), small_dataset)
    assert (code, out, err.strip()) == (130, "", "Interrupted. Nothing was written.")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--seconds", 0), "--seconds must be above 0, got 0."),
        (("--images-per-second", -1), "--images-per-second must be above 0, got -1."),
        (("--output", "a.yaml"), "The file for the options must end in .toml or .json, got 'a.yaml'."),
        (("--output", "none/a.toml"), "none/a.toml cannot be written: the folder"),
        (("--split", "test"), "The dataset has no split 'test'; it has train, validation. Choose one with --split."),
    ],
)
def test_mistakes(tune, small_dataset: Path, args: tuple[object, ...], message: str) -> None:
    code, out, err, asked = tune(FOUND, small_dataset, *args)
    assert (code, out, asked) == (2, "", ())
    assert err.startswith(f"Error: {message}")
    assert len(err.splitlines()) == 1


# The search itself, on pipelines of numbers, whose processes need not load TensorFlow.
SEARCH_WITH_NUMBERS = """
import itertools

def make_numbers(*_):
    return itertools.repeat(0)

if __name__ == "__main__":
    from tfpipe.cli import tune
    from tfpipe.cli.main import main

    open_job = tune.open_job

    def open_job_with_numbers(*args):
        job = open_job(*args)
        from tfpipe.tuning import trials

        trials.build_endless_dataset = make_numbers
        return job

    tune.open_job = open_job_with_numbers
    main()
"""


def start(
    folder: Path, dataset: Path, *args: object, program: tuple[str, ...] = ("-m", "tfpipe")
) -> subprocess.Popen[str]:
    command = [sys.executable, *program, "tune", dataset, "--batch-size", 4, *args]
    env = {**os.environ, "PYTHONPATH": PATH_OF_REPOSITORY, "COLUMNS": "100"}
    return subprocess.Popen(
        [str(part) for part in command],
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def in_session(session: int) -> list[str]:
    """States of the processes of a session: its leader's, and T of a halted one."""
    states = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            states.append(fields[0])
    return states


def check_nobody_is_left(session: int) -> None:
    until = time.monotonic() + 10
    while in_session(session):  # a process that was killed takes a moment to give back its memory
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
@pytest.mark.parametrize("pipelines", ["numbers", pytest.param("images", marks=pytest.mark.slow)])
def test_ctrl_c_leaves_nobody_behind(small_dataset: Path, tmp_path: Path, pipelines: str) -> None:
    """While a pipeline is halted, and the next one starts or the profiler runs."""
    script, folder = tmp_path / "search.py", tmp_path / "empty"
    script.write_text(SEARCH_WITH_NUMBERS)
    folder.mkdir()
    running = start(folder, small_dataset, program=(str(script),) if pipelines == "numbers" else ("-m", "tfpipe"))
    until = time.monotonic() + 60
    while "T" not in in_session(running.pid):
        assert time.monotonic() < until
        assert running.poll() is None
        time.sleep(0.05)
    os.killpg(running.pid, signal.SIGINT)  # as the terminal does
    out, err = running.communicate(timeout=30)
    assert (running.returncode, out, err.strip()) == (130, "", "Interrupted. Nothing was written.")
    check_nobody_is_left(running.pid)
    assert list(folder.iterdir()) == []


@pytest.mark.slow
def test_a_real_search(small_dataset: Path, tmp_path: Path) -> None:
    one_call = TfDataOptions(num_parallel_calls=1)
    config = PipelineConfig(batch_size=4, image_size=16, order="throughput", tf_data=one_call)
    config.to_file(tmp_path / "begin.toml")
    args = ("--config", "begin.toml", "--seconds", 60, "--output", "a.json", "--json")
    running = start(tmp_path, small_dataset, *args)
    out, err = running.communicate(timeout=150)
    assert (running.returncode, err) == (0, "")
    document = json.loads(out)
    assert document["seconds"] < 66
    assert document["trials"]
    assert PipelineConfig.from_file(tmp_path / "a.json").image_size == 16
    check_nobody_is_left(running.pid)
