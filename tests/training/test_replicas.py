"""One replica, four, and two processes: the same losses, and each image of an evaluation counted once.

`tests/distribution/test_replicas.py` checks the order of the records. Here the loss of each step is compared, which
other batches would not give. Replicas add up their gradients in another order, so the losses agree to about 1e-6 at
first, and must agree to 1e-3 after two epochs.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

SCRIPT = str(Path(__file__).with_name("trainer.py"))


def run(processes: Any, colors: Path, output: Path, cpus: int, model: str = "small_cnn") -> list[dict[str, Any]]:
    return processes.finish(processes.start(SCRIPT, str(colors), str(output), str(cpus), model))


def check_equal(lines: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert [(line["kind"], line["step"]) for line in lines] == [(line["kind"], line["step"]) for line in expected]
    for line, expected_line in zip(lines, expected, strict=True):
        assert line["loss"] == pytest.approx(expected_line["loss"], rel=1e-3), line["step"]
        if "evaluation" in line:
            assert line["evaluation"]["images"] == expected_line["evaluation"]["images"] == 27
            assert line["evaluation"]["loss"] == pytest.approx(expected_line["evaluation"]["loss"], rel=1e-3)


@pytest.mark.slow
def test_four_replicas_and_two_workers_train_as_one_does(processes: Any, colors: Path, tmp_path: Path) -> None:
    one = run(processes, colors, tmp_path / "one", 1)
    check_equal(run(processes, colors, tmp_path / "four", 4), one)
    # Both read the file that the first one wrote.
    for worker in processes.run_workers(2, SCRIPT, str(colors), str(tmp_path / "two"), "1", "small_cnn"):
        check_equal(worker, one)


@pytest.mark.slow
def test_replicas_share_batch_statistics_and_dropout(processes: Any, colors: Path, tmp_path: Path) -> None:
    lines = run(processes, colors, tmp_path, 2, "own:batch_norm")
    assert [line["evaluation"]["images"] for line in lines if line["kind"] == "epoch"] == [27, 27]
    with np.load(sorted((tmp_path / "checkpoints").iterdir())[-1]) as saved:
        mean, variance, generator = (saved[f"arr_{k}"] for k in (6, 7, 8))  # behind six arrays of weights
    assert mean.shape == variance.shape == (8,)
    assert abs(mean).max() > 0
    assert generator[1] == 12  # one draw in each step
