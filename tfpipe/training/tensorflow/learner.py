"""The reference trainer's part that is TensorFlow's own: data under a strategy, steps in one call, export."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tfpipe.distribution import distribute_dataset
from tfpipe.distribution.devices import get_device_kind, is_remote_tpu
from tfpipe.pipeline.build import build_stages
from tfpipe.pipeline.stage import Customize, explain_customize_errors
from tfpipe.profiler.live.idle_monitor import IdleMonitor
from tfpipe.training.learner import SUMS_SHAPE, Learner, RunFacts, Steps
from tfpipe.training.model_files import read_form
from tfpipe.training.run_dir import CHECKPOINTS, MODEL, RunDir, get_tflite_name
from tfpipe.training.tensorflow.checkpoints import TensorFlowCheckpoints
from tfpipe.training.tensorflow.models import BuildModel, build_model
from tfpipe.training.tensorflow.train_step import StrategyModel

_STEPS_PER_CALL_ON_TPU = 50
_CALIBRATION_IMAGES = 256


class TensorFlowLearner(Learner):
    """A Keras model under a strategy."""

    failures = (tf.errors.OpError,)

    def __init__(
        self,
        facts: RunFacts,
        strategy: tf.distribute.Strategy,
        build: BuildModel | None = None,
        customize: Customize | None = None,
    ) -> None:
        """Builds the model.

        Args:
            facts: The facts of the run.
            strategy: The strategy that trains.
            build: A function that builds the user's own model.
            customize: A function that changes the stages of the pipelines for training and evaluation.

        Raises:
            ConfigError: The model cannot be built.
        """
        super().__init__(facts)
        self._build, self._customize = build, customize
        self._trained = StrategyModel(strategy, facts, build)
        self._evaluation_data: Any = None

    def open_steps(self, start_step: int, run_dir: RunDir) -> Steps:
        """Opens the training data at a global step of the run."""
        return _TimedSteps(self._trained, start_step, self._customize, run_dir)

    def evaluate(self, split: str) -> Iterator[NDArray[np.float64]]:
        """Yields the sums of each evaluation batch over all replicas, float64 [4]."""
        if self._evaluation_data is None:
            with explain_customize_errors(self._customize):
                self._evaluation_data = distribute_dataset(
                    self._trained.strategy,
                    self.facts.manifest,
                    split,
                    self.facts.config.evaluation_pipeline,
                    customize=self._customize,
                )
        for batch in self._evaluation_data:
            yield self._trained.evaluate(batch).numpy()

    def read_sums(self, result: Any) -> NDArray[np.float64]:
        """Returns the sums of some steps over all replicas: float64 [4]."""
        sums: NDArray[np.float64] = result.numpy()
        return sums

    def get_learning_rate(self, step: int) -> float:
        """Returns the learning rate of a global step."""
        return float(self._trained.schedule(step))

    def any_process(self, flag: bool) -> bool:
        """Returns whether `flag` is True in any process."""
        return self._trained.any_host(flag)

    def make_checkpoints(self, run_dir: RunDir) -> TensorFlowCheckpoints:
        """Opens the checkpoints of a run."""
        model, optimizer = self._trained.model, self._trained.optimizer
        keep = self.facts.config.keep_checkpoints
        return TensorFlowCheckpoints(run_dir.file(CHECKPOINTS), model, optimizer, keep, SUMS_SHAPE)

    def export(self, run_dir: RunDir) -> float | None:
        """Writes the models to serve. Returns the accuracy of the TFLite model; None without such a model."""
        from tfpipe.training.tensorflow.export import export_model

        manifest, config = self.facts.manifest, self.facts.config
        evaluation = config.evaluation_pipeline
        # A copy outside the strategy: its weights do not live on the strategy's devices.
        model = build_model(config.model, self.facts.num_classes, evaluation, self._build)
        model.set_weights(self._trained.model.get_weights())
        export_model(model, evaluation, manifest.label_names, run_dir.file(MODEL), read_form(manifest))
        if config.tflite is None:
            return None
        from tfpipe.training.tensorflow.tflite import evaluate_tflite, export_tflite

        path = run_dir.file(get_tflite_name(config.tflite))
        training_images = self._read_images(config.split)
        evaluation_images = self._read_images(self.facts.evaluation_split or config.split)
        export_tflite(model, evaluation, config.tflite, _read_calibration_images(training_images), path)
        return evaluate_tflite(path, evaluation_images)

    def _read_images(self, split: str) -> tf.data.Dataset:
        """Reads a split as for evaluation, on this process alone."""
        evaluation = self.facts.config.evaluation_pipeline
        with explain_customize_errors(self._customize):
            return build_stages(self.facts.manifest, split, evaluation, customize=self._customize).dataset()


class _TimedSteps:
    """The training data from a step on, and the steps over it, timed by an `IdleMonitor`.

    Attributes:
        steps_per_call: The largest number of steps that run without a return to Python.
        monitor: The monitor of all steps.
    """

    def __init__(self, model: StrategyModel, start_step: int, customize: Customize | None, run_dir: RunDir) -> None:
        """Opens the data at a step of the run."""
        self._model, config, strategy, facts = model, model.config, model.strategy, model.facts
        self.steps_per_call = config.steps_per_execution or (
            _STEPS_PER_CALL_ON_TPU if get_device_kind(strategy) == "TPU" else 1
        )
        hosts_dir, every = facts.get_hosts_dir(run_dir), config.log_every_steps
        self.monitor = IdleMonitor(every_steps=every, hosts_dir=hosts_dir, host=facts.process)
        self.monitor.use_strategy(strategy)
        # If a loop inside a call takes its batches, only a clock inside the pipeline sees it wait. The pipelines of a
        # remote TPU run on other machines, where no clock of this process can run.
        watch = self.monitor.watch if self.steps_per_call > 1 and not is_remote_tpu(strategy) else None
        with explain_customize_errors(customize):
            dataset = distribute_dataset(
                strategy,
                facts.manifest,
                config.split,
                config.training_pipeline,
                start_step,
                watch=watch,
                customize=customize,
            )
        self._batches: Any = iter(dataset) if self.steps_per_call > 1 else self.monitor.iterate(dataset)

    def make(self, count: int) -> tf.Tensor:
        """Makes `count` steps, at most `steps_per_call`. Returns their sums, which the device may still compute."""
        if self.steps_per_call > 1:
            with self.monitor.step(count) as step:
                step.result = self._model.train_from(self._batches, count)
        else:
            batch = next(self._batches)
            with self.monitor.step() as step:
                step.result = self._model.train(batch)
        return step.result

    def close(self) -> None:
        """Does nothing: the pipeline ends with its iterator."""


def _read_calibration_images(batches: tf.data.Dataset) -> Iterator[NDArray[np.generic]]:
    """Yields a few training images as the model gets them, to show the range of each layer's values."""
    for example in batches.unbatch().filter(lambda example: example["mask"]).take(_CALIBRATION_IMAGES):
        yield example["image"].numpy()
