"""The part of a training that each framework does by itself: model, optimizer, steps, their arrays, export.

```
loop.py      epochs, steps, logs, saves, stops                    the same for all frameworks
Learner      open_steps ─▶ Steps.make ─▶ read_sums; evaluate ...  one for TensorFlow, PyTorch and JAX each
```
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import cos, pi
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tfpipe.errors import DataError
from tfpipe.format.manifest import Manifest
from tfpipe.lookups.held_layer import HeldLayer
from tfpipe.profiler.live.step_monitor import Devices, StepMonitor
from tfpipe.profiler.types import StepTiming
from tfpipe.training.checkpoints import State
from tfpipe.training.config import TrainConfig
from tfpipe.training.results import SUM_NAMES
from tfpipe.training.run_dir import RunDir

SUMS_SHAPE = (2, len(SUM_NAMES))
"""The shape of the sums: a row since the last line, and a row since the epoch began. A checkpoint saves both."""

TOP = 5
"""The number of the classes with the highest logits, among which `top5` looks for the label."""


def find_evaluation_split(manifest: Manifest, split: str) -> str | None:
    """Returns the split to evaluate a training on; None if there is no other one."""
    return next((name for name in ("validation", "test") if name in manifest.splits and name != split), None)


class LearningRate:
    """The rate of each step: it rises to the peak, then falls along a cosine to 0.

    Attributes:
        peak: The highest rate.
        warmup_steps: The number of steps before the peak.
        num_steps: The number of steps in the run.
    """

    def __init__(self, config: TrainConfig, global_batch_size: int, steps_per_epoch: int) -> None:
        """Computes the length of both parts."""
        self.peak = config.peak_learning_rate(global_batch_size)
        self.warmup_steps = round(config.num_warmup_epochs * steps_per_epoch)
        self.num_steps = config.num_epochs * steps_per_epoch

    def get(self, step: int) -> float:
        """Returns the rate of a global step, from 0."""
        if step < self.warmup_steps:
            # The warm-up begins above 0, where the first step would teach nothing.
            first = self.peak / (self.warmup_steps + 1)
            return first + (self.peak - first) * step / self.warmup_steps
        done = (step - self.warmup_steps) / (self.num_steps - self.warmup_steps)
        return self.peak * (1 + cos(pi * min(done, 1.0))) / 2


@dataclass(frozen=True)
class RunFacts:
    """The facts of a run that are known before its model is built.

    Attributes:
        manifest: The dataset.
        config: The options of the training.
        global_batch_size: The number of images in a batch of all replicas together.
        steps_per_epoch: The number of steps in an epoch.
        process: The number of this process, from 0, and the number of processes that train together. Each of them
            reads its own images.
        held: The layer of a dataset that has grown since the run began; None if it has the records of the run.
    """

    manifest: Manifest
    config: TrainConfig
    global_batch_size: int
    steps_per_epoch: int
    process: tuple[int, int] = (0, 1)
    held: HeldLayer | None = None

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self.manifest.label_names)

    @property
    def is_chief(self) -> bool:
        """Whether this process writes for all."""
        return self.process[0] == 0

    @property
    def num_processes(self) -> int:
        """The number of processes that train together."""
        return self.process[1]

    @property
    def evaluation_split(self) -> str | None:
        """The split to evaluate on; None if there is no other one than that of the training."""
        return find_evaluation_split(self.manifest, self.config.split)

    def make_monitor(self, devices: Devices, run_dir: RunDir) -> StepMonitor:
        """Makes the monitor of this process."""
        return StepMonitor(devices, every_steps=self.config.log_every_steps)


class Steps(Protocol):
    """The steps over the training data, from a step of the run on.

    Attributes:
        steps_per_call: The largest number of steps that run without a return to Python.
    """

    steps_per_call: int

    @property
    def monitor(self) -> StepMonitor:
        """The monitor that times them."""

    def make(self, count: int) -> Any:
        """Makes `count` steps, at most `steps_per_call`. Returns their sums, which the device may still compute."""

    def close(self) -> None:
        """Ends the reading ahead."""


class SingleSteps:
    """The steps that return to Python one by one, over a loader whose passes are epochs.

    Attributes:
        steps_per_call: The number of steps in a call: 1.
        monitor: The monitor that times them.
    """

    def __init__(self, loader: Iterable[Any], train: Callable[[Any], Any], monitor: StepMonitor) -> None:
        """Begins at the loader's position.

        Args:
            loader: The batches of one epoch in each pass, or of all.
            train: A function that trains on one batch and returns the result of the step.
            monitor: The monitor that times the steps.
        """
        self.steps_per_call, self.monitor = 1, monitor
        self._train = train
        self._passes = (batch for _ in iter(int, 1) for batch in loader)
        self._batches = monitor.iterate(self._passes)

    def make(self, count: int) -> Any:
        """Makes one step. Returns its result."""
        batch = next(self._batches)
        with self.monitor.step() as step:
            step.result = self._train(batch)
        return step.result

    def close(self) -> None:
        """Ends the loader's pass, with its threads."""
        self._passes.close()


class Learner(ABC):
    """A model and its optimizer on the devices of a run, and the compiled steps.

    Attributes:
        facts: The facts of the run.
        rates: The learning rate of each step.
        failures: The errors by which the framework says that a step cannot be made.
    """

    failures: tuple[type[Exception], ...] = (RuntimeError,)

    def __init__(self, facts: RunFacts) -> None:
        """Sets the facts of the run."""
        self.facts = facts
        self.rates = LearningRate(facts.config, facts.global_batch_size, facts.steps_per_epoch)

    @abstractmethod
    def open_steps(self, start_step: int, run_dir: RunDir) -> Steps:
        """Opens the training data at a global step of the run."""

    @abstractmethod
    def evaluate(self, split: str) -> Iterator[NDArray[np.float64]]:
        """Yields the sums of each evaluation batch over all processes, float64 [4]. Padding does not count."""

    def read_sums(self, result: Any) -> NDArray[np.float64]:
        """Returns the sums that `Steps.make` returned, over all processes: float64 [4]. It waits for the device."""
        return np.asarray(result, np.float64)

    @abstractmethod
    def any_process(self, flag: bool) -> bool:
        """Returns whether `flag` is True in any process. All processes must call it in the same step."""

    @abstractmethod
    def get_state(self) -> State:
        """Returns copies of the arrays of the model and its optimizer. Only the chief calls it."""

    @abstractmethod
    def set_state(self, state: State) -> None:
        """Takes the arrays of a checkpoint. All processes call it."""

    @abstractmethod
    def export(self, run_dir: RunDir) -> float | None:
        """Writes the models to serve. Only the chief calls it.

        Returns:
            The accuracy of a quantized model; None without one.
        """


def get_timing(monitor: StepMonitor) -> StepTiming | None:
    """Returns the timing of all steps after the warm-up; None if there were too few."""
    try:
        return monitor.result()
    except DataError:
        return None
