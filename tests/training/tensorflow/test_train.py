"""Short trainings: they learn, count each image once, go on where they stopped, and refuse unfit options."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from tfpipe.errors import ConfigError, DataError  # noqa: E402
from tfpipe.open_dataset import load_manifest  # noqa: E402
from tfpipe.readers.data_source import data_source  # noqa: E402
from tfpipe.training.tensorflow import train as training  # noqa: E402

STEPS = 6  # 50 records, 8 streams of 6, 1 of each in a batch
EXAMPLES = 27

Train = Callable[..., Any]


def read_lines(result: Any) -> list[dict[str, Any]]:
    """Reads the lines of a run's metrics.jsonl."""
    return [json.loads(line) for line in (Path(result.output) / "metrics.jsonl").read_text().splitlines()]


def stop_after(steps: int) -> Callable[[], bool]:
    """Returns a `stop` that is True from its call number `steps` on."""
    calls = itertools.count(1)
    return lambda: next(calls) >= steps


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, colors: Path) -> Path:
    """Returns the folder of a run of three epochs that nobody stopped."""
    from tfpipe.engine.config.pipeline_config import PipelineConfig
    from tfpipe.training.config import TrainConfig

    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    pipeline = PipelineConfig(batch_size=8, image_size=16, block_records=4)
    config = TrainConfig(pipeline=pipeline, output=str(folder), epochs=3, log_every_steps=1, checkpoint_every_steps=4)
    training.train(load_manifest(str(colors)), config, tf.distribute.OneDeviceStrategy("/CPU:0"))
    return folder


def test_it_learns_and_writes_every_step_and_epoch(undisturbed: Path) -> None:
    lines = [json.loads(line) for line in (undisturbed / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["kind"] == "step"]
    epochs = [line for line in lines if line["kind"] == "epoch"]
    assert [line["step"] for line in steps] == list(range(1, 3 * STEPS + 1))
    assert [line["epoch"] for line in epochs] == [0, 1, 2]
    assert epochs[-1]["evaluation"]["loss"] < 0.75 * np.log(6)
    assert epochs[-1]["evaluation"]["accuracy"] > 0.5
    assert epochs[-1]["evaluation"]["images"] == EXAMPLES
    for line in epochs:  # an epoch's means are those of its steps
        epoch_steps = [step for step in steps if step["epoch"] == line["epoch"]]
        for name in ("loss", "accuracy", "top5"):
            assert line[name] == pytest.approx(np.mean([step[name] for step in epoch_steps]), rel=1e-6), name
    rates = [line["learning_rate"] for line in steps]
    assert max(rates) == pytest.approx(0.5 * 8 / 256)
    assert rates.index(max(rates)) == 2  # 0.3 epochs of warm-up are 2 steps
    assert rates[-1] < 0.02 * max(rates)
    assert sorted(path.name for path in undisturbed.iterdir()) == [
        *("checkpoints", "logs", "metrics.jsonl", "model", "run.json")
    ]
    assert len(list((undisturbed / "checkpoints").glob("*.index"))) == 3


def test_curves_for_tensorboard_are_written(undisturbed: Path) -> None:
    (path,) = (undisturbed / "logs").iterdir()
    events = list(tf.compat.v1.train.summary_iterator(str(path)))
    points = [(event.step, value.tag) for event in events for value in event.summary.value]
    evaluated = [(STEPS, f"validation/{name}") for name in ("loss", "accuracy", "top5")]
    first = [(1, f"train/{name}") for name in ("loss", "accuracy", "top5", "learning_rate")]
    idle = [(3 * STEPS, f"tfpipe/{name}") for name in ("input_wait_fraction", "idle_fraction_estimate")]
    assert {*evaluated, *first, *idle} <= set(points)


def test_an_evaluation_equals_a_plain_count(undisturbed: Path, colors: Path) -> None:
    records = list(data_source(str(colors), "validation"))
    served = tf.saved_model.load(str(undisturbed / "model")).signatures["serving_default"]
    probabilities = served(image_bytes=tf.constant([record.encoded for record in records]))["probabilities"].numpy()
    labels = np.array([record.label for record in records])
    evaluation = json.loads((undisturbed / "metrics.jsonl").read_text().splitlines()[-1])["evaluation"]
    assert evaluation["images"] == len(records) == EXAMPLES
    assert evaluation["accuracy"] == np.mean(probabilities.argmax(axis=1) == labels)
    assert evaluation["loss"] == pytest.approx(-np.mean(np.log(probabilities[range(EXAMPLES), labels])), rel=1e-5)
    in_top5 = [label in row.argsort()[-5:] for row, label in zip(probabilities, labels, strict=True)]
    assert evaluation["top5"] == np.mean(in_top5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps", "position"), [(1, (0, 1)), (6, (0, 6)), (8, (0, 6)), (12, (1, 2))]
)  # `stop` is also asked after each of an evaluation's four batches
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(
    train: Train, undisturbed: Path, steps: int, position: tuple[int, int]
) -> None:
    first = train(stop=stop_after(steps))
    assert (first.finished, first.position) == (False, position)
    second = train()
    assert (second.finished, second.was_finished) == (True, False)
    assert (Path(second.output) / "metrics.jsonl").read_text() == (undisturbed / "metrics.jsonl").read_text()


def test_a_run_that_is_finished_says_so(train: Train, undisturbed: Path) -> None:
    before = (undisturbed / "metrics.jsonl").read_bytes()
    result = train(output=str(undisturbed))
    assert (result.finished, result.was_finished) == (True, True)
    assert result.last["epoch"] == 2
    assert (undisturbed / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 4}, "begun with epochs 3, got 4. The learning rate falls to 0 with the last epoch. Ask for the"),
        ({"seed": 1}, "begun with seed 0, got 1. Ask for the same to go on, or choose another folder."),
        ({"batch_size": 16}, "begun with global_batch_size 8, got 16."),
        pytest.param(  # builds a large model
            *({"model": "resnet50", "learning_rate": 0.5}, "begun with model small_cnn, got resnet50."),
            marks=pytest.mark.slow,
        ),
        ({"image_size": 24}, "begun with image_size 16, got 24."),
    ],
)
def test_another_run_in_the_same_folder_is_refused(
    train: Train, undisturbed: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        train(output=str(undisturbed), **options)
    assert message in str(caught.value)


def test_another_dataset_is_refused(train: Train, undisturbed: Path, small_dataset: Path) -> None:
    with pytest.raises(ConfigError, match=r"was begun with dataset [0-9a-f-]+, got [0-9a-f-]+\."):
        train(dataset=small_dataset, output=str(undisturbed))


@pytest.mark.slow
def test_images_may_be_augmented_on_the_device(train: Train) -> None:
    result = train(augment="device", decoded_size=24, epochs=2)
    assert result.last["evaluation"]["images"] == EXAMPLES
    assert result.last["loss"] < np.log(6) + 0.3


@pytest.mark.slow
def test_several_steps_in_one_call_are_the_same_steps(train: Train, undisturbed: Path) -> None:
    result = train(steps_per_execution=4, log_every_steps=100)
    epochs = [line for line in read_lines(result) if line["kind"] == "epoch"]
    one_by_one = [json.loads(line) for line in (undisturbed / "metrics.jsonl").read_text().splitlines()]
    for line, expected in zip(epochs, [line for line in one_by_one if line["kind"] == "epoch"], strict=True):
        assert line["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    assert result.timing is not None
    assert result.timing.images_per_step == 8


def test_a_loss_that_is_not_a_number_ends_the_run(train: Train) -> None:
    with pytest.raises(DataError, match=r"The loss is not a number any more at step \d+\. Lower the learning rate"):
        train(learning_rate=1e9)


def test_too_small_a_split_is_refused(train: Train, small_dataset: Path) -> None:
    with pytest.raises(ConfigError, match="`batch_size` must be at most the 12 records of an epoch, got 16"):
        train(dataset=small_dataset, batch_size=16)


def test_a_dataset_without_labels_is_refused(tmp_path: Path, train: Train, draw_images: Callable[[Path], Path]) -> None:
    from beam_jobs import shard_job
    from beam_jobs.config import ShardConfig

    table = tmp_path / "images.csv"
    images = sorted((draw_images(tmp_path / "images") / "train").rglob("*.png"))
    table.write_text("image\n" + "".join(f"{path}\n" for path in images))
    shard_job.run(ShardConfig(input=str(table), output=str(tmp_path / "data"), num_shards=1, workers=1))
    with pytest.raises(DataError, match=r"A classifier needs labels, and .*data has none\."):
        train(dataset=tmp_path / "data")


def test_a_folder_with_other_files_is_left_alone(train: Train, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"must be empty or hold a run, and holds thesis.txt"):
        train()
