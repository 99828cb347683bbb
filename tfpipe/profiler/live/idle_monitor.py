"""Watches a training while it runs: how long it waits for input, and how much of its time the device is idle.

    monitor = tfpipe.IdleMonitor()
    for batch in monitor.iterate(loader):                                  # TensorFlow, PyTorch, JAX
        with monitor.step() as step:
            step.result = train_step(batch)
    print(monitor.result())

    model.fit(monitor.watch(dataset), callbacks=[monitor.callback()])      # Keras

A device may still be busy with earlier steps while the trainer waits for a batch. So the monitor times some steps on a
device that has nothing else to do (probes). Idle time is the wall time less all compute time, at most the wait.
"""

from __future__ import annotations

import logging
import statistics
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tfpipe.errors import ConfigError, DataError
from tfpipe.profiler.types import Spread, StepTiming
from tfpipe.system.arguments import check_count, check_has

if TYPE_CHECKING:
    import tensorflow as tf

logger = logging.getLogger(__name__)

_NO_BATCH = object()
_PROBE_EVERY = 50  # a probe empties the device's queue, so at most one step in 50 loses its overlap
_FIRST_PROBES = 5  # one after another, for a first estimate
_MAX_REPORTS = 10_000
_MAX_PROBES = 1000
_MAX_WAITING = 4096
_MOST_AHEAD = 16  # more than the elements that a strategy's prefetch takes ahead of the trainer

_Delivery = tuple[float, float, int]  # of an element: when it was asked for, when it came, its number of images


_FRAMEWORKS = {"tensorflow": "tensorflow", "torch": "torch", "jax": "jax", "jaxlib": "jax"}
"""The framework of a value, by the package of its type."""


def find_framework(result: Any) -> str:
    """Finds the framework that computed a value, or for None the only one that is loaded; returns "" if unknown."""
    values = list_values(result)
    found = [_FRAMEWORKS.get(type(value).__module__.partition(".")[0], "") for value in values]
    if not values:
        found = [name for name in ("tensorflow", "torch") if sys.modules.get(name) is not None]
        return found[0] if len(found) == 1 else ""
    return next(filter(None, found), "")


def is_synchronous(framework: str, result: Any) -> bool:
    """Returns whether a step has ended when its call returns."""
    library: Any = sys.modules.get(framework)
    if framework == "torch":
        devices = {value.device.type for value in list_values(result) if isinstance(value, library.Tensor)}
        return devices <= {"cpu"} if devices else not library.cuda.is_initialized()
    if framework == "tensorflow":
        return not any(library.config.list_logical_devices(kind) for kind in ("GPU", "TPU"))
    return framework != "jax"


def block_until_done(framework: str, result: Any) -> None:
    """Waits until the devices have computed `result`; for a TPU, a result is the only thing to wait for."""
    library: Any = sys.modules.get(framework)
    if framework == "jax":
        library.block_until_ready(result)
    elif framework == "torch":
        if library.cuda.is_initialized():
            library.cuda.synchronize()
        for value in list_values(result):
            if isinstance(value, library.Tensor) and value.numel():
                value.detach().reshape(-1)[:1].cpu()
    elif framework == "tensorflow":
        library.test.experimental.sync_devices()
        for value in library.nest.flatten(result, expand_composites=True):
            if isinstance(value, library.Tensor | library.Variable) and value.shape.num_elements() != 0:
                library.reshape(value, [-1])[:1].numpy()


def count_images(batch: Any) -> int:
    """Returns the length of a batch's first array in this process; 1 for a scalar."""
    first = next((value for value in list_values(batch) if hasattr(value, "shape") or hasattr(value, "values")), None)
    replicas = getattr(first, "values", None)  # a per-replica value of TensorFlow has one for each replica
    replicas = replicas if isinstance(replicas, tuple) else (first,)
    count = sum(int(each.shape[0] or 0) if len(each.shape) else 1 for each in replicas if hasattr(each, "shape"))
    if getattr(first, "is_fully_addressable", True):
        return count
    return count // int(sys.modules["jax"].process_count())  # the array spans all processes


def list_values(structure: Any) -> list[Any]:
    """Returns all values in nested dictionaries, lists and tuples but None."""
    if isinstance(structure, dict):
        structure = list(structure.values())
    if isinstance(structure, list | tuple):
        return [value for each in structure for value in list_values(each)]
    return [] if structure is None else [structure]


@dataclass(frozen=True)
class MonitorReport:
    """The input wait and the idle time of one period of consecutive steps.

    Attributes:
        step: The step of the whole training at which the period ended.
        steps: The number of steps in the period.
        wall_s: The time that the period took.
        input_wait_fraction: The share of the time in which the trainer waited for a batch.
        idle_fraction_estimate: The share of the time in which the device had no batch.
        idle_from: The source of the estimate. "probes": the wall time less the steps' compute time, at most the wait.
            "wait": the wait itself, which is exact on CPUs and an upper bound elsewhere.
        images_per_second: The rate at which the trainer took images.
    """

    step: int
    steps: int
    wall_s: float
    input_wait_fraction: float
    idle_fraction_estimate: float
    idle_from: Literal["wait", "probes"]
    images_per_second: float

    @property
    def logs(self) -> dict[str, float]:
        """The figures that Keras shows, by name."""
        names = ("input_wait_fraction", "idle_fraction_estimate", "images_per_second")
        return {name: getattr(self, name) for name in names}


class StepHandle:
    """The object that `IdleMonitor.step` yields.

    Attributes:
        result: A value that the step computed, such as the loss. It says which framework trains, and the monitor waits
            for it to know the end of a step.
    """

    result: Any = None


@dataclass
class _Call:
    """One call of a train function, which makes one step or several. Times are those of `time.time()`."""

    begin: float  # the earliest time at which the trainer can have asked for the batch
    steps: int
    end: float | None = None  # None while it runs
    wait_s: float | None = None  # None until the deliveries of its batches are known
    images: int = 0
    probe: tuple[float, float] | None = None  # between these times the device worked on this call alone
    probe_wait_s: float = 0.0  # the wait within `probe`
    counts: bool = True  # whether `end` is exact; else the sums leave the call out

    def take(self, deliveries: deque[_Delivery]) -> bool:
        """Computes the call's wait if the elements of all its steps have come, and returns whether they have.

        A strategy's prefetch thread asks before the trainer does, so the wait begins with the trainer's own request.
        """
        if len(deliveries) < self.steps:
            return False
        taken = [deliveries.popleft() for _ in range(self.steps)]

        def wait(asks: float) -> float:
            return sum(max(0.0, got_at - max(asked_at, asks)) for asked_at, got_at, _ in taken)

        self.wait_s, self.images = wait(self.begin), sum(images for _, _, images in taken)
        if self.probe is not None:
            self.probe_wait_s = wait(max(self.begin, self.probe[0]))
        return True


class IdleMonitor:
    """The input wait and the idle time of a training in TensorFlow, PyTorch or JAX while it runs.

    Attributes:
        reports: A report for every `every_steps` steps; the last 10,000 of a long training.
    """

    def __init__(self, *, every_steps: int = 100, warm_up: int = 10) -> None:
        """Begins to monitor a training.

        Args:
            every_steps: The number of steps in a report, which is logged, too.
            warm_up: The number of first steps that no figure includes, because they compile and fill buffers.

        Raises:
            ConfigError: A number is too small.
        """
        check_count("every_steps", every_steps, 1)
        check_count("warm_up", warm_up)
        self.reports: deque[MonitorReport] = deque(maxlen=_MAX_REPORTS)
        self._every_steps, self._warm_up = every_steps, warm_up
        self._deliveries: deque[_Delivery] = deque(maxlen=_MAX_WAITING)  # of watched datasets, for later calls
        self._framework = ""
        self._is_synchronous: bool | None = None  # unknown before the first step
        self._last_result: Any = None
        self._open: _Call | None = None
        self._last_end: float | None = None
        self._waiting: deque[_Call] = deque(maxlen=_MAX_WAITING)  # calls that lack deliveries
        self._compute_s: deque[float] = deque(maxlen=_MAX_PROBES)
        self._ended_steps = self._settled_steps = self._probes = 0
        self._period, self._epoch, self._total = ([0.0] * 4 for _ in range(3))  # steps, images, seconds, waits
        self._has_warned = False

    def iterate(self, dataset: Iterable[Any]) -> Iterator[Any]:
        """Yields the batches of a dataset, distributed or not, and times each on the host. Call it every epoch."""
        iterator = iter(dataset)
        try:
            while True:
                asked_at = time.time()
                self._end(asked_at)
                batch = next(iterator, _NO_BATCH)
                if batch is _NO_BATCH:
                    return
                call = self._begin(asked_at)
                call.wait_s, call.images = time.time() - asked_at, count_images(batch)
                yield batch
        finally:
            self.pause()

    @contextmanager
    def step(self, steps: int = 1) -> Iterator[StepHandle]:
        """Measures the call of a train function inside its `with` block.

        Args:
            steps: The number of steps in the call: more than 1 if a loop runs inside a `tf.function`. A batch of
                `iterate` is one step.

        Raises:
            ConfigError: `steps` is too small, or not 1 inside of `iterate`.
        """
        check_count("steps", steps, 1)
        iterated = self._open  # begun by `iterate`, which also ends it
        if iterated is not None and iterated.steps != steps:
            raise ConfigError(f"`steps` must be 1 for a batch of `iterate`, got {steps}. Leave it out.")
        call = iterated or self._begin(self._last_end or time.time(), steps)
        is_probe = self._decide_probe()
        if is_probe:
            self._block(self._last_result)
        began, handle = time.time(), StepHandle()
        yield handle
        if self._is_synchronous is None:
            self._framework = find_framework(handle.result)
            self._is_synchronous = is_synchronous(self._framework, handle.result)
        if is_probe:  # fetching a result costs some 0.3 ms
            self._block(handle.result)
        if is_probe or self._is_synchronous:
            call.probe = began, time.time()
        self._last_result = None if self._is_synchronous else handle.result
        if iterated is None:
            self._end(time.time())

    def watch(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Returns the dataset with a clock in its last stage.

        Use it for trainers that take batches themselves: Keras, or an iterator inside a `tf.function`. Watch only the
        training dataset, and add no stage after it, not even a prefetch. A step must take one element of it: under a
        strategy, watch before `experimental_distribute_dataset`. Batches of `distribute_datasets_from_function` go
        through `iterate`. The dataset must run in this process.

        The clock costs about 0.2 ms a batch; `iterate` costs 0.02 ms. To take a batch that is ready costs 0.2 to 1 ms
        when the pipeline and the step compete for cores. The clock does not count this as wait.
        """
        check_has("dataset", dataset, "element_spec", "a tf.data.Dataset; other iterables go through `iterate`")
        import tensorflow as tf

        @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
        def note(stamp: tuple[tf.Tensor, tf.Tensor], element: Any) -> Any:
            tensors = [value for value in tf.nest.flatten(element) if isinstance(value, tf.Tensor)]
            images = tf.shape(tensors[0])[0] if tensors and tensors[0].shape.rank else 1
            with tf.control_dependencies([tf.numpy_function(self._receive, [*stamp, tf.timestamp(), images], tf.bool)]):
                return tf.nest.map_structure(tf.identity, element)

        # tf.data adds a prefetch to a pipeline that ends without one. After the clock this prefetch would wait all the
        # time, whatever the trainer does. So the same prefetch goes before the clock.
        options = tf.data.Options()
        options.experimental_optimization.inject_prefetch = False
        if _gets_prefetch(dataset):
            dataset = dataset.prefetch(tf.data.AUTOTUNE)
        # One function makes the number and the time, because each function costs some 30 us an element.
        stamps = (
            tf.data.Dataset.from_tensors(0)
            .repeat()
            .scan(tf.constant(0, tf.int64), lambda number, _: (number + 1, (number, tf.timestamp())))
        )
        # `zip` asks its inputs in order, and `map` runs when its element has come.
        return tf.data.Dataset.zip((stamps, dataset)).map(note).with_options(options)

    def callback(self) -> tf.keras.callbacks.Callback:
        """Returns a callback for `model.fit`, whose dataset must have gone through `watch`.

        The callback puts `input_wait_fraction`, `idle_fraction_estimate` and `images_per_second` into the logs of each
        epoch. List it before callbacks that read them, such as that of TensorBoard.
        """
        import tensorflow as tf

        monitor = self

        class IdleCallback(tf.keras.callbacks.Callback):  # type: ignore[misc]
            """A callback without a hook for the end of a step.

            For such a hook Keras would fetch the logs of every step, and with that wait for the device.
            """

            def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
                monitor._framework, monitor._is_synchronous = "tensorflow", is_synchronous("tensorflow", None)
                self._steps = int(getattr(self.model, "steps_per_execution", 1) or 1)
                self._probe: _Call | None = None

            def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
                monitor.pause()

            def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
                if self._probe is not None:
                    monitor._block(self._get_weights())
                    self._probe.probe = self._probe.begin, time.time()
                monitor._end(time.time())
                is_probe = monitor._decide_probe()
                if is_probe:
                    monitor._block(self._get_weights())
                call = monitor._begin(time.time(), self._steps)
                self._probe = call if is_probe else None

            def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
                self._leave_call()
                monitor.pause()

            def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
                self._leave_call()
                figures = monitor.end_epoch()
                if logs is not None:
                    logs.update(figures)

            def _leave_call(self) -> None:
                # Since the last step ended, Keras has prepared an evaluation or the logs of the epoch.
                self._probe = None
                monitor._end(time.time(), counts=False)

            def _get_weights(self) -> list[Any]:
                return [weight.value for weight in self.model.trainable_variables[-1:]]

        return IdleCallback()

    def pause(self) -> None:
        """Leaves out the time until the next step, in which the training evaluates or saves."""
        self._end(time.time())
        self._waiting.clear()
        self._last_end = None

    def end_epoch(self) -> dict[str, float]:
        """Pauses, and returns the figures of the epoch by name. There are none if no step was timed."""
        self.pause()
        sums, self._epoch = self._epoch, [0.0] * 4
        if sums[0] and len(self._deliveries) <= _MOST_AHEAD:
            return self._make_report(sums).logs
        if not self._has_warned and self._ended_steps > self._warm_up:
            self._has_warned = True
            logger.warning("%s", self._explain_no_steps())
        return {}

    def result(self) -> StepTiming:
        """Returns the timing of all steps after the warm-up. Its spreads are over the periods in `reports`.

        Raises:
            DataError: No step was timed after the warm-up, or steps took several elements of a watched dataset.
        """
        self._settle()
        steps, images, wall_s, wait_s = self._total
        if not steps or len(self._deliveries) > _MOST_AHEAD:
            raise DataError(self._explain_no_steps())
        whole = self._make_report(self._total)
        shares = ((each.idle_fraction_estimate, each.input_wait_fraction) for each in self.reports or [whole])
        idles, waits = zip(*shares, strict=True)
        return StepTiming(
            method="monitor",
            steps=int(steps),
            images_per_step=round(images / steps),
            step_s=Spread.from_values(self._compute_s or [(wall_s - wait_s) / steps]),
            wall_s=wall_s,
            idle_fraction=Spread.from_values(idles, whole.idle_fraction_estimate),
            input_wait_fraction=Spread.from_values(waits, whole.input_wait_fraction),
        )

    def _block(self, result: Any) -> None:
        if not self._is_synchronous:
            block_until_done(self._framework, result)

    def _decide_probe(self) -> bool:
        """Returns whether to time the compute of the next step. Call it once for each step."""
        if self._is_synchronous:
            return True  # costs nothing
        if self._is_synchronous is None or self._ended_steps < self._warm_up:
            return False
        self._probes += 1
        return self._probes <= _FIRST_PROBES or self._probes % _PROBE_EVERY == 0

    def _begin(self, asks: float, steps: int = 1) -> _Call:
        """Begins a call of one or several steps; `asks` is the time at which it asks for its batch."""
        self._open = _Call(asks, steps)
        return self._open

    def _receive(self, number: int, asked_at: float, got_at: float, images: int) -> bool:
        """Stores the times of an element of a watched dataset; runs in the thread that takes the element."""
        if number == 0:  # a new iterator: no call takes elements of the last one
            self._deliveries.clear()
        self._deliveries.append((float(asked_at), float(got_at), int(images)))
        return True

    def _end(self, now: float, counts: bool = True) -> None:
        """Ends the open call, if there is one."""
        call, self._open = self._open, None
        if call is None:
            return
        call.end, call.counts = now, counts
        self._last_end = now
        self._waiting.append(call)
        self._ended_steps += call.steps
        self._settle()

    def _settle(self) -> None:
        """Adds up the calls whose wait is known now, and reports each period."""
        while self._waiting:
            call = self._waiting[0]
            if call.wait_s is None and not call.take(self._deliveries):
                return
            self._waiting.popleft()
            self._settled_steps += call.steps
            if not call.counts or self._settled_steps <= self._warm_up:
                continue
            if call.probe is not None:
                begin, end = call.probe
                self._compute_s.append(max(0.0, end - begin - call.probe_wait_s) / call.steps)
            assert call.end is not None
            assert call.wait_s is not None
            for sums in (self._period, self._epoch, self._total):
                sums[0] += call.steps
                sums[1] += call.images
                sums[2] += call.end - call.begin
                sums[3] += call.wait_s
            if self._period[0] < self._every_steps:
                continue
            report = self._make_report(self._period)
            self._period = [0.0] * 4
            self.reports.append(report)
            wait, idle = report.input_wait_fraction, report.idle_fraction_estimate
            shares = f"input wait {100 * wait:.1f} %, device idle {100 * idle:.1f} % (from {report.idle_from})"
            logger.info("Step %d: %s, %.1f images/s.", report.step, shares, report.images_per_second)

    def _make_report(self, sums: list[float]) -> MonitorReport:
        steps, images, wall_s, wait_s = sums
        passed_s = max(wall_s, 1e-9)
        idle = wait = min(1.0, wait_s / passed_s)  # equal, unless a device works ahead
        has_probes = bool(self._compute_s) and not self._is_synchronous
        if has_probes:
            idle = max(0.0, min(wait, 1.0 - steps * statistics.median(self._compute_s) / passed_s))
        source: Literal["wait", "probes"] = "probes" if has_probes else "wait"
        return MonitorReport(self._settled_steps, int(steps), wall_s, wait, idle, source, images / passed_s)

    def _explain_no_steps(self) -> str:
        if len(self._deliveries) > _MOST_AHEAD:
            fault = "A step must take one element of the dataset that `IdleMonitor.watch` returned."
            return f"{fault} Take the batches of a strategy with several replicas from `IdleMonitor.iterate`."
        made = self._ended_steps
        if made > self._warm_up:
            advice = "Train on the dataset that `IdleMonitor.watch` returned, in this process, or use `iterate`."
            return f"{made} steps were made, and the clock saw no batch of them. {advice}"
        return f"No step was seen after the {self._warm_up} of the warm-up; {made} were made. Train for longer."


def _gets_prefetch(dataset: tf.data.Dataset) -> bool:
    """Returns whether tf.data would add a prefetch to the end of this dataset."""
    options = dataset.options()
    optimization = options.experimental_optimization
    if False in (optimization.inject_prefetch, optimization.apply_default_optimizations, options.autotune.enabled):
        return False
    while type(dataset).__name__ == "_OptionsDataset":  # has no public name
        dataset = dataset._input_dataset
    return type(dataset).__name__ != "_PrefetchDataset"
