"""Short trainings in PyTorch: they learn, count each image once, go on where they stopped, and export what they are."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.training.torch.program import mean_loss, predict_validation  # noqa: E402
from tfpipe.engine.config.pipeline_config import PipelineConfig  # noqa: E402
from tfpipe.errors import ConfigError, DataError, FormatError  # noqa: E402
from tfpipe.open_dataset import load_manifest  # noqa: E402
from tfpipe.training.config import TrainConfig  # noqa: E402
from tfpipe.training.torch import train as training  # noqa: E402
from tfpipe.training.torch.processes import Place  # noqa: E402

STEPS = 6  # 50 records, 8 streams of 6, 1 of each in a batch
EXAMPLES = 27

Train = Callable[..., Any]
DECODER = "pillow"  # Pillow's pixels, which the exported program is given, and not those of the native library


def read_lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def stop_after(steps: int) -> Callable[[], bool]:
    """Returns a `stop` that is True from its call number `steps` on."""
    calls = itertools.count(1)
    return lambda: next(calls) >= steps


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Computes on one thread: threads that wait for each other on a busy machine take most of the time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def train(colors: Path, make_config: Callable[..., TrainConfig]) -> Train:
    """Returns a function that trains in this process."""

    def run(dataset: Path = colors, build: Any = None, stop: Callable[[], bool] = lambda: False, **options: Any) -> Any:
        config = make_config(**{"framework": "torch", "workers": 0, "decoder": DECODER, **options})
        return training.train(load_manifest(str(dataset)), config, Place(torch.device("cpu")), build, stop=stop)

    return run


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, colors: Path) -> Path:
    """Returns the folder of a run of three epochs that nobody stopped."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    pipeline = PipelineConfig(batch_size=8, image_size=16, block_records=4, decoder=DECODER)
    config = TrainConfig(
        pipeline=pipeline,
        output=str(folder),
        framework="torch",
        epochs=3,
        log_every_steps=1,
        checkpoint_every_steps=4,
        workers=0,
    )
    training.train(load_manifest(str(colors)), config, Place(torch.device("cpu")))
    return folder


def test_it_learns_and_writes_what_tensorflow_writes(undisturbed: Path) -> None:
    lines = read_lines(undisturbed)
    steps = [line for line in lines if line["kind"] == "step"]
    epochs = [line for line in lines if line["kind"] == "epoch"]
    assert [line["step"] for line in steps] == list(range(1, 3 * STEPS + 1))
    assert epochs[-1]["evaluation"]["loss"] < 0.75 * np.log(6)
    assert epochs[-1]["evaluation"]["accuracy"] > 0.5
    assert epochs[-1]["evaluation"]["images"] == EXAMPLES
    for line in epochs:  # an epoch's means are those of its steps
        epoch_steps = [step for step in steps if step["epoch"] == line["epoch"]]
        for name in ("loss", "accuracy", "top5"):
            assert line[name] == pytest.approx(np.mean([step[name] for step in epoch_steps]), rel=1e-6), name
    assert max(line["learning_rate"] for line in steps) == pytest.approx(0.5 * 8 / 256)
    assert sorted(path.name for path in undisturbed.iterdir()) == [
        *("checkpoints", "logs", "metrics.jsonl", "model", "run.json")
    ]
    assert json.loads((undisturbed / "run.json").read_text())["framework"] == "torch"
    assert sorted(path.name for path in (undisturbed / "checkpoints").iterdir()) == [
        *("ckpt-000002-000000000.pt", "ckpt-000002-000000004.pt", "ckpt-000003-000000000.pt")
    ]


def test_the_exported_program_gives_the_evaluation(undisturbed: Path, colors: Path) -> None:
    probabilities, labels = predict_validation(undisturbed, colors)
    evaluation = read_lines(undisturbed)[-1]["evaluation"]
    assert evaluation["images"] == len(labels) == EXAMPLES
    assert evaluation["accuracy"] == np.mean(probabilities.argmax(axis=1) == labels)
    assert evaluation["loss"] == pytest.approx(mean_loss(probabilities, labels), rel=1e-5)
    in_top5 = [label in row.argsort()[-5:] for row, label in zip(probabilities, labels, strict=True)]
    assert evaluation["top5"] == np.mean(in_top5)
    served = torch.export.load(str(undisturbed / "model" / "model.pt2")).module()
    assert served(torch.zeros((1, 3, 70, 3), dtype=torch.uint8)).shape == (1, 6)  # any size
    assert (undisturbed / "model" / "labels.txt").read_text().splitlines() == sorted(
        ["blue", "cyan", "gray", "green", "red", "yellow"]
    )


@pytest.mark.parametrize(("steps", "position"), [(6, (0, 6)), (8, (0, 6)), (12, (1, 2))])
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(
    train: Train, undisturbed: Path, monkeypatch: pytest.MonkeyPatch, steps: int, position: tuple[int, int]
) -> None:
    monkeypatch.setattr("tfpipe.training.torch.learner.TorchLearner.export", lambda self, run_dir: None)
    first = train(stop=stop_after(steps))
    assert (first.finished, first.position) == (False, position)
    second = train()
    assert (second.finished, second.was_finished) == (True, False)
    assert (Path(second.output) / "metrics.jsonl").read_text() == (undisturbed / "metrics.jsonl").read_text()


def test_a_run_that_is_finished_says_so(train: Train, undisturbed: Path) -> None:
    result = train(output=str(undisturbed))
    assert (result.finished, result.was_finished) == (True, True)
    with pytest.raises(ConfigError, match=r"was begun with framework torch, got tensorflow\. Ask for the same"):
        train(output=str(undisturbed), framework="tensorflow", workers=None)


def test_damaged_checkpoints_cost_only_the_steps_since_the_one_before(
    train: Train, undisturbed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = train(stop=stop_after(13), checkpoint_every_steps=2)
    saved = sorted((Path(first.output) / "checkpoints").iterdir())
    assert [path.name for path in saved] == [f"ckpt-000001-{step:09}.pt" for step in (0, 2, 3)]
    saved[-1].write_bytes(saved[-1].read_bytes()[:-100])
    data = bytearray(saved[-2].read_bytes())
    data[len(data) // 2] ^= 1  # in a weight, where `torch.load` does not notice it
    saved[-2].write_bytes(data)
    with caplog.at_level(logging.WARNING, "tfpipe"):
        assert train(stop=stop_after(1), checkpoint_every_steps=2).position == (1, 1)
    assert caplog.text.count("the one before it is used.") == 2
    for path in (Path(first.output) / "checkpoints").iterdir():
        path.write_bytes(b"")
    with pytest.raises(DataError, match=r"None of the 3 checkpoints in .* can be read. Delete the folder"):
        train()


def test_dropout_draws_after_a_stop_what_it_would_have_drawn(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tfpipe.training.torch.learner.TorchLearner.export", lambda self, run_dir: None)

    def build(num_classes: int, size: tuple[int, int]) -> Any:
        nn = torch.nn
        return nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Dropout(), nn.LazyLinear(num_classes)
        )

    options = {"build": build, "model": "own:model", "learning_rate": 0.05, "epochs": 2}
    train(output=str(tmp_path / "whole"), **options)
    train(output=str(tmp_path / "parts"), stop=stop_after(3), **options)
    train(output=str(tmp_path / "parts"), **options)
    assert read_lines(tmp_path / "parts") == read_lines(tmp_path / "whole")


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
        train(build=build, model="own:model")
    assert message in str(caught.value)


def test_a_loss_that_is_not_a_number_ends_the_run(train: Train) -> None:
    with pytest.raises(DataError, match=r"The loss is not a number any more at step \d+\. Lower the learning rate"):
        train(learning_rate=1e9)


def test_bfloat16_learns_nearly_the_same(train: Train, undisturbed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfpipe.training.torch.learner.TorchLearner.export", lambda self, run_dir: None)
    result = train(precision="bfloat16", epochs=3, image_dtype="float32")
    losses = [
        [line["loss"] for line in read_lines(folder) if line["kind"] == "step"]
        for folder in (Path(result.output), undisturbed)
    ]
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.15)


def test_a_worker_s_error_is_one_sentence(train: Train, colors: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(colors, tmp_path / "damaged")
    for path in (tmp_path / "damaged").glob("train-*.tfrecord"):
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))
    with pytest.raises(FormatError) as caught:
        train(dataset=tmp_path / "damaged", workers=1)
    assert "\n" not in str(caught.value)
    assert "Record " in str(caught.value)
