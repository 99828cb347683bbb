"""The order of a `tf.data` graph: the record at each position of each stream, as a pure function of a few integers.

    order = ExactOrder(tuple(shard.records for shard in split.shards), seed=7)
    order.numbers(epoch, order.positions(stream, places))           # int64: records, counted through all shards

```
records   0 1 2 3 4 5 6 7 8 ...                 counted through all shards, in a circle that begins anew every epoch
runs      aaaa bbbb cccc dddd eeee ...          adjacent records: one seek each
sequence  cccc aaaa eeee bbbb dddd ...          the runs, permuted by (seed, epoch)
streams   |---- 0 ----|---- 1 ----|---- 2 ...   equal numbers of runs; what is left over comes at their ends
lanes     cccc eeee dddd ...                    the runs of a stream, dealt to lanes that give records in turn; each
          aabb bbff ff..  ..aa                  begins elsewhere in its first run, so that few runs begin together
batch     the next few records of each stream: its rows, stream after stream
```

Each place is computed for itself: there is no table, so any batch of any epoch costs the same. A host reads some of the
rows of every batch, so the global batches are the same for any number of hosts. Permutations are those of
`tfpipe.system.hash_permutation`, the same on every machine, so that a checkpoint stays valid.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tfpipe.errors import ConfigError
from tfpipe.system.hash_permutation import LEAD, RUNS, IntArray, key_of, permute
from tfpipe.system.units import human_count


@dataclass(frozen=True)
class ExactOrder:
    """The order in which one split is read, epoch after epoch.

    Each epoch reads different records. It leaves out fewer than `num_streams * turn_records` of them, and the end of
    each stream if it fills no batch. The next epoch leaves out other records.

    A batch of 256 takes about 0.2 ms, for any number of records. A ConfigError from this class says which value cannot
    be used, and what to use instead.

    Attributes:
        shard_records: The number of records in each shard, in the order of the shards.
        seed: The seed of all permutations: any integer of 64 bits, with or without a sign.
        num_streams: The number of parts of an epoch that are read side by side. The global batch size must be a
            multiple of it. It is part of the order, and does not depend on the number of hosts.
        run_records: The number of adjacent records that are read at once. Fewer mix better and seek more often. The
            cuts move from epoch to epoch.
        lanes: The number of runs that a stream reads side by side. It mixes best if there are as many as a batch takes
            records of the stream, or more: then no two records of a batch are of the same run. The part of a lane's
            first run that comes before its beginning is read last.
        turn_records: The number of adjacent records that a lane gives in its turn; `run_records` is a multiple of it.
    """

    shard_records: tuple[int, ...]
    seed: int = 0
    num_streams: int = 8
    run_records: int = 16
    lanes: int = 32
    turn_records: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "shard_records", tuple(map(int, self.shard_records)))  # a list has no hash
        _check_shards(self.shard_records)
        if not -(2**63) <= self.seed < 2**64:
            raise ConfigError(f"`seed` must fit into 64 bits, got {self.seed}.")
        for name in ("num_streams", "run_records", "lanes", "turn_records"):
            _check_range(name, getattr(self, name), 1)
        if self.run_records % self.turn_records:
            raise ConfigError(
                f"`run_records` must be a multiple of `turn_records`, got {self.run_records} and {self.turn_records}."
            )
        if self.num_records < self.num_streams * self.turn_records:
            fitting = max(self.num_records // self.turn_records, 1)
            raise ConfigError(
                f"Each of the {self.num_streams} streams needs {human_count(self.turn_records, 'record')} or more, got "
                f"{self.num_records} records. Use num_streams={fitting} or more data."
            )

    @cached_property
    def num_records(self) -> int:
        """The number of records of the split."""
        return sum(self.shard_records)

    @cached_property
    def shard_starts(self) -> IntArray:
        """The number of each shard's first record, counted through all shards, and the end: int64 [shards + 1]."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.shard_records, dtype=np.int64)])

    @property
    def runs_per_stream(self) -> int:
        """The number of whole runs that each stream reads in an epoch."""
        return self.num_records // self.run_records // self.num_streams

    @property
    def rest_turns(self) -> int:
        """The number of turns with which each stream ends, out of the runs that are too few for all streams."""
        rest = self.num_records - self.num_streams * self.runs_per_stream * self.run_records
        return rest // self.num_streams // self.turn_records

    @property
    def records_per_stream(self) -> int:
        """The number of records that each stream reads in an epoch."""
        return self.runs_per_stream * self.run_records + self.rest_turns * self.turn_records

    @property
    def turns_per_run(self) -> int:
        """The number of turns in which a lane gives a whole run."""
        return self.run_records // self.turn_records

    @property
    def turns_per_lane(self) -> int:
        """The number of turns that each lane has in an epoch."""
        return self.runs_per_stream // self.lanes * self.turns_per_run

    @property
    def lane_offset(self) -> int:
        """The number of turns by which a lane begins further on in its first run than the lane before it.

        Lanes that stand together in a batch so begin their runs one after another, and each batch waits for few seeks.
        """
        return max(self.turns_per_run // self.lanes, 1)

    def numbers(self, epoch: int, positions: IntArray) -> IntArray:
        """Returns the records at some positions of an epoch's sequence, counted through all shards.

        Args:
            epoch: The epoch, from 0.
            positions: int64 of any shape, each from 0 to `num_records` - 1.

        Returns:
            int64 of the same shape, each from 0 to `num_records` - 1.
        """
        return self.rising_numbers(epoch, positions) % self.num_records

    def rising_numbers(self, epoch: int, positions: IntArray) -> IntArray:
        """Returns the same records as `numbers`, by numbers that rise by one within every run.

        Numbers from the number of records on count from the first record again.
        """
        run, place = np.divmod(positions, self.run_records)
        # The circle begins at another record every epoch, so that no record is always in the short run at the end.
        lead = (key_of(LEAD, self.seed, epoch) >> 1) % self.num_records
        whole_runs = self.num_records // self.run_records
        whole = run < whole_runs
        run[whole] = permute(key_of(RUNS, self.seed, epoch), max(whole_runs, 1), run[whole])
        rising: IntArray = run * self.run_records + place + lead
        return rising

    def positions(self, stream: int | IntArray, places: IntArray) -> IntArray:
        """Returns the positions, in the sequence of any epoch, of the records that streams read.

        Args:
            stream: The number of the stream, or int64 of a shape that broadcasts with `places`.
            places: int64 of any shape: places among the records of the stream, in their final order.

        Returns:
            int64 of the broadcast shape.
        """
        _check_range("stream", int(np.min(stream)), 0, self.num_streams)
        _check_range("stream", int(np.max(stream)), 0, self.num_streams)
        turn, record = np.divmod(places, self.turn_records)
        turns_of_run, turns_of_lane = self.turns_per_run, self.turns_per_lane
        runs, lanes = self.runs_per_stream, self.lanes
        lane = turn % lanes
        turn_of_lane = (turn // lanes + lane * self.lane_offset % turns_of_run) % max(turns_of_lane, 1)
        run = turn_of_lane // turns_of_run * lanes + lane
        part = turn_of_lane % turns_of_run
        # At the end of an epoch come the runs that are too few for all lanes, and then those too few for all streams.
        late = turn - lanes * turns_of_lane
        late_runs = max(runs % lanes, 1)
        run = np.where(late < 0, run, runs - runs % lanes + late % late_runs)
        part = np.where(late < 0, part, late // late_runs)
        positions = (stream * runs + run) * self.run_records + part * self.turn_records
        rest = turn - runs * turns_of_run
        first_rest = self.num_streams * runs * self.run_records + stream * self.rest_turns * self.turn_records
        return np.asarray(np.where(rest < 0, positions, first_rest + rest * self.turn_records) + record, np.int64)

    def row_positions(self, steps: IntArray, global_batch_size: int, rows: range) -> IntArray:
        """Returns the positions, in the sequence of any epoch, of rows of global batches: int64 [steps, rows]."""
        share, row = global_batch_size // self.num_streams, np.arange(rows.start, rows.stop, rows.step)
        if not len(row) or not len(steps):
            return np.zeros((len(steps), len(row)), np.int64)
        return self.positions(row // share, steps[:, None] * share + row % share)


def evaluation_order(shard_records: Sequence[int], num_hosts: int = 1, host: int = 0) -> IntArray:
    """Returns the runs that one host reads when every record is read exactly once, in the order of the files.

    Host h reads records `N * h // num_hosts` to `N * (h + 1) // num_hosts` of all N. So two hosts differ by at most one
    record, and one may have a batch more. If hosts step together, the others add padding.

    Returns:
        int64 [k, 3] of shard, first record, count: one row for each shard that the host reads from.
    """
    _check_shards(shard_records)
    _check_range("num_hosts", num_hosts, 1)
    _check_range("host", host, 0, num_hosts)
    runs = np.array([(shard, 0, records) for shard, records in enumerate(shard_records) if records], np.int64)
    begin, end = (sum(shard_records) * part // num_hosts for part in (host, host + 1))
    stops = np.cumsum(runs[:, 2])
    starts = stops - runs[:, 2]
    runs[:, 1] = np.maximum(begin - starts, 0)
    runs[:, 2] = np.minimum(end, stops) - np.maximum(begin, starts)
    return runs[runs[:, 2] > 0]


def expand_runs(runs: IntArray) -> IntArray:
    """Expands runs, int64 [n, 3] of shard, first record, count, to one row for each record: [k, 2] of shard, record."""
    shard, first, count = runs.T
    records = np.arange(count.sum()) + np.repeat(first - (np.cumsum(count) - count), count)
    return np.stack([np.repeat(shard, count), records], axis=1)


def _check_shards(shard_records: Sequence[int]) -> None:
    for shard, records in enumerate(shard_records):
        if records < 0:
            raise ConfigError(f"`shard_records` must not be negative, got {records} for shard {shard}.")
    if not any(shard_records):
        raise ConfigError(f"`shard_records` must hold a record, got {len(shard_records)} shards without any.")


def _check_range(name: str, value: int, minimum: int, stop: int | None = None) -> None:
    if value < minimum or (stop is not None and value >= stop):
        allowed = f"at least {minimum}" if stop is None else f"between {minimum} and {stop - 1}"
        raise ConfigError(f"`{name}` must be {allowed}, got {value}.")
