"""The figures of a training, as plain values: computed from the sums over its steps, and passed to an observer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tfpipe.system.progress import Observer

if TYPE_CHECKING:  # the command line extends `TrainObserver` before it loads anything
    import numpy as np
    from numpy.typing import NDArray

    from tfpipe.profiler.types import StepTiming

SUM_NAMES = ("loss", "correct", "top5_correct", "images")
"""The sums that each step counts over its images, in this order."""

_CLASSES_FOR_TOP5 = 6  # with five classes or fewer, the best five are all of them


@dataclass(frozen=True)
class Metrics:
    """The means over some images.

    Attributes:
        loss: The mean loss of an image.
        accuracy: The share of images whose class has the highest logit.
        top5: The share of images whose class is among the highest five; None for datasets of five classes or fewer.
        images: The number of images.
    """

    loss: float
    accuracy: float
    top5: float | None
    images: int

    @classmethod
    def from_sums(cls, sums: NDArray[np.float64], num_classes: int) -> Metrics:
        """Divides sums, in the order of `SUM_NAMES`, by their number of images."""
        loss, correct, top5_correct, images = (float(value) for value in sums)
        divisor = max(images, 1.0)
        top5 = top5_correct / divisor if num_classes >= _CLASSES_FOR_TOP5 else None
        return cls(loss / divisor, correct / divisor, top5, round(images))

    @property
    def values(self) -> dict[str, float]:
        """The means by name, without `top5` if it is None."""
        values = {"loss": self.loss, "accuracy": self.accuracy}
        return values if self.top5 is None else {**values, "top5": self.top5}


@dataclass(frozen=True)
class StepResult:
    """The state of a training inside an epoch.

    Attributes:
        epoch: The number of the epoch, from 0.
        num_epochs: The number of epochs in the run.
        step: The number of steps done in this epoch.
        steps_per_epoch: The number of steps in an epoch.
        metrics: The means of this epoch so far.
        images_per_second: The rate since the last `StepResult`, over all hosts.
        idle_fraction: The latest estimate of `IdleMonitor`; None before it has seen enough steps.
        input_wait_fraction: The latest figure of `IdleMonitor`; None before it has seen enough steps.
    """

    epoch: int
    num_epochs: int
    step: int
    steps_per_epoch: int
    metrics: Metrics
    images_per_second: float
    idle_fraction: float | None
    input_wait_fraction: float | None


@dataclass(frozen=True)
class EpochResult:
    """The result of an epoch that is done.

    Attributes:
        epoch: The number of the epoch, from 0.
        num_epochs: The number of epochs in the run.
        training: The means over the training images of the epoch.
        evaluation: The means over the evaluation split; None if there is no such split.
        images_per_second: The rate of training, over all hosts; None if the steps were not timed.
        seconds: The time of training and evaluation, since the epoch began or the run went on.
    """

    epoch: int
    num_epochs: int
    training: Metrics
    evaluation: Metrics | None
    images_per_second: float | None
    seconds: float


@dataclass(frozen=True)
class TrainResult:
    """The result of a training.

    Attributes:
        output: The folder of the run.
        finished: Whether all epochs are done and the model is exported. A run that was stopped can go on.
        was_finished: Whether the run was finished before, so that nothing was left to do.
        position: The epoch and the step that come next.
        last: The line of the last finished epoch in metrics.jsonl.
        timing: The timing of this process's steps; None if there were too few.
        global_batch_size: The number of images in a batch of all replicas together.
        tflite_accuracy: The accuracy of the quantized model, on the evaluation split or else the training split; None
            without such a model.
    """

    output: str
    finished: bool
    was_finished: bool
    position: tuple[int, int]
    last: dict[str, Any] | None
    timing: StepTiming | None
    global_batch_size: int
    tflite_accuracy: float | None = None


class TrainObserver(Observer):
    """An object that gets the progress of a training. This one ignores it; override the methods that you need."""

    def step(self, result: StepResult) -> None:
        """Receives the state of the training, about once a second."""

    def epoch(self, result: EpochResult) -> None:
        """Receives the result of an epoch, after each epoch."""
