"""The read plan of one host: its batches, its part of the order, and where a run begins. Loads no TensorFlow.

plan = ReadPlan(source, config, num_hosts=4, host=1, num_replicas=8)
plan.check()                                  # refuses what the hosts cannot share, or the data cannot give
plan.global_batch_size, plan.batch_size       # images of all replicas, and of one
plan.order, plan.rows                         # the exact order, and this host's rows of each global batch
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from tfpipe.engine.config.pipeline_config import MAX_IMAGES, PipelineConfig
from tfpipe.engine.features import BatchFeature, list_batch_features
from tfpipe.engine.plan import BatchPlan
from tfpipe.engine.source import Source
from tfpipe.errors import ConfigError
from tfpipe.native import library
from tfpipe.order import ExactOrder, host_rows
from tfpipe.pipeline.plan.filling_cache import FillingCache
from tfpipe.system import file_io, host_limits, object_store
from tfpipe.system.units import parse_bytes

_DEFAULT_STREAMS = 8

_RUN_BYTES = 400 * 1000
"""The bytes of a run, at most 16 records. To open it takes 150 us of a core, a thirtieth of decoding its images."""
_MAX_RUN_RECORDS = 16
_MAX_LANES, _LANES_BYTES = 256, 128 * 2**20
"""The runs of all streams that are read side by side, and their bytes. Each is an open file."""
_MORE_LANES, _MORE_LANES_BYTES = 128, 16 * 2**20
"""The lanes of all streams, and the bytes of their runs, up to which there are more of them than a batch needs."""
_MIN_RUNS_OF_A_LANE = 4.0
"""The runs of each lane in an epoch, at least. If records are too few for that, runs are shorter."""
_RUNS_AHEAD = 2
"""The runs of each lane that are read ahead: storage that answers in 50 ms is asked twice for each."""
_EARLY_BYTES = 192 * 2**20
"""The bytes that may be read for the lanes of the next epoch. They wait until this epoch ends."""
_MAX_READS = 48
"""The threads that read in exact order. AUTOTUNE would begin with one, and needs minutes for far storage. TensorFlow
asks twice for a run that does not begin a file, so storage that answers in 50 ms gives them 480 runs a second."""
_CORES_PER_READ, _MIN_BATCHES_READ = 4, 2
_STORE_BATCHES_READ, _MOST_STORE_BATCHES_READ = 4, 16  # small ones are waited for as long as large ones
_STORE_READ_BYTES = 2**25  # that many batches are read at once
"""The cores for each batch that the native library reads, and the batches at least. A record of 110 KB takes 25 us of a
core from the page cache; its image takes 200 us or more."""
_NEAR_READS = 4
"""The threads of a service's worker that read single records from files with a path. With 32, which far storage needs,
waking them takes processor time: a worker then took 1.25 of that without order, with 4 it takes 1.11."""
_FILES_AT_ONCE = 8
_MAX_RUNS_AT_ONCE, _AHEAD_BYTES = 32, 64 * 2**20
"""The runs that are read side by side if the order does not say how many: enough for storage that answers in 50 ms."""
_VALUE_BYTES = {"uint8": 1, "float32": 4, "bfloat16": 2}
_MADE_BATCHES, _PREFETCHED_BATCHES = 3, 2
"""The batches in the making at once, and those that wait for the trainer if AUTOTUNE chooses."""
LISTED_RECORDS = 8192
"""The records that are listed at once if there are no lanes. Nothing is read yet, so it is only numbers."""

SCATTERED_RECORDS, _SCATTERED_BUFFER = 8, 32 * 1024
"""The largest shuffle buffer of small records, and the records of a run where a service fills it.

A buffer of 256 MiB holds 250,000 records of 1 KB, and training would wait 9 s until it is full. The exact order mixes
better without one (`mixing_score` 1.00), and is faster, so it is taken instead. Workers of a service, which give
records to any host, read runs that come from anywhere: a buffer of 32,768 then scores 0.95 for a batch of 256.
"""


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


def split_batch(
    num_replicas: int, *, global_batch_size: int | None = None, per_replica_batch_size: int | None = None
) -> tuple[int, int]:
    """Computes the batch size of all replicas together and that of one replica, from exactly one of the two.

    Returns:
        The global batch size and the batch size per replica, in images.

    Raises:
        ConfigError: Both are given or neither, one is below 1, or the replicas cannot share the batch equally.
    """
    if (global_batch_size is None) == (per_replica_batch_size is None):
        got = "neither" if global_batch_size is None else f"{global_batch_size} and {per_replica_batch_size}"
        raise ConfigError(f"Exactly one of `global_batch_size` and `per_replica_batch_size` must be given, got {got}.")
    if per_replica_batch_size is not None:
        _check_positive("per_replica_batch_size", per_replica_batch_size)
        return per_replica_batch_size * num_replicas, per_replica_batch_size
    assert global_batch_size is not None
    _check_positive("global_batch_size", global_batch_size)
    share, rest = divmod(global_batch_size, num_replicas)
    if rest:
        fitting = [str(shares * num_replicas) for shares in (share, share + 1) if shares]
        raise ConfigError(
            f"Global batch size {global_batch_size} must be divisible by {num_replicas} replicas; "
            f"use {' or '.join(fitting)}."
        )
    return global_batch_size, share


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
        filling: The cache that is filled while the source is read; None without one. The form of the source's images
            is then that of the cache.
        chosen: Whether each record is read, bool [records]; None for all. The others keep their places in the order, so
            that another plan may read them.
        worker_cpus: The cores of the largest worker of the `service`, if all of them have the native library of this
            release. None: a worker lacks it, or there is no service, or nobody asked.

    Raises:
        ConfigError: The start step or a number of hosts or replicas cannot be used.
    """

    source: Source
    config: PipelineConfig
    num_hosts: int = 1
    host: int = 0
    num_replicas: int = 1
    start_step: int = 0
    filling: FillingCache | None = field(default=None, compare=False)
    chosen: NDArray[np.bool_] | None = field(default=None, compare=False, repr=False)
    worker_cpus: int | None = None

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
        self.check_decoder()
        self.check_shares()

    def check_shares(self) -> None:
        """Refuses a batch or an order that replicas, hosts and streams cannot share, or that the records do not fill.

        Raises:
            ConfigError: A size does not fit; the message names sizes that do.
        """
        self._split_batch()
        if self.steps_per_epoch == 0:
            raise ConfigError(
                f"`global_batch_size` must be at most the {self.source.num_records} records of {self.source.name}, got "
                f"{self.global_batch_size}."
            )

    def check_features(self) -> None:
        """Refuses labels and features that the source does not have.

        Raises:
            ConfigError: A label or a feature is missing, a feature has a reserved name, or an option needs images.
        """
        config, source = self.config, self.source
        if config.on_bad_record == "skip" and source.shard_records is None:
            raise ConfigError(
                f"`on_bad_record` skip needs to know where each record begins, and {source.unplaced}. Use raise."
            )
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
                f"as in '{ragged[0]}=77'."
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
            "decoder": config.decoder == "native",
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

    def _split_batch(self) -> tuple[int, int]:
        return split_batch(
            self.num_replicas,
            global_batch_size=self.config.global_batch_size,
            per_replica_batch_size=self.config.per_replica_batch_size,
        )

    @property
    def global_batch_size(self) -> int:
        """The number of images in a batch of all replicas together."""
        return self._split_batch()[0]

    @property
    def batch_size(self) -> int:
        """The number of images in a batch of one replica, which is the batch that the dataset yields."""
        return self._split_batch()[1]

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
            return self.order.steps_per_epoch(self.global_batch_size)
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
    def exact(self) -> bool:
        """Whether training reads in the order of `tfpipe.order`."""
        config, counted = self.config, self.source.shard_records is not None
        if not config.training:
            return False
        if config.order == "exact" and not counted:
            raise ConfigError(
                f"`order` exact needs to know where each record lies, and {self.source.unplaced}. "
                "Use order='throughput'."
            )
        if config.cache != "none" and counted:
            return True  # positions in a cache cost the same in any order
        asked = config.order != "throughput" and config.deterministic is not False
        # Where records are read one by one, those of any order cost the same.
        any_order = not isinstance(config.shuffle_buffer_size, int) and self._is_in_store
        return counted and (asked or any_order or self._has_small_records)

    @property
    def by_steps(self) -> bool:
        """Whether the workers of a tf.data service make the batches of the exact order, each those of its own steps."""
        return False

    @cached_property
    def order(self) -> ExactOrder:
        """The exact order of training.

        Runs and lanes follow from the size of the records unless the config gives them. Lanes and batches fit each
        other: the lanes of a stream are a whole number of its shares of a batch, or the other way round.
        """
        config = self.config
        streams = config.num_streams or _choose_num_streams(self.global_batch_size)
        if self.global_batch_size % streams:
            raise ConfigError(
                f"The global batch size must be a multiple of the {streams} streams, got {self.global_batch_size}. "
                f"Use {-(-self.global_batch_size // streams) * streams}, or another `num_streams`."
            )
        share = self.global_batch_size // streams
        run, lanes, turn = _choose_lanes(config, self.source, streams, share)
        return ExactOrder(self.source.shard_records or (), config.seed, streams, run, lanes, turn)

    def pin_order(self) -> ReadPlan:
        """Returns this plan with runs, lanes and streams that no longer follow from the size of the records.

        A cache in files has other records than its source, and must be read in the source's order.
        """
        if not self.exact:
            return self
        order = self.order
        config = replace(self.config, num_streams=order.num_streams, run_records=order.run_records, lanes=order.lanes)
        return replace(self, config=config)

    @property
    def in_lanes(self) -> bool:
        """Whether training reads lanes that give records in turn. If not, runs are read as listed.

        A worker of a service needs few records of each run, so it reads single turns.
        """
        return self.exact and not self.by_steps and self.order.turns_per_run > 1 and self.order.turns_per_lane > 0

    @property
    def steps_per_round(self) -> int:
        """The number of steps in which each lane gives a turn."""
        return max(self.order.lanes // self.share, 1)

    @property
    def round_records(self) -> int:
        """The number of records of a round of this host."""
        return self.cycle_length * self.order.turn_records

    @property
    def early_records(self) -> int:
        """The records that this host reads in vain before the first step, if it begins within a round."""
        return self.start[1] % self.steps_per_round * len(self.read_rows) if self.in_lanes else 0

    @property
    def lane_buffer_records(self) -> int:
        """The records of each lane that are read before they are needed."""
        return self.track_records if self.by_steps else _RUNS_AHEAD * self.order.run_records

    @property
    def track_records(self) -> int:
        """The number of records that are read at once where there are no lanes.

        A worker reads turns. If the rows of a host cut turns apart, it reads single records, and none in vain.
        """
        if not self.by_steps:
            return self.order.run_records
        return self.order.turn_records if self.rows == self.read_rows else 1

    @property
    def tracks_ahead(self) -> int:
        """The tracks of `list` that are opened before they are needed; 0 if that takes much memory.

        An epoch ends with tracks of one turn each, so the lanes of the next one come second. The tracks of a worker
        are all as short, and those read side by side are enough; more that are open cost processor time.
        """
        if self.by_steps:
            return 0
        tracks = 2 * self.cycle_length
        return tracks if tracks * self._lane_records * self.source.record_bytes <= _EARLY_BYTES else 0

    @property
    def read_ahead_records(self) -> int:
        """The most records that are read before they are needed, without those of a shuffle buffer."""
        if self.reads_batches or self.reads_first_use:
            # Those that are read, as many that are parsed, and those that are decoded.
            ahead = 3 * self.batches_read * self.batch_size
        elif not self.exact:
            # tf.data opens as many files again twice, and reads two blocks and one record of each.
            ahead = 3 * self.cycle_length * (2 * self.config.block_length + 1)
        elif self.in_lanes:
            ahead = (self.cycle_length + self.tracks_ahead) * self._lane_records
        else:
            ahead = (self.cycle_length + self.tracks_ahead) * self.track_records
        records = self.source.num_records
        return ahead if records is None else min(ahead, records)

    @property
    def _lane_records(self) -> int:
        """The records that a lane holds in memory: those that are read ahead, and a run that is being read."""
        return self.lane_buffer_records + self.track_records

    @property
    def rows(self) -> range:
        """The rows of each global batch that this host has, in exact order."""
        return host_rows(self.global_batch_size, self.num_hosts, self.host)

    @property
    def read_rows(self) -> range:
        """The rows of each global batch that this host reads: whole turns of lanes, so a few more than it has."""
        rows, turn = self.rows, self.order.turn_records
        return range(rows.start // turn * turn, -(-rows.stop // turn) * turn)

    @property
    def leaves_out(self) -> bool:
        """Whether this host leaves out some of the records that it reads in exact order."""
        return self.chosen is not None or self.rows != self.read_rows

    @property
    def share(self) -> int:
        """The number of records of each stream in a global batch."""
        return self.global_batch_size // self.order.num_streams

    @property
    def cycle_length(self) -> int:
        """The number of files, or of runs in exact order, that are read side by side."""
        if self.in_lanes:
            return len(self.read_rows) // self.order.turn_records * self.steps_per_round
        if self.config.cycle_length is not None:
            return self.config.cycle_length
        if not self.exact:
            return _FILES_AT_ONCE
        run_bytes = self.track_records * self.source.record_bytes
        return min(max(int(_AHEAD_BYTES / run_bytes), _FILES_AT_ONCE), _MAX_RUNS_AT_ONCE)

    @property
    def read_threads(self) -> int:
        """The number of threads that read in training."""
        threads = self.config.read_parallel_calls or (_MAX_READS if self.exact else self.cycle_length)
        if (
            self.by_steps
            and self.config.read_parallel_calls is None
            and not any(map(file_io.is_url, self.source.files[:1]))
        ):
            threads = _NEAR_READS
        return min(threads, self.cycle_length)

    @property
    def batches_read(self) -> int:
        """The batches that are read at once, where one call reads a batch: about 5 % of the work is reading.

        Those of an object store are waited for.
        """
        if self.reads_store:
            batches = int(_STORE_READ_BYTES / (self.batch_size * self.source.record_bytes))
            return min(max(batches, _STORE_BATCHES_READ), _MOST_STORE_BATCHES_READ)
        return max(self.cpus // _CORES_PER_READ, _MIN_BATCHES_READ)

    @property
    def cpus(self) -> int:
        """The cores of the machine that makes the batches."""
        return self.worker_cpus or host_limits.usable_cpus()

    @property
    def ahead_records(self) -> int:
        """The records that storage is asked for at once where one call reads a batch: a run, or a batch.

        The rest of a run may be for other workers, so each asks for the records of its own steps.
        """
        if not self.exact:
            return self.batch_size
        return self.order.turn_records if self.by_steps else self.order.run_records

    @property
    def shuffle_records(self) -> int:
        """The size of the shuffle buffer of the throughput order, in records of average size.

        It is at most an epoch of this host: a larger buffer would take the same records again before the first step.
        """
        return min(self._asked_shuffle_records, _SCATTERED_BUFFER) if self.scatters else self._asked_shuffle_records

    @property
    def scatters(self) -> bool:
        """Whether the workers of a service read short runs from anywhere, because they have small records."""
        return self.config.training and not self.exact and self._has_small_records

    @property
    def _has_small_records(self) -> bool:
        """Whether a shuffle buffer would hold very many records. It is as large as asked if a number asks for it."""
        asked_in_bytes = not isinstance(self.config.shuffle_buffer_size, int)
        counted = self.source.shard_records is not None
        return counted and asked_in_bytes and self._asked_shuffle_records > _SCATTERED_BUFFER

    @property
    def _asked_shuffle_records(self) -> int:
        """The records of average size that a shuffle buffer of the size in the config holds, an epoch at most."""
        size, records = self.config.shuffle_buffer_size, self.source.num_records
        if not isinstance(size, int):
            size = max(round(parse_bytes(size, "shuffle_buffer_size") / self.source.record_bytes), 1)
        if records is None:
            records = max(round(self.source.total_bytes / self.source.record_bytes), 1)  # an estimate
        return min(size, -(-records // self.num_hosts))

    @property
    def deterministic(self) -> bool:
        """Whether elements keep their order, although a slow one then holds up the next."""
        if self.config.deterministic is not None:
            return self.config.deterministic
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
    def has_two_forms(self) -> bool:
        """Whether records come as the source stores them or, from a cache that is being filled, decoded."""
        return self.filling is not None and self.filling.source_images is not None

    @property
    def decoder(self) -> Literal["native", "tensorflow"]:
        """The decoder of JPEGs: that of the native library, or TensorFlow's (in readers without TensorFlow: Pillow)."""
        fits = self.config.decoder != "tensorflow" and self._explain_misfit() is None
        return "native" if fits and not self.has_two_forms and self._has_native_library else "tensorflow"

    @property
    def _has_native_library(self) -> bool:
        """Whether the native library is there where the batches are made, and here, where they are planned."""
        return library.is_available()

    @property
    def lacks_native_library(self) -> bool:
        """Whether the native library would decode if it were there."""
        asks = self.config.decoder == "auto"
        return asks and self._explain_misfit() is None and not library.is_available()

    @property
    def fuses_augment(self) -> bool:
        """Whether one call of the native library does the stages `decode` and `augment`."""
        return self.decoder == "native" and self.config.augment != "device" and not self.caches_whole

    @property
    def decodes_batches(self) -> bool:
        """Whether one call of the native library makes the images of a whole batch, from records of known sizes."""
        one_form = not self.caches_whole and not self.has_two_forms
        sized = self.source.has_sizes or self.source.images.size is not None
        plain = not self.is_ragged and not self.masks  # a mask follows the crop of one image
        return self.decoder == "native" and self.config.training and one_form and sized and plain

    @property
    def reads_batches(self) -> bool:
        """Whether one call reads the records of a batch, each from its place, in exact order or in evaluation."""
        known = self.source.shard_records is not None and (self.exact or not self.config.training)
        return known and self.config.cache == "none" and not self.is_ragged and self._reads_places

    @property
    def reads_first_use(self) -> bool:
        """Whether such calls read the records that a cache in memory keeps, in exact order."""
        fills = self.config.training and self.exact and self.config.cache != "none" and not self.by_steps
        return fills and self._reads_places

    @property
    def reads_store(self) -> bool:
        """Whether tfpipe's own client reads single records from an object store, in exact order or in evaluation."""
        in_order = self.exact or not self.config.training
        return in_order and self._is_in_store

    @property
    def _reads_places(self) -> bool:
        """Whether single records of these files can be read, by the native library or from an object store."""
        if any(map(file_io.is_url, self.source.files)):
            return self._is_in_store
        return self._is_plain and self.config.decoder != "tensorflow" and self._has_native_library

    @property
    def can_read_alone(self) -> bool:
        """Whether single records can be read without TensorFlow: the files are local, or lie in an object store."""
        return self._is_in_store or not any(map(file_io.is_url, self.source.files))

    @cached_property
    def _is_in_store(self) -> bool:
        """Whether the files lie where tfpipe's own client reads."""
        counted = self.source.shard_records is not None
        return self._is_plain and counted and all(map(object_store.can_read, self.source.files))

    @property
    def _is_plain(self) -> bool:
        """Whether all records are read, from the source, and damage is an error."""
        return self.chosen is None and self.filling is None and self.config.on_bad_record == "raise"

    def check_decoder(self) -> None:
        """Refuses the native decoder if it is asked for and cannot be used.

        Raises:
            ConfigError: It does not fit the images or another option.
            MissingDependencyError: The native library is missing.
        """
        if self.config.decoder != "native":
            return
        misfit = self._explain_misfit()
        if misfit is not None and self.source.images.formats != {"RAW"}:  # a cache of pixels needs no decoder
            raise ConfigError(f"`decoder` native {misfit}. Use auto.")
        library.check("`decoder` native")

    def _explain_misfit(self) -> str | None:
        """Returns why the native decoder does not fit, as the rest of a sentence; None if it does."""
        config, formats = self.config, self.source.images.formats
        if config.augment_options.antialias:
            return "resizes without `antialias`"
        if not self.source.has_images:
            return "needs images"
        if formats != {"JPEG"}:
            got = ", ".join(sorted(formats)) if formats else "images of formats that nobody counted"
            return f"needs images that are all JPEGs, got {got}"
        return None

    @property
    def decoded_size(self) -> tuple[int, int]:
        """The height and width of whole images, for the device or for a cache of decoded images."""
        stored = self.source.images.size
        return self.config.resolve_decoded_size(stored[0] if stored is not None else None)


def _choose_lanes(config: PipelineConfig, source: Source, streams: int, share: int) -> tuple[int, int, int]:
    """Returns the records of a run, the lanes of a stream, and the records of a turn.

    A run is long enough that its reading costs little. There is a lane for each record of a batch if not too many files
    would be open; otherwise each gives several records to a batch. Small records have lanes for several batches, so
    that batches that follow each other are not of the same runs. If records are few, runs are short enough that each
    lane has several.

    Args:
        config: The options of the pipeline, which may give the run and the lanes.
        source: The records.
        streams: The number of streams.
        share: The number of records of each stream in a batch.
    """
    record_bytes = source.record_bytes
    run = config.run_records or min(math.ceil(_RUN_BYTES / record_bytes), _MAX_RUN_RECORDS)
    if run == 1:
        return 1, 1, 1
    most = config.lanes or max(_MAX_LANES // streams, 1)
    if most < share:
        lanes = max(count for count in range(1, most + 1) if share % count == 0)
    else:
        lanes = most // share * share
        if config.lanes is None:  # lanes for more than one batch only if they take little
            affordable = min(_MORE_LANES, _MORE_LANES_BYTES / (record_bytes * run)) / (streams * share)
            lanes = min(lanes, max(int(affordable), 1) * share)
    turn = max(share // lanes, 1)
    if config.run_records is None:
        few = int((source.num_records or 0) / (_MIN_RUNS_OF_A_LANE * streams * lanes))
        run = min(run, int(_LANES_BYTES / (record_bytes * streams * lanes)), few)
        if run <= 1 or few < turn:
            return 1, 1, 1
    return max(run // turn, 1) * turn, lanes, turn


def _choose_num_streams(global_batch_size: int) -> int:
    """Returns the largest power of two up to `_DEFAULT_STREAMS` that divides the batch."""
    return min(global_batch_size & -global_batch_size, _DEFAULT_STREAMS)


def _check_positive(name: str, value: int) -> None:
    if value < 1:
        raise ConfigError(f"`{name}` must be at least 1, got {value}.")
