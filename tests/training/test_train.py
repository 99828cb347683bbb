"""Short trainings: they learn, count each image once, go on where they stopped, and export what they are."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.refusals import refusal
from tests.training.conftest import COLORS, Train, make_interpreter, read_lines, stop_after
from tfpipe.errors import ConfigError, DataError
from tfpipe.readers.data_source import data_source

STEPS = 6  # 50 records, 8 streams of 6, 1 of each in a batch
EXAMPLES = 27


def test_it_learns_and_writes_every_step_and_epoch(undisturbed: Path) -> None:
    lines = read_lines(undisturbed)
    steps = [line for line in lines if line["kind"] == "step"]
    epochs = [line for line in lines if line["kind"] == "epoch"]
    assert [line["step"] for line in steps] == list(range(1, 3 * STEPS + 1))
    assert [line["epoch"] for line in epochs] == [0, 1, 2]
    assert epochs[-1]["evaluation"]["loss"] < 0.75 * np.log(6)
    assert epochs[-1]["evaluation"]["accuracy"] > 0.5
    assert epochs[-1]["evaluation"]["images"] == EXAMPLES
    for line in epochs:  # an epoch's means are those of its steps
        epoch_steps = [step for step in steps if step["epoch"] == line["epoch"]]
        for name in ("loss", "accuracy"):
            assert line[name] == pytest.approx(np.mean([step[name] for step in epoch_steps]), rel=1e-6), name
    rates = [line["learning_rate"] for line in steps]
    assert max(rates) == pytest.approx(8 / 256)
    assert rates.index(max(rates)) == 2  # 0.3 epochs of warm-up are 2 steps
    assert rates[-1] < 0.02 * max(rates)
    assert sorted(path.name for path in undisturbed.iterdir()) == [
        *("checkpoints", "logs", "metrics.jsonl", "model", "run.json")
    ]
    assert sorted(path.name for path in (undisturbed / "checkpoints").iterdir()) == [
        *("ckpt-000002-000000004.npz", "ckpt-000003-000000000.npz")
    ]


def test_curves_for_tensorboard_are_written(undisturbed: Path) -> None:
    files = map(str, (undisturbed / "logs").iterdir())  # another test begins the finished run again
    events = [event for file in files for event in tf.compat.v1.train.summary_iterator(file)]
    points = [(event.step, value.tag) for event in events for value in event.summary.value]
    evaluated = [(STEPS, f"validation/{name}") for name in ("loss", "accuracy")]
    first = [(1, f"train/{name}") for name in ("loss", "accuracy", "learning_rate")]
    idle = [(3 * STEPS, f"tfpipe/{name}") for name in ("input_wait_fraction", "idle_fraction_estimate")]
    assert {*evaluated, *first, *idle} <= set(points)


def test_the_exported_model_gives_the_evaluation(undisturbed: Path, colors: Path) -> None:
    records = list(data_source(str(colors), "validation"))
    served = tf.saved_model.load(str(undisturbed / "model")).signatures["serving_default"]
    probabilities = served(image_bytes=tf.constant([record.encoded for record in records]))["probabilities"].numpy()
    labels, evaluation = np.array([record.label for record in records]), read_lines(undisturbed)[-1]["evaluation"]
    assert evaluation["images"] == len(records) == EXAMPLES
    assert evaluation["loss"] == pytest.approx(-np.mean(np.log(probabilities[range(EXAMPLES), labels])), rel=1e-5)
    assert evaluation["accuracy"] == pytest.approx(np.mean(probabilities.argmax(axis=1) == labels))
    assert (undisturbed / "model" / "labels.txt").read_text().splitlines() == sorted(COLORS)


@pytest.mark.slow  # test_growing_data.py does it with a dataset that has grown
@pytest.mark.parametrize(
    ("steps", "position"),
    [(1, (0, 1)), (6, (0, 6)), (8, (0, 6)), (12, (1, 2))],  # `stop` is also asked after each batch of an evaluation
)
@pytest.mark.usefixtures("without_export")
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(train, undisturbed, steps, position):
    first = train(stop=stop_after(steps))
    assert (first["finished"], first["epoch"], first["step"]) == (False, *position)
    second = train()
    assert second["finished"]
    assert (Path(second["output"]) / "metrics.jsonl").read_text() == (undisturbed / "metrics.jsonl").read_text()


def test_a_run_that_is_finished_exports_only_what_is_missing(train: Train, undisturbed: Path, monkeypatch):
    before, exported = (undisturbed / "metrics.jsonl").read_bytes(), []
    monkeypatch.setattr("tfpipe.training.train.export_models", lambda *_: exported.append(1))
    assert train(output=str(undisturbed))["finished"]
    assert exported == []
    (undisturbed / "model" / "saved_model.pb").rename(undisturbed / "kept")
    assert train(output=str(undisturbed))["finished"]
    (undisturbed / "kept").rename(undisturbed / "model" / "saved_model.pb")
    assert exported == [1]
    assert (undisturbed / "metrics.jsonl").read_bytes() == before


@pytest.mark.slow
@pytest.mark.usefixtures("without_export")
def test_dropout_draws_after_a_stop_what_it_would_have_drawn(train: Train, tmp_path: Path) -> None:
    def build(num_classes: int, size: tuple[int, int]) -> Any:
        from keras import Input, Sequential, layers

        own = (layers.Conv2D(4, 3, strides=4), layers.BatchNormalization(), layers.Flatten(), layers.Dropout(0.5))
        return Sequential([Input((*size, 3)), *own, layers.Dense(num_classes)])

    options = {"build": build, "model": "own:model", "learning_rate": 0.05, "epochs": 2}
    train(output=str(tmp_path / "whole"), **options)
    train(output=str(tmp_path / "parts"), stop=stop_after(3), **options)
    train(output=str(tmp_path / "parts"), **options)
    assert read_lines(tmp_path / "parts") == read_lines(tmp_path / "whole")


@pytest.mark.slow
def test_a_loss_that_is_not_a_number_ends_the_run(train: Train) -> None:
    with pytest.raises(DataError, match=r"The loss is not a number any more at step \d+\. Lower the learning rate"):
        train(model="small_cnn", learning_rate=1e9)


@pytest.mark.slow
def test_bfloat16_learns_nearly_the_same_and_int8_predicts_it(train: Train, colors: Path, tmp_path: Path) -> None:
    losses, (name, records) = [], ("model-int8.tflite", list(data_source(str(colors), "validation")))
    for precision in ("float32", "bfloat16"):
        # At the default rate the loss falls to a tenth in these steps, which enlarges what rounding began.
        options = {"precision": precision, "learning_rate": 0.1, "epochs": 2, "tflite": True, "model": "small_cnn"}
        run = Path(train(output=str(tmp_path / precision), **options)["output"])
        losses.append([line["loss"] for line in read_lines(run) if line["kind"] == "step"])
        # TFLite computes in 8 bits, whatever the precision of the training. An image is resized as in evaluation.
        interpret = make_interpreter(run / name)
        hits = [
            interpret(tf.cast(tf.image.resize(record.image, (16, 16)) + 0.5, tf.uint8)).argmax() == record.label
            for record in records
        ]
        assert np.mean(hits) == pytest.approx(read_lines(run)[-1]["evaluation"]["accuracy"], abs=4.1 / EXAMPLES)
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.15)


def test_another_dataset_and_a_folder_with_other_files_are_refused(
    train: Train, undisturbed: Path, small_dataset: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"was begun with dataset [0-9a-f-]+, got [0-9a-f-]+\."):
        train(dataset=small_dataset, output=str(undisturbed))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"must be empty or hold a run, and holds thesis.txt"):
        train()


def test_a_process_that_sees_no_checkpoint_is_refused(train: Train, tmp_path: Path, monkeypatch):
    """This process stands for the second of two, of which the first sees a checkpoint."""
    monkeypatch.setattr("tfpipe.training.train.list_workers", lambda strategy: ["first", "second"])
    monkeypatch.setattr("tfpipe.training.train.get_host_index", lambda strategy: 1)
    monkeypatch.setattr("tfpipe.training.train._Run._any_process", lambda self, flag: True)
    assert refusal(ConfigError, train).endswith(f"checkpoints; one sees none in {tmp_path}/run. Share the folder.")
