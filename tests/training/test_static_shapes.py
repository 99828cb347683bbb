"""Steps on 1, 2, 4 and 8 logical devices: XLA compiles each, every shape is known, and the figures are the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

COUNTS = (1, 2, 4, 8)
BATCH, EXAMPLES = 8, 27

JAX = """
import json, os, sys
os.environ.update(XLA_FLAGS="--xla_force_host_platform_device_count=8", JAX_PLATFORMS="cpu")
import jax, numpy as np
from jax.sharding import Mesh
import tfpipe
from tfpipe.readers.jax import DeviceBatches
from tfpipe.training.config import TrainConfig
from tfpipe.training.jax.learner import JaxLearner
from tfpipe.training.jax.processes import Place
from tfpipe.training.learner import RunFacts

manifest = tfpipe.load_manifest(sys.argv[1])
pipeline = tfpipe.PipelineConfig(global_batch_size=8, image_size=16, lanes=4, run_records=4)
config = TrainConfig(pipeline=pipeline, output="run", framework="jax", num_workers=1)

def describe(function, *arguments):
    # A number of rows that only the devices know is written as an upper bound: f32[<=8].
    text = function.lower(*arguments).compile().as_text()
    return ["[<=" in text, text.count("ENTRY"), function._cache_size()]

results = []
for count in map(int, sys.argv[2:]):
    place = Place(Mesh(np.array(jax.devices()[:count]), ("data",)))
    learner = JaxLearner(RunFacts(manifest, config, 8, 6), place)
    batches = iter(DeviceBatches(manifest, "train", config.training_pipeline, 0, place.rows, 1))
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
def test_jax_compiles_each_step_once_with_known_shapes(processes: Any, colors: Path) -> None:
    pytest.importorskip("jax")
    pytest.importorskip("orbax.checkpoint")
    results = processes.finish(processes.start("-c", JAX, str(colors), *map(str, COUNTS)))
    for count, (rows, step, evaluation, *_) in zip(COUNTS, results, strict=True):
        assert rows == [BATCH // count] * count
        assert step == evaluation == [False, 1, 1]
    check_figures(results)
