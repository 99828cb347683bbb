"""A run from its first step to the exported model, the same for TensorFlow, PyTorch and JAX.

```
run.py        this file: checks, begins or goes on, runs the loop, exports
loop.py       the loop over epochs and steps
learner.py    what the loop asks of a framework;  tensorflow/, torch/ and jax/ answer
run_dir.py    the folder of the run;  checkpoints.py, run_log.py  what is written to it
model_files.py  labels and notes beside the exported model
config.py     the options;  results.py  the figures
```
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tfpipe.errors import ConfigError, DataError
from tfpipe.format.manifest import Manifest
from tfpipe.lookups.data_lock import lock_data
from tfpipe.lookups.held_layer import HeldLayer, find_held
from tfpipe.training.checkpoints import Checkpoints
from tfpipe.training.config import TrainConfig
from tfpipe.training.learner import Learner, RunFacts, find_evaluation_split
from tfpipe.training.loop import TrainLoop
from tfpipe.training.model_files import PROGRAM
from tfpipe.training.results import TrainObserver, TrainResult
from tfpipe.training.run_dir import CHECKPOINTS, MODEL, RunDir, get_tflite_name
from tfpipe.training.run_log import RunLog

logger = logging.getLogger(__name__)


def check_dataset(manifest: Manifest, config: TrainConfig) -> None:
    """Checks that a classifier can be trained on the split."""
    where = manifest.directory
    if config.split not in manifest.splits:
        raise ConfigError(f"{where} has no split {config.split!r}; it has {', '.join(manifest.splits)}.")
    if manifest.image_key is None:
        raise DataError(f"A classifier needs images, and {where} has none. Read it with `tfpipe.build_dataset`.")
    if manifest.has_several_images and config.pipeline.images != "first":
        raise ConfigError(
            f"A classifier needs one image a record, and {where} has several. Set `images` to first, or read them with "
            "`tfpipe.build_dataset`."
        )
    if manifest.label_key is None or not manifest.label_names:
        raise DataError(f"A classifier needs labels, and {where} has none. Shard images in one folder for each class.")
    if len(manifest.label_names) == 1:
        logger.warning("%s has one class only, %r, so there is nothing to learn.", where, manifest.label_names[0])
    if config.pipeline.order == "throughput" or config.pipeline.tf_data.deterministic is False or manifest.compression:
        logger.warning("Without the exact order a run that goes on sees other records than one that was not stopped.")


def hold_layer(manifest: Manifest, output: str, split: str) -> HeldLayer | None:
    """Returns the layer that the run in a folder holds; None if the dataset has its records, or nothing runs there.

    Raises:
        DataError: The folder cannot be read.
        FormatError: A layer or the folder is damaged.
    """
    saved = RunDir(output).read_option("dataset")
    if saved is None or split not in manifest.splits or saved == _get_fingerprint(manifest, split):
        return None
    return find_held(manifest.address, lambda state: split in state.splits and _get_fingerprint(state, split) == saved)


def run_training(
    facts: RunFacts,
    make_learner: Callable[[], Learner],
    observer: TrainObserver,
    stop: Callable[[], bool],
    stages: str | None = None,
) -> TrainResult:
    """Trains, evaluates after each epoch, and exports; or goes on with the run in `config.output`.

    Args:
        facts: The facts of the run.
        make_learner: A function that builds the model. It is not called for a run that is finished.
        observer: An object that gets the progress of the training.
        stop: A function that is called after each step. Once it returns True, the run is saved and ends.
        stages: The name of the function that changes the pipeline; None if there is none.

    Raises:
        ConfigError: The folder holds another run, or the model cannot be built.
        DataError: The data cannot be read, the folder cannot be written, or the loss is not a number.
        FormatError: The dataset or the folder is damaged.
    """
    manifest, config, steps = facts.manifest, facts.config, facts.steps_per_epoch
    run_dir = RunDir(config.output, facts.is_chief)
    begun = manifest if facts.held is None else facts.held.begun
    fingerprint = _get_fingerprint(begun, config.split)
    options = {"dataset": fingerprint, "stages": stages, **config.get_run_options(facts.global_batch_size)}
    goes_on = run_dir.begin(options, _lock_data(facts))
    if goes_on and _is_finished(run_dir, config):
        end = (config.num_epochs, 0)
        return TrainResult(config.output, True, True, end, run_dir.get_last_epoch(), None, facts.global_batch_size)
    if facts.evaluation_split is None:
        observer.note(
            f"{manifest.directory} has no split validation or test, so all figures are about training images."
        )
    if facts.held is not None:
        observer.note(facts.held.note)
    learner = make_learner()
    checkpoints = Checkpoints(run_dir.file(CHECKPOINTS), learner, config.keep_checkpoints)
    loop = TrainLoop(learner, run_dir, checkpoints, RunLog(learner, run_dir, observer))
    restored = checkpoints.restore(config.pipeline.seed)
    check_shared_folder(learner, run_dir, restored is not None)
    if restored is not None:
        loop.go_to(*restored)
        observer.note(
            f"The run goes on at step {loop.global_step:,} of {steps * config.num_epochs:,}, from a checkpoint."
        )
    else:
        run_dir.metrics.clear()  # a run may have ended before its first checkpoint
    if facts.held is not None and facts.held.has_changed:
        run_dir.change_data(_get_fingerprint(manifest, config.split), _lock_data(facts), loop.global_step)
    finished = loop.run(stop)
    tflite_accuracy = learner.export(run_dir) if finished and facts.is_chief else None
    return TrainResult(
        output=config.output,
        finished=finished,
        was_finished=False,
        position=(loop.position.epoch, loop.position.step),
        last=run_dir.get_last_epoch(),
        timing=loop.timing,
        global_batch_size=facts.global_batch_size,
        tflite_accuracy=tflite_accuracy,
    )


def check_shared_folder(learner: Learner, run_dir: RunDir, sees_checkpoint: bool) -> None:
    """Checks that all processes of a run see the same folder: else some would begin again, with other weights."""
    if learner.facts.num_processes > 1 and learner.any_process(sees_checkpoint) and not sees_checkpoint:
        raise ConfigError(
            f"All processes must see the same checkpoints, and process {learner.facts.process[0]} sees none in "
            f"{run_dir.path}. Use a folder that all hosts share."
        )


def _get_fingerprint(manifest: Manifest, split: str) -> str:
    """Returns a text that changes when the records of the split or those of the evaluation change."""
    splits = (split, find_evaluation_split(manifest, split))
    return "-".join(manifest.splits[name].fingerprint[:16] for name in splits if name is not None)


def _lock_data(facts: RunFacts) -> dict[str, Any] | None:
    """Returns what decides the records of all steps; None if they come in no exact order."""
    config = replace(facts.config.pipeline, batch_size=facts.global_batch_size, training=True)
    if config.order == "throughput" or facts.manifest.compression:
        return None
    return lock_data(facts.manifest, facts.config.split, config).to_json()


def _is_finished(run_dir: RunDir, config: TrainConfig) -> bool:
    """Returns whether the last epoch is done and all models are exported."""
    last = run_dir.get_last_epoch()
    models = [f"{MODEL}/{PROGRAM}"]
    if config.tflite is not None:
        models.append(get_tflite_name(config.tflite))
    return last is not None and last["epoch"] + 1 == config.num_epochs and all(map(run_dir.has, models))
