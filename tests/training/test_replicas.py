"""Several replicas and processes: the same losses, each image of an evaluation counted once, and static shapes.

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


# XLA compiles each step on 1, 2, 4 and 8 logical devices, and every shape is known


COUNTS = (1, 2, 4, 8)
BATCH, EXAMPLES = 8, 27

STEPS = """
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
@pytest.mark.parametrize("count", COUNTS)
def test_each_step_is_compiled_with_known_shapes(processes: Any, colors: Path, count: int) -> None:
    # A process for each count, because collectives of several strategies do not fit into one.
    unknown, compiled, rows, sums, evaluated = processes.finish(processes.start("-c", STEPS, str(colors), str(count)))
    assert unknown == []
    assert compiled == [True] * count
    assert rows == [BATCH // count] * count
    assert np.isfinite(sums).all()
    assert (sums[-1], evaluated[-1]) == (BATCH, EXAMPLES)
