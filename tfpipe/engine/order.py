"""The exact order: the records of the batch of each step, as a pure function of a few integers.

    order = Order(num_records=1_281_167, batch_size=256, block_records=4, seed=7)
    epoch, step = order.locate(global_step)              # where a run goes on after a restart
    order.list_numbers(epoch, step)                      # int64 [256]: records, counted through all shards
    order.list_numbers(epoch, step, range(128))          # the rows of the first of two hosts: `Host.share`

```
records   0 1 2 3 4 5 6 7 8 ...           counted through all shards, in a circle that begins elsewhere in each epoch
blocks    aaaa bbbb cccc dddd eeee ...    adjacent records: one seek each
permuted  cccc aaaa eeee bbbb dddd ...    by a hash of the seed and the epoch
rows      0: cccc eeee ...                each row of the batch reads blocks of its own, one after another,
          1: aabb bb.. ..aa               and begins elsewhere in its first block, so that few blocks begin together
steps     a column: the next record of each row
tail      the blocks that are too few for all rows, read side by side, then the records that fill no block
```

Each batch is computed for itself: there is no table, so any step of any epoch costs the same. A host reads some of the
rows of every batch, so the global batches are the same for any number of hosts. Permutations are those of
`tfpipe.system.hash_permutation`, the same on every machine, so that a checkpoint stays valid.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tfpipe.errors import ConfigError
from tfpipe.system.arguments import check_count
from tfpipe.system.hash_permutation import LEAD, RUNS, IntArray, find_indices, key_of, permute
from tfpipe.system.units import human_count

ORDER_VERSION = 1
"""The version of the definition above. The same position of a run means other records in another version."""

_BLOCK_BYTES = 400 * 1000
"""The bytes of a block, at most 16 records. To open it takes 150 us of a core, a thirtieth of decoding its images."""
_MAX_BLOCK_RECORDS = 16
_MIN_BLOCKS_OF_A_ROW = 4
"""The blocks that each row reads in an epoch, at least. If records are too few for that, blocks are shorter."""


@dataclass(frozen=True)
class Order:
    """The order in which the records of one split are read, epoch after epoch.

    An epoch reads each record at most once. It leaves out fewer records than a batch, and each epoch leaves out others.

    Attributes:
        num_records: The number of records in all shards.
        batch_size: The number of rows of the global batch. It is part of the order; the number of hosts is not.
        block_records: The number of adjacent records that a row reads at once. Fewer mix better and seek more often.
            It is at most the number of steps in an epoch: a larger number is lowered. Blocks may cross the ends of
            shards, and their cuts move from epoch to epoch.
        seed: The seed of all permutations: any integer of 64 bits, with or without a sign.

    Raises:
        ConfigError: A value cannot be used; the message names one that can.
    """

    num_records: int
    batch_size: int
    block_records: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        if not -(2**63) <= self.seed < 2**64:
            raise ConfigError(f"`seed` must fit into 64 bits, got {self.seed}.")
        check_count("num_records", self.num_records, 1)
        check_count("batch_size", self.batch_size, 1)
        check_count("block_records", self.block_records, 1)
        check_fills_batch(self.num_records, self.batch_size)
        object.__setattr__(self, "block_records", min(self.block_records, self.steps_per_epoch))

    @cached_property
    def steps_per_epoch(self) -> int:
        """The number of full batches in an epoch."""
        return self.num_records // self.batch_size

    @cached_property
    def blocks_per_row(self) -> int:
        """The number of blocks that each row reads in an epoch, before the tail."""
        return self.num_records // self.block_records // self.batch_size

    @cached_property
    def head_steps(self) -> int:
        """The number of steps in which each row reads its own blocks.

        The other steps of an epoch are its tail: fewer steps than a block has records.
        """
        return self.blocks_per_row * self.block_records

    def locate(self, global_step: int) -> tuple[int, int]:
        """Returns the epoch, and the step in it, that follow after `global_step` steps of a run."""
        check_count("global_step", global_step)
        return divmod(global_step, self.steps_per_epoch)

    def list_numbers(self, epoch: int, step: int, rows: range | None = None) -> IntArray:
        """Lists the records of a batch, counted through all shards.

        A batch of 256 of a billion records takes 0.1 ms.

        Args:
            epoch: The epoch, from 0.
            step: The step in the epoch, from 0.
            rows: The rows of the batch, such as `Host(0, 2, 2).share(256)`. None: all.

        Returns:
            int64 [rows], each from 0 to `num_records` - 1.
        """
        rows = range(self.batch_size) if rows is None else rows
        limits = [("rows", number, self.batch_size) for number in (rows[0], rows[-1])] if rows else []
        for name, value, stop in (("epoch", epoch, math.inf), ("step", step, self.steps_per_epoch), *limits):
            if not 0 <= value < stop:
                allowed = "at least 0" if stop == math.inf else f"between 0 and {stop - 1}"
                raise ConfigError(f"`{name}` must be {allowed}, got {value}.")
        row = np.arange(rows.start, rows.stop, rows.step, dtype=np.int64)
        num_blocks = self.num_records // self.block_records
        if step < self.head_steps:
            # A row that begins in the middle of its first block reads the skipped start at the end of the head.
            at = (step + row * self.block_records // self.batch_size) % self.head_steps
            number, record = np.divmod(at, self.block_records)
            block = number * self.batch_size + row
        else:  # the first record of each block that is left, then the second, and at last those that fill no block
            first = self.blocks_per_row * self.batch_size
            at, left = (step - self.head_steps) * self.batch_size + row, num_blocks - first
            record, number = np.divmod(at, max(left, 1))
            late = at - left * self.block_records
            block, record = np.where(late < 0, first + number, num_blocks), np.where(late < 0, record, late)
        is_whole = block < num_blocks
        block[is_whole] = permute(key_of(RUNS, self.seed, epoch), num_blocks, block[is_whole])
        # The circle begins at another record every epoch, so that no record is always in the short block at the end.
        lead = (key_of(LEAD, self.seed, epoch) >> 1) % self.num_records
        return np.asarray((block * self.block_records + record + lead) % self.num_records, np.int64)

    def find_step(self, epoch: int, number: int) -> tuple[int, int] | None:
        """Finds the step and the row in which an epoch reads a record: the inverse of `list_numbers`.

        Args:
            epoch: The epoch, from 0.
            number: The number of the record, counted through all shards.

        Returns:
            The step in the epoch and the row of the batch; None if the epoch leaves the record out.
        """
        lead = (key_of(LEAD, self.seed, epoch) >> 1) % self.num_records
        block, record = divmod((number - lead) % self.num_records, self.block_records)
        num_blocks = self.num_records // self.block_records
        if block < num_blocks:
            block = int(find_indices(key_of(RUNS, self.seed, epoch), num_blocks, np.array([block]))[0])
        first = self.blocks_per_row * self.batch_size
        if block < first:
            index, row = divmod(block, self.batch_size)
            at = index * self.block_records + record - row * self.block_records // self.batch_size
            return at % self.head_steps, row
        left = num_blocks - first
        at = record * left + block - first if block < num_blocks else left * self.block_records + record
        step, row = divmod(at, self.batch_size)
        step += self.head_steps
        return (step, row) if step < self.steps_per_epoch else None


def check_fills_batch(num_records: int, batch_size: int) -> None:
    """Refuses a batch that the records of an epoch do not fill."""
    if batch_size > num_records:
        raise ConfigError(
            f"`batch_size` must be at most the {human_count(num_records, 'record')} of an epoch, got "
            f"{batch_size}. Use {num_records} or less, or more data."
        )


def choose_block(record_bytes: float, num_records: int, batch_size: int) -> int:
    """Chooses the number of records of a block: about 400 KB, at most 16 records.

    It is one record where records are large, or so few that a row would have fewer than four blocks in an epoch.

    Args:
        record_bytes: The mean size of a record in its file.
        num_records: The number of records in all shards.
        batch_size: The number of rows of the global batch.
    """
    long_enough = math.ceil(_BLOCK_BYTES / record_bytes)
    short_enough = num_records // batch_size // _MIN_BLOCKS_OF_A_ROW
    return max(min(long_enough, _MAX_BLOCK_RECORDS, short_enough), 1)


def check_version(version: int, what: str) -> None:
    """Refuses to go on in an order of another version; `what` begins the message, as in "The position"."""
    if version != ORDER_VERSION:
        raise ConfigError(
            f"{what} must be of a run in order version {ORDER_VERSION}, got version {version}, in which other records "
            "come at each step. Begin a new run, or go on with the release of tfpipe that the run began with.",
            page="symptoms#the-run-does-not-go-on",
        )
