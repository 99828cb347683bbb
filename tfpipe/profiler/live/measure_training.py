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
from tfpipe.profiler.live.graph_clock import block_until_done, images_in, runs_in_step
from tfpipe.profiler.types import Spread, StepTiming

_BLOCKS = 20  # pairs, so that their percentiles mean something
_MAX_BLOCK = 16


@dataclass(frozen=True)
class _Block:
    """As many steps end to end as on the batch that lies on the device."""

    steps: int
    compute_s: float
    """On the resident batch."""
    wall_s: float
    """Of real steps."""
    wait_s: float
    """In which they asked for their batches."""


def measure_training(
    train_step: Callable[[Any], Any], dataset: Iterable[Any], *, steps: int = 100, warm_up: int = 10
) -> StepTiming:
    """Measures how long the accelerator is idle in a training as it is.

    Real steps alternate with the same steps on one batch that already lies on the device, so that drift of the machine
    meets both. After a step of either kind a batch is taken, which the second kind throws away: the pipeline is neither
    spared nor pressed, and where it works on the trainer's own cores, it slows both down alike. A step that is slow for
    want of cores is not idle.

    On CPUs, where a step has ended when its call returns, every other step is a real one, and the wait is that of all.
    Elsewhere steps are dispatched ahead, as the trainer does it: there blocks of each kind take turns, and only at
    their ends is the device waited for.

    Args:
        train_step: Takes an element of the dataset, and returns something that it computed, such as the loss (without
            it, the end of a step on a TPU cannot be seen). May be compiled, or call `strategy.run`. It does train: the
            model moves on by about twice `steps`, half of them on one batch. Save it before.
        dataset: Anything that gives batches when iterated; distributed where the step is. Begins again when it ends.
        steps: How many real steps are measured; a multiple of the block's length, at least so many.
        warm_up: Real steps before, which are left out.

    Returns:
        Shares are of the whole run, spreads over blocks of it. `idle_fraction` is one less compute by wall time; the
        wait is the host's, and longer where steps are dispatched ahead. Both have in them what a trainer in Python
        spends on taking a batch that is ready, some 0.2 to 0.6 ms. Images are those of this process.

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
    wall_s = sum(one.wall_s for one in blocks)
    compute_s, wait_s = sum(one.compute_s for one in blocks), sum(one.wait_s for one in blocks)
    done = sum(one.steps for one in blocks)
    return StepTiming(
        method="training",
        steps=done,
        images_per_step=images_in(run.resident),
        step_s=Spread.of([one.compute_s / one.steps for one in blocks]),
        wall_s=wall_s,
        idle_fraction=Spread.of([_idle(one.compute_s, one.wall_s) for one in blocks], _idle(compute_s, wall_s)),
        input_wait_fraction=Spread.of([one.wait_s / one.wall_s for one in blocks], wait_s / wall_s),
    )


def _idle(compute_s: float, wall_s: float) -> float:
    return max(0.0, 1.0 - compute_s / wall_s)


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
        """So many steps of each kind."""
        return self._paired(length) if runs_in_step() else self._in_turns(length)

    def _paired(self, length: int) -> _Block:
        """One of each kind after the other."""
        real_s = compute_s = wait_s = 0.0
        for _ in range(length):
            begin = time.perf_counter()
            self.train_step(self.batch)
            done = time.perf_counter()
            self.batch = self.pull()
            taken = time.perf_counter()
            self.train_step(self.resident)
            computed = time.perf_counter()
            self.batch = self.pull()
            real_s, compute_s = real_s + done - begin, compute_s + computed - taken
            # Both waits, since batches may come two by two, and one wait would be that of the first or of the second.
            wait_s += (taken - done + time.perf_counter() - computed) / 2
        return _Block(length, compute_s, real_s + wait_s, wait_s)

    def _in_turns(self, length: int) -> _Block:
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
        return _Block(length, compute_s, *self._real(length))

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
