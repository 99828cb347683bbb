"""What only the trainer in TensorFlow does: augmentation on the device, and several steps in a call."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tensorflow")

from tests.training.conftest import Train, read_lines

EXAMPLES = 27


@pytest.mark.slow
def test_images_may_be_augmented_on_the_device(train: Train) -> None:
    result = train(augment="device", decoded_size=24, epochs=2)
    assert result.last["evaluation"]["images"] == EXAMPLES
    assert result.last["loss"] < np.log(6) + 0.3


@pytest.mark.slow
def test_several_steps_in_one_call_are_the_same_steps(train: Train, tmp_path: Path) -> None:
    many = train(steps_per_execution=4, log_every_steps=100, output=str(tmp_path / "many"))
    one_by_one = train(output=str(tmp_path / "one"))
    epochs, expected = ([line for line in read_lines(run.output) if "evaluation" in line] for run in (many, one_by_one))
    assert [line["loss"] for line in epochs] == pytest.approx([line["loss"] for line in expected], rel=1e-5)
    assert len(epochs) == 3
    assert many.timing is not None
    assert many.timing.images_per_step == 8
