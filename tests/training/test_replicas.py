"""One replica, four, and two processes: the same losses, and each image of an evaluation counted once.

The order of the records is that of `tests/distribution/test_replicas.py`; here each step's loss is compared, which no
other batches would give. Replicas add up their gradients in another order, so the losses agree to about 1e-6 at first,
and must to 1e-3 after the two epochs.
"""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tensorflow")

SCRIPT = str(Path(__file__).with_name("trainer.py"))


def run(processes: Any, colours: Path, output: Path, cpus: int, workers: int = 1, *more: str) -> list[dict]:
    """What each process found."""
    command = (SCRIPT, str(colours), str(output), str(cpus), *(more or ("small_cnn",)))
    if workers > 1:
        return processes.run_workers(workers, *command)
    return [processes.finish(processes.start(*command))]


def check_equal(found: list[dict], expected: list[dict]) -> None:
    assert [(line["kind"], line["step"]) for line in found] == [(line["kind"], line["step"]) for line in expected]
    for mine, theirs in zip(found, expected, strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-3), mine["step"]
        if "evaluation" in mine:
            assert mine["evaluation"]["images"] == theirs["evaluation"]["images"] == 27
            assert mine["evaluation"]["loss"] == pytest.approx(theirs["evaluation"]["loss"], rel=1e-3)


@pytest.mark.slow
def test_four_replicas_and_two_workers_train_as_one_does(processes: Any, colours: Path, tmp_path: Path) -> None:
    (one,) = run(processes, colours, tmp_path / "one", 1)
    (four,) = run(processes, colours, tmp_path / "four", 4)
    check_equal(four["lines"], one["lines"])
    for worker in run(processes, colours, tmp_path / "two", 1, 2):  # both read what the first one wrote
        check_equal(worker["lines"], one["lines"])
    (many,) = run(processes, colours, tmp_path / "many", 4, 1, "small_cnn", "3")
    check_equal([line for line in many["lines"] if line["kind"] == "epoch"],
                [line for line in one["lines"] if line["kind"] == "epoch"])  # fmt: skip
    assert four["images_per_step"] == 8


@pytest.mark.slow
def test_batch_normalisation_and_dropout_keep_one_state(processes: Any, colours: Path, tmp_path: Path) -> None:
    import tensorflow as tf

    output = tmp_path / "run"
    (found,) = run(processes, colours, output, 2, 1, "own:batch_norm")
    assert [line["evaluation"]["images"] for line in found["lines"] if line["kind"] == "epoch"] == [27, 27]
    reader = tf.train.load_checkpoint(str(output / "checkpoints"))
    saved = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    averages = [value for name, value in saved.items() if "moving_mean" in name]
    generators = [value for name, value in saved.items() if name.startswith("generators/0/")]
    assert len(averages) == 1
    assert abs(averages[0]).max() > 0
    assert [value[1] for value in generators] == [12]  # drawn from once a step
