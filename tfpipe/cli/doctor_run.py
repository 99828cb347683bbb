"""Every check of a dataset and a pipeline, as `tfpipe doctor` prints them.

Nothing here connects to a TPU, since that starts a machine that is paid by the minute.
"""

import contextlib
import glob
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import tensorflow as tf

from tfpipe.cli.doctor_checks import TargetConfig, check_tpu_host, check_versions
from tfpipe.cli.shared.checks import Check, fail_check
from tfpipe.engine.cache import estimate_cache_bytes
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.host import Host
from tfpipe.engine.plan import BatchPlan, check_shares, estimate_row_bytes, plan_batches
from tfpipe.engine.source import Source, get_source
from tfpipe.errors import TfpipeError, explain_pipeline_error, first_line
from tfpipe.format.manifest import Manifest
from tfpipe.pipeline.build import build_stages
from tfpipe.pipeline.device import augment
from tfpipe.pipeline.stage import Customize, prefer_textbook
from tfpipe.pipeline.steps import count_batches_read
from tfpipe.pipeline.textbook import count_records_ahead, count_shuffled_records
from tfpipe.pipeline.textbook_choice import is_by_engine
from tfpipe.system import extras, host_limits
from tfpipe.system.units import human_bytes, human_count

# The batches that are made at the same time, and the prefetched ones if AUTOTUNE chooses their number.
_MADE_BATCHES, _PREFETCHED_BATCHES = 3, 2
_MEMORY_SHARE = 0.5  # of the free memory; a pipeline that takes more may leave the trainer too little

_TPU_SUBLANES = 8
_TPU_DTYPES = ("uint8", "int32", "int64", "uint32", "float32", "bfloat16", "bool")


def run_checks(
    data: Manifest | Source,
    split: str | None,
    config: PipelineConfig,
    target: TargetConfig,
    customize: Customize | None = None,
) -> Iterator[Check]:
    """Checks the machine and a real batch, and yields each result as soon as it is known."""
    setup = _Setup(data, split, get_source(data, split), prefer_textbook(config, customize), target, customize)
    has_batch = True
    for name, check in CHECKS.items():
        if name == "tpu host" and target.tpu is None:
            continue
        try:
            found = check(setup) if has_batch or name == "memory" else Check(name, "skipped", "Not reached: see batch.")
        except TfpipeError as error:
            found = fail_check(name, error)
        has_batch = has_batch and (name, found.status) != ("batch", "failure")
        yield found


def count_local_replicas() -> int:
    """Counts the accelerators of this machine without starting them; a machine with none has 1, its CPU."""
    return next((n for kind in ("TPU", "GPU") if (n := len(tf.config.list_physical_devices(kind)))), 1)


@dataclass
class _Setup:
    """The values that several checks share. Each is computed once, when it is first used."""

    data: Manifest | Source
    split: str | None
    source: Source
    config: PipelineConfig
    target: TargetConfig
    customize: Customize | None

    @cached_property
    def num_replicas(self) -> int:
        if self.target.num_replicas is not None:
            return self.target.num_replicas
        return self.target.num_hosts * (1 if self.target.tpu_elsewhere else count_local_replicas())

    @cached_property
    def plan(self) -> BatchPlan:
        """The batch plan of the first host, without a cache on disk."""
        config = self.config if self.config.cache_dir is None else _without_cache(self.config)
        return plan_batches(self.source, config, Host(0, self.target.num_hosts, self.num_replicas))

    @cached_property
    def by_engine(self) -> bool:
        """Whether the engine makes the batches; otherwise a textbook pipeline of tf.data does."""
        return is_by_engine(self.source, self.plan.config)

    @cached_property
    def first_batch(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The tensor specs of the first host's batches, and the tensors of one real batch, both by name."""
        context = tf.distribute.InputContext(self.target.num_hosts, 0, self.num_replicas)
        config = _without_cache(self.config)
        try:
            dataset = build_stages(self.data, self.split, config, context, customize=self.customize).dataset()
            return _name_tensors(dataset.element_spec), _name_tensors(next(iter(dataset)))
        except Exception as error:  # the user's own stages may raise anything
            raise explain_pipeline_error(error) from error


def _without_cache(config: PipelineConfig) -> PipelineConfig:
    """Returns the config without its cache, since a check should not fill a disk."""
    return replace(config, cache="none", cache_dir=None, cache_bytes=None)


def _name_tensors(element: Any) -> dict[str, Any]:
    """Returns the tensors of a batch, or their specs, by name; the batch may be a dictionary or a tuple."""
    if isinstance(element, Mapping):
        return dict(element)
    first, *rest = element
    inputs = dict(first) if isinstance(first, Mapping) else {"image": first}
    return inputs | dict(zip(("label", "mask"), rest, strict=False))


def _check_tpu_host(setup: _Setup) -> Check:
    chips = sorted(glob.glob("/dev/accel[0-9]*") + glob.glob("/dev/vfio/[0-9]*"))
    pids = set()
    for link in glob.glob("/proc/[0-9]*/fd/*") if chips else ():
        with contextlib.suppress(OSError):  # the process has ended, or belongs to another user
            if os.readlink(link) in chips:
                pids.add(int(link.split("/")[2]))
    return check_tpu_host(chips, sorted(pids - {os.getpid()}), setup.target)


def _check_batch(setup: _Setup) -> Check:
    plan, target = setup.plan, setup.target
    check_shares(plan)
    size = plan.replica_batch_size
    replicas, hosts = human_count(setup.num_replicas, "replica"), human_count(target.num_hosts, "host")
    finding = f"{plan.config.batch_size:,} images: {size:,} for each of {replicas} on {hosts}"
    if setup.config.training and setup.by_engine:
        block = plan.order.block_records
        finding += f", read {f'in blocks of {block:,} records' if block > 1 else 'record by record'}"
    if plan.steps_per_epoch:
        finding += f"; {human_count(plan.steps_per_epoch, 'step')} an epoch"
    if target.tpu_elsewhere and target.num_replicas is None:
        advice = "Say how many there are with `num_replicas` and `num_hosts`."
        return Check("batch", "warning", f"{finding}. How many replicas {target.tpu!r} has is not known here.", advice)
    if target.tpu is not None and size % _TPU_SUBLANES:
        below = size // _TPU_SUBLANES * _TPU_SUBLANES
        advice = f"Use {f'{below} or ' if below else ''}{below + _TPU_SUBLANES} for each replica."
        return Check("batch", "warning", f"{finding}. A TPU fills up each replica's batch to a multiple of 8.", advice)
    return Check("batch", "ok", f"{finding}.")


def check_shapes(specs: Mapping[str, tf.TensorSpec], target: TargetConfig) -> Check:
    """Checks that the shapes of a batch are static, and that the device accepts the dtypes."""
    name = "shapes"
    # The last batch of an evaluation may be smaller, for which XLA compiles once more.
    if open_shapes := [name for name, spec in specs.items() if not spec.shape[1:].is_fully_defined()]:
        advice = "XLA compiles for one shape: give it a size in `pad_to` or the schema, or leave it out of the batch."
        return Check(name, "failure", f"The shape must be static, and that of {', '.join(open_shapes)} is not.", advice)
    if strings := [name for name, spec in specs.items() if spec.dtype == tf.string]:
        advice = "Leave it out of `extra_features` for training: no compiled step takes strings."
        finding = f"The batch has text in it: {', '.join(strings)}."
        return Check(name, "warning" if target.tpu is None else "failure", finding, advice)
    dtypes = {name: spec.dtype.name for name, spec in specs.items()}
    if target.tpu is not None and (
        refused := [f"{name} {dtype}" for name, dtype in dtypes.items() if dtype not in _TPU_DTYPES]
    ):
        advice = "Cast it on the host, or leave it out."
        return Check(name, "failure", f"A TPU does not take {', '.join(refused)}.", advice)
    listed = (f"{name} {dtype} {specs[name].shape.as_list()}" for name, dtype in dtypes.items())
    return Check(name, "ok", f"{', '.join(listed)}.")


def _check_memory(setup: _Setup) -> Check:
    plan, config = setup.plan, setup.config
    waiting = _PREFETCHED_BATCHES if config.prefetch_batches is None else config.prefetch_batches
    source = plan.source
    row_bytes = estimate_row_bytes(config, plan) if source.has_images else math.ceil(source.record_bytes)
    kept, needed = [], (_MADE_BATCHES + waiting) * plan.batch_size * row_bytes
    advice = "Lower the batch size."
    if config.cache != "none" and config.cache_dir is None:
        kept.append("the cache")  # from the second epoch on no records are read
        needed += estimate_cache_bytes(plan) or 0
        advice = "Use no cache, or a smaller `decoded_size`."
        if setup.by_engine:
            advice = "Keep less of it with `cache_bytes`, or all of it in files with `cache_dir`."
    if not config.service.workers and (not kept or config.cache_bytes is not None):
        record_bytes = setup.source.record_bytes
        if config.cache_dir is not None and config.cache == "decoded":  # records are read from the cache
            height, width = plan.decoded_size
            record_bytes = max(record_bytes, height * width * 3)
        # The engine has three times as many in memory: records that are read, parsed and decoded.
        ahead = 3 * count_batches_read(plan) * plan.replica_batch_size if setup.by_engine else count_records_ahead(plan)
        ahead = min(ahead, setup.source.num_records or ahead)
        shuffled = count_shuffled_records(plan) if config.training and not setup.by_engine else 0
        kept.append(f"{human_count(ahead, 'record')} that are read ahead")
        kept += [f"a shuffle buffer of {human_count(shuffled, 'record')}"] if shuffled else []
        needed += round((ahead + shuffled) * record_bytes)
        if shuffled:
            advice = "Lower `tf_data.shuffle_buffer_size`."
    kept.append("finished batches")
    what = ", ".join(kept[:-1]) + " and " * (len(kept) > 1) + kept[-1]
    program, free = host_limits.peak_memory_bytes(), host_limits.available_memory_bytes()
    taken, together, room = map(human_bytes, (needed, needed + program, free))
    finding = f"{what[0].upper()}{what[1:]} take about {taken}, with the program {together}. {room} are free."
    if needed <= _MEMORY_SHARE * free:
        return Check("memory", "ok", finding)
    return Check("memory", "warning" if needed <= free else "failure", finding, advice)


def _check_xla(setup: _Setup) -> Check:
    """Compiles a small step over a real batch with XLA, and runs it: cast, normalize, convolve, differentiate."""
    if not setup.source.has_images:
        return Check("xla", "ok", "Not tried: the step that is compiled here takes images, and the records have none.")
    config, options = setup.plan.config, setup.plan.config.augment_options
    numbers = {name: tensor for name, tensor in setup.first_batch[1].items() if tensor.dtype != tf.string}

    def step(kernel: tf.Tensor, batch: Mapping[str, tf.Tensor]) -> tf.Tensor:
        image = batch["image"]
        if config.augment == "device":
            image = augment.augment(image, batch["crop"], batch["flip"], config.size, options=options)
        elif image.dtype == tf.uint8:
            image = augment.normalize(image, tf.float32, options.mean, options.std)
        with tf.GradientTape() as tape:
            tape.watch(kernel)
            activations = tf.nn.conv2d(image, tf.cast(kernel, image.dtype), 4, "SAME")
            means = [tf.reduce_mean(tf.cast(values, tf.float32)) for values in (activations, *batch.values())]
            loss = tf.add_n(means)
        return tape.gradient(loss, kernel)

    started = time.perf_counter()
    try:
        tf.function(step, jit_compile=True, autograph=False)(tf.ones([3, 3, 3, 8]) / 27, numbers).numpy()
    except (tf.errors.OpError, ValueError, TypeError) as error:
        advice = "A TPU runs only what XLA compiles: look for strings and open shapes in the batch, above."
        return Check("xla", "failure", f"XLA does not compile a step on this batch: {first_line(error)}.", advice)
    size, seconds = setup.plan.replica_batch_size, time.perf_counter() - started
    return Check("xla", "ok", f"A step on a batch of {size:,} images compiled and ran in {seconds:.1f} s.")


CHECKS: Mapping[str, Callable[[_Setup], Check]] = {
    "versions": lambda setup: check_versions(tf.__version__, extras.get_versions(extras.TENSORFLOW), setup.target),
    "tpu host": _check_tpu_host,
    "batch": _check_batch,
    "memory": _check_memory,
    "shapes": lambda setup: check_shapes(setup.first_batch[0], setup.target),
    "xla": _check_xla,
}
"""The checks by name, in the order in which they run."""
