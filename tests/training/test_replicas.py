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


def run(processes: Any, colors: Path, output: Path, cpus: int, workers: int = 1, *more: str) -> list[dict[str, Any]]:
    """Trains with `trainer.py`. Returns the figures that each process printed."""
    command = (SCRIPT, str(colors), str(output), str(cpus), *(more or ("small_cnn",)))
    if workers > 1:
        return processes.run_workers(workers, *command)
    return [processes.finish(processes.start(*command))]


def check_equal(lines: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert [(line["kind"], line["step"]) for line in lines] == [(line["kind"], line["step"]) for line in expected]
    for line, expected_line in zip(lines, expected, strict=True):
        assert line["loss"] == pytest.approx(expected_line["loss"], rel=1e-3), line["step"]
        if "evaluation" in line:
            assert line["evaluation"]["images"] == expected_line["evaluation"]["images"] == 27
            assert line["evaluation"]["loss"] == pytest.approx(expected_line["evaluation"]["loss"], rel=1e-3)


@pytest.mark.slow
def test_four_replicas_and_two_workers_train_as_one_does(processes: Any, colors: Path, tmp_path: Path) -> None:
    (one,) = run(processes, colors, tmp_path / "one", 1)
    (four,) = run(processes, colors, tmp_path / "four", 4)
    check_equal(four["lines"], one["lines"])
    for worker in run(processes, colors, tmp_path / "two", 1, 2):  # both read the file that the first one wrote
        check_equal(worker["lines"], one["lines"])
    (many,) = run(processes, colors, tmp_path / "many", 4, 1, "small_cnn", "3")
    check_equal([line for line in many["lines"] if line["kind"] == "epoch"],
                [line for line in one["lines"] if line["kind"] == "epoch"])  # fmt: skip
    assert four["images_per_step"] == 8


@pytest.mark.slow
def test_replicas_share_batch_statistics_and_dropout(processes: Any, colors: Path, tmp_path: Path) -> None:
    output = tmp_path / "run"
    (figures,) = run(processes, colors, output, 2, 1, "own:batch_norm")
    assert [line["evaluation"]["images"] for line in figures["lines"] if line["kind"] == "epoch"] == [27, 27]
    with np.load(sorted((output / "checkpoints").iterdir())[-1]) as saved:
        others = [saved[name] for name in saved.files if name.startswith("state/others/")]
    mean, variance, generator = others
    assert mean.shape == variance.shape == (8,)
    assert abs(mean).max() > 0
    assert generator[1] == 12  # one draw in each step
