"""Steps on 1, 2, 4 and 8 logical devices: XLA compiles each, and every shape is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

COUNTS = (1, 2, 4, 8)
BATCH, EXAMPLES = 8, 27

TENSORFLOW = """
import json, os, sys
import tensorflow as tf
import tfpipe
from tfpipe.training.config import TrainConfig
from tfpipe.training.learner import RunFacts
from tfpipe.training.tensorflow.train import TensorFlowLearner

tf.config.threading.set_intra_op_parallelism_threads(1)
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 8)
manifest = tfpipe.load_manifest(sys.argv[1])
pipeline = tfpipe.PipelineConfig(batch_size=8, image_size=16, block_records=4)
config = TrainConfig(pipeline=pipeline, output="run")

def describe(function):
    concrete = function._list_all_concrete_functions()
    names = [tensor.name for one in concrete for operation in one.graph.get_operations() for tensor in operation.outputs
             if tensor.dtype not in (tf.resource, tf.variant) and not tensor.shape.is_fully_defined()]
    compiled = [one.function_def.attr["_XlaMustCompile"].b for one in concrete]
    rows = [int(one.structured_input_signature[0][2]["image"].shape[0]) for one in concrete]
    return [names, compiled, rows]

count = int(sys.argv[2])
devices = [f"/CPU:{i}" for i in range(count)]
strategy = tf.distribute.MirroredStrategy(devices) if count > 1 else tf.distribute.OneDeviceStrategy(devices[0])
trained = TensorFlowLearner(RunFacts(manifest, config, 8, 6), strategy)
batches = iter(tfpipe.distribute_dataset(strategy, manifest, "train", config.training_pipeline))
sums = trained.train(next(batches)).numpy().tolist()
evaluation = tfpipe.distribute_dataset(strategy, manifest, "validation", config.evaluation_pipeline)
evaluated = sum(trained.evaluate_batch(batch) for batch in evaluation).numpy().tolist()
print(json.dumps([describe(trained._gradients), describe(trained._predict), sums, evaluated]), flush=True)
os._exit(0)  # pipelines of eight devices, which read ahead, take long to end on a busy machine
"""

JAX = """
import json, os, sys
os.environ.update(XLA_FLAGS="--xla_force_host_platform_device_count=8", JAX_PLATFORMS="cpu")
import jax, numpy as np
from jax.sharding import Mesh
import tfpipe
from tfpipe.readers.jax import JaxBatches
from tfpipe.training.config import TrainConfig
from tfpipe.training.jax.train import JaxLearner
from tfpipe.training.jax.processes import Place
from tfpipe.training.learner import RunFacts

manifest = tfpipe.load_manifest(sys.argv[1])
pipeline = tfpipe.PipelineConfig(batch_size=8, image_size=16, block_records=4)
config = TrainConfig(pipeline=pipeline, output="run", framework="jax", workers=1)

def describe(function, *arguments):
    # A number of rows that only the devices know is written as an upper bound: f32[<=8].
    text = function.lower(*arguments).compile().as_text()
    return ["[<=" in text, text.count("ENTRY"), function._cache_size()]

results = []
for count in map(int, sys.argv[2:]):
    place = Place(Mesh(np.array(jax.devices()[:count]), ("data",)))
    learner = JaxLearner(RunFacts(manifest, config, 8, 6), place)
    batches = iter(JaxBatches(manifest, "train", config.training_pipeline, 0, place.rows, 1))
    batch = next(batches)
    sums = [learner.read_sums(learner._train(batch)).tolist() for batch in (batch, next(batches))]
    batches.close()
    evaluated = sum(learner.evaluate("validation")).tolist()
    rows = [shard.data.shape[0] for shard in batch["image"].addressable_shards]
    step = describe(learner._train_once, learner._state, batch, np.float32(0.1))
    masked = {**batch, "mask": batch["label"] >= 0}
    evaluation = describe(learner._evaluate_once, learner.parameters, masked)
    results.append([rows, step, evaluation, sums, evaluated])
print(json.dumps(results))
"""


def check_figures(results: list[Any]) -> None:
    """Checks the sums of two steps and of the evaluation, the last two values of each result, against one device's."""
    *_, expected_sums, expected_evaluation = results[0]
    for *_, sums, evaluated in results:
        assert [step[-1] for step in sums] == [BATCH, BATCH]
        assert evaluated[-1] == EXAMPLES
        for figures, expected in zip((*sums, evaluated), (*expected_sums, expected_evaluation), strict=True):
            assert figures[0] == pytest.approx(expected[0], rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("count", COUNTS)
def test_tensorflow_compiles_each_step_with_known_shapes(processes: Any, colors: Path, count: int) -> None:
    pytest.importorskip("tensorflow")
    # A process for each count, because collectives of several strategies do not fit into one.
    *functions, sums, evaluated = processes.finish(processes.start("-c", TENSORFLOW, str(colors), str(count)))
    for unknown, compiled, rows in functions:
        assert unknown == []
        assert compiled == [True] * count
        assert rows == [BATCH // count] * count
    assert np.isfinite(sums).all()
    assert (sums[-1], evaluated[-1]) == (BATCH, EXAMPLES)


@pytest.mark.slow
def test_jax_compiles_each_step_once_with_known_shapes(processes: Any, colors: Path) -> None:
    pytest.importorskip("jax")
    results = processes.finish(processes.start("-c", JAX, str(colors), *map(str, COUNTS)))
    for count, (rows, step, evaluation, *_) in zip(COUNTS, results, strict=True):
        assert rows == [BATCH // count] * count
        assert step == evaluation == [False, 1, 1]
    check_figures(results)
