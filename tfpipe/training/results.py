"""What a training says while it runs: plain values, made of the sums that steps count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tfpipe.profiler.types import StepTiming

_CLASSES_FOR_TOP5 = 6
"""With fewer, the best five are all."""


@dataclass(frozen=True)
class Metrics:
    """Means over images."""

    loss: float
    accuracy: float
    """Share of images whose class has the highest logit."""
    top5: float | None
    """Share of those whose class is among the highest five; None where there are no more classes than that."""
    images: int

    @classmethod
    def of(cls, sums: NDArray[np.float64], num_classes: int) -> Metrics:
        """From loss, right ones, right ones among the best five, and images, each summed up."""
        loss, right, among, images = (float(value) for value in sums)
        count = max(images, 1.0)
        top5 = among / count if num_classes >= _CLASSES_FOR_TOP5 else None
        return cls(loss / count, right / count, top5, round(images))

    @property
    def values(self) -> dict[str, float]:
        """By name, without what there is not."""
        found = {"loss": self.loss, "accuracy": self.accuracy}
        return found if self.top5 is None else {**found, "top5": self.top5}


@dataclass(frozen=True)
class Progress:
    """Where a training is."""

    epoch: int
    """From 0."""
    epochs: int
    step: int
    """Steps done in this epoch."""
    steps: int
    """Of an epoch."""
    metrics: Metrics
    """Of this epoch so far."""
    images_per_second: float
    """Lately, all hosts together."""
    idle_fraction: float | None
    """As `IdleMonitor` estimates it, lately; None before it has seen enough."""
    input_wait_fraction: float | None


@dataclass(frozen=True)
class EpochResult:
    """An epoch that is done."""

    epoch: int
    """From 0."""
    epochs: int
    training: Metrics
    evaluation: Metrics | None
    """None where there is no split for it."""
    images_per_second: float | None
    """Trained, all hosts together; None where it was not seen whole."""
    seconds: float
    """Of training and evaluation, since the epoch began or the run went on."""


@dataclass(frozen=True)
class TrainResult:
    """How a training ended."""

    output: str
    finished: bool
    """All epochs are done, and the model is exported; else it was asked to stop, and can go on."""
    was_finished: bool
    """There was nothing left to do."""
    position: tuple[int, int]
    """Epoch and step that come next."""
    last: dict[str, Any] | None
    """The last epoch's line in metrics.jsonl."""
    timing: StepTiming | None
    """Of this process' steps; None where there were too few."""
    global_batch_size: int
    tflite_accuracy: float | None = None
    """Of the quantised model, on the evaluation split or else the training split."""


class Audience(Protocol):
    """Who watches."""

    def note(self, text: str) -> None:
        """A sentence."""

    def progress(self, progress: Progress) -> None:
        """About once a second."""

    def epoch(self, result: EpochResult) -> None:
        """After each."""


class Nobody:
    """Watches nothing."""

    def note(self, text: str) -> None:
        """Not read."""

    def progress(self, progress: Progress) -> None:
        """Not seen."""

    def epoch(self, result: EpochResult) -> None:
        """Not seen."""
