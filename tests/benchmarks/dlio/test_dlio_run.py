"""What the outside judge makes of DLIO's results; DLIO itself needs an environment of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.dlio.dlio_run import (
    H100_STEP_S,
    SHORTEST,
    Dlio,
    DlioError,
    Search,
    Training,
    get_step_s,
    read_training,
)
from tests.benchmarks.dlio.judge import format_table

SUMMARY = {
    "num_accelerators": 1,
    "epochs": 3,
    "metric": {
        "train_au_percentage": [89.0, 91.0, 93.0],
        "train_au_mean_percentage": 91.0,
        "train_au_meet_expectation": "success",
        "train_throughput_samples_per_second": [9000.0, 16000.0, 18000.0],
    },
}


def test_a_summary_gives_utilization_and_the_rate_after_the_first_epoch() -> None:
    training = read_training(json.dumps(SUMMARY), 12.5, 0.25)
    assert training == Training(utilization=0.91, is_fed=True, samples_per_s=17000.0, cpu_s=12.5, others=0.25)
    metric = SUMMARY["metric"] | {"train_au_meet_expectation": "fail", "train_throughput_samples_per_second": [5.0]}
    training = read_training(json.dumps({"metric": metric}), 1, 0)
    assert (training.is_fed, training.samples_per_s) == (False, 5.0)


def test_a_summary_without_a_training_is_refused() -> None:
    with pytest.raises(DlioError) as caught:
        read_training('{"metric": {}}', 1, 0)
    expected = "DLIO's summary.json must name `train_au_mean_percentage`, as that of dlio-benchmark 2.0.0 does."
    assert str(caught.value) == expected


@pytest.mark.parametrize("shortest", [-1, 0, 1, 23, SHORTEST])
def test_a_search_finds_the_shortest_step(shortest: int) -> None:
    tried: list[int] = []
    search = Search(lambda number: tried.append(number) or number <= shortest)
    while not search.is_done:
        search.go_on()
    assert search.fed == shortest
    assert len(tried) == len(set(tried)) <= 7


def test_eight_numbers_halve_a_step() -> None:
    assert get_step_s(0) == H100_STEP_S
    assert get_step_s(8) == pytest.approx(H100_STEP_S / 2)
    assert get_step_s(SHORTEST) == pytest.approx(H100_STEP_S / 256)


def test_the_table_has_medians_and_ratios() -> None:
    def make_round(own_s: float, our_s: float) -> dict:
        return {
            "DLIO": {
                "step_s": own_s,
                "samples_per_s": 400 / own_s,
                "samples_per_cpu_s": 10_000.0,
                "runs": [{"others": 0.5}],
            },
            "tfpipe": {
                "step_s": our_s,
                "samples_per_s": 400 / our_s,
                "samples_per_cpu_s": 25_000.0,
                "runs": [{"others": 0.1}, {"others": 0.5}],
            },
        }

    table = format_table([make_round(0.03, 0.012), make_round(0.02, 0.01), make_round(0.04, 0.014)])
    lines = [" ".join(line.split()) for line in table.splitlines()]
    assert lines[1] == "DLIO 30.0 ms (20.0-40.0) 7.5 13,333 (10,000-20,000) 10,000 (10,000-10,000)"
    assert lines[2] == "tfpipe 12.0 ms (10.0-14.0) 18.7 33,333 (28,571-40,000) 25,000 (25,000-25,000)"
    assert lines[3] == (
        "tfpipe feeds 2.50 times as many accelerators, reads 2.50 times as many samples a second, and 2.50 times as "
        "many a CPU-second."
    )
    assert lines[4] == (
        "Batches of 400; medians of 3 rounds (ranges). Other processes took 50% of the cores in the median run. "
        "A comparison, not a submission."
    )


def test_a_missing_environment_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(DlioError) as caught:
        Dlio(str(tmp_path / "python"), tmp_path, 1).read_versions()
    assert str(caught.value) == (
        f"{tmp_path}/python cannot be started: No such file or directory. Make DLIO's environment as README.md says."
    )
    judge = Path(__file__).with_name("judge.py")
    without = tmp_path / "without"
    without.write_text("#!/bin/sh\necho 'ModuleNotFoundError: No module named dlio_benchmark' >&2\nexit 1\n")
    without.chmod(0o755)
    command = [sys.executable, str(judge), "--python", str(without), "--data", str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        1,
        f"Error: {without} must be able to load DLIO, and tfpipe (ModuleNotFoundError: No module named "
        "dlio_benchmark): install dlio-benchmark 2.0.0 with --no-deps, then pydftracer 1.0.2, mpi4py 4.1.2, "
        "mpich 5.0.2, tensorflow-cpu 2.21.0, hydra-core 1.3.8, pandas, psutil, h5py, and this checkout.\n",
    )


def test_files_of_another_number_are_refused(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "img_0_of_3.tfrecord").write_bytes(b"")
    with pytest.raises(DlioError) as caught:
        Dlio("python", tmp_path, 24).generate()
    assert str(caught.value) == f"{tmp_path} must have 24 files of DLIO's, got 1. Delete it, or name another."
