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
from tfpipe.profiler.live.device_sync import block_until_done, count_images, steps_are_synchronous
from tfpipe.profiler.types import Spread, StepTiming

_BLOCKS = 20  # enough for the 10th and the 90th percentile
_MAX_BLOCK = 16


@dataclass(frozen=True)
class _Block:
    """A number of real steps, and the same number on the batch that lies on the device. Times are in seconds.

    Attributes:
        steps: The number of steps of each kind.
        compute_s: The time of the steps on the resident batch.
        wall_s: The time of the real steps.
        wait_s: The part of `wall_s` in which they waited for their batches.
    """

    steps: int
    compute_s: float
    wall_s: float
    wait_s: float


def measure_training(
    train_step: Callable[[Any], Any], dataset: Iterable[Any], *, steps: int = 100, warm_up: int = 10
) -> StepTiming:
    """Measures how long the accelerator is idle in a training as it is.

    Real steps alternate with the same steps on one batch that already lies on the device, so a machine that becomes
    slower meanwhile slows both. After each step of either kind a batch is taken, and the second kind throws it away. So
    the pipeline always has the same work: if it takes cores from the trainer, it slows both kinds alike. A step that is
    slow because it lacks cores is not idle.

    On CPUs a step has ended when its call returns. There every other step is a real one, and the wait is the mean over
    both kinds. Elsewhere steps are dispatched ahead of the device. There blocks of each kind take turns, and the
    function waits for the device only at the end of a block.

    Args:
        train_step: A function that takes an element of the dataset and trains on it. It may be compiled, or call
            `strategy.run`. It should return a value that it computed, such as the loss, because the end of a step on a
            TPU shows in no other way. The model is trained for about twice `steps`, half of them on one batch: save it
            before.
        dataset: An iterable of batches, distributed if the step is. It is iterated again when it ends.
        steps: The number of real steps to measure. It is rounded up to a multiple of the block's length.
        warm_up: The number of real steps before the measured ones.

    Returns:
        The shares of the whole run, with their spreads over its blocks. `idle_fraction` is 1 - compute time / wall
        time. The input wait is that of the host, and is longer if steps are dispatched ahead. Both contain the 0.2 to
        0.6 ms that a trainer in Python needs to take a batch that is ready. Images are those of this process.

    Raises:
        ConfigError: A number is too small.
        DataError: The dataset is empty.
    """
    if steps < 1:
        raise ConfigError(f"`steps` must be at least 1, got {steps}.")
    if warm_up < 1:
        raise ConfigError(f"`warm_up` must be at least 1, for what is compiled in the first step, got {warm_up}.")
    length = min(_MAX_BLOCK, max(1, steps // _BLOCKS))
    training = _Training(train_step, dataset, warm_up)
    blocks = [training.run_block(length) for _ in range(-(-steps // length))]
    compute_s, wall_s = sum(block.compute_s for block in blocks), sum(block.wall_s for block in blocks)
    wait_s = sum(block.wait_s for block in blocks)
    return StepTiming(
        method="training",
        steps=length * len(blocks),
        images_per_step=count_images(training.resident),
        step_s=Spread.from_values([block.compute_s / block.steps for block in blocks]),
        wall_s=wall_s,
        idle_fraction=Spread.from_values(
            [_get_idle_fraction(block.compute_s, block.wall_s) for block in blocks],
            _get_idle_fraction(compute_s, wall_s),
        ),
        input_wait_fraction=Spread.from_values([block.wait_s / block.wall_s for block in blocks], wait_s / wall_s),
    )


def _get_idle_fraction(compute_s: float, wall_s: float) -> float:
    return max(0.0, 1.0 - compute_s / wall_s)


class _Training:
    """A training that always holds one batch ahead, like a trainer that takes a batch while the device works."""

    def __init__(self, train_step: Callable[[Any], Any], dataset: Iterable[Any], warm_up: int) -> None:
        self.train_step, self.dataset = train_step, dataset
        self.iterator = iter(dataset)
        self.batch = self.pull()
        self.resident = _copy_to_device(self.batch)
        block_until_done(self.train_step(self.resident))  # the step may be compiled once more for a batch on the device
        for _ in range(warm_up):
            result = self.train_step(self.batch)
            self.batch = self.pull()
            block_until_done(result)

    def run_block(self, length: int) -> _Block:
        """Makes `length` steps of each kind."""
        return self._run_pairs(length) if steps_are_synchronous() else self._run_in_turns(length)

    def pull(self) -> Any:
        """Returns the next batch. The first one follows the last one."""
        for _ in range(2):
            try:
                return next(self.iterator)
            except StopIteration:
                self.iterator = iter(self.dataset)
        raise DataError("The dataset has no batch to train on.")

    def _run_pairs(self, length: int) -> _Block:
        """Alternates a real step and one on the resident batch."""
        real_s = compute_s = wait_s = 0.0
        for _ in range(length):
            begin = time.perf_counter()
            self.train_step(self.batch)
            done = time.perf_counter()
            self.batch = self.pull()
            pulled = time.perf_counter()
            self.train_step(self.resident)
            computed = time.perf_counter()
            self.batch = self.pull()
            real_s, compute_s = real_s + done - begin, compute_s + computed - pulled
            # The mean of both waits: batches may come in pairs, and then one wait is long and the other short.
            wait_s += (pulled - done + time.perf_counter() - computed) / 2
        return _Block(length, compute_s, real_s + wait_s, wait_s)

    def _run_in_turns(self, length: int) -> _Block:
        """Makes all steps on the resident batch, then all real ones."""
        begin = time.perf_counter()
        for _ in range(length):
            result = self.train_step(self.resident)
        block_until_done(result)
        compute_s = time.perf_counter() - begin
        # The batches that the pipeline has made meanwhile must not feed the real steps.
        for _ in range(length):
            self.batch = self.pull()
        # One step more, so that the pipeline's buffers are not emptier than in the course of a training.
        result = self.train_step(self.batch)
        self.batch = self.pull()
        block_until_done(result)
        return _Block(length, compute_s, *self._run_real(length))

    def _run_real(self, length: int) -> tuple[float, float]:
        """Returns the time of real steps, and the part of it that `pull` took.

        The time begins and ends in the same state: a batch is at hand, and the device is done.
        """
        wait_s, begin = 0.0, time.perf_counter()
        for _ in range(length):
            result = self.train_step(self.batch)
            asked_at = time.perf_counter()
            self.batch = self.pull()
            wait_s += time.perf_counter() - asked_at
        block_until_done(result)
        return time.perf_counter() - begin, wait_s


def _copy_to_device(batch: Any) -> Any:
    """Copies a batch to the device of a step without a strategy. A strategy's batches lie on its devices already."""
    kinds = [kind for kind in ("TPU", "GPU") if tf.config.list_logical_devices(kind)]
    if not kinds:
        return batch

    def copy(value: Any) -> Any:
        if not isinstance(value, tf.Tensor) or value.dtype == tf.string:
            return value
        with tf.device(f"/{kinds[0]}:0"):
            return tf.identity(value)

    return tf.nest.map_structure(copy, batch)
