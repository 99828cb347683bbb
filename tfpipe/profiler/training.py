"""Times a real training step end to end, against the same step on a batch that already lies on the device.

timing = tfpipe.measure_training(train_step, dataset, steps=200)
print(f"{timing.idle_fraction.median:.0%} idle")
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfpipe.errors import ConfigError, DataError
from tfpipe.profiler.clock import block_until_done, images_in
from tfpipe.profiler.ledger import spread
from tfpipe.profiler.model import StepTiming

_BLOCKS = 20  # pairs, so that their percentiles mean something
_MAX_BLOCK = 16


@dataclass(frozen=True)
class _Block:
    """As many steps end to end as on a batch that lies on the device, one after the other."""

    steps: int
    wall_s: float
    wait_s: float
    compute_s: float

    @property
    def idle_fraction(self) -> float:
        return min(1.0, max(0.0, 1.0 - self.compute_s / self.wall_s))


def measure_training(
    train_step: Callable[[Any], Any], dataset: Iterable[Any], *, steps: int = 100, warm_up: int = 10
) -> StepTiming:
    """Measures how long the accelerator is idle in a training as it is.

    Blocks of real steps alternate with blocks of the same steps on one batch that already lies on the device, so
    that drift of the machine meets both. Between them as many batches are thrown away as the device could have taken:
    the pipeline is neither spared nor pressed. Within a block steps are dispatched as the trainer does it; only at its
    ends is the device waited for.

    Args:
        train_step: Takes an element of the dataset, and returns something that it computed, such as the loss (without
            it, the end of a step on a TPU cannot be seen). May be compiled, or call `strategy.run`. It does train: the
            model moves on by about twice `steps`, half of them on one batch. Save it before.
        dataset: Anything that gives batches when iterated; distributed where the step is. Begins again when it ends.
        steps: How many real steps are measured; a multiple of the block's length, at least so many.
        warm_up: Real steps before, which are left out.

    Returns:
        Spreads are over blocks. `idle_fraction` is one less compute by wall time; the wait is the host's, and longer.
        Images are those of this process.

    Raises:
        ConfigError: A number is too small.
        DataError: The dataset is empty.
    """
    if steps < 1:
        raise ConfigError(f"`steps` must be at least 1, got {steps}.")
    if warm_up < 1:
        raise ConfigError(f"`warm_up` must be at least 1, for what is compiled in the first step, got {warm_up}.")
    length = min(_MAX_BLOCK, max(1, steps // _BLOCKS))
    run = _Run(train_step, dataset, warm_up)
    blocks = [run.block(length) for _ in range(-(-steps // length))]
    waits = [one.wait_s / one.wall_s for one in blocks]
    return StepTiming(
        method="training",
        steps=sum(one.steps for one in blocks),
        images_per_step=images_in(run.resident),
        step_s=spread([one.compute_s / one.steps for one in blocks]),
        wall_s=sum(one.wall_s for one in blocks),
        idle_fraction=spread([one.idle_fraction for one in blocks]),
        input_wait_fraction=spread(waits),
    )


class _Run:
    """The training meanwhile: always one batch ahead, as a trainer is that asks while the device works."""

    def __init__(self, train_step: Callable[[Any], Any], dataset: Iterable[Any], warm_up: int) -> None:
        self.train_step, self.dataset = train_step, dataset
        self.iterator = iter(dataset)
        self.batch = self.pull()
        self.resident = _on_device(self.batch)
        block_until_done(self.train_step(self.resident))  # may be compiled once more, for where the batch lies
        for _ in range(warm_up):
            result = self.train_step(self.batch)
            self.batch = self.pull()
            block_until_done(result)

    def block(self, length: int) -> _Block:
        """Steps on the resident batch, then real ones."""
        begin = time.perf_counter()
        for _ in range(length):
            result = self.train_step(self.resident)
        block_until_done(result)
        compute_s = time.perf_counter() - begin
        # What the pipeline has made meanwhile must not feed the real steps.
        for _ in range(length):
            self.batch = self.pull()
        result = self.train_step(self.batch)  # and its buffers must not be emptier than in the course of a training
        self.batch = self.pull()
        block_until_done(result)
        wall_s, wait_s = self._real(length)
        return _Block(length, wall_s, wait_s, compute_s)

    def _real(self, length: int) -> tuple[float, float]:
        """From one moment, a batch at hand and the device done, to the next such; and what of it `pull` took."""
        wait_s, begin = 0.0, time.perf_counter()
        for _ in range(length):
            result = self.train_step(self.batch)
            asked = time.perf_counter()
            self.batch = self.pull()
            wait_s += time.perf_counter() - asked
        block_until_done(result)
        return time.perf_counter() - begin, wait_s

    def pull(self) -> Any:
        """The next batch."""
        for _ in range(2):
            try:
                return next(self.iterator)
            except StopIteration:
                self.iterator = iter(self.dataset)
        raise DataError("The dataset has no batch to train on.")


def _on_device(batch: Any) -> Any:
    """A copy where a step without a strategy runs; what a strategy has distributed lies on its devices already."""
    kinds = [kind for kind in ("TPU", "GPU") if tf.config.list_logical_devices(kind)]
    if not kinds:
        return batch

    def copy(value: Any) -> Any:
        if not isinstance(value, tf.Tensor) or value.dtype == tf.string:
            return value
        with tf.device(f"/{kinds[0]}:0"):
            return tf.identity(value)

    return tf.nest.map_structure(copy, batch)
