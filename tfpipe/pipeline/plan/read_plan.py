"""The read plan of one host: its batches, its part of the order, and where a run begins. Loads no TensorFlow.

plan = ReadPlan(source, config, num_hosts=4, host=1, num_replicas=8)
plan.check()                                  # refuses what the hosts cannot share, or the data cannot give
plan.global_batch_size, plan.batch_size       # images of all replicas, and of one
plan.order, plan.rows                         # the exact order, and this host's rows of each global batch
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, Protocol

from tfpipe.engine.config.pipeline_config import MAX_IMAGES, PipelineConfig
from tfpipe.engine.config.service_options import ServiceOptions
from tfpipe.engine.config.tf_data_options import TfDataOptions
from tfpipe.engine.features import BatchFeature, list_batch_features
from tfpipe.engine.order import Order, choose_block, host_rows
from tfpipe.engine.plan import BatchPlan
from tfpipe.engine.source import Source
from tfpipe.errors import ConfigError
from tfpipe.native import library
from tfpipe.system import file_io, host_limits, object_store
from tfpipe.system.options import list_changes

_CORES_PER_READ, _MIN_BATCHES_READ = 4, 2
"""The cores for each batch that is read, and the batches at least. A record of 110 KB takes 25 us of a core from the
page cache; its image takes 200 us or more."""
_STORE_BATCHES_READ, _MOST_STORE_BATCHES_READ = 4, 16  # small ones are waited for as long as large ones
_STORE_READ_BYTES = 2**25  # that many batches are read at once
_VALUE_BYTES = {"uint8": 1, "float32": 4, "bfloat16": 2}
_MADE_BATCHES, _PREFETCHED_BATCHES = 3, 2
"""The batches in the making at once, and those that wait for the trainer if AUTOTUNE chooses."""


class InputContext(Protocol):
    """The part of `tf.distribute.InputContext` that a read plan uses."""

    @property
    def num_input_pipelines(self) -> int:
        """The number of hosts that read."""

    @property
    def input_pipeline_id(self) -> int:
        """The number of this host, from 0."""

    @property
    def num_replicas_in_sync(self) -> int:
        """The number of replicas of all hosts."""


def split_batch(batch_size: int, num_replicas: int) -> int:
    """Computes the batch size of one replica, in images, from that of all replicas together.

    Raises:
        ConfigError: The replicas cannot share the batch equally.
    """
    share, rest = divmod(batch_size, num_replicas)
    if rest:
        fitting = [str(shares * num_replicas) for shares in (share, share + 1) if shares]
        raise ConfigError(
            f"`batch_size` {batch_size} must be divisible by {num_replicas} replicas; use {' or '.join(fitting)}."
        )
    return share


def find_host(held_by: Mapping[int, Set[Any]], process: int) -> tuple[int, int, int]:
    """Finds the host that reads for a process of a mesh. Processes that hold the same rows are one host.

    Args:
        held_by: The parts of a batch's rows that the devices of each process hold, as numbers or other keys that are
            sorted like their rows.
        process: The number of the process.

    Returns:
        The number of the host, the number of hosts, and the number of parts.

    Raises:
        ConfigError: The parts of a process are not adjacent, or other processes hold more or fewer.
    """
    parts = sorted(set().union(*held_by.values()))
    held = sorted(held_by[process])
    first, count = parts.index(held[0]), len(held)
    is_adjacent = parts[first : first + count] == held and first % count == 0
    if not is_adjacent or any(len(others) != count for others in held_by.values()):
        numbers = ", ".join(str(parts.index(part)) for part in held)
        raise ConfigError(
            f"Each process must hold adjacent rows, as many as every other, got parts {numbers} of {len(parts)} in "
            f"process {process}. Order the mesh's devices by their process."
        )
    return first // count, len(parts) // count, len(parts)


@dataclass(frozen=True)
class ReadPlan:
    """The records that one host reads from a source, their batches, and the step to begin with.

    Attributes:
        source: The files and the facts about them.
        config: The options of the pipeline.
        num_hosts: The number of hosts that read, at least 1.
        host: The number of this host, from 0.
        num_replicas: The number of replicas of all hosts, a multiple of `num_hosts`.
        start_step: The global step that comes first, counted since the start of the run.

    Raises:
        ConfigError: The start step or a number of hosts or replicas cannot be used.
    """

    source: Source
    config: PipelineConfig
    num_hosts: int = 1
    host: int = 0
    num_replicas: int = 1
    start_step: int = 0

    def __post_init__(self) -> None:
        if self.start_step < 0:
            raise ConfigError(f"`start_step` must be at least 0, got {self.start_step}.")
        if self.start_step and not self.config.training:
            raise ConfigError(f"`start_step` is for training; evaluation begins at 0, got {self.start_step}.")
        if not 0 <= self.host < self.num_hosts or self.num_replicas % self.num_hosts:
            raise ConfigError(
                f"Every host must have as many replicas as the others, got {self.num_replicas} replicas for host "
                f"{self.host} of {self.num_hosts}."
            )

    @classmethod
    def for_host(
        cls, source: Source, config: PipelineConfig, context: InputContext | None, start_step: int
    ) -> ReadPlan:
        """Makes the plan of a host that `tf.distribute` describes; None means one host with one replica."""
        plan = cls(source, config, start_step=start_step)
        return plan if context is None else plan.move_to(context)

    def move_to(self, context: InputContext) -> ReadPlan:
        """Returns this plan for the host that `tf.distribute` describes. The source is not read again."""
        return replace(
            self,
            num_hosts=context.num_input_pipelines,
            host=context.input_pipeline_id,
            num_replicas=context.num_replicas_in_sync,
        )

    def check(self) -> None:
        """Refuses what hosts and replicas cannot share, and what the source cannot give.

        Raises:
            ConfigError: The batch size, the order or an option does not fit the replicas, the hosts or the source.
        """
        self.check_features()
        self._check_pipeline()
        self.check_shares()

    def check_shares(self) -> None:
        """Refuses a batch that replicas and hosts cannot share, or that the records do not fill.

        Raises:
            ConfigError: A size does not fit; the message names sizes that do.
        """
        split_batch(self.config.batch_size, self.num_replicas)
        if self.steps_per_epoch == 0:
            raise ConfigError(
                f"`batch_size` must be at most the {self.source.num_records} records of {self.source.name}, got "
                f"{self.global_batch_size}."
            )

    def check_features(self) -> None:
        """Refuses labels and features that the source does not have.

        Raises:
            ConfigError: A label or a feature is missing, a feature has a reserved name, or an option needs images.
        """
        config, source = self.config, self.source
        if source.label_key is None and (config.one_hot or config.as_supervised):
            option = "one_hot" if config.one_hot else "as_supervised"
            raise ConfigError(f"`{option}` needs labels, and {source.name} has none.")
        if config.one_hot and not source.num_classes:
            raise ConfigError(f"`one_hot` needs the number of classes of {source.name}: give `num_classes`.")
        self._check_images()
        if not source.has_images:
            self._check_without_images()
        if not self.features and not source.has_images:
            raise ConfigError(f"A batch must hold a feature, and the records of {source.name} have none.")

    def _check_images(self) -> None:
        """Refuses a number of images that records do not have."""
        chosen, counts, name = self.config.images, self.source.per_record, self.source.name
        if counts is None:
            if isinstance(chosen, int):
                raise ConfigError(f"`images` {chosen} needs records with several images, and {name} has none such.")
            return
        advice = f"Use first, or a number up to {min(counts.smallest, MAX_IMAGES)}."
        if chosen == "all" and counts.smallest != counts.largest:
            raise ConfigError(
                f"`images` all needs the same number of images in every record, and {name} has {counts.smallest} to "
                f"{counts.largest}. {advice}"
            )
        if (self.num_images or 0) > min(counts.smallest, MAX_IMAGES):
            raise ConfigError(
                f"`images` {chosen} must give at most {MAX_IMAGES} images, and no more than each record of {name} has, "
                f"got {self.num_images}. {advice}"
            )
        if self.config.cache == "decoded" and self.num_images is not None:
            raise ConfigError("`cache` decoded keeps one image a record. Set `cache` to bytes, or `images` to first.")

    def check_fits_devices(self) -> None:
        """Refuses features that devices do not hold: text, and tensors of several shapes.

        Raises:
            ConfigError: There is such a feature.
        """
        specs = [feature.spec for feature in self.features]
        text = [spec.name for spec in specs if spec.dtype == "bytes" and spec.kind in ("values", "text")]
        ragged = [feature.name for feature in self.features if feature.is_ragged]
        if ragged:
            raise ConfigError(
                f"Arrays on devices must have one shape, and {', '.join(ragged)} has several. Give a size in `pad_to`, "
                f"as in {{{ragged[0]!r}: 77}}."
            )
        if text and not self.config.extra_features:
            raise ConfigError(f"No device holds text, got {', '.join(text)}. Name the others in `extra_features`.")
        if text:
            raise ConfigError(
                f"`extra_features` must not name text, which no device holds, got {', '.join(text)}. Leave it out."
            )

    def _check_without_images(self) -> None:
        """Refuses options that ask for images if the records have none."""
        config, name = self.config, self.source.name
        asked = {
            "as_supervised": config.as_supervised,
            "augment": config.augment == "device",
            "cache": config.cache == "decoded",
            "decoder": config.decoder != "auto",
        }
        for option, is_asked in asked.items():
            if is_asked:
                raise ConfigError(f"`{option}` {getattr(config, option)} needs images, and {name} has none.")

    @cached_property
    def features(self) -> tuple[BatchFeature, ...]:
        """The features that a batch holds beside image and label.

        Raises:
            ConfigError: A feature that the config names does not exist, or cannot be padded.
        """
        return list_batch_features(self.source, self.config)

    @cached_property
    def masks(self) -> tuple[str, ...]:
        """The features of a batch that hold masks, which follow the crop of the image."""
        named = tuple(feature.name for feature in self.features if feature.spec.kind == "mask")
        return named if self.source.has_images else ()

    @cached_property
    def num_images(self) -> int | None:
        """The number of images of a record in a batch; None if there is one, without an axis for more."""
        counts, chosen = self.source.per_record, self.config.images
        if counts is None or chosen == "first":
            return None
        return counts.smallest if chosen == "all" else chosen

    @property
    def draws_images(self) -> bool:
        """Whether the images of a record are drawn among more."""
        counts, number = self.source.per_record, self.num_images
        return self.config.training and counts is not None and number is not None and number < counts.largest

    @property
    def is_ragged(self) -> bool:
        """Whether tensors in a batch may have different shapes."""
        return any(feature.is_ragged for feature in self.features)

    # Batches

    def make_batch_plan(self) -> BatchPlan:
        """Returns the plan by which the engine makes the batches of this host."""
        order = self.order if self.config.training else None
        rows = host_rows(self.global_batch_size, self.num_hosts, self.host)
        return BatchPlan(self.source, self.config, order, self.global_batch_size, rows, self.num_hosts, self.host)

    @property
    def global_batch_size(self) -> int:
        """The number of images in a batch of all replicas together."""
        return self.config.batch_size

    @property
    def batch_size(self) -> int:
        """The number of images in a batch of one replica, which is the batch that the dataset yields."""
        return split_batch(self.config.batch_size, self.num_replicas)

    @property
    def host_batch_size(self) -> int:
        """The number of images that one host yields in a step, as one batch for each of its replicas."""
        return self.global_batch_size // self.num_hosts

    @property
    def steps_per_epoch(self) -> int | None:
        """The number of global steps in an epoch; None if nobody counted the records.

        Training takes full batches only. Evaluation takes every record, so the last batch may be filled up.
        """
        records = self.source.num_records
        if records is None:
            return None
        if not self.config.training:
            largest_share = -(-records // self.num_hosts)
            return -(-largest_share // self.host_batch_size)
        if self.exact:
            return self.order.steps_per_epoch
        return records // self.global_batch_size

    @property
    def start(self) -> tuple[int, int]:
        """The epoch and the step in it at which training begins."""
        return divmod(self.start_step, self.steps_per_epoch or 2**62)

    @property
    def evaluation_records(self) -> int | None:
        """The number of records that this host reads in evaluation; None if nobody counted them."""
        records = self.source.num_records
        if records is None:
            return None
        return records * (self.host + 1) // self.num_hosts - records * self.host // self.num_hosts

    # Order

    @property
    def in_steps(self) -> bool:
        """Whether the engine makes the batches, each by its step. If not, the textbook pipeline does."""
        return self.explain_textbook() is None

    @property
    def exact(self) -> bool:
        """Whether training reads in the order of `tfpipe.engine.order`."""
        return self.config.training and self.in_steps

    def explain_textbook(self) -> str | None:
        """Returns why the textbook pipeline reads these records, as the rest of a sentence; None if the engine does."""
        config, source = self.config, self.source
        if config.order == "throughput":
            return "`order` is throughput"
        if source.shard_records is None:
            return source.unplaced
        if not source.is_split:
            return f"{source.name} are files that are read without their manifest"
        if any(map(file_io.is_url, source.files)) and not all(map(object_store.can_read, source.files)):
            return f"{source.files[0]} is read by TensorFlow only"
        return None

    def _check_pipeline(self) -> None:
        """Refuses options that the pipeline which reads these records does not have."""
        config, reason = self.config, self.explain_textbook()
        if reason is None:
            if changed := ", ".join(list_changes(TfDataOptions(), config.tf_data)):
                raise ConfigError(
                    f"`tf_data` is for the textbook pipeline, and batches are made by their steps here, got {changed}. "
                    "Leave it out, or set order='throughput'."
                )
            if config.decoder == "native":
                if config.augment_options.antialias:
                    raise ConfigError("`decoder` native resizes without `antialias`. Use auto.")
                library.check("`decoder` native")
            return
        if config.order == "exact":
            raise ConfigError(f"`order` exact must know where each record lies, and {reason}. Use order='throughput'.")
        asked: dict[str, bool] = {
            "service": bool(config.service.workers),
            "cache_dir": config.cache_dir is not None,
            "cache_bytes": config.cache_bytes is not None,
            "max_bad_records": config.max_bad_records > 0,
            "decoder": config.decoder != "auto",
        }
        for option, is_asked in asked.items():
            if is_asked:
                value = getattr(config, option)
                shown = ", ".join(value.workers) if isinstance(value, ServiceOptions) else value
                raise ConfigError(
                    f"`{option}` {shown} is for batches by their steps, and {reason}. Leave one of them out."
                )
        if not config.training and self.num_hosts > 1 and self.source.shard_records is None:
            raise ConfigError(
                f"Evaluation on {self.num_hosts} hosts needs to know where each record lies, and "
                f"{self.source.unplaced}. Evaluate on one host."
            )

    @cached_property
    def order(self) -> Order:
        """The exact order of training. Its blocks follow from the size of the records unless the config gives them."""
        records, batch = self.source.num_records or 0, self.global_batch_size
        block = self.config.block_records or choose_block(self.source.record_bytes, records, batch)
        return Order(records, batch, block, self.config.seed)

    @property
    def rows(self) -> range:
        """The rows of each global batch that this host has, in exact order."""
        return host_rows(self.global_batch_size, self.num_hosts, self.host)

    @property
    def reads_store(self) -> bool:
        """Whether the engine reads from an object store."""
        return self.in_steps and file_io.is_url(self.source.files[0])

    @property
    def batches_read(self) -> int:
        """The batches that the engine reads at once: about 5 % of the work is reading.

        Those of an object store are waited for.
        """
        if self.reads_store:
            batches = int(_STORE_READ_BYTES / (self.batch_size * self.source.record_bytes))
            return min(max(batches, _STORE_BATCHES_READ), _MOST_STORE_BATCHES_READ)
        return max(host_limits.usable_cpus() // _CORES_PER_READ, _MIN_BATCHES_READ)

    @property
    def deterministic(self) -> bool:
        """Whether elements keep their order, although a slow one then holds up the next."""
        if self.config.tf_data.deterministic is not None:
            return self.config.tf_data.deterministic
        return self.exact or not self.config.training

    @property
    def image_bytes(self) -> int:
        """The bytes of a record's images and masks in a batch; without images those of the record."""
        if not self.source.has_images:
            return math.ceil(self.source.record_bytes)
        on_device = self.config.augment == "device"
        height, width = self.decoded_size if on_device else self.config.size
        pixel_bytes = 3 * (1 if on_device else _VALUE_BYTES[self.config.image_dtype]) + 4 * len(self.masks)
        return height * width * pixel_bytes * (self.num_images or 1)

    @property
    def ready_bytes(self) -> int:
        """The bytes of this host's batches that are finished or in the making, without those that the trainer has."""
        waiting = self.config.prefetch_batches
        batches = _MADE_BATCHES + (_PREFETCHED_BATCHES if waiting is None else waiting)
        return batches * self.host_batch_size * self.image_bytes

    @property
    def caches_whole(self) -> bool:
        """Whether a cache keeps whole decoded images, to be augmented anew every epoch."""
        return self.config.cache == "decoded" and self.config.training

    @property
    def decoder(self) -> Literal["native", "pillow", "tensorflow"]:
        """The decoder of JPEGs: the native library's, else Pillow's; TensorFlow's in the textbook pipeline."""
        if not self.in_steps:
            return "tensorflow"
        config, formats = self.config, self.source.images.formats
        fits = config.decoder != "pillow" and not config.augment_options.antialias
        return "native" if fits and (not formats or "JPEG" in formats) and library.is_available() else "pillow"

    @property
    def lacks_native_library(self) -> bool:
        """Whether the native library would decode if it were there."""
        return self.in_steps and self.config.decoder == "auto" and not library.is_available()

    @property
    def decoded_size(self) -> tuple[int, int]:
        """The height and width of whole images, for the device or for a cache of decoded images."""
        stored = self.source.images.size
        return self.config.resolve_decoded_size(stored[0] if stored is not None else None)
