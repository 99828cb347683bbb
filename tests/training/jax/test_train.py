"""Short trainings in JAX: they learn, count each image once, go on where they stopped, and export what they are."""

from __future__ import annotations

import io
import itertools
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

jax_export = pytest.importorskip("jax.export")

from tfpipe.errors import ConfigError, DataError  # noqa: E402
from tfpipe.open_dataset import load_manifest  # noqa: E402
from tfpipe.readers.data_source import data_source  # noqa: E402
from tfpipe.training.config import TrainConfig  # noqa: E402
from tfpipe.training.jax import train as training  # noqa: E402
from tfpipe.training.jax.processes import join_processes  # noqa: E402
from tfpipe.training.run_dir import RunDir  # noqa: E402

STEPS = 6  # 50 records, 8 streams of 6, 1 of each in a batch
EXAMPLES = 27

Train = Callable[..., Any]


def read_lines(folder: str | Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]


def stop_after(steps: int) -> Callable[[], bool]:
    """Returns a `stop` that is True from its call number `steps` on."""
    calls = itertools.count(1)
    return lambda: next(calls) >= steps


@pytest.fixture
def train(colors: Path, make_config: Callable[..., TrainConfig]) -> Train:
    """Returns a function that trains in this process."""

    def run(stop: Callable[[], bool] = lambda: False, **options: Any) -> Any:
        config = make_config(**{"framework": "jax", "workers": 1, "epochs": 2, **options})
        with join_processes() as place:
            return training.train(load_manifest(str(colors)), config, place, stop=stop)

    return run


@pytest.mark.slow
def test_a_run_learns_stops_goes_on_and_exports(
    train: Train, colors: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert train(output=str(tmp_path / "whole")).finished
    lines = read_lines(tmp_path / "whole")
    assert [line["step"] for line in lines if line["kind"] == "step"] == list(range(1, 2 * STEPS + 1))
    assert lines[-1]["evaluation"]["loss"] < 0.75 * np.log(6)
    assert lines[-1]["evaluation"]["images"] == EXAMPLES
    assert sorted(path.name for path in (tmp_path / "whole").iterdir()) == [
        *("checkpoints", "logs", "metrics.jsonl", "model", "run.json")
    ]
    # Stopped in an epoch, then in an evaluation, and with a damaged last checkpoint.
    parts = str(tmp_path / "parts")
    assert train(output=parts, stop=stop_after(3)).position == (0, 3)
    assert train(output=parts, stop=stop_after(5)).position == (0, 6)
    for path in (tmp_path / "parts" / "checkpoints" / "6" / "state").rglob("*"):
        if path.is_file():
            path.write_bytes(b"")
    with caplog.at_level(logging.WARNING, "tfpipe"):
        assert train(output=parts).finished
    assert caplog.text.count("the one before it is used.") == 1
    assert read_lines(parts) == lines
    with pytest.raises(ConfigError, match=r"was begun with framework jax, got torch\. Ask for the same"):
        RunDir(parts).begin({"framework": "torch"})
    check_exported_model(tmp_path / "whole", colors)


def check_exported_model(run: Path, colors: Path) -> None:
    records = list(data_source(str(colors), "validation"))
    pixels = np.stack([np.array(Image.open(io.BytesIO(record.encoded))) for record in records])
    served = jax_export.deserialize(bytearray((run / "model" / "model.jax").read_bytes()))
    assert served.platforms == ("cpu", "cuda", "tpu")
    probabilities = np.asarray(served.call(pixels))
    labels = np.array([record.label for record in records])
    evaluation = read_lines(run)[-1]["evaluation"]
    assert evaluation["accuracy"] == pytest.approx(np.mean(probabilities.argmax(axis=1) == labels), abs=1.1 / EXAMPLES)
    assert evaluation["loss"] == pytest.approx(-np.mean(np.log(probabilities[range(EXAMPLES), labels])), rel=0.01)
    assert served.call(np.zeros((1, 3, 70, 3), np.uint8)).shape == (1, 6)  # any size


def test_a_loss_that_is_not_a_number_ends_the_run(train: Train) -> None:
    with pytest.raises(DataError, match=r"The loss is not a number any more at step \d+\. Lower the learning rate"):
        train(learning_rate=1e9)


@pytest.mark.slow
def test_bfloat16_learns_nearly_the_same(train: Train, tmp_path: Path) -> None:
    losses = []
    for precision in ("float32", "bfloat16"):
        # At the default rate the loss falls to a tenth in these steps, which enlarges what rounding began.
        train(output=str(tmp_path / precision), precision=precision, learning_rate=0.1)
        losses.append([line["loss"] for line in read_lines(tmp_path / precision) if line["kind"] == "step"])
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.15)
