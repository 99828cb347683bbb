"""Every check of a dataset and a pipeline, one after the other, as `tfpipe doctor` prints them.

for check in examine(manifest, "train", config, Target(tpu="local")):
    print(check.status, check.name, check.found, check.advice)
"""

from __future__ import annotations

import dataclasses
import glob
import os
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

import tensorflow as tf

from tfpipe.doctor import data_checks, probes, runtime_checks
from tfpipe.doctor.data_checks import FileFacts, ImageFacts, LabelFacts
from tfpipe.doctor.result import Check, Target, counted, failure_of
from tfpipe.doctor.runtime_checks import BatchFacts, CacheFacts
from tfpipe.errors import ConfigError, TfpipeError, first_line
from tfpipe.format import file_names
from tfpipe.format.manifest import Manifest, SplitInfo
from tfpipe.order import mixing_score
from tfpipe.pipeline.build import build_stages
from tfpipe.pipeline.config.pipeline_config import PipelineConfig
from tfpipe.pipeline.plan.read_plan import ReadPlan
from tfpipe.pipeline.plan.source import Source, get_source
from tfpipe.pipeline.stages.cache import check_cache_fits, estimate_cache_bytes
from tfpipe.system import host_limits
from tfpipe.system.file_io import is_url

REMOTE_FILES = 8
"""Files that are looked at in an object store, where each costs a request."""

LABEL_PLACES, LABELS_EACH = 4, 256
"""Shards whose first labels are read, and how many of each."""

EXACT_WINDOWS = 3
"""Held at a time in exact order: one is read, one is permuted, one is handed out."""


def examine(
    data: Manifest | Source, split: str | None, config: PipelineConfig, target: Target | None = None
) -> Iterator[Check]:
    """Looks at the files, the machine and a real batch; each check comes as soon as it is made.

    Args:
        data: From `load_manifest`, or from `tfrecord_files`.
        split: Name of a split; None for foreign files.
        config: The pipeline. Caches are estimated, not filled.
        target: What it shall feed; None for this machine.

    Yields:
        Checks. What goes wrong on the way is a check that failed, and those that need it are skipped.

    Raises:
        ConfigError: There is no such split.
    """
    examined = _Examined(data, split, config, target or Target())
    for name, make in examined.checks.items():
        yield _checked(name, make)


def _checked(name: str, make: Callable[[], Check]) -> Check:
    try:
        return make()
    except _NotReachedError as error:
        return Check(name, "skipped", str(error))
    except TfpipeError as error:
        return failure_of(name, error)
    except tf.errors.OpError as error:
        return Check(name, "failure", f"{first_line(error)}.")


class _NotReachedError(Exception):
    """A check needs what another one could not have."""


class _Examined:
    """What is found out, each thing once and when it is first asked for."""

    def __init__(self, data: Manifest | Source, split: str | None, config: PipelineConfig, target: Target) -> None:
        self.source = get_source(data, split)
        self.info: SplitInfo | None = None
        self.image: Mapping[str, object] = {}
        self.directory = os.path.dirname(self.source.files[0])
        if isinstance(data, Manifest) and split is not None:
            self.info, self.image, self.directory = data.splits[split], data.image, data.directory
        self.config, self.target = config, target
        self.num_hosts = target.num_hosts or 1
        self._batch: dict[str, Any] | None = None
        self._batches: Iterator[Any] | None = None
        self.checks: dict[str, Callable[[], Check]] = {
            "versions": self._versions,
            "file access": lambda: runtime_checks.check_file_access(self.directory, target),
            "files": self._files,
            "first record": self._first_record,
            "shards": self._shards,
            "shard size": self._shard_size,
            "image size": self._image_size,
            "labels": self._labels,
            "batch": self._deal_batch,
            "memory": self._memory,
            "cache": self._cache,
            "shapes": lambda: runtime_checks.check_shapes(probes.tensor_facts(self.dataset.element_spec), target),
            "xla": self._xla,
            "cpu": self._cpu,
        }

    # What several checks need

    @cached_property
    def num_replicas(self) -> int:
        if self.target.num_replicas is not None:
            return self.target.num_replicas
        return self.num_hosts * (1 if self.target.tpu_elsewhere else probes.local_replicas())

    @cached_property
    def plan(self) -> ReadPlan:
        """Of the first host. A cache in files is a dataset by itself, which is read as if there were none."""
        config = self.config if self.config.cache_dir is None else probes.without_cache(self.config)
        return ReadPlan(self.source, config, self.num_hosts, 0, self.num_replicas)

    @cached_property
    def dataset(self) -> tf.data.Dataset:
        """The pipeline of the first host, without a cache: to look at one should not fill it.

        Raises:
            _NotReachedError: The check of the batch has said why there is none.
        """
        context = tf.distribute.InputContext(self.num_hosts, 0, self.num_replicas)
        try:
            self._deal_batch()
        except ConfigError:
            raise _NotReachedError("Not reached: see batch.") from None
        return build_stages(self.source, None, probes.without_cache(self.config), context).dataset()

    @cached_property
    def sizes(self) -> dict[str, int | None]:
        """Of the files that are looked at: every local one, the first few of a store."""
        files = list(self.source.files)
        indexes = [path for path, _ in self.source.index_files]
        if is_url(files[0]):
            files, indexes = files[:REMOTE_FILES], indexes[:REMOTE_FILES]
        return probes.file_sizes([*files, *indexes])

    # Files

    def _versions(self) -> Check:
        return runtime_checks.check_versions(probes.tensorflow_version(), probes.installed_packages(), self.target)

    def _files(self) -> Check:
        sizes: dict[str, int | None] = dict.fromkeys(self.source.files)
        if self.info is not None:
            sizes = dict(zip(self.source.files, (shard.bytes for shard in self.info.shards), strict=True))
        expected = {path: sizes.get(path) for path in self.sizes}
        total = len(self.source.files) + len(self.source.index_files)
        return data_checks.check_files(FileFacts(expected, self.sizes, total))

    @cached_property
    def first_shape(self) -> tuple[int, ...]:
        return probes.first_shape(self.source, self.config)

    def _first_record(self) -> Check:
        try:
            return data_checks.check_first_record(None, self.first_shape)
        except probes.READ_ERRORS as error:
            return data_checks.check_first_record(first_line(error))

    def _shards(self) -> Check:
        by_record = self.plan.exact or (not self.config.training and self.source.shard_records is not None)
        num_shards = len(self.source.files)
        return data_checks.check_shards(num_shards, self.num_hosts, self.config.cycle_length, by_record)

    def _shard_size(self) -> Check:
        if self.info is not None:
            sizes = [shard.bytes for shard in self.info.shards]
        else:
            sizes = [size for path in self.source.files if (size := self.sizes.get(path)) is not None]
        if not sizes:
            raise _NotReachedError("Not reached: see files.")
        return data_checks.check_shard_size(len(self.source.files), sum(sizes) / len(sizes), max(sizes))

    # Images and labels

    def _image_size(self) -> Check:
        wanted = min(self.config.size)
        if self.source.images.size is not None:
            short = min(self.source.images.size)
            return data_checks.check_image_size(ImageFacts(short, wanted, "The stored images", fixed=True))
        if self.info is not None:
            short_side = min(self.info.sizes.mean_height, self.info.sizes.mean_width)
            return data_checks.check_image_size(ImageFacts(short_side, wanted, "The stored images"))
        try:
            return data_checks.check_image_size(ImageFacts(min(self.first_shape[:2]), wanted, "The first image"))
        except probes.READ_ERRORS:
            return data_checks.check_image_size(None)

    def _labels(self) -> Check:
        if self.source.label_key is None:
            return data_checks.check_labels(None)
        if not self.config.training:
            return Check("labels", "ok", "Evaluation reads every record once, and the order does not matter.")
        places = sorted({k * len(self.source.files) // LABEL_PLACES for k in range(LABEL_PLACES)})
        counts = self.source.shard_records
        samples = [
            probes.labels_of(self.source, file, LABELS_EACH, self.config)
            for file in places
            if counts is None or counts[file]
        ]
        class_counts = () if self.info is None else self.info.class_counts
        batch_size = self.plan.global_batch_size
        mixing = mixing_score(self.plan.order, batch_size) if self.plan.exact else None
        records = self.source.num_records
        buffered = min(self.plan.shuffle_records * self.num_hosts / records, 1.0) if records and mixing is None else 0.0
        return data_checks.check_labels(LabelFacts(samples, class_counts, mixing, batch_size, buffered))

    # The run

    def _deal_batch(self) -> Check:
        plan = self.plan
        plan.check_shares()
        streams = plan.order.num_streams if plan.exact else None
        known = not self.target.tpu_elsewhere or self.target.num_replicas is not None
        facts = BatchFacts(
            plan.global_batch_size,
            plan.batch_size,
            self.num_replicas,
            self.num_hosts,
            streams,
            plan.steps_per_epoch,
            known,
        )
        return runtime_checks.check_batch(facts, self.target)

    def _memory(self) -> Check:
        plan, held, records = self.plan, "", 0
        in_cache = plan.config.cache != "none" and plan.exact  # then positions are permuted, and nothing is held
        if self.config.training and not in_cache:
            if plan.exact:
                order = plan.order
                window = min(order.window_records, order.records_per_stream)
                records = EXACT_WINDOWS * window * len(plan.streams)
                streams = counted(len(plan.streams), "stream")
                held = f"{EXACT_WINDOWS} windows of {counted(window, 'record')} for each of {streams}"
            else:
                records = plan.shuffle_records
                held = f"A shuffle buffer of {counted(records, 'record')}"
        needed = records * self.source.record_bytes
        return runtime_checks.check_memory(held, needed, host_limits.available_memory_bytes())

    def _cache(self) -> Check:
        config = self.config
        if config.cache == "none":
            return runtime_checks.check_cache(CacheFacts("none", None, 0, 0))
        # A folder takes the whole split, also for evaluation; memory takes this host's share.
        whole = dataclasses.replace(config, training=True) if config.cache_dir is not None else config
        needed = estimate_cache_bytes(dataclasses.replace(self.plan, config=whole))
        folder = config.cache_dir
        if folder is None:
            found = runtime_checks.check_cache(
                CacheFacts(config.cache, None, needed, host_limits.available_memory_bytes())
            )
            if found.status == "ok":
                check_cache_fits(self.plan)  # whatever else it may refuse
            return found
        free = host_limits.free_disk_bytes(folder)
        return runtime_checks.check_cache(CacheFacts(config.cache, folder, needed, free, self._is_filled(folder)))

    def _is_filled(self, folder: str) -> bool:
        """Whether a cache of a split by this name is there; whether it is of these options is for the run to see."""
        name = "?*" if self.info is None else glob.escape(self.info.name)
        return bool(glob.glob(os.path.join(glob.escape(folder), f"*-{name}-{'[0-9a-f]' * 16}", file_names.MANIFEST)))

    def _xla(self) -> Check:
        error, seconds = probes.compile_step(self.batch, self.plan)
        return runtime_checks.check_xla(error, seconds, self.plan.batch_size)

    @cached_property
    def batch(self) -> dict[str, Any]:
        """A real one; the iterator goes on behind it, so that its buffers are filled once."""
        dataset = self.dataset if self.config.training else self.dataset.repeat()
        self._batches = iter(dataset)
        return probes.named_parts(next(self._batches))

    def _cpu(self) -> Check:
        measured = None
        if self.target.images_per_second is not None:
            self.batch  # noqa: B018
            assert self._batches is not None
            measured = probes.measure(self._batches, self.plan.batch_size)
        return runtime_checks.check_cpu(measured, host_limits.usable_cpus(), self.num_hosts, self.target)
