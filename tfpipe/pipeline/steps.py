"""The engine's batches as a `tf.data.Dataset` of steps: each element is the batch of one step for one replica.

The records that `read` returns stay in this process, and a token for them goes through `tf.data`.
"""

from __future__ import annotations

import atexit
import itertools
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tfpipe.engine.ahead import PAUSE_S
from tfpipe.engine.batch import Maker, leave_out_masked, make_pair
from tfpipe.engine.features import BatchFeature
from tfpipe.engine.plan import BatchPlan
from tfpipe.engine.position import count_look
from tfpipe.pipeline.stage import Stage
from tfpipe.pipeline.stages import TF_DTYPES, describe_shapes, is_true_size, prefetch_batches
from tfpipe.storage import file_io
from tfpipe.system import host_limits

CALL_NAME = "tfpipe_engine"
"""The name of the engine's calls in a graph, which hold the GIL for a small part of their time only."""

_TOKENS = 16  # kept besides those of running calls: tokens of iterators that were left
_RAGGED = ".lengths"
_QUIET_S, _MAX_END_S = 0.2, 30.0
"""The seconds without a call after which no more calls come, and the longest wait for such a pause."""
_CORES_PER_READ, _MIN_BATCHES_READ = 4, 2
"""The cores for each batch that is read at once, and the least number of these batches. To read a record of 110 KB from
the page cache takes 25 us of a core, and to decode its image 200 us or more."""
_STORE_BATCHES_READ, _MOST_STORE_BATCHES_READ = 4, 16  # the least and the most: small batches come no sooner
_STORE_READ_BYTES = 2**25  # of the batches that are read at once
_BATCHES_AT_ONCE = 2  # decoded: the second takes over the threads of the first when that ends


def list_engine_stages(plan: BatchPlan, maker: Maker) -> tuple[tuple[Stage, ...], int]:
    """Makes the stages of a pipeline whose batches the engine makes; returns also the number of concurrent calls."""
    steps = _Steps(plan, maker)
    config, source = plan.config, plan.source
    listed: dict[str, object] = {"files": len(source.files), "host": f"{plan.host.index} of {plan.host.num_hosts}"}
    if config.training:
        listed |= {"order": "exact", "seed": config.seed, "start_step": plan.host.start_step}
    reader = "service" if config.service.workers else "obstore" if file_io.is_url(source.files[0]) else "engine"
    reading: dict[str, object] = {"reader": reader, "num_parallel_calls": steps.reads}
    if config.service.workers:
        reading["workers"] = ", ".join(config.service.workers)
    if config.max_bad_records:
        reading["max_bad_records"] = config.max_bad_records
    making: dict[str, object] = {"num_parallel_calls": steps.decodes, "threads": config.max_threads}
    if source.has_images:
        formats = source.images.formats
        making["decoder"] = "native" if not formats or "JPEG" in formats else "pillow"
    if config.cache != "none":
        making |= {"cache": config.cache, "where": config.cache_dir or "memory"}
    rows = {"batch_size": plan.config.batch_size, "per_replica": plan.replica_batch_size}
    made = "crops, resizes and converts the images" if source.has_images else "makes the arrays"
    order = "the records of a step are computed: the same for any number of hosts, from any step on"
    listing = order if config.training else "every record once, an equal share for each host"
    stages = [
        Stage("list", steps.list_steps, listed, listing),
        Stage("read", steps.read, reading, "one call reads the records of a batch, each from its place"),
        Stage("decode", steps.decode, making, f"one call {made} of a batch", clocks=maker.clocks),
        Stage("batch", steps.form, rows, describe_shapes(plan)),
        prefetch_batches(plan),
    ]
    if plan.host.epochs is not None:
        ends = "a pass ends with an epoch, and the next one goes on from there"
        stages.append(Stage("epochs", steps.end_passes, {"epochs": plan.host.epochs}, ends, passes=steps))
    return tuple(stages), steps.decodes + (steps.reads if maker.is_remote else 0)


class _OpenCalls:
    """The running calls from TensorFlow's threads into Python. At the end of the program no call may run or begin.

    A thread of TensorFlow that waits for the GIL while Python ends never gets it, and the end of its iterator waits for
    that thread. So at the end of the program calls fail at once, which fills all buffers, and the program waits until
    no more calls come.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count, self._last_s, self._is_closed = 0, float("-inf"), False

    def __enter__(self) -> None:
        with self._lock:
            self._count += 1
            is_closed = self._is_closed
        if is_closed:
            self.__exit__()
            raise tf.errors.CancelledError(None, None, "The program ends.")

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._count -= 1
            self._last_s = time.monotonic()

    def close(self) -> None:
        """Lets all further calls fail, and waits until no more come."""
        self._is_closed = True
        deadline = time.monotonic() + _MAX_END_S
        while time.monotonic() < deadline:
            with self._lock:
                is_quiet = not self._count and time.monotonic() - self._last_s > _QUIET_S
            if is_quiet:
                return
            time.sleep(_QUIET_S / 20)


_CALLS = _OpenCalls()
atexit.register(_CALLS.close)


class _Steps:
    """The calls of the engine for one dataset, in which each element is the batch of one step and replica."""

    def __init__(self, plan: BatchPlan, maker: Maker) -> None:
        self._plan = plan
        # The numbers of concurrent calls. Each request to a worker of a service is a call, too.
        self.reads = max(count_batches_read(plan), maker.steps_ahead)
        self.decodes = min(plan.config.max_threads, _BATCHES_AT_ONCE)
        size = plan.replica_batch_size
        self._replicas = plan.batch_size // size
        self._makers = [maker.for_rows(size * k, size * (k + 1)) for k in range(self._replicas)]
        self._outputs = _list_outputs(plan)
        self.next_step = plan.host.start_step
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._stored: OrderedDict[int, Any] = OrderedDict()

    def list_steps(self, _: Any) -> tf.data.Dataset:
        """Counts the elements: one for each replica of the first step, then of the next step, and so on."""
        if not self._plan.config.training:
            return tf.data.Dataset.range(self._plan.steps_per_epoch * self._replicas)
        if self._plan.host.epochs is None:
            return tf.data.Dataset.counter(self._plan.host.start_step * self._replicas)

        return tf.data.Dataset.range(1).flat_map(lambda _: tf.data.Dataset.range(*self._call_find_pass()[:2]))

    def end_passes(self, batches: tf.data.Dataset) -> tf.data.Dataset:
        """Ends a pass with its last epoch; the next pass goes on from there, also after a pass that was left early.

        The dataset's cardinality is that of a whole pass, even if the first pass is shorter: Keras asks only once.
        """

        def watch_pass(_: tf.Tensor) -> tf.data.Dataset:
            first, end, counted = self._call_find_pass()

            def note(element: tf.Tensor, batch: Any) -> Any:
                def count_pass() -> tf.Tensor:
                    return tf.numpy_function(self._count_pass, [end], tf.bool, name=CALL_NAME)

                tf.cond(element == counted, count_pass, lambda: False)
                return batch

            return batches.enumerate(first).map(note)

        one_pass = tf.data.Dataset.range(1).flat_map(watch_pass)
        # The second dataset has no end, and is never read. So TensorFlow takes the choice for endless until `take`,
        # and never asks for the end of a whole pass, while a shorter pass still ends with its own end.
        always_first = tf.data.Dataset.from_tensors(np.int64(0)).repeat()
        passes = tf.data.Dataset.choose_from_datasets([one_pass, one_pass.repeat()], always_first)
        return passes.take(self.num_batches * self._replicas)

    def read(self, elements: tf.data.Dataset) -> tf.data.Dataset:
        """Replaces each element by a token for its records."""

        def call(element: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return tf.ensure_shape(tf.numpy_function(self._read, [element], tf.int64, name=CALL_NAME), []), element

        return elements.map(call, num_parallel_calls=self.reads, deterministic=True)

    def decode(self, elements: tf.data.Dataset) -> tf.data.Dataset:
        """Replaces each token by the arrays of the batch."""

        def call(token: tf.Tensor, element: tf.Tensor) -> Any:
            dtypes = [output.dtype for output in self._outputs]
            arrays = tf.numpy_function(self._decode, [token, element], dtypes, name=CALL_NAME)
            return tuple(
                tf.ensure_shape(array, output.shape) for output, array in zip(self._outputs, arrays, strict=True)
            )

        return elements.map(call, num_parallel_calls=self.decodes, deterministic=True)

    @property
    def num_batches(self) -> int:
        """The number of steps in a whole pass."""
        return (self._plan.host.epochs or 0) * self._plan.steps_per_epoch

    def count_next_steps(self) -> int:
        """Counts the steps of the next pass, which is shorter if it begins within an epoch."""
        return self.num_batches - self.next_step % self._plan.steps_per_epoch

    def _find_pass(self) -> tuple[np.int64, np.int64, np.int64]:
        """Returns the next pass's first element, the element after its last, and the one at which the pass counts.

        A pass counts if more is taken than for a look at its first batch; else the next pass begins there again.
        """
        with _CALLS:
            first, steps = self.next_step, self.count_next_steps()
            elements = [first, first + steps, first + min(count_look(steps), steps)]
            first, end, counted = (np.int64(step * self._replicas) for step in elements)
            return first, end, min(counted, end - 1)

    def _call_find_pass(self) -> list[tf.Tensor]:
        elements = tf.numpy_function(self._find_pass, [], [tf.int64] * 3, name=CALL_NAME)
        return [tf.ensure_shape(element, []) for element in elements]

    def _count_pass(self, end: Any) -> Any:
        with _CALLS:
            self.next_step = int(end) // self._replicas
            return np.bool_(True)

    def _locate(self, element: int) -> tuple[Maker, tuple[int, int]]:
        step, replica = divmod(element, self._replicas)
        maker = self._makers[replica]
        return maker, divmod(step, maker.plan.steps_per_epoch) if self._plan.config.training else (0, step)

    def _read(self, element: Any) -> Any:
        with _CALLS:
            time.sleep(PAUSE_S)
            maker, position = self._locate(int(element))
            stored = maker.read(*position)
            token = next(self._numbers)
            with self._lock:
                self._stored[token] = stored
                while len(self._stored) > self.reads + self.decodes + _TOKENS:
                    self._stored.popitem(last=False)
            return np.int64(token)

    def _decode(self, token: Any, element: Any) -> Any:
        with _CALLS:
            time.sleep(PAUSE_S)
            maker, position = self._locate(int(element))
            with self._lock:
                stored = self._stored.pop(int(token), None)
            if stored is None:  # dropped, because too many iterators were left
                stored = maker.read(*position)
            batch = maker.decode(stored, self._plan.config.max_threads)
            if is_true_size(self._plan):
                batch = leave_out_masked(batch)
            return [output.convert(batch) for output in self._outputs]

    def form(self, batches: tf.data.Dataset) -> tf.data.Dataset:
        """Gives each batch the form that the trainer takes."""

        def form(*arrays: tf.Tensor) -> Any:
            named = list(zip(self._outputs, arrays, strict=True))
            batch: dict[str, Any] = {output.name: array for output, array in named if output.lengths_of is None}
            for name in {output.lengths_of: None for output in self._outputs if output.lengths_of is not None}:
                lengths = [array for output, array in named if output.lengths_of == name]
                batch[name] = tf.RaggedTensor.from_nested_row_lengths(batch[name], lengths)
            return make_pair(batch, self._plan.config) if self._plan.config.as_supervised else batch

        return batches.map(form)


@dataclass(frozen=True)
class _Output:
    """One array of a batch, as TensorFlow gets it."""

    name: str
    dtype: tf.DType
    shape: tuple[int | None, ...]
    lengths_of: str | None = None  # the ragged feature whose lists have these lengths
    axis: int = 0  # the axis that has these lengths, from 0

    def convert(self, batch: dict[str, Any]) -> Any:
        """Converts a batch's values to one array of this dtype."""
        if self.lengths_of is not None:
            shapes = [np.shape(values) for values in batch[self.lengths_of]]
            lists = [np.full(int(np.prod(shape[: self.axis])), shape[self.axis], np.int64) for shape in shapes]
            return np.concatenate(lists)
        values = batch[self.name]
        if isinstance(values, list):
            if self.dtype == tf.string:
                is_ragged = self.shape[0] is None
                return np.array(list(itertools.chain.from_iterable(values)) if is_ragged else values, object)
            values = np.concatenate([value.reshape(-1, *self.shape[1:]) for value in values])
        if self.dtype == tf.bfloat16:
            return values.view(tf.bfloat16.as_numpy_dtype)
        return values.astype(self.dtype.as_numpy_dtype, copy=False)


def _list_outputs(plan: BatchPlan) -> list[_Output]:
    """Lists the arrays of a batch, with their dtypes and shapes."""
    config, source, rows = plan.config, plan.source, None if is_true_size(plan) else plan.replica_batch_size
    per_record = () if plan.num_images is None else (plan.num_images,)
    outputs = []
    if source.has_images:
        outputs.append(_Output("image", getattr(tf, config.image_dtype), (rows, *per_record, *plan.image_size, 3)))
        if config.augment == "device":
            outputs.append(_Output("crop", tf.float32, (rows, *per_record, 4)))
            outputs.append(_Output("flip", tf.uint8, (rows, *per_record)))
    if source.label_key is not None:
        classes = (source.num_classes,) if config.one_hot else ()
        outputs.append(_Output("label", tf.float32 if config.one_hot else tf.int32, (rows, *classes)))
    for feature in plan.features:
        outputs += _list_feature_outputs(plan, feature)
    if not config.training:
        outputs.append(_Output("mask", tf.float32 if config.as_supervised else tf.bool, (rows,)))
    return outputs


def _list_feature_outputs(plan: BatchPlan, feature: BatchFeature) -> list[_Output]:
    """Lists the arrays of a feature: the values, and the stored sizes of what is padded or ragged."""
    name, spec, rows = feature.name, feature.spec, None if is_true_size(plan) else plan.replica_batch_size
    if name in plan.masks:
        return [_Output(name, tf.int32, (rows, *plan.image_size))]
    dtype = TF_DTYPES[spec.dtype] if spec.tensor is None else tf.dtypes.as_dtype(spec.tensor.dtype)
    if feature.is_ragged:
        unknown, shape = range(feature.num_unknown), () if spec.tensor is None else spec.tensor.shape
        axes = [_Output(f"{name}{_RAGGED}{axis}", tf.int64, (None if axis else rows,), name, axis) for axis in unknown]
        return [_Output(name, dtype, (None, *shape[len(unknown) :])), *axes]
    if feature.multi_hot:
        values = _Output(name, tf.float32, (rows, len(spec.names)))
    else:
        sizes = (feature.pad_to or spec.shape or ()) if spec.tensor is None else feature.shape
        values = _Output(name, dtype, (rows, *sizes))
    if feature.pad_to is None or feature.is_box:
        return [values]
    return [values, _Output(feature.sizes_name, tf.int32, (rows, len(feature.pad_to)))]


def count_batches_read(plan: BatchPlan) -> int:
    """Counts the batches that the engine reads at once: more from an object store, which takes longer to answer."""
    if file_io.is_url(plan.source.files[0]):
        batches = int(_STORE_READ_BYTES / (plan.replica_batch_size * plan.source.record_bytes))
        return min(max(batches, _STORE_BATCHES_READ), _MOST_STORE_BATCHES_READ)
    return max(host_limits.usable_cpus() // _CORES_PER_READ, _MIN_BATCHES_READ)
