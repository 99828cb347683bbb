"""The reference trainer in TensorFlow: one call makes a finished model from a dataset.

    strategy = tfpipe.resolve_strategy()
    config = TrainConfig(pipeline=PipelineConfig(batch_size=256), model="resnet50", output="runs/flowers")
    result = train(tfpipe.load_manifest("flowers"), config, strategy)

The same call goes on with a run that was killed. It starts at the last checkpoint, with exactly the records that come
next in the order.

```
train.py        this file: sets up, and starts the run
learner.py      what the loop asks of TensorFlow
train_step.py   one step, compiled
models.py       the model;  checkpoints.py  its checkpoints
export.py       the finished model as a SavedModel;  tflite.py  as a TFLite file;  predict.py  classifies with it
```
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from tfpipe.distribution import set_precision, steps_per_epoch
from tfpipe.distribution.devices import get_host_index, list_workers
from tfpipe.format.manifest import Manifest
from tfpipe.pipeline.stage import Customize
from tfpipe.training.config import TrainConfig
from tfpipe.training.learner import RunFacts
from tfpipe.training.results import TrainObserver, TrainResult
from tfpipe.training.run import check_dataset, run_training
from tfpipe.training.tensorflow.learner import TensorFlowLearner
from tfpipe.training.tensorflow.models import BuildModel


def train(
    manifest: Manifest,
    config: TrainConfig,
    strategy: tf.distribute.Strategy,
    build: BuildModel | None = None,
    observer: TrainObserver | None = None,
    stop: Callable[[], bool] = lambda: False,
    customize: Customize | None = None,
) -> TrainResult:
    """Trains, evaluates after each epoch, and exports; or goes on with the run in `config.output`.

    It sets Keras' dtype policy and the random seeds of this process, and with `deterministic` TensorFlow's
    deterministic operations.

    Args:
        manifest: A dataset, from `load_manifest`.
        config: The options of the training.
        strategy: A strategy, from `resolve_strategy`. A run may go on under another strategy, if the global batch
            stays the same.
        build: A function that builds the user's own model.
        observer: An object that gets the progress of the training.
        stop: A function that is called after each step. Once it returns True, the run is saved and ends.
        customize: A function that changes the stages of the pipelines for training and evaluation. The exported model
            decodes images without it.

    Raises:
        ConfigError: The options do not fit the dataset or the replicas, or the folder holds another run.
        DataError: The dataset has no labels or cannot be read, the folder cannot be written, or the loss is not a
            number.
        FormatError: The dataset or the folder is damaged.
    """
    check_dataset(manifest, config)
    tf.keras.utils.set_random_seed(config.pipeline.seed % 2**32)
    if config.deterministic:
        tf.config.experimental.enable_op_determinism()
    set_precision(config.precision, strategy)
    pipeline = config.training_pipeline
    steps = steps_per_epoch(manifest, config.split, pipeline, strategy)
    process = get_host_index(strategy), len(list_workers(strategy)) or 1
    facts = RunFacts(manifest, config, pipeline.batch_size, steps, process)
    stages = None if customize is None else f"{customize.__module__}:{customize.__qualname__}"
    return run_training(
        facts, lambda: TensorFlowLearner(facts, strategy, build, customize), observer or TrainObserver(), stop, stages
    )
