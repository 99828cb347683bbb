"""Host: the part of each batch that one process reads."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

from tfpipe.errors import ConfigError
from tfpipe.system.arguments import check_count


@dataclass(frozen=True)
class Host:
    """One of the hosts that share each batch, and the steps that it makes.

    Attributes:
        index: The number of this host, from 0.
        num_hosts: The number of hosts that read, at least 1.
        num_replicas: The number of replicas of all hosts, a multiple of `num_hosts`.
        start_step: The global step that comes first, counted since the start of the run.
        epochs: The epochs of a pass over a `tf.data.Dataset`. None: no pass ends.

    Raises:
        ConfigError: The start step, or a number of hosts, replicas or epochs cannot be used.
    """

    index: int = 0
    num_hosts: int = 1
    num_replicas: int = 1
    start_step: int = 0
    epochs: int | None = None

    def __post_init__(self) -> None:
        if self.epochs is not None:
            check_count("epochs", self.epochs, 1)
        check_count("start_step", self.start_step)
        if not 0 <= self.index < self.num_hosts or self.num_replicas % self.num_hosts:
            raise ConfigError(
                f"Every host must have as many replicas as the others, got {self.num_replicas} replicas for host "
                f"{self.index} of {self.num_hosts}."
            )

    @classmethod
    def from_rank(cls, rank: tuple[int, int]) -> Host:
        """Returns the host of a process from its number and the number of processes."""
        numbers = [check_count("rank", number) for number in rank]
        if len(numbers) != 2 or numbers[0] >= numbers[1]:
            raise ConfigError(f"`rank` must be a process's number, from 0, and that of processes, got {rank!r:.100}.")
        return cls(numbers[0], numbers[1], numbers[1])

    def share(self, total: int) -> range:
        """Returns this host's share of `total` rows of a batch, or of `total` records of an evaluation."""
        return range(total * self.index // self.num_hosts, total * (self.index + 1) // self.num_hosts)


def split_batch(batch_size: int, num_replicas: int) -> int:
    """Computes the batch size of one replica, in images, from that of all replicas together."""
    share, rest = divmod(batch_size, num_replicas)
    if rest:
        fitting = [str(shares * num_replicas) for shares in (share, share + 1) if shares]
        raise ConfigError(
            f"`batch_size` {batch_size} must be divisible by {num_replicas} replicas; use {' or '.join(fitting)}."
        )
    return share


def find_host(slices_of: Mapping[int, Set[Any]], process: int) -> Host:
    """Finds the host that reads for a process of a mesh. Processes that hold the same rows are one host.

    `slices_of` gives the slices of a batch's rows that each process has, as keys that sort like their rows. Each slice
    is a replica.
    """
    slices = sorted(set().union(*slices_of.values()))
    own = sorted(slices_of[process])
    first, count = slices.index(own[0]), len(own)
    is_adjacent = slices[first : first + count] == own and first % count == 0
    if not is_adjacent or any(len(others) != count for others in slices_of.values()):
        numbers = ", ".join(str(slices.index(each)) for each in own)
        raise ConfigError(
            f"Each process must hold adjacent rows, as many as every other, got slices {numbers} of {len(slices)} in "
            f"process {process}. Order the mesh's devices by their process."
        )
    return Host(first // count, len(slices) // count, len(slices))
