"""The reference trainer in JAX: one call makes a finished model from a dataset.

    config = TrainConfig(pipeline=PipelineConfig(batch_size=256), framework="jax", output="runs/flowers")
    with join_processes() as place:
        result = train(tfpipe.load_manifest("flowers"), config, place)

```
train.py        this file: sets up, and starts the run
processes.py    the processes and the mesh of their devices
learner.py      one step, compiled
models.py       the model;  checkpoints.py  its checkpoints, by Orbax;  export.py  the finished model as StableHLO
```
"""

from __future__ import annotations

from collections.abc import Callable

from tfpipe.format.manifest import Manifest
from tfpipe.readers.jax import JaxBatches
from tfpipe.system.extras import importing
from tfpipe.training.config import TrainConfig
from tfpipe.training.jax.processes import Place
from tfpipe.training.learner import RunFacts
from tfpipe.training.results import TrainObserver, TrainResult
from tfpipe.training.run import check_dataset, run_training

with importing("`tfpipe.training.jax`", "Orbax", "tfpipe[jax-train]"):
    from tfpipe.training.jax.learner import JaxLearner


def train(
    manifest: Manifest,
    config: TrainConfig,
    place: Place,
    observer: TrainObserver | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> TrainResult:
    """Trains, evaluates after each epoch, and exports; or goes on with the run in `config.output`.

    A run may go on with another number of devices and processes, if the global batch stays the same.

    Args:
        manifest: A dataset, from `load_manifest`.
        config: The options of the training.
        place: The devices, from `join_processes`.
        observer: An object that gets the progress of the training.
        stop: A function that is called after each step. Once it returns True, the run is saved and ends.

    Raises:
        ConfigError: The options do not fit the dataset or the devices, or the folder holds another run.
        DataError: The dataset has no labels or cannot be read, the folder cannot be written, or the loss is not a
            number.
        FormatError: The dataset or the folder is damaged.
    """
    check_dataset(manifest, config)
    pipeline = config.training_pipeline
    steps = len(JaxBatches(manifest, config.split, pipeline, sharding=place.rows))
    facts = RunFacts(manifest, config, pipeline.batch_size, steps, place.process)
    return run_training(facts, lambda: JaxLearner(facts, place), observer or TrainObserver(), stop)
