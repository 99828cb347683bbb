"""The reference trainer: from a dataset to a finished model, in one call.

    strategy = tfpipe.resolve_strategy()
    config = TrainConfig(pipeline=PipelineConfig(per_replica_batch_size=64), model="resnet50", output="runs/flowers")
    result = train(tfpipe.load_manifest("flowers"), config, strategy)

The same call goes on with a run that was killed: from the last checkpoint, with exactly the records that would have
come.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tfpipe.distribution import replica_batch_size, set_precision, steps_per_epoch
from tfpipe.distribution.devices import is_chief
from tfpipe.errors import ConfigError, DataError
from tfpipe.format.image_form import ImageForm
from tfpipe.format.manifest import Manifest
from tfpipe.pipeline.build import build_dataset
from tfpipe.training.checkpoints import Checkpoints
from tfpipe.training.config import TrainConfig
from tfpipe.training.loop import SUMS, Loop
from tfpipe.training.models import BuildModel, build_model
from tfpipe.training.results import Audience, Nobody, TrainResult
from tfpipe.training.run_dir import CHECKPOINTS, MODEL, RunFolder
from tfpipe.training.train_step import Learner

logger = logging.getLogger(__name__)

_CALIBRATION_IMAGES = 256


def train(
    manifest: Manifest,
    config: TrainConfig,
    strategy: tf.distribute.Strategy,
    build: BuildModel | None = None,
    audience: Audience | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> TrainResult:
    """Trains, evaluates after each epoch, and exports; or goes on with the run in `config.output`.

    Sets Keras' dtype policy and the random seeds of this process, with `deterministic` TensorFlow's switch for it too.

    Args:
        manifest: From `load_manifest`.
        config: What is asked for.
        strategy: From `resolve_strategy`. Another one may go on with a run, if the global batch stays the same.
        build: Makes the user's own model.
        audience: Is told how far it is.
        stop: Asked after each step; once it is true, the run is saved and ends.

    Raises:
        ConfigError: The options cannot be had with these data or replicas, or the folder holds another run.
        DataError: The dataset has no labels, cannot be read, or the folder cannot be written; the loss is no number.
        FormatError: The dataset or the folder is damaged.
    """
    audience = audience or Nobody()
    _check(manifest, config)
    _seed(config)
    set_precision(config.precision, strategy)
    pipeline = config.training_pipeline
    batch, _ = replica_batch_size(
        strategy,
        global_batch_size=pipeline.global_batch_size,
        per_replica_batch_size=pipeline.per_replica_batch_size,
    )
    steps = steps_per_epoch(manifest, config.split, pipeline, strategy)
    evaluation_split = evaluation_split_of(manifest, config.split)
    folder = RunFolder(config.output, is_chief(strategy))
    goes_on = folder.begin({"dataset": _fingerprint(manifest, config.split, evaluation_split), **config.asked(batch)})
    if goes_on and _is_finished(folder, config):
        return TrainResult(config.output, True, True, (config.num_epochs, 0), folder.last_epoch(), None, batch)
    if evaluation_split is None:
        audience.note(f"{manifest.directory} has no split validation or test: what is said is about training images.")
    learner = Learner(strategy, config, len(manifest.label_names), batch, steps, build)
    checkpoints = Checkpoints(folder.file(CHECKPOINTS), learner.model, learner.optimizer, config.keep_checkpoints, SUMS)
    loop = Loop(learner, manifest, evaluation_split, folder, checkpoints, audience)
    if (found := checkpoints.restore(pipeline.seed)) is not None:
        loop.go_to(*found)
        audience.note(f"Goes on at step {loop.global_step:,} of {steps * config.num_epochs:,}, from a checkpoint.")
    else:
        folder.metrics.clear()  # of a run that ended before its first checkpoint
    finished = loop.run(stop)
    quantised = _export(manifest, config, learner, folder, build) if finished and learner.is_chief else None
    place = (loop.position.epoch, loop.position.step)
    timing = loop.feed.timing() if loop.feed else None
    return TrainResult(config.output, finished, False, place, folder.last_epoch(), timing, batch, quantised)


def evaluation_split_of(manifest: Manifest, split: str) -> str | None:
    """The split that is evaluated, if there is one."""
    return next((name for name in ("validation", "test") if name in manifest.splits and name != split), None)


def tflite_name(kind: str) -> str:
    """Of the file in a run's folder."""
    return f"{MODEL}-{kind}.tflite"


def _check(manifest: Manifest, config: TrainConfig) -> None:
    where = manifest.directory
    if config.split not in manifest.splits:
        raise ConfigError(f"{where} has no split {config.split!r}; it has {', '.join(manifest.splits)}.")
    if manifest.label_key is None or not manifest.label_names:
        raise DataError(f"A classifier needs labels, and {where} has none. Shard images in one folder for each class.")
    if config.pipeline.order == "throughput" or config.pipeline.deterministic is False or manifest.compression:
        logger.warning("Without the exact order a run that goes on sees other records than one that was not stopped.")


def _seed(config: TrainConfig) -> None:
    tf.keras.utils.set_random_seed(config.pipeline.seed % 2**32)
    if config.deterministic:
        tf.config.experimental.enable_op_determinism()


def _fingerprint(manifest: Manifest, *splits: str | None) -> str:
    return "-".join(manifest.splits[split].fingerprint[:16] for split in splits if split is not None)


def _is_finished(folder: RunFolder, config: TrainConfig) -> bool:
    last = folder.last_epoch()
    wanted = [MODEL] if config.tflite is None else [MODEL, tflite_name(config.tflite)]
    return last is not None and last["epoch"] + 1 == config.num_epochs and all(map(folder.has, wanted))


def _export(
    manifest: Manifest, config: TrainConfig, learner: Learner, folder: RunFolder, build: BuildModel | None
) -> float | None:
    """Writes what is served. Returns the accuracy of the quantised model, where one was asked for."""
    from tfpipe.training.export import export_model

    evaluation = config.evaluation_pipeline
    # A copy outside the strategy, whose weights do not live on its devices.
    model = build_model(config.model, learner.num_classes, evaluation, build)
    model.set_weights(learner.model.get_weights())
    form = ImageForm.recorded(manifest.image) if manifest.foreign is None else None
    export_model(model, evaluation, manifest.label_names, folder.file(MODEL), form)
    if config.tflite is None:
        return None
    from tfpipe.training.tflite import evaluate_tflite, export_tflite

    path = folder.file(tflite_name(config.tflite))
    export_tflite(model, evaluation, config.tflite, _images(manifest, config), path)
    split = evaluation_split_of(manifest, config.split) or config.split
    return evaluate_tflite(path, build_dataset(manifest, split, evaluation))


def _images(manifest: Manifest, config: TrainConfig) -> Iterator[NDArray[np.generic]]:
    """A few images as the model gets them, to see which values its sums take."""
    dataset = build_dataset(manifest, config.split, config.evaluation_pipeline).unbatch()
    for example in dataset.filter(lambda example: example["mask"]).take(_CALIBRATION_IMAGES):
        yield example["image"].numpy()
