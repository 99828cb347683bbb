"""The reference trainer: one call makes a finished model from a dataset.

    strategy = tfpipe.resolve_strategy()
    config = TrainConfig(pipeline=PipelineConfig(per_replica_batch_size=64), model="resnet50", output="runs/flowers")
    result = train(tfpipe.load_manifest("flowers"), config, strategy)

The same call goes on with a run that was killed. It starts at the last checkpoint, with exactly the records that come
next in the order.

```
train.py        this file: checks, sets up, runs the loop, exports
loop.py         the loop over epochs and steps
train_step.py   one step, compiled
models.py       the model
run_dir.py      the folder of the run;  checkpoints.py, run_log.py  what is written to it
export.py       the finished model as a SavedModel;  tflite.py  as a TFLite file;  predict.py  classifies with it
```
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tfpipe.distribution import resolve_batch_size, set_precision, steps_per_epoch
from tfpipe.distribution.devices import is_chief
from tfpipe.errors import ConfigError, DataError
from tfpipe.format.image_form import ImageForm
from tfpipe.format.manifest import Manifest
from tfpipe.pipeline.build import build_stages
from tfpipe.pipeline.stage import Customize, customize_stages, explain_customize_errors
from tfpipe.training.checkpoints import Checkpoints
from tfpipe.training.config import TrainConfig
from tfpipe.training.loop import SUMS_SHAPE, TrainLoop
from tfpipe.training.models import BuildModel, build_model
from tfpipe.training.results import TrainObserver, TrainResult
from tfpipe.training.run_dir import CHECKPOINTS, MODEL, RunDir
from tfpipe.training.run_log import RunLog
from tfpipe.training.train_step import Learner

logger = logging.getLogger(__name__)

_CALIBRATION_IMAGES = 256


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
    observer = observer or TrainObserver()
    _check_dataset(manifest, config)
    _set_seeds(config)
    set_precision(config.precision, strategy)
    pipeline, evaluation_split = config.training_pipeline, get_evaluation_split(manifest, config.split)
    global_batch_size, _ = resolve_batch_size(
        strategy,
        global_batch_size=pipeline.global_batch_size,
        per_replica_batch_size=pipeline.per_replica_batch_size,
    )
    steps = steps_per_epoch(manifest, config.split, pipeline, strategy)

    run_dir = RunDir(config.output, is_chief(strategy))
    fingerprint = _get_fingerprint(manifest, config.split, evaluation_split)
    stages = None if customize is None else f"{customize.__module__}:{customize.__qualname__}"
    run_options = {"dataset": fingerprint, "stages": stages, **config.get_run_options(global_batch_size)}
    goes_on = run_dir.begin(run_options)
    if goes_on and _is_finished(run_dir, config):
        end = (config.num_epochs, 0)
        return TrainResult(config.output, True, True, end, run_dir.get_last_epoch(), None, global_batch_size)
    if evaluation_split is None:
        observer.note(
            f"{manifest.directory} has no split validation or test, so all figures are about training images."
        )

    learner = Learner(strategy, config, len(manifest.label_names), global_batch_size, steps, build)
    checkpoints = Checkpoints(
        run_dir.file(CHECKPOINTS), learner.model, learner.optimizer, config.keep_checkpoints, SUMS_SHAPE
    )
    log = RunLog(learner, run_dir, observer)
    loop = TrainLoop(learner, manifest, evaluation_split, run_dir, checkpoints, log, customize)
    if (restored := checkpoints.restore(pipeline.seed)) is not None:
        loop.go_to(*restored)
        observer.note(
            f"The run goes on at step {loop.global_step:,} of {steps * config.num_epochs:,}, from a checkpoint."
        )
    else:
        run_dir.metrics.clear()  # a run may have ended before its first checkpoint

    finished = loop.run(stop)
    tflite_accuracy = None
    if finished and learner.is_chief:
        tflite_accuracy = _export(manifest, config, learner, run_dir, build, customize)
    return TrainResult(
        output=config.output,
        finished=finished,
        was_finished=False,
        position=(loop.position.epoch, loop.position.step),
        last=run_dir.get_last_epoch(),
        timing=loop.timing,
        global_batch_size=global_batch_size,
        tflite_accuracy=tflite_accuracy,
    )


def get_evaluation_split(manifest: Manifest, split: str) -> str | None:
    """Returns the split to evaluate on when training on `split`; None if there is no other one."""
    return next((name for name in ("validation", "test") if name in manifest.splits and name != split), None)


def get_tflite_name(kind: str) -> str:
    """Returns the name of the TFLite file in a run's folder."""
    return f"{MODEL}-{kind}.tflite"


def _check_dataset(manifest: Manifest, config: TrainConfig) -> None:
    where = manifest.directory
    if config.split not in manifest.splits:
        raise ConfigError(f"{where} has no split {config.split!r}; it has {', '.join(manifest.splits)}.")
    if manifest.label_key is None or not manifest.label_names:
        raise DataError(f"A classifier needs labels, and {where} has none. Shard images in one folder for each class.")
    if config.pipeline.order == "throughput" or config.pipeline.deterministic is False or manifest.compression:
        logger.warning("Without the exact order a run that goes on sees other records than one that was not stopped.")


def _set_seeds(config: TrainConfig) -> None:
    tf.keras.utils.set_random_seed(config.pipeline.seed % 2**32)
    if config.deterministic:
        tf.config.experimental.enable_op_determinism()


def _get_fingerprint(manifest: Manifest, *splits: str | None) -> str:
    """Returns a text that changes when the records of a split change."""
    return "-".join(manifest.splits[split].fingerprint[:16] for split in splits if split is not None)


def _is_finished(run_dir: RunDir, config: TrainConfig) -> bool:
    """Returns whether the last epoch is done and all models are exported."""
    last = run_dir.get_last_epoch()
    models = [MODEL] if config.tflite is None else [MODEL, get_tflite_name(config.tflite)]
    return last is not None and last["epoch"] + 1 == config.num_epochs and all(map(run_dir.has, models))


def _export(
    manifest: Manifest,
    config: TrainConfig,
    learner: Learner,
    run_dir: RunDir,
    build: BuildModel | None,
    customize: Customize | None,
) -> float | None:
    """Writes the models to serve. Returns the accuracy of the TFLite model; None without such a model."""
    from tfpipe.training.export import export_model

    evaluation = config.evaluation_pipeline
    # A copy outside the strategy: its weights do not live on the strategy's devices.
    model = build_model(config.model, learner.num_classes, evaluation, build)
    model.set_weights(learner.model.get_weights())
    form = ImageForm.recorded(manifest.image) if manifest.foreign is None else None
    export_model(model, evaluation, manifest.label_names, run_dir.file(MODEL), form)
    if config.tflite is None:
        return None
    from tfpipe.training.tflite import evaluate_tflite, export_tflite

    path = run_dir.file(get_tflite_name(config.tflite))
    split = get_evaluation_split(manifest, config.split) or config.split
    with explain_customize_errors(customize):
        training_images = customize_stages(
            build_stages(manifest, config.split, evaluation), customize, evaluation
        ).dataset()
        evaluation_images = customize_stages(build_stages(manifest, split, evaluation), customize, evaluation).dataset()
    export_tflite(model, evaluation, config.tflite, _read_calibration_images(training_images), path)
    return evaluate_tflite(path, evaluation_images)


def _read_calibration_images(batches: tf.data.Dataset) -> Iterator[NDArray[np.generic]]:
    """Yields a few training images as the model gets them, to show the range of each layer's values."""
    for example in batches.unbatch().filter(lambda example: example["mask"]).take(_CALIBRATION_IMAGES):
        yield example["image"].numpy()
