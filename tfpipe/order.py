"""The exact order: the record at each position of each stream in each epoch, as a pure function of a few integers.

    order = ExactOrder(tuple(shard.records for shard in split.shards), seed=7)
    epoch, step = order.locate(global_step, global_batch_size)      # the place where a run goes on after a restart
    order.batch(epoch, step, global_batch_size)                     # int64 [256, 2]: shard, record

```
records   0 1 2 3 4 5 6 7 8 ...                 counted through all shards, in a circle that begins anew every epoch
runs      aaaa bbbb cccc dddd eeee ...          adjacent records: one seek each
sequence  cccc aaaa eeee bbbb dddd ...          the runs, permuted by (seed, epoch)
streams   |---- 0 ----|---- 1 ----|---- 2 ...   equal parts of the sequence; what does not divide is left out
windows   |--|--|--|--|--|--|--|--|--|--|--     consecutive records; they leave in rounds, which take one of each run
batch     the next few records of each stream, stream after stream
```

Each place is computed for itself: there is no table, so any batch of any epoch costs the same. A host reads some of the
streams, so the global batches are the same for any number of hosts. Permutations are those of
`tfpipe.system.hash_permutation`, the same on every machine, so that a checkpoint stays valid.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tfpipe.errors import ConfigError
from tfpipe.system.hash_permutation import LEAD, RUNS, WINDOW, IntArray, extend_key, hash_numbers, key_of, permute

ORDER_VERSION = 2
"""The version of the definition above. A position of a run means other records in another version.

Version 1 kept a table of an epoch's runs, cut them at the ends of shards, and had 16 records in a run by default.
"""

MAX_ROUNDS, ROUND_SHIFT = 1024, 53
"""The most rounds in which a window is dealt, and the place of a round's number among the bits that are sorted."""

_SCORE_EPOCHS, _SCORE_STEPS = 2, 16


@dataclass(frozen=True)
class ExactOrder:
    """The order in which one split is read, epoch after epoch.

    Each epoch reads `num_streams * records_per_stream` different records. It leaves out the last `num_records %
    num_streams` records of its sequence, and the end of each stream if it fills no batch. The next epoch leaves out
    other records.

    A batch of 256 takes about 0.3 ms, for any number of records. A ConfigError from this class says which value cannot
    be used, and what to use instead.

    Attributes:
        shard_records: The number of records in each shard, in the order of the shards.
        seed: The seed of all permutations: any integer of 64 bits, with or without a sign.
        num_streams: The number of parts of an epoch that are read side by side. It must be a multiple of the number of
            hosts, and the global batch size a multiple of it. It is part of the order: keep it when the number of hosts
            changes.
        run_records: The number of adjacent records that are read at once. Fewer mix better and seek more often. The
            cuts move from epoch to epoch. The last run of an epoch has the rest, and may be shorter.
        window_records: The number of consecutive records of a stream that are held in memory and dealt anew. It mixes
            best if it is `run_records` times a batch's share of the stream, or more. 1: records keep their place in the
            sequence, and none is held.
    """

    shard_records: tuple[int, ...]
    seed: int = 0
    num_streams: int = 8
    run_records: int = 16
    window_records: int = 512

    def __post_init__(self) -> None:
        object.__setattr__(self, "shard_records", tuple(map(int, self.shard_records)))  # a list has no hash
        _check_shards(self.shard_records)
        if not -(2**63) <= self.seed < 2**64:
            raise ConfigError(f"`seed` must fit into 64 bits, got {self.seed}.")
        for name in ("num_streams", "run_records", "window_records"):
            _check_range(name, getattr(self, name), 1)
        if self.num_records < self.num_streams:
            raise ConfigError(
                f"Each of the {self.num_streams} streams needs a record, got {self.num_records} records. "
                f"Use num_streams={max(self.num_records, 1)} or more data."
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
    def records_per_stream(self) -> int:
        """The number of records that each stream reads in an epoch."""
        return self.num_records // self.num_streams

    @property
    def num_windows(self) -> int:
        """The number of windows of each stream in an epoch; the last one may be shorter."""
        return -(-self.records_per_stream // self.window_records)

    def numbers(self, epoch: int, positions: IntArray) -> IntArray:
        """Returns the records at some positions of an epoch's sequence, counted through all shards.

        Args:
            epoch: The epoch, from 0.
            positions: int64 of any shape, each from 0 to `num_records` - 1.

        Returns:
            int64 of the same shape, each from 0 to `num_records` - 1.
        """
        run, place = np.divmod(positions, self.run_records)
        # The circle begins at another record every epoch, so that no record is always in the short run at the end.
        lead = (key_of(LEAD, self.seed, epoch) >> 1) % self.num_records
        whole_runs = self.num_records // self.run_records
        whole = run < whole_runs
        run[whole] = permute(key_of(RUNS, self.seed, epoch), max(whole_runs, 1), run[whole])
        return (run * self.run_records + place + lead) % self.num_records

    def runs(self, epoch: int, stream: int) -> IntArray:
        """Returns the runs that a stream reads in an epoch, in order: int64 [n, 3] of shard, first record, count."""
        return self._cut_runs(epoch, stream, 0, self.records_per_stream)

    def window_runs(self, epoch: int, stream: int, window: int) -> IntArray:
        """Returns the runs that a stream reads for one window: int64 [n, 3] of shard, first record, count."""
        return self._cut_runs(epoch, stream, *self._window(window))

    def window_permutation(self, epoch: int, stream: int, window: int) -> IntArray:
        """Returns the order in which the records of a window leave it: `np.take(read, permutation)`; int64 [m].

        They leave in rounds. A round takes one record of each run, in random order. So a batch has no two records of a
        run if its share of a stream is not larger than the number of runs in a window.
        """
        self._check(epoch, stream)
        start, stop = self._window(window)
        positions = stream * self.records_per_stream + np.arange(start, stop)
        run, place = np.divmod(positions, self.run_records)
        run_key, record_key = (extend_key(key_of(WINDOW, self.seed, epoch), part) for part in range(2))
        rounds = min(self.run_records, MAX_ROUNDS)
        in_round = (place + hash_numbers(run_key, run)) % rounds
        keys = (in_round << ROUND_SHIFT) + (hash_numbers(record_key, positions) >> 63 - ROUND_SHIFT)
        return np.asarray(np.argsort(keys, kind="stable"), np.int64)

    def records(self, epoch: int, stream: int, start: int = 0, stop: int | None = None) -> IntArray:
        """Returns the records of a stream at positions `start` to `stop` (its end by default), in their final order.

        Only the windows that hold them are computed. The result is int64 [stop - start, 2] of shard, record.
        """
        self._check(epoch, stream)
        stop = self.records_per_stream if stop is None else stop
        if not 0 <= start <= stop <= self.records_per_stream:
            end = self.records_per_stream
            raise ConfigError(f"`start` and `stop` must be ordered and between 0 and {end}, got {start} and {stop}.")
        return self._find_records(epoch, self._final_positions(epoch, stream, start, stop))

    def steps_per_epoch(self, global_batch_size: int) -> int:
        """Returns the number of full batches in an epoch.

        Raises:
            ConfigError: An epoch does not fill a batch, or the streams cannot share a batch evenly.
        """
        streams, records = self.num_streams, self.num_streams * self.records_per_stream
        if global_batch_size < 1 or global_batch_size % streams:
            raise ConfigError(
                f"`global_batch_size` must be a multiple of the {streams} streams, got {global_batch_size}. "
                f"Use {max(-(-global_batch_size // streams), 1) * streams}."
            )
        if global_batch_size > records:
            raise ConfigError(
                f"`global_batch_size` must be at most the {records} records of an epoch, got {global_batch_size}. "
                f"Use {records} or less, or more data."
            )
        return records // global_batch_size

    def locate(self, global_step: int, global_batch_size: int) -> tuple[int, int]:
        """Returns the epoch, and the step in it, that follow after `global_step` steps of a run."""
        _check_range("global_step", global_step, 0)
        return divmod(global_step, self.steps_per_epoch(global_batch_size))

    def batch(self, epoch: int, step: int, global_batch_size: int, streams: Iterable[int] | None = None) -> IntArray:
        """Returns each stream's next records, stream after stream: int64 [global_batch_size, 2] of shard, record.

        With `streams`, such as `host_streams(2, 0)`, it returns only the part of the batch that these streams read.
        """
        _check_range("step", step, 0, self.steps_per_epoch(global_batch_size))
        share = global_batch_size // self.num_streams
        streams = range(self.num_streams) if streams is None else streams
        parts = [self._final_positions(epoch, stream, step * share, (step + 1) * share) for stream in streams]
        return self._find_records(epoch, np.concatenate([np.empty(0, np.int64), *parts]))

    def host_streams(self, num_hosts: int, host: int) -> range:
        """Returns the streams that one host reads. The parts of all hosts, one after another, are the global batch."""
        _check_range("num_hosts", num_hosts, 1)
        _check_range("host", host, 0, num_hosts)
        if self.num_streams % num_hosts:
            raise ConfigError(
                f"`num_streams` must be a multiple of the number of hosts, got {self.num_streams} streams for "
                f"{num_hosts} hosts. Use num_streams={-(-self.num_streams // num_hosts) * num_hosts}."
            )
        return range(self.num_streams * host // num_hosts, self.num_streams * (host + 1) // num_hosts)

    def _final_positions(self, epoch: int, stream: int, start: int, stop: int) -> IntArray:
        """Returns positions in the sequence of an epoch: those of a stream's records `start` to `stop`, permuted."""
        self._check(epoch, stream)
        base, size = stream * self.records_per_stream, self.window_records
        if size == 1:
            return np.arange(base + start, base + stop)
        first = start // size
        windows = [
            base + window * size + self.window_permutation(epoch, stream, window)
            for window in range(first, -(-stop // size))
        ]
        return np.concatenate([np.empty(0, np.int64), *windows])[start - first * size : stop - first * size]

    def _find_records(self, epoch: int, positions: IntArray) -> IntArray:
        """Returns the records at positions of the sequence: int64 [n, 2] of shard, record."""
        numbers, starts = self.numbers(epoch, positions), self.shard_starts
        shard = np.searchsorted(starts, numbers, "right") - 1
        return np.stack([shard, numbers - starts[shard]], axis=1)

    def _cut_runs(self, epoch: int, stream: int, start: int, stop: int) -> IntArray:
        """Cuts a part of a stream into runs, and runs where a shard ends."""
        self._check(epoch, stream)
        positions = stream * self.records_per_stream + np.arange(start, stop)
        shard, record = self._find_records(epoch, positions).T
        begins_run = positions % self.run_records == 0
        begins_run[:1] = True
        begins_run[1:] |= (np.diff(shard) != 0) | (np.diff(record) != 1)
        begins = np.flatnonzero(begins_run)
        return np.stack([shard[begins], record[begins], np.diff(begins, append=len(positions))], axis=1)

    def _check(self, epoch: int, stream: int) -> None:
        _check_range("epoch", epoch, 0)
        _check_range("stream", stream, 0, self.num_streams)

    def _window(self, window: int) -> tuple[int, int]:
        _check_range("window", window, 0, self.num_windows)
        start = window * self.window_records
        return start, min(start + self.window_records, self.records_per_stream)


def check_version(version: int, what: str) -> None:
    """Refuses to go on in an order of another version.

    Args:
        version: The version of the order in which a run began.
        what: The beginning of the error message: "The position", "The run of model/ckpt-3".

    Raises:
        ConfigError: In this version other records stand at the positions of the run.
    """
    if version != ORDER_VERSION:
        raise ConfigError(
            f"{what} must be of a run in order version {ORDER_VERSION}, got version {version}, in which other records "
            "come at each step. Begin a new run, or go on with the release of tfpipe that the run began with."
        )


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


def mixing_score(order: ExactOrder, global_batch_size: int, group_records: int = 1024) -> float:
    """Computes the share of a batch that counts as drawn independently, if records that lie together were all alike.

    This is the danger of files sorted by label. A group is `group_records` adjacent records of a shard (about a class
    of ImageNet by default), counted from its start; the rest at its end is a group too. Let p be the share of pairs in
    a batch that come from one group, and u the same share for a uniform draw without replacement. Then

        rho = max(p - u, 0) / (1 - u)        score = 1 / (1 + (global_batch_size - 1) * rho)

    which is one over the design effect of cluster sampling (Kish, "Survey Sampling", 1965): the number of images of
    each class in a batch has `1 / score` times the variance that it has in a perfect shuffle. p is the mean over 16
    batches of each of the first two epochs, or over all if there are fewer.

    For 1.28 million records in 1,024 shards and batches of 256: 0.005 for shard after shard in one stream, 0.04 in 8
    streams; 0.06, 0.25 and 1.00 for runs of 16 in windows of 32, 128 and 512, the default; 1.00 for runs of 4 in
    windows of 128; 0.99 for records one by one, a perfect shuffle; all within 0.01 or so, for other seeds. Shards that
    were shuffled when they were written need no score near 1: their neighbors are not alike.
    """
    _check_range("group_records", group_records, 1)
    steps = order.steps_per_epoch(global_batch_size)
    pairs_per_batch = global_batch_size * (global_batch_size - 1)
    sizes = [min(group_records, n - at) for n in order.shard_records for at in range(0, n, group_records)]
    if pairs_per_batch == 0 or len(sizes) == 1:
        return 1.0  # there is nothing to compare, or all records are one group
    uniform = sum(size * (size - 1) for size in sizes) / (order.num_records * (order.num_records - 1))
    per_shard = -(-np.array(order.shard_records, np.int64) // group_records)
    first_group = np.cumsum(per_shard) - per_shard
    sampled, pairs = min(steps, _SCORE_STEPS), 0
    for epoch in range(_SCORE_EPOCHS):
        for index in range(sampled):
            shard, record = order.batch(epoch, index * steps // sampled, global_batch_size).T
            counts = np.unique(first_group[shard] + record // group_records, return_counts=True)[1]
            pairs += int((counts * (counts - 1)).sum())
    together = pairs / (_SCORE_EPOCHS * sampled * pairs_per_batch)
    rho = max(together - uniform, 0) / (1 - uniform)
    return 1 / (1 + (global_batch_size - 1) * rho)


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
