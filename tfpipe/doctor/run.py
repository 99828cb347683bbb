"""Every check of a dataset and a pipeline, one after the other, as `tfpipe doctor` prints them.

for check in run_checks(manifest, "train", config, TargetConfig(tpu="local")):
    print(check.status, check.name, check.found, check.advice)
"""

from __future__ import annotations

import glob
import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import tensorflow as tf

from tfpipe.doctor import data_checks, probes, runtime_checks, tpu_checks
from tfpipe.doctor.result import Check, TargetConfig, fail_check
from tfpipe.doctor.runtime_checks import BatchFacts, CacheFacts
from tfpipe.engine.cache import check_cache_fits, estimate_cache_bytes
from tfpipe.engine.check_plan import check_shares
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.host import Host
from tfpipe.engine.order import mixing_score
from tfpipe.engine.plan import BatchPlan, plan_batches
from tfpipe.engine.source import Source, get_source
from tfpipe.errors import ConfigError, TfpipeError, explain_pipeline_error, first_line
from tfpipe.format import file_names
from tfpipe.format.manifest import Manifest, SplitInfo
from tfpipe.native import library
from tfpipe.pipeline.build import build_stages
from tfpipe.pipeline.stage import Customize, prefer_textbook
from tfpipe.pipeline.steps import choose_decoder, count_batches_read
from tfpipe.pipeline.textbook import count_files_at_once, count_records_ahead, count_shuffled_records
from tfpipe.pipeline.textbook_choice import is_by_engine
from tfpipe.storage import buckets, stores
from tfpipe.storage.file_io import is_url
from tfpipe.system import host_limits, versions
from tfpipe.system.units import human_count

# The number of files to look at in an object store, where each costs a request.
_REMOTE_FILES = 8

# The batches in the making at once, and those that wait for the trainer if AUTOTUNE chooses.
_MADE_BATCHES, _PREFETCHED_BATCHES = 3, 2
_VALUE_BYTES = {"uint8": 1, "float32": 4, "bfloat16": 2}

# The number of shards whose first labels are read, and of labels in each.
_LABEL_SHARDS, _LABELS_PER_SHARD = 4, 256


def run_checks(
    data: Manifest | Source,
    split: str | None,
    config: PipelineConfig,
    target: TargetConfig | None = None,
    customize: Customize | None = None,
    names: Collection[str] | None = None,
) -> Iterator[Check]:
    """Checks the files, the machine and a real batch, and yields each result as soon as it is there.

    Args:
        data: The data, from `load_manifest` or `tfrecord_files`.
        split: Name of a split; None for foreign files.
        config: The pipeline. Caches are estimated, not filled.
        target: The accelerator to feed; None for this machine.
        customize: A function that changes the pipeline's stages; None leaves them as they are.
        names: Names of the checks to run; None for all.

    Yields:
        The results in the order of `CHECKS`. An error makes its check a failure, and the checks that need it are
        skipped.

    Raises:
        ConfigError: There is no such split.
    """
    facts = _Facts(data, split, config, target or TargetConfig(), customize)
    for name, check in CHECKS.items():
        if name in TPU_CHECKS and facts.target.tpu is None:
            continue
        if names is None or name in names:
            yield _run_check(name, check, facts)


def _run_check(name: str, check: Callable[[_Facts], Check], facts: _Facts) -> Check:
    try:
        return check(facts)
    except _NotReachedError as error:
        return Check(name, "skipped", str(error))
    except TfpipeError as error:
        return fail_check(name, error)
    except tf.errors.OpError as error:
        return Check(name, "failure", f"{first_line(error)}.")


class _NotReachedError(Exception):
    """The error of a check that needs a fact which another check could not find."""


class _Facts:
    """The facts that several checks need. Each is computed once, at its first use."""

    def __init__(
        self,
        data: Manifest | Source,
        split: str | None,
        config: PipelineConfig,
        target: TargetConfig,
        customize: Customize | None,
    ) -> None:
        self.config, self.target, self.customize = prefer_textbook(config, customize), target, customize
        self.num_hosts = target.num_hosts or 1
        self.data, self.split, self.source = data, split, get_source(data, split)
        self.info: SplitInfo | None = None
        self.manifest = data if isinstance(data, Manifest) else None
        self.directory = os.path.dirname(self.source.files[0])
        if isinstance(data, Manifest) and split is not None:
            self.info, self.directory = data.splits[split], data.directory

    @cached_property
    def num_replicas(self) -> int:
        if self.target.num_replicas is not None:
            return self.target.num_replicas
        return self.num_hosts * (1 if self.target.tpu_elsewhere else probes.count_local_replicas())

    @cached_property
    def plan(self) -> BatchPlan:
        """The plan of the first host, without a cache in files, which is a dataset by itself."""
        config = self.config if self.config.cache_dir is None else probes.without_cache(self.config)
        return plan_batches(self.source, config, Host(0, self.num_hosts, self.num_replicas))

    @cached_property
    def by_engine(self) -> bool:
        """Whether the engine makes the batches."""
        return is_by_engine(self.source, self.plan.config)

    @property
    def exact(self) -> bool:
        """Whether training reads in exact order."""
        return self.config.training and self.by_engine

    @cached_property
    def dataset(self) -> tf.data.Dataset:
        """The pipeline of the first host without a cache, since a check should not fill one.

        Raises:
            _NotReachedError: The batch cannot be shared, as the check `batch` says.
        """
        context = tf.distribute.InputContext(self.num_hosts, 0, self.num_replicas)
        try:
            _check_batch(self)
        except ConfigError:
            raise _NotReachedError("Not reached: see batch.") from None
        config = probes.without_cache(self.config)
        try:
            return build_stages(self.data, self.split, config, context, customize=self.customize).dataset()
        except Exception as error:  # the user's own stages may raise anything
            raise explain_pipeline_error(error) from error

    @cached_property
    def first_batch_and_rest(self) -> tuple[dict[str, Any], Iterator[Any]]:
        """A real batch by the names of its tensors, and the iterator of the next batches, whose buffers are full."""
        batches = iter(self.dataset if self.config.training else self.dataset.repeat())
        return probes.get_named_parts(next(batches)), batches

    @cached_property
    def file_sizes(self) -> dict[str, int | None]:
        """The bytes of the files by path: of every local file, or of the first few in an object store."""
        files = list(self.source.files)
        indexes = [path for path, _ in self.source.index_files]
        if is_url(files[0]):
            files, indexes = files[:_REMOTE_FILES], indexes[:_REMOTE_FILES]
        return probes.read_file_sizes([*files, *indexes])

    @cached_property
    def first_shape(self) -> tuple[int, ...]:
        return probes.read_first_shape(self.source, self.config)


# Files


def _check_versions(facts: _Facts) -> Check:
    return runtime_checks.check_versions(
        probes.tensorflow_version(), versions.get_versions(versions.TENSORFLOW), facts.target
    )


def _check_tpu_host(facts: _Facts) -> Check:
    return tpu_checks.check_tpu_host(*probes.read_tpu_host(), facts.target)


def _check_jax(facts: _Facts) -> Check:
    return tpu_checks.check_jax(versions.get_versions(tpu_checks.JAX_PACKAGES))


def _check_features(facts: _Facts) -> Check:
    return tpu_checks.check_features(facts.source.num_classes)


def _check_file_access(facts: _Facts) -> Check:
    path = facts.source.files[0]
    is_in_store = path.partition("://")[0] in buckets.SCHEMES and not stores.can_read(path)
    asks = facts.config.order == "auto" and facts.source.is_split and not facts.target.tpu_elsewhere
    lacks_client = is_in_store and asks
    return runtime_checks.check_file_access(facts.directory, facts.target, lacks_client)


def _check_files(facts: _Facts) -> Check:
    source = facts.source
    sizes: dict[str, int | None] = dict.fromkeys(source.files)
    if facts.info is not None:
        sizes = dict(zip(source.files, (shard.bytes for shard in facts.info.shards), strict=True))
    expected = {path: sizes.get(path) for path in facts.file_sizes}
    total = len(source.files) + len(source.index_files)
    return data_checks.check_files(expected, facts.file_sizes, total)


def _check_first_record(facts: _Facts) -> Check:
    try:
        return data_checks.check_first_record(None, facts.first_shape)
    except probes.READ_ERRORS as error:
        return data_checks.check_first_record(first_line(error))


def _check_shards(facts: _Facts) -> Check:
    source, config = facts.source, facts.config
    shares_records = facts.exact or (not config.training and source.shard_records is not None)
    cycle_length = count_files_at_once(facts.plan)
    return data_checks.check_shards(len(source.files), facts.num_hosts, cycle_length, shares_records)


def _check_shard_size(facts: _Facts) -> Check:
    files = facts.source.files
    if facts.info is not None:
        sizes = [shard.bytes for shard in facts.info.shards]
    else:
        sizes = [size for path in files if (size := facts.file_sizes.get(path)) is not None]
    if not sizes:
        raise _NotReachedError("Not reached: see files.")
    return data_checks.check_shard_size(len(files), sum(sizes) / len(sizes), max(sizes))


# Images and labels


def _check_image_size(facts: _Facts) -> Check:
    name, fixed = "image size", facts.source.images.size
    size: Sequence[float] | None = fixed
    if not facts.source.has_images:
        return Check(name, "ok", "The records have no image.")
    if size is None and facts.info is not None:
        size = facts.info.sizes.mean_height, facts.info.sizes.mean_width
    subject = "The first image" if size is None else "The stored images"
    try:
        short_side = min(size or facts.first_shape[:2])
    except probes.READ_ERRORS:
        return Check(name, "skipped", "The size of the images is not known.")
    return data_checks.check_image_size(short_side, min(facts.config.size), subject, fixed is not None)


def _check_decoder(facts: _Facts) -> Check:
    if not facts.source.has_images:
        return Check("decoder", "ok", "The records have no image.")
    if not facts.by_engine:
        return data_checks.check_decoder("tensorflow", None)
    missing = library.explain_missing() if facts.config.decoder == "auto" else None
    return data_checks.check_decoder(choose_decoder(facts.plan), missing)


def _check_labels(facts: _Facts) -> Check:
    source, plan = facts.source, facts.plan
    if source.label_key is None:
        return Check("labels", "skipped", "There are no labels.")
    if not facts.config.training:
        return Check("labels", "ok", "Evaluation reads every record once, and the order does not matter.")
    shards = sorted({k * len(source.files) // _LABEL_SHARDS for k in range(_LABEL_SHARDS)})
    counts = source.shard_records
    samples = [
        probes.read_labels(source, shard, _LABELS_PER_SHARD, facts.config)
        for shard in shards
        if counts is None or counts[shard]
    ]
    class_counts = () if facts.info is None else facts.info.class_counts
    batch_size = plan.config.batch_size
    mixing = mixing_score(plan.order, source.shard_records or ()) if facts.exact and plan.weights is None else None
    buffered = 0.0
    if mixing is None and source.num_records:
        buffered = min(count_shuffled_records(plan) * facts.num_hosts / source.num_records, 1.0)
    return data_checks.check_labels(samples, class_counts, mixing, batch_size, buffered)


# The run


def _check_batch(facts: _Facts) -> Check:
    plan, target = facts.plan, facts.target
    check_shares(plan)
    return runtime_checks.check_batch(
        BatchFacts(
            global_batch_size=plan.config.batch_size,
            batch_size=plan.replica_batch_size,
            num_replicas=facts.num_replicas,
            num_hosts=facts.num_hosts,
            block_records=plan.order.block_records if facts.exact else None,
            steps_per_epoch=plan.steps_per_epoch or None,
            replicas_known=not target.tpu_elsewhere or target.num_replicas is not None,
        ),
        target,
    )


def _check_memory(facts: _Facts) -> Check:
    plan, config = facts.plan, facts.config
    held, needed = [], _count_ready_bytes(plan)
    advice = "Lower the batch size."
    if config.cache != "none" and config.cache_dir is None:
        held.append("the cache")  # from the second epoch on nothing is read
        needed += estimate_cache_bytes(plan) or 0
        advice = "Use no cache, or a smaller `decoded_size`."
        if facts.by_engine:
            advice = "Keep less of it with `cache_bytes`, or all of it in files with `cache_dir`."
    if not config.service.workers and (not held or config.cache_bytes is not None):
        record_bytes = facts.source.record_bytes
        if config.cache_dir is not None and config.cache == "decoded":  # they are read from the cache
            height, width = plan.decoded_size
            record_bytes = max(record_bytes, height * width * 3)
        # Of the engine: those that are read, as many that are parsed, and those that are decoded.
        ahead = 3 * count_batches_read(plan) * plan.replica_batch_size if facts.by_engine else count_records_ahead(plan)
        ahead = min(ahead, facts.source.num_records or ahead)
        shuffled = count_shuffled_records(plan) if config.training and not facts.exact else 0
        held.append(f"{human_count(ahead, 'record')} that are read ahead")
        held += [f"a shuffle buffer of {human_count(shuffled, 'record')}"] if shuffled else []
        needed += round((ahead + shuffled) * record_bytes)
        if shuffled:
            advice = "Lower `tf_data.shuffle_buffer_size`."
    held.append("finished batches")
    what = ", ".join(held[:-1]) + " and " * (len(held) > 1) + held[-1]
    program = host_limits.peak_memory_bytes()
    return runtime_checks.check_memory(what, needed, program, host_limits.available_memory_bytes(), advice)


def _count_ready_bytes(plan: BatchPlan) -> int:
    """Counts the bytes of this host's batches that are finished or in the making, without those of the trainer."""
    waiting = plan.config.prefetch_batches
    batches = _MADE_BATCHES + (_PREFETCHED_BATCHES if waiting is None else waiting)
    return batches * plan.batch_size * _count_image_bytes(plan)


def _count_image_bytes(plan: BatchPlan) -> int:
    """Counts the bytes of a record's images and masks in a batch; without images those of the record."""
    if not plan.source.has_images:
        return math.ceil(plan.source.record_bytes)
    on_device = plan.config.augment == "device"
    height, width = plan.decoded_size if on_device else plan.config.size
    pixel_bytes = 3 * (1 if on_device else _VALUE_BYTES[plan.config.image_dtype]) + 4 * len(plan.masks)
    return height * width * pixel_bytes * (plan.num_images or 1)


def _check_cache(facts: _Facts) -> Check:
    config = facts.config
    if config.cache == "none":
        return runtime_checks.check_cache(CacheFacts("none", None, 0, 0))
    folder = config.cache_dir
    # A folder takes the whole split, also for evaluation; memory takes this host's share.
    needed = estimate_cache_bytes(
        replace(facts.plan, config=config if folder is None else replace(config, training=True))
    )
    if folder is not None:
        free = host_limits.free_disk_bytes(folder)
        filled = _has_cache(folder, facts.info)
        return runtime_checks.check_cache(CacheFacts(config.cache, folder, needed, free, filled))
    free = host_limits.available_memory_bytes()
    check = runtime_checks.check_cache(CacheFacts(config.cache, None, needed, free, may_keep_part=facts.by_engine))
    if check.status == "ok":
        check_cache_fits(facts.plan, facts.by_engine)  # it may refuse the cache for other reasons
    return check


def _has_cache(folder: str, info: SplitInfo | None) -> bool:
    """Returns whether the folder holds a cache of a split by this name; the run sees whether its options match."""
    name = "?*" if info is None else glob.escape(info.name)
    return bool(glob.glob(os.path.join(glob.escape(folder), f"*-{name}-{'[0-9a-f]' * 16}", file_names.MANIFEST)))


def _check_shapes(facts: _Facts) -> Check:
    return runtime_checks.check_shapes(probes.describe_tensors(facts.dataset.element_spec), facts.target)


def _check_xla(facts: _Facts) -> Check:
    if not facts.source.has_images:
        return Check("xla", "ok", "Not tried: the step that is compiled here takes images, and the records have none.")
    batch, _ = facts.first_batch_and_rest
    error, seconds = probes.compile_step(batch, facts.plan)
    return runtime_checks.check_xla(error, seconds, facts.plan.replica_batch_size)


def _check_cpu(facts: _Facts) -> Check:
    rate = None
    if facts.target.images_per_second is not None:
        _, batches = facts.first_batch_and_rest
        rate = probes.measure_rate(batches, facts.plan.replica_batch_size)
    return runtime_checks.check_cpu(rate, host_limits.usable_cpus(), facts.num_hosts, facts.target, facts.source.unit)


CHECKS: Mapping[str, Callable[[_Facts], Check]] = {
    "versions": _check_versions,
    "tpu host": _check_tpu_host,
    "jax": _check_jax,
    "features": _check_features,
    "file access": _check_file_access,
    "files": _check_files,
    "first record": _check_first_record,
    "shards": _check_shards,
    "shard size": _check_shard_size,
    "image size": _check_image_size,
    "decoder": _check_decoder,
    "labels": _check_labels,
    "batch": _check_batch,
    "memory": _check_memory,
    "cache": _check_cache,
    "shapes": _check_shapes,
    "xla": _check_xla,
    "cpu": _check_cpu,
}
"""The checks by name, in the order in which they run."""

TPU_CHECKS = ("tpu host", "jax", "features")
"""The checks that run for a TPU alone."""
