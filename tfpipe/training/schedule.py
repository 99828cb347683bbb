"""The learning rate of each step."""

from __future__ import annotations

from math import cos, pi

from tfpipe.training.config import TrainConfig


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
