"""The exact order for any dataset of PyTorch, as the batch sampler of a plain DataLoader. Needs no PyTorch to import.

The sampler runs in the trainer's process alone: a DataLoader's workers get the numbers of records.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sized
from numbers import Integral
from typing import TYPE_CHECKING

from tfpipe.engine.host import Host, split_batch
from tfpipe.engine.order import Order
from tfpipe.engine.position import Position, read_state
from tfpipe.errors import ConfigError
from tfpipe.system.arguments import check_count
from tfpipe.system.options import Seed
from tfpipe.system.units import human_count, shorten

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class ExactSampler:
    """The exact order for a dataset of any format, as the `batch_sampler` of a `torch.utils.data.DataLoader`.

    It gives lists of the numbers of records. The batch of a step is computed from the number of records, the batch
    size, `block_records`, the seed, the epoch and the step alone. So the global batches are the same for any number of
    ranks and workers, and a run resumes at any step at once, also with another number of ranks. It is for training: an
    epoch leaves out fewer records than a batch, and each epoch leaves out others.

    Each pass over the loader is the next whole epoch, even if the last pass was left early. Only the pass after
    `load_state_dict`, `set_epoch` or a `start_step` begins where these say, and has the rest of its epoch. A pass from
    which only one batch was asked for does not count; workers ask for several at once.

    Nothing may shard it again. In Lightning set `Trainer(use_distributed_sampler=False)`. With Accelerate leave the
    loader out of `prepare`.

    Args:
        data: The map-style dataset, or its number of records.
        batch_size: The number of records of a batch of all ranks together. The number of ranks must divide it.
        seed: The seed of the order: a whole number of 64 bits.
        block_records: The number of adjacent records that each row of the batch reads one after another. More than 1
            helps where neighbors are read faster, as from one file or one compressed chunk.
        start_step: The global step of the run with which training begins, in whichever epoch it lies.
        rank: The number of this process, from 0, and the number of processes; or a `DeviceMesh` with a dimension
            `data`. None: the processes of `torch.distributed` if it is initialized when a pass begins, else one.

    Raises:
        ConfigError: An argument cannot be used, or the number of ranks does not divide the batch.
    """

    def __init__(
        self,
        data: Sized | int,
        batch_size: int,
        *,
        seed: int = 0,
        block_records: int = 1,
        start_step: int = 0,
        rank: tuple[int, int] | DeviceMesh | None = None,
    ) -> None:
        Seed().check("seed", seed)
        if not isinstance(data, Integral):
            try:
                data = len(data)  # type: ignore[arg-type]
            except TypeError:
                raise ConfigError(
                    f"`data` must be a dataset with a length, or a number of records, got {shorten(data)}."
                ) from None
        check_count("data", data, 1)
        self._order = Order(int(data), batch_size, block_records, seed)
        self._rank = rank
        self._find_rows()
        self.position = Position(*self._order.locate(check_count("start_step", start_step)))

    @property
    def batch_size(self) -> int:
        """The number of records of a batch of all ranks together."""
        return self._order.batch_size

    @property
    def drop_last(self) -> bool:
        """Whether an incomplete last batch is left out. An error on several ranks: only a wrapper that shards asks."""
        if self._find_host().num_hosts > 1:
            raise ConfigError(
                "An ExactSampler gives each rank its rows, so nothing may shard it again. In Lightning set "
                "Trainer(use_distributed_sampler=False); with Accelerate leave the loader out of `prepare`, or give "
                "the sampler `rank` (0, 1) and Accelerate split_batches=True."
            )
        return True

    @property
    def position(self) -> Position:
        """The position of the batch that is handed out next; assigning it sets where the next pass begins."""
        return self._find_position(self._handed_out)

    @position.setter
    def position(self, position: Position) -> None:
        self._begin, self._handed_out = position, 0
        self._loaded: Position | None = None
        self._pass: object = None  # the newest pass, whose batches alone move the position

    def set_epoch(self, epoch: int) -> None:
        """Lets the next pass begin with this epoch; after a state was loaded it must be the epoch of that state.

        Raises:
            ConfigError: A state of another epoch was loaded and no pass has begun since.
        """
        epoch = check_count("epoch", epoch)
        if self._loaded is None:
            self.position = Position(epoch, 0)
        elif epoch != self._loaded.epoch:
            raise ConfigError(
                f"`set_epoch` must get epoch {self._loaded.epoch} of the state that was loaded, got {epoch}. Count the "
                "epochs of the loop from there; a loader of Accelerate gets it by its own `set_epoch`."
            )

    def state_dict(self, taken: int | None = None) -> dict[str, int]:
        """Returns what a checkpoint keeps: "seed", "epoch" and "step" of the batch that comes next.

        "order" is the version of the order, and "data" the number of records.

        Args:
            taken: The number of batches that the trainer has taken from the loader in this pass, as
                `enumerate(loader, 1)` counts them. None: all that were handed out. With workers these are more: the
                loader reads `prefetch_factor` batches of each ahead, and a resumed run would miss them.

        Raises:
            ConfigError: Fewer batches were handed out in this pass.
        """
        taken = self._handed_out if taken is None else taken
        check_count("taken", taken)
        if taken > self._handed_out:
            raise ConfigError(
                f"`taken` must be at most the {human_count(self._handed_out, 'batch', 'batches')} that were handed "
                f"out in this pass, got {taken}. Count from 1 in each pass."
            )
        return self._find_position(taken).state(self._order.seed, self._order.num_records)

    def _find_position(self, taken: int) -> Position:
        """Finds the position after `taken` batches of this pass."""
        return Position(*self._order.locate(self._begin.epoch * len(self) + self._begin.step + taken))

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Lets the next pass begin where `state_dict` says, with the same data and options, on any number of ranks.

        Raises:
            ConfigError: The state is of another seed or version of the order, or of another number of records.
        """
        position = read_state(state, self._order.seed, len(self))
        if state["data"] != self._order.num_records:
            raise ConfigError(
                f"The position must be of {human_count(self._order.num_records, 'record')}, got one of "
                f"{state['data']:,}. Use the dataset that it was saved with, or begin a new run."
            )
        self.position = self._loaded = position

    def __len__(self) -> int:
        """Returns the number of batches in a whole epoch."""
        return self._order.steps_per_epoch

    def __iter__(self) -> Iterator[list[int]]:
        """Begins a pass, and yields the numbers of this rank's records in each batch."""
        if self._handed_out > 1 or self._begin.step + self._handed_out == len(self):
            self._begin = Position(self._begin.epoch + 1, 0)
        self._handed_out, self._loaded = 0, None
        begin, rows, this = self._begin, self._find_rows(), object()
        self._pass = this
        for step in range(begin.step, len(self)):
            numbers = self._order.list_numbers(begin.epoch, step, rows).tolist()
            if self._pass is this:  # no other pass has begun, and no position was set
                self._handed_out = step + 1 - begin.step
            yield numbers

    def __repr__(self) -> str:
        batches = f"{human_count(len(self), 'batch', 'batches')} of {self.batch_size}"
        records = human_count(self._order.num_records, "record")
        epoch, step = self.position
        return f"<ExactSampler: {batches} from {records}, epoch {epoch}, step {step}>"

    def _find_host(self) -> Host:
        """Returns this process as a host; asks `torch.distributed` only if the trainer has imported PyTorch."""
        rank = self._rank if self._rank is not None or "torch" in sys.modules else (0, 1)
        if not isinstance(rank, tuple):
            from tfpipe.readers.torch import find_rank

            rank = find_rank(rank)
        return Host.from_rank(rank)

    def _find_rows(self) -> range:
        """Returns the rows of each batch that this rank has."""
        host = self._find_host()
        split_batch(self.batch_size, host.num_hosts)
        return host.share(self.batch_size)
