"""Steps on 1, 2, 4 and 8 logical devices: XLA compiles each, and every shape is known."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

COUNTS = (1, 2, 4, 8)
BATCH, EXAMPLES = 8, 27

SCRIPT = """
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
    unknown, compiled, rows, sums, evaluated = processes.finish(processes.start("-c", SCRIPT, str(colors), str(count)))
    assert unknown == []
    assert compiled == [True] * count
    assert rows == [BATCH // count] * count
    assert np.isfinite(sums).all()
    assert (sums[-1], evaluated[-1]) == (BATCH, EXAMPLES)
