"""Exact order from the workers of a tf.data service: each makes whole batches, those of its own steps.

    batches = distribute_steps(plan, stages)            # of this host, made elsewhere

```
worker 0 of 3   steps 0 3 6 ...   ─ job 0 ─┐
worker 1        steps 1 4 7 ...   ─ job 1 ─┼─ one of each in turn ─  0 1 2 3 4 5 6 7 8 ...
worker 2        steps 2 5 8 ...   ─ job 2 ─┘
```

The batch of a step is a pure function of manifest, config and step. So a worker computes the records of its steps,
reads them by their offsets, and needs nobody else. TensorFlow does the rest: `ShardingPolicy.HINT` deals an infinite
count of steps to the workers of a dispatcher that knows their addresses.

The service stands behind `batch`. A worker makes the whole batch of one host: the trainer copies nothing, and what
travels are pixels of the size that the model takes. Each host has jobs of its own, since its rows are its own, so a
host that stops holds up no other.

Each worker has a job of its own too, which ends at once on all others. TensorFlow's coordinated reads would do with one
job, but they promise no order: a worker whose element is not ready within 100 ms loses its turn, so the others run
ahead without limit, and one that dies is left out without a word. With a job for each worker the trainer knows for
whom it waits, buffers little, and a fault touches one job alone.

Each element carries its place. If a worker dies and starts again, its job begins anew, or ends. The trainer sees a
place that is not the next one, drops the job, and begins another one there. How long it waits for a step,
`service_timeout_s` says: a clock beside the batches watches this, because TensorFlow itself would wait without end.

With `service_share` the trainer makes some steps itself: always the same ones, so that the order stays what it is. It
may make others in the next run, because the batch of a step is the same whoever makes it.
"""

from __future__ import annotations

import logging
import uuid
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfpipe.errors import ConfigError
from tfpipe.pipeline import service_client
from tfpipe.pipeline.native_stages import make_worker_options
from tfpipe.pipeline.plan.read_plan import ReadPlan
from tfpipe.pipeline.plan.step_shares import StepShares
from tfpipe.pipeline.service_limit import get_tick_s, limit_wait, tick
from tfpipe.pipeline.service_measure import measure_rates
from tfpipe.pipeline.stage import STAGE_NAMES, Stages

logger = logging.getLogger(__name__)

_HINT_MODE = b"\x08\x05"  # the serialized `ProcessingModeDef` of ShardingPolicy.HINT
_REQUESTS = 1  # a worker prepares the next batch meanwhile


def choose_shares(plan: ReadPlan, stages: Stages) -> StepShares:
    """Chooses the steps that the host makes itself: those of `service_share`, or by a measurement.

    To measure, this host and the workers make the first batches side by side for some seconds, which nobody keeps. So
    the rate of this host is the one that it has while it takes batches from workers too.

    Args:
        plan: The read plan of the host.
        stages: The stages up to `batch`.

    Raises:
        ConfigError: The dispatcher does not answer or does not know its workers, or a stage may drop images.
        TfpipeError: No batch came within `service_timeout_s`.
    """
    share = plan.config.service_share
    if share != "auto":
        return StepShares.from_share(share)
    job = _begin_job(plan, stages, StepShares.from_share(0))
    first = tf.constant(plan.start_step, tf.int64)
    local = job.build(tf.data.Dataset.counter(first)).prefetch(1)
    options = make_worker_options(plan)
    sides = {"This host": local.with_options(options), "The tf.data service": job.read().with_options(options)}
    rates = measure_rates(sides, plan.config.service_timeout_s).values()
    shares = StepShares.from_rates(*rates)
    logger.info(
        "This host makes %s steps itself: it made %.2f batches a second beside the service, which made %.2f.",
        shares,
        *rates,
    )
    return shares


def split_by_worker(plan: ReadPlan, stages: Stages) -> dict[str, tf.data.Dataset]:
    """Reads each worker of a service by itself, to tell which one is slow.

    Args:
        plan: The read plan of the host.
        stages: The stages up to `batch`.

    Returns:
        The batches that each worker makes, from the first step on, as flat tuples without end, by its address.

    Raises:
        ConfigError: The dispatcher does not answer or does not know its workers, or a stage may drop images.
    """
    job = _begin_job(plan, stages, StepShares.from_share(0))

    def read(first: int) -> tf.data.Dataset:
        return tf.data.Dataset.range(first, first + 1).flat_map(lambda at: job._read_worker(_Memory.make(), at))

    return {worker: read(number) for number, worker in enumerate(job.workers)}


def distribute_steps(plan: ReadPlan, stages: Stages, shares: StepShares) -> tf.data.Dataset:
    """Reads the batches of one host from the workers of a service, in exact order.

    Args:
        plan: The read plan of the host.
        stages: The stages up to `batch`. Workers build them on their own steps.
        shares: The steps that the host makes itself.

    Returns:
        The batches that the host would have made itself, from the start step on, without end.

    Raises:
        ConfigError: The dispatcher does not answer or does not know its workers, or a stage may drop images.
    """
    job = _begin_job(plan, stages, shares)
    remote = job.read()
    batches = _join_local_steps(job, remote) if job.shares.local else remote
    return _deal_to_replicas(plan, batches)


def _begin_job(plan: ReadPlan, stages: Stages, shares: StepShares) -> _Job:
    _check_stages(stages)
    assert plan.config.service is not None
    service_client.check_address(plan.config.service)
    return _Job(plan, stages, service_client.list_workers(plan.config.service), shares)


def _check_stages(stages: Stages) -> None:
    """Refuses a stage that might drop images: the batch of a step would then depend on the steps before it."""
    for stage in stages:
        if stage.name not in STAGE_NAMES and not stage.per_image:
            raise ConfigError(
                "A stage of your own must treat each image for itself where a `service` keeps the exact order, and "
                f"{stage.name!r} does not say so. Give it per_image=True if it drops nothing, or leave `service` out."
            )


@dataclass
class _Job:
    """The work of a service for one host.

    Attributes:
        plan: The read plan of the host.
        stages: The stages from steps to batches.
        workers: The addresses of the workers, in the order of their numbers.
        shares: The steps that the workers make. Their places count these alone.
        spec: The structure of a batch of the whole host, once it is built. Several replicas are a first axis more.
    """

    plan: ReadPlan
    stages: Stages
    workers: tuple[str, ...]
    shares: StepShares
    spec: Any = None

    def build(self, steps: tf.data.Dataset) -> tf.data.Dataset:
        """Builds the batches of the whole host for some steps."""
        batches, replicas = self.stages.apply_to(steps), _count_replicas(self.plan)
        batches = batches if replicas == 1 else batches.batch(replicas, drop_remainder=True)
        self.spec = batches.element_spec
        return batches

    def find_step(self, place: tf.Tensor) -> tf.Tensor:
        """Returns the step at a place among those that workers make: int64 of the same shape."""
        remote = self.shares.remote
        return place // len(remote) * self.shares.period + tf.gather(tf.constant(remote, tf.int64), place % len(remote))

    def is_local(self, step: tf.Tensor) -> tf.Tensor:
        """Returns whether the trainer makes a step itself: bool."""
        return tf.reduce_any(tf.equal(step % self.shares.period, tf.constant(self.shares.local, tf.int64)))

    def read(self) -> tf.data.Dataset:
        """Reads the batches that workers make, in the order of their steps."""
        first = self.shares.count_remote(self.plan.start_step)

        def read_all(_: tf.Tensor) -> tf.data.Dataset:
            memory = _Memory.make()  # one for each iterator
            places = tf.data.Dataset.range(first, first + len(self.workers))
            return self._limit_wait(first, _read_in_turns(places, lambda place: self._read_worker(memory, place)))

        batches = tf.data.Dataset.range(1).flat_map(read_all)
        return batches.map(lambda *batch: tf.nest.pack_sequence_as(self.spec, batch))

    def _read_worker(self, memory: _Memory, first: tf.Tensor) -> tf.data.Dataset:
        """Reads every batch of the worker that makes the one at place `first`, by one job after the other."""
        pause_s = get_tick_s(self.plan.config.service_timeout_s)
        attempts = tf.data.Dataset.range(1).concatenate(tick(pause_s))
        return attempts.flat_map(lambda _: self._read_until_broken(memory, first))

    def _read_until_broken(self, memory: _Memory, first: tf.Tensor) -> tf.data.Dataset:
        """Begins a job with the first batch that is missing, and reads until a batch is lost or comes again."""
        count, config = len(self.workers), self.plan.config
        worker, begin = first % count, memory.get(first)
        hint = tf.data.experimental.SHARD_HINT
        # Worker w of this job counts w, w + count, ... from a multiple of `count`. For all workers but one it ends.
        places = tf.data.Dataset.counter(begin - worker).shard(hint, hint)
        places = places.take_while(lambda place: tf.equal(place % count, worker))
        elements = tf.data.Dataset.zip((places, self.build(places.map(self.find_step))))
        if config.prefetch_batches != 0:
            elements = elements.prefetch(config.prefetch_batches or tf.data.AUTOTUNE)
        elements = elements.with_options(make_worker_options(self.plan))
        expected = tf.data.Dataset.counter(begin, tf.constant(count, tf.int64))
        numbered = tf.data.Dataset.zip((expected, _start_job(str(config.service), elements)))

        def note_progress(place: tf.Tensor, element: Any) -> Any:
            with tf.control_dependencies([memory.put(first, place + count)]):
                return tuple(tf.identity(part) for part in tf.nest.flatten(element[1]))

        return numbered.take_while(lambda place, element: tf.equal(place, element[0])).map(note_progress)

    def _limit_wait(self, first: int, batches: tf.data.Dataset) -> tf.data.Dataset:
        """Ends with an error that names the worker if no batch comes for `service_timeout_s`."""
        limit_s = self.plan.config.service_timeout_s

        def explain(count: tf.Tensor) -> tf.Tensor:
            place = first + count
            sentence = [
                "The worker ",
                tf.gather(tf.constant(self.workers), place % len(self.workers)),
                f" of the tf.data service must give a batch within {limit_s} s (`service_timeout_s`), and did not give "
                "that of step ",
                tf.strings.as_string(self.find_step(place)),
                ": start it again under this address, then run the same command.",
            ]
            return tf.strings.join(sentence)

        return limit_wait(batches, limit_s, explain)


def _read_in_turns(places: tf.data.Dataset, read_worker: Callable[[tf.Tensor], tf.data.Dataset]) -> tf.data.Dataset:
    """Reads workers side by side and takes a batch of each in turn; one of each waits."""
    specs: list[Any] = []

    def open_worker(place: tf.Tensor) -> tf.Tensor:
        dataset = read_worker(place)
        specs[:] = dataset.element_spec
        return tf.data.experimental.to_variant(dataset)

    function = tf.function(open_worker, input_signature=[places.element_spec], autograph=False).get_concrete_function()
    count = places.cardinality()
    variant = tf.raw_ops.ParallelInterleaveDatasetV4(
        input_dataset=tf.data.experimental.to_variant(places),
        other_arguments=function.captured_inputs,
        cycle_length=count,
        block_length=1,
        buffer_output_elements=1,
        prefetch_input_elements=0,
        num_parallel_calls=count,
        f=function,
        output_types=[part.dtype for part in specs],
        output_shapes=[part.shape for part in specs],
        deterministic="true",
    )
    return tf.data.experimental.from_variant(variant, tuple(specs))


def _start_job(service: str, elements: tf.data.Dataset) -> tf.data.Dataset:
    """Starts a job whose dataset is only known inside a graph: it begins with the step that comes next.

    `tf.data.experimental.service.from_dataset_id` takes no tensor for the job's name, which must be a new one.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # TensorFlow warns of its own way to look up options in a graph
        dataset_id = tf.data.experimental.service.register_dataset(service, elements, compression=None)
    parts = tf.nest.flatten(elements.element_spec)
    types, shapes = [part.dtype for part in parts], [part.shape for part in parts]

    def uncompress(compressed: tf.Tensor) -> Any:
        return tf.raw_ops.UncompressElement(compressed=compressed, output_types=types, output_shapes=shapes)

    signature = [tf.TensorSpec([], tf.variant)]
    protocol, _, address = service.partition("://")
    now = tf.strings.as_string(tf.timestamp(), precision=6)
    variant = tf.raw_ops.DataServiceDatasetV4(
        dataset_id=dataset_id,
        processing_mode=_HINT_MODE,
        address=address,
        protocol=protocol,
        job_name=tf.strings.join([f"tfpipe-{uuid.uuid4().hex}-", now]),
        consumer_index=tf.constant(-1, tf.int64),
        num_consumers=tf.constant(-1, tf.int64),
        max_outstanding_requests=tf.constant(_REQUESTS, tf.int64),
        iteration_counter=tf.raw_ops.DummyIterationCounter(),
        output_types=types,
        output_shapes=shapes,
        uncompress_fn=tf.function(uncompress, input_signature=signature, autograph=False).get_concrete_function(),
    )
    return tf.data.experimental.from_variant(variant, elements.element_spec)


def _join_local_steps(job: _Job, remote: tf.data.Dataset) -> tf.data.Dataset:
    """Joins the batches of workers with those that this host makes itself, in the order of the steps."""
    steps = tf.data.Dataset.counter(tf.constant(job.plan.start_step, tf.int64))
    local = job.build(steps.filter(job.is_local)).prefetch(1)
    choice = steps.map(lambda step: tf.cast(job.is_local(step), tf.int64))
    return tf.data.Dataset.choose_from_datasets([remote, local], choice, stop_on_empty_dataset=True)


def _deal_to_replicas(plan: ReadPlan, batches: tf.data.Dataset) -> tf.data.Dataset:
    """Cuts the batch of a host into those of its replicas, which share its memory."""
    replicas, spec = _count_replicas(plan), batches.element_spec
    if replicas == 1:
        return batches

    def cut(*batch: Any) -> tf.data.Dataset:
        parts = tf.nest.flatten(batch)
        return tf.data.Dataset.range(replicas).map(
            lambda i: tf.nest.pack_sequence_as(spec, [part[i] for part in parts])
        )

    return batches.flat_map(cut)


def _count_replicas(plan: ReadPlan) -> int:
    return plan.num_replicas // plan.num_hosts


@dataclass(frozen=True)
class _Memory:
    """The next place of each worker, which an iterator keeps from one job to the next.

    Attributes:
        handle: A table from the first place of a worker to its next one.
    """

    handle: tf.Tensor

    @classmethod
    def make(cls) -> _Memory:
        """Makes an empty memory, which lives as long as the iterator."""
        return cls(tf.raw_ops.AnonymousMutableHashTable(key_dtype=tf.int64, value_dtype=tf.int64))

    def put(self, first: tf.Tensor, place: tf.Tensor) -> tf.Operation:
        """Writes the next place of the worker that began with `first`."""
        return tf.raw_ops.LookupTableInsertV2(table_handle=self.handle, keys=first[None], values=place[None])

    def get(self, first: tf.Tensor) -> tf.Tensor:
        """Returns the next place of the worker that began with `first`, which is this one as long as none is noted."""
        return tf.raw_ops.LookupTableFindV2(table_handle=self.handle, keys=first, default_value=first)
