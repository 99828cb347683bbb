"""How many and which: batch sizes, hosts, the order, and where a run begins. Numbers only, no TensorFlow."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from tfpipe.errors import ConfigError
from tfpipe.order import ExactOrder
from tfpipe.pipeline.config.pipeline_config import PipelineConfig
from tfpipe.pipeline.plan.source import Source
from tfpipe.system.units import parse_bytes

_DEFAULT_STREAMS = 8


class InputContext(Protocol):
    """The part of `tf.distribute.InputContext` that is asked."""

    @property
    def num_input_pipelines(self) -> int:
        """Hosts that read."""

    @property
    def input_pipeline_id(self) -> int:
        """Which of them this one is."""

    @property
    def num_replicas_in_sync(self) -> int:
        """Replicas of all hosts."""


def split_batch(
    num_replicas: int, *, global_batch_size: int | None = None, per_replica_batch_size: int | None = None
) -> tuple[int, int]:
    """The batch of all replicas together and of each, from exactly one of the two.

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


@dataclass(frozen=True)
class ReadPlan:
    """What one host reads of a source, in which portions, and from where on."""

    source: Source
    config: PipelineConfig
    num_hosts: int = 1
    host: int = 0
    num_replicas: int = 1
    """Of all hosts."""
    start_step: int = 0
    """Global step that comes first, counted since the start of the run."""

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
    def of(cls, source: Source, config: PipelineConfig, context: InputContext | None, start_step: int) -> ReadPlan:
        """The plan of one host as `tf.distribute` describes it; of a single host with one replica for None."""
        if context is None:
            return cls(source, config, start_step=start_step)
        return cls(
            source,
            config,
            context.num_input_pipelines,
            context.input_pipeline_id,
            context.num_replicas_in_sync,
            start_step,
        )

    @cached_property
    def batch_sizes(self) -> tuple[int, int]:
        """Images in a global batch, and in that of one replica."""
        return split_batch(
            self.num_replicas,
            global_batch_size=self.config.global_batch_size,
            per_replica_batch_size=self.config.per_replica_batch_size,
        )

    @property
    def global_batch_size(self) -> int:
        """Images in a batch of all replicas together."""
        return self.batch_sizes[0]

    @property
    def batch_size(self) -> int:
        """Images in a batch of one replica, which is what the dataset yields."""
        return self.batch_sizes[1]

    @property
    def host_batch_size(self) -> int:
        """Images that one host hands over in a step, as one batch for each of its replicas."""
        return self.global_batch_size // self.num_hosts

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
        if config.deterministic is False or config.service is not None:
            return False
        return counted and config.order != "throughput"

    @cached_property
    def order(self) -> ExactOrder:
        """The order of training; the window is rounded to whole shares of a batch, so that none spans two."""
        config = self.config
        streams = config.num_streams or max(_power_of_two(self.global_batch_size), self.num_hosts)
        if self.global_batch_size % streams:
            raise ConfigError(
                f"The global batch size must be a multiple of the {streams} streams, got {self.global_batch_size}. "
                f"Use {-(-self.global_batch_size // streams) * streams}, or another `num_streams`."
            )
        share = self.global_batch_size // streams
        window = max(round(config.window_records / share), 1) * share
        order = ExactOrder(self.source.shard_records or (), config.seed, streams, config.run_records, window)
        order.host_streams(self.num_hosts, self.host)  # refuses what does not divide
        return order

    @property
    def streams(self) -> range:
        """The streams of the order that this host reads."""
        return self.order.host_streams(self.num_hosts, self.host)

    @property
    def share(self) -> int:
        """Records of each stream in a global batch."""
        return self.global_batch_size // self.order.num_streams

    @property
    def steps_per_epoch(self) -> int | None:
        """Global steps of an epoch: in training those that are full, in evaluation all; None if nobody counted."""
        records = self.source.num_records
        if records is None:
            return None
        if not self.config.training:
            most = -(-records // self.num_hosts)  # of any host
            return -(-most // self.host_batch_size)
        steps = self.order.steps_per_epoch(self.global_batch_size) if self.exact else records // self.global_batch_size
        if not steps:
            raise ConfigError(
                f"`global_batch_size` must be at most the {records} records of {self.source.name}, got "
                f"{self.global_batch_size}."
            )
        return steps

    @property
    def evaluation_records(self) -> int | None:
        """Records that this host reads in evaluation; None if nobody counted."""
        records = self.source.num_records
        if records is None:
            return None
        return records * (self.host + 1) // self.num_hosts - records * self.host // self.num_hosts

    @property
    def start(self) -> tuple[int, int]:
        """Epoch, and step in it, with which training begins."""
        return divmod(self.start_step, self.steps_per_epoch or 2**62)

    @property
    def caches_whole(self) -> bool:
        """Whether a cache keeps whole decoded images, to be augmented anew every epoch."""
        return self.config.cache == "decoded" and self.config.training

    @property
    def decoded_size(self) -> tuple[int, int]:
        """Height and width of whole images, for the device or a cache of decoded ones."""
        stored = self.source.images.size
        return self.config.resolve_decoded_size(stored[0] if stored is not None else None)

    @property
    def shuffle_records(self) -> int:
        """Size of the shuffle buffer of the throughput order, in records of average size.

        At most an epoch of this host: a larger one would be filled with the same records again, before the first step.
        """
        size, records = self.config.shuffle_buffer_size, self.source.num_records
        if not isinstance(size, int):
            size = max(round(parse_bytes(size, "shuffle_buffer_size") / self.source.record_bytes), 1)
        if records is None:
            records = max(round(self.source.total_bytes / self.source.record_bytes), 1)  # about
        return min(size, -(-records // self.num_hosts))

    @property
    def deterministic(self) -> bool:
        """Whether a slow element holds up the next."""
        if self.config.deterministic is not None:
            return self.config.deterministic
        return self.exact or not self.config.training


def _power_of_two(number: int) -> int:
    return min(number & -number, _DEFAULT_STREAMS)


def _check_positive(name: str, value: int) -> None:
    if value < 1:
        raise ConfigError(f"`{name}` must be at least 1, got {value}.")
