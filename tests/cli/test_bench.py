"""`tfpipe bench` as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tfpipe as library
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.tuning.bench import Bench, to_json
from tfpipe.tuning.paired_benchmark import Interval
from tfpipe.tuning.tuned_file import Place

PLACE = Place("Any CPU", 8, 2**34, "'train' of pets", "train", 12, "0123abcd")
CONFIG = asdict(PipelineConfig(batch_size=128))
BASE = Bench(Interval(1000.0, 980.0, 1020.0), 510.0, (0.5, 0.505, 0.495, 0.5, 0.5), 2000.0, PLACE, CONFIG)
SLOWER = replace(BASE, scores=(0.4, 0.41, 0.39, 0.4, 0.4))


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tfpipe, tmp_path: Path):
    """Runs the command in this process with a measurement that is over at once; returns code, output and errors."""
    from tfpipe.tuning import bench as benches

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # the command changes it
    monkeypatch.chdir(tmp_path)
    Path("base.json").write_text(json.dumps(to_json(BASE)))

    def call(found: Bench | BaseException, *args: object) -> tuple[int, str, str]:
        def answer(*_: Any) -> Bench:
            if isinstance(found, BaseException):
                raise found
            return found

        monkeypatch.setattr(benches, "measure", answer)
        return tfpipe("bench", *args, "--batch-size", 4)  # the data are small

    return call


def test_the_report(bench, small_dataset: Path) -> None:
    code, out, err = bench(BASE, small_dataset, "--output", "new.json")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "1,000 images/s (980 to 1,020 with 95 % confidence), 510 images per CPU-second",
        "0.500 times the yardstick (0.496 to 0.504), which decoded 2,000 images/s in turns with it",
    ]
    assert json.loads(Path("new.json").read_text()) == json.loads(Path("base.json").read_text())


def test_records_without_images_are_called_records(bench, tmp_path: Path) -> None:
    rows = [{"x": np.float32([number])} for number in range(4)]
    library.write(rows, tmp_path / "latents", {"x": library.Tensor("float32", (1,))}, num_shards=1, workers=0)
    assert bench(BASE, tmp_path / "latents")[1].splitlines()[0] == (
        "1,000 records/s (980 to 1,020 with 95 % confidence), 510 records per CPU-second"
    )


def test_a_log_says_which_run_it_is(monkeypatch: pytest.MonkeyPatch, tfpipe, small_dataset: Path) -> None:
    from tfpipe.tuning import bench as benches

    def answer(job: Any, config: Any, runs: int, observer: Any) -> Bench:
        observer.phase(f"Run 1 of {runs}")
        return BASE

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # the command changes it
    monkeypatch.setattr(benches, "measure", answer)
    assert tfpipe("bench", small_dataset, "--runs", 3, "--batch-size", 4)[2] == "Run 1 of 3\n"


def test_a_pipeline_that_became_slower_fails_the_build(bench, small_dataset: Path) -> None:
    code, out, err = bench(SLOWER, small_dataset, "--compare", "base.json", "--fail-below", 0.9)
    assert (code, err) == (1, "The rate is below 0.9 times the earlier one, even at the upper bound of the interval.\n")
    assert out.splitlines()[2] == "0.800 times the earlier result (0.783 to 0.818), relative to the yardstick"
    assert bench(SLOWER, small_dataset, "--compare", "base.json", "--fail-below", 0.8)[0] == 0
    assert bench(BASE, small_dataset, "--compare", "base.json", "--fail-below", 0.9)[0] == 0
    assert bench(SLOWER, small_dataset, "--compare", "base.json")[0] == 0


def test_what_else_differs_is_said(bench, small_dataset: Path) -> None:
    config = {**CONFIG, "tf_data": {**CONFIG["tf_data"], "cycle_length": 4}}
    other = replace(BASE, place=replace(PLACE, cores=4, fingerprint="f"), config=config)
    _, out, _ = bench(other, small_dataset, "--compare", "base.json")
    assert out.splitlines()[3:] == [
        "The earlier result is from another machine: compare only the rates relative to the yardstick.",
        "The earlier result is from other data.",
        "Options that differ: tf_data.cycle_length: None -> 4",
    ]


def test_json(bench, small_dataset: Path) -> None:
    document = json.loads(bench(SLOWER, small_dataset, "--compare", "base.json", "--json")[1])
    assert (document["version"], document["scores"][0]) == (1, 0.4)
    assert document["comparison"]["ratio"]["ratio"] == pytest.approx(0.8, abs=1e-3)


def test_interrupted(bench, small_dataset: Path) -> None:
    code, out, err = bench(KeyboardInterrupt(), small_dataset, "--output", "new.json")
    assert (code, out, err.strip()) == (130, "", "Interrupted. Nothing was written.")
    assert not Path("new.json").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--fail-below", 0.9), "--fail-below needs a result to compare with. Give --compare FILE."),
        (("--compare", "base.json", "--fail-below", 0), "--fail-below must be above 0, got 0."),
        (("--compare", "none.json"), "none.json cannot be read: No such file or directory. Give a file that --output"),
        (("--output", "none/a.json"), "none/a.json cannot be written: the folder"),
    ],
)
def test_mistakes(bench, small_dataset: Path, args: tuple[object, ...], message: str) -> None:
    code, out, err = bench(BASE, small_dataset, *args)
    assert (code, out) == (2, "")
    assert err.startswith(f"Error: {message}")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            "tf_data.num_parallel_calls = 1",
            "`tf_data` is for the textbook pipeline, and batches are made by their steps here, got num_parallel_calls. "
            "Leave it out, or set order='throughput'.",
        ),
        (
            "cache = 'decoded'\ncache_dir = 'cache'\ndecoded_size = [16, 20]",
            "A decoded cache in files needs a square `decoded_size`, got 16 x 20: manifests know raw images as squares "
            "only. Set `decoded_size` to 20, or leave `cache_dir` out.",
        ),
    ],
)
def test_wrong_options_are_refused_before_anything_is_measured(
    bench, small_dataset: Path, options: str, message: str
) -> None:
    Path("options.toml").write_text(options)
    code, out, err = bench(AssertionError("It was measured."), small_dataset, "--config", "options.toml")
    assert (code, out) == (2, "")
    assert err == f"Error: {message}\n"
    assert not Path("cache").exists()


@pytest.mark.slow
def test_a_real_bench_against_itself(small_dataset: Path, tmp_path: Path) -> None:

    root = Path(__file__).resolve().parents[2]
    base = [sys.executable, "-m", "tfpipe", "bench", str(small_dataset), "--batch-size", "4", "--runs", "3"]
    for more in (
        ["--output", str(tmp_path / "a.json")],
        ["--compare", str(tmp_path / "a.json"), "--fail-below", "0.8"],
    ):
        done = subprocess.run([*base, *more], cwd=root, capture_output=True, text=True, timeout=200, check=False)
        phases = ["Starting the yardstick", "Run 1 of 3", "Run 2 of 3", "Run 3 of 3"]
        assert (done.returncode, [line.split(",")[0] for line in done.stderr.splitlines()]) == (0, phases)
    assert "times the earlier result" in done.stdout
