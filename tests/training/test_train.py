"""A trainer that runs, stops, goes on, and trains on several replicas as on one."""

import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.beam_jobs.images import make_jpeg, write_files
from tests.conftest import Tfpipe
from tests.layers.growth import add_view, append, list_names
from tests.refusals import refusal
from tests.training.conftest import COLORS, Train, build_linear, make_interpreter, read_lines, stop_after
from tfpipe.dataset.load import load_manifest
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.errors import ConfigError, DataError
from tfpipe.layers.delete import delete_records
from tfpipe.lookups.data_lock import lock_data, read_lock
from tfpipe.lookups.steps import look_up_step
from tfpipe.readers.data_source import data_source
from tfpipe.training.config import TrainConfig, find_evaluation_split
from tfpipe.training.train import check_dataset, compile_steps, find_begun_layer

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


@pytest.mark.slow  # a test below does it with a dataset that has grown
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
    for name in ("export_model", "export_tflite"):
        monkeypatch.setattr(f"tfpipe.training.export.{name}", lambda *_, name=name: exported.append(name))
    assert train(output=str(undisturbed))["finished"]
    assert exported == []
    (undisturbed / "model" / "saved_model.pb").rename(undisturbed / "kept")
    assert train(output=str(undisturbed))["finished"]
    (undisturbed / "kept").rename(undisturbed / "model" / "saved_model.pb")
    assert exported == ["export_model"]
    assert train(output=str(undisturbed), tflite=True)["finished"]
    assert exported == ["export_model", "export_tflite"]
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


def test_images_without_a_class_count_nowhere(colors: Path) -> None:
    config = TrainConfig(pipeline=PipelineConfig(batch_size=8), output="run", split="validation")
    model, strategy = build_linear(6, (8, 8)), tf.distribute.get_strategy()
    train_step, evaluate = compile_steps(model, tf.keras.optimizers.SGD(0.0), strategy, config, 6)
    batch = {"image": tf.random.uniform((3, 8, 8, 3)), "label": tf.constant([2, -1, 0])}
    kept, masked = {name: values[:1] for name, values in batch.items()}, {"mask": tf.constant([True, True, False])}
    np.testing.assert_allclose(evaluate({**batch, **masked}), evaluate(kept), rtol=1e-6)
    np.testing.assert_allclose(train_step(batch), evaluate(batch), rtol=1e-6)
    manifest = load_manifest(str(colors))
    bare = replace(manifest.splits["validation"], class_counts=(0,) * 6)
    changed = replace(manifest, splits={**manifest.splits, "validation": bare})
    assert [find_evaluation_split(each, "train") for each in (manifest, changed)] == ["validation", None]
    message = f"A classifier needs images with a class, and 'validation' of {colors} has none."
    assert refusal(DataError, check_dataset, changed, config) == message


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


SCRIPT = str(Path(__file__).with_name("trainer.py"))


def run(processes: Any, colors: Path, output: Path, cpus: int, model: str = "small_cnn") -> list[dict[str, Any]]:
    return processes.finish(processes.start(SCRIPT, str(colors), str(output), str(cpus), model))


def check_equal(lines: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert [(line["kind"], line["step"]) for line in lines] == [(line["kind"], line["step"]) for line in expected]
    for line, expected_line in zip(lines, expected, strict=True):
        assert line["loss"] == pytest.approx(expected_line["loss"], rel=1e-3), line["step"]
        if "evaluation" in line:
            assert line["evaluation"]["images"] == expected_line["evaluation"]["images"] == EXAMPLES
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


COMPILE = """
import json, os, sys
import tensorflow as tf
import tfpipe
from tfpipe.training.config import TrainConfig
from tfpipe.training.models import build_model
from tfpipe.training.train import compile_steps

tf.config.threading.set_intra_op_parallelism_threads(1)
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 8)
manifest = tfpipe.load_manifest(sys.argv[1])
pipeline = tfpipe.PipelineConfig(batch_size=8, image_size=16, block_records=4)
config = TrainConfig(pipeline=pipeline, output="run")
count = int(sys.argv[2])
devices = [f"/CPU:{i}" for i in range(count)]
strategy = tf.distribute.MirroredStrategy(devices) if count > 1 else tf.distribute.OneDeviceStrategy(devices[0])
with strategy.scope():
    model, optimizer = build_model("small_cnn", 6, pipeline), tf.keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)
make_function, functions = tf.function, []
tf.function = lambda function, **options: functions.append(make_function(function, **options)) or functions[-1]
train, evaluate = compile_steps(model, optimizer, strategy, config, 6)
tf.function = make_function
batches = iter(tfpipe.distribute_dataset(strategy, manifest, "train", config.training_pipeline))
sums = train(next(batches)).numpy().tolist()
evaluation = tfpipe.distribute_dataset(strategy, manifest, "validation", config.evaluation_pipeline)
evaluated = sum(evaluate(batch) for batch in evaluation).numpy().tolist()
concrete = functions[0]._list_all_concrete_functions()
unknown = [tensor.name for one in concrete for operation in one.graph.get_operations() for tensor in operation.outputs
           if tensor.dtype not in (tf.resource, tf.variant) and not tensor.shape.is_fully_defined()]
compiled = [one.function_def.attr["_XlaMustCompile"].b for one in concrete]
rows = [int(one.structured_input_signature[0][2]["image"].shape[0]) for one in concrete]
print(json.dumps([unknown, compiled, rows, sums, evaluated]), flush=True)
os._exit(0)  # pipelines of eight devices, which read ahead, take long to end on a busy machine
"""


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_each_step_is_compiled_with_known_shapes(processes: Any, colors: Path, count: int) -> None:
    # A process for each count, because collectives of several strategies do not fit into one.
    process = processes.start("-c", COMPILE, str(colors), str(count))
    unknown, compiled, rows, sums, evaluated = processes.finish(process)
    assert unknown == []
    assert compiled == [True] * count
    assert rows == [8 // count] * count
    assert np.isfinite(sums).all()
    assert (sums[-1], evaluated[-1]) == (8, EXAMPLES)


@pytest.fixture
def growing(colors: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(colors, tmp_path / "growing"))


def grow(dataset: Path, images: Path) -> None:
    append(dataset, write_files(images, {f"train/red/x{k}.jpg": make_jpeg(k, (24, 24)) for k in range(9)}))


@pytest.mark.usefixtures("without_export")
def test_a_run_goes_on_with_the_layer_it_began_with(train: Train, growing: Path, undisturbed: Path, tmp_path: Path):
    run = str(tmp_path / "run")
    assert not train(growing, stop=stop_after(12))["finished"]  # amid the second epoch
    grow(growing, tmp_path / "more")
    begun = find_begun_layer(load_manifest(str(growing)), run, "train")
    assert begun.note == f"The run holds layer 1 of {growing}, which it began with; the newest is 2."
    assert train(growing)["finished"]
    assert read_lines(run) == read_lines(undisturbed)


@pytest.mark.usefixtures("without_export")
def test_a_run_goes_on_without_what_was_deleted(train: Train, growing: Path, tmp_path: Path, tfpipe: Tfpipe, caplog):
    options = {"dataset": growing, "epochs": 2}
    run = str(tmp_path / "run")
    assert not train(output=run, stop=stop_after(3), **options)["finished"]
    rows = look_up_step(read_lock(f"{run}/run.json").open(), 1)
    victims = [rows[0].name, rows[3].name]
    grow(growing, tmp_path / "more")
    delete_records(str(growing), victims)
    begun = find_begun_layer(load_manifest(str(growing)), run, "train")
    assert begun.note == (
        f"The run holds layer 1 of {growing}, which it began with; the newest is 3. 2 records of those it began with "
        "were deleted since, so it reads them no more."
    )
    assert list(begun.manifest.splits) == ["train", "validation"]
    assert begun.manifest.splits["train"].records == 48
    assert train(output=run, **options)["finished"]
    saved = json.loads(Path(run, "run.json").read_text())
    assert saved["dataset"].startswith(begun.manifest.splits["train"].fingerprint[:16])
    assert [old["until_step"] for old in saved["earlier_locks"]] == [3]
    # A step of then shows where the deleted records stood, and nothing else of them.
    with caplog.at_level(logging.WARNING):
        old = look_up_step(read_lock(f"{run}/run.json", step=1).open(), 1)
    assert [one.getMessage() for one in caplog.records if one.name == "tfpipe.lookups.data_lock"] == [begun.note]
    assert [row.number for row in old] == [row.number for row in rows]
    assert [row.deleted for row in old] == [row.name in victims for row in rows]
    assert [(row.name, row.label, row.box) for row in old if row.deleted] == [("", None, None)] * 2
    assert [row for row in old if not row.deleted] == [row for row in rows if row.name not in victims]
    new = look_up_step(read_lock(f"{run}/run.json", step=7).open(), 7)
    assert not any(row.deleted or row.name in victims for row in new)
    ran = tfpipe("steps", run, "--step", 1, "--show", tmp_path / "step.png")
    assert ran.code == 0, ran.err
    assert ran.out.count("deleted since") == 2
    assert not any(name in ran.out for name in victims)


def test_a_lock_of_a_view_finds_its_layer(growing: Path, tmp_path: Path) -> None:
    add_view(growing, "warm", "label in ('red', 'yellow')")
    lock = lock_data(load_manifest(f"{growing}@warm"), "train", PipelineConfig(batch_size=4, image_size=8))
    rows = look_up_step(lock.open(), 5)
    grow(growing, tmp_path / "more")
    assert look_up_step(lock.open(), 5) == rows
    delete_records(str(growing), [rows[1].name])
    assert [row.deleted for row in look_up_step(lock.open(), 5)] == [False, True, False, False]
    assert rows[1].name not in list_names(f"{growing}@warm")
