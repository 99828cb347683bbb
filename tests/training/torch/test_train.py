"""What only the trainer in PyTorch does: it checks the user's own model, and names a worker's error."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.training.conftest import Train  # noqa: E402
from tfpipe.errors import ConfigError, FormatError  # noqa: E402


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda classes, size: "net", "own:model must return a torch.nn.Module, got str."),
        (lambda classes, size: torch.nn.Flatten(), "must return logits of shape (2, 6), got (2, 768)."),
        (lambda classes, size: torch.nn.Linear(7, 6), "own:model must take images of shape (2, 3, 16, 16): mat1 and"),
        (lambda classes, size: 1 / 0, "own:model(6, (16, 16)) failed: ZeroDivisionError: division by zero"),
    ],
)
def test_an_unfit_model_is_named(train: Train, build: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        train("torch", build=build, model="own:model")
    assert message in str(caught.value)


def test_a_worker_s_error_is_one_sentence(train: Train, colors: Path, tmp_path: Path) -> None:
    shutil.copytree(colors, tmp_path / "damaged")
    for path in (tmp_path / "damaged").glob("train-*.tfrecord"):
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))
    with pytest.raises(FormatError) as caught:
        train("torch", dataset=tmp_path / "damaged", workers=1)
    assert "\n" not in str(caught.value)
    assert "Record " in str(caught.value)
