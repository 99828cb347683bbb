"""The records of an epoch in which some are read more often than others.

```
weights   0: 1.0   1: 2.5   2: 0.25   3: 1.25      of four records; their sum is 5
rounds    0 1 3 | 1 | ...                          the whole parts: first copies, second copies
drawn     1 or 2 or 3                              the rest of the sum, by a hash of the seed and the epoch
```
"""

from __future__ import annotations

import numpy as np

from tfpipe.format.view import WEIGHT_UNITS, ViewSplit
from tfpipe.system.fork_lock import make_fork_lock
from tfpipe.system.hash_permutation import WEIGHTS, IntArray, key_of, permutation

_RECORD_BITS = 40
RECORD_MASK = (1 << _RECORD_BITS) - 1
"""The bits of an entry that hold the number of its record; those above hold the number of the copy."""

_LOCK = make_fork_lock()  # guards the tables of all views


class EpochWeights:
    """The table of each epoch of a view with weights: an entry for each read of a record. Threads may share it.

    An epoch's table takes 8 bytes for each of its entries, and is made when its first batch is listed. That takes 0.2 s
    for a million records. The tables of two epochs are kept.
    """

    def __init__(self, chosen: ViewSplit, seed: int) -> None:
        assert chosen.weights is not None
        weights = chosen.weights.astype(np.int64)
        self._seed, self._weights = seed, weights
        counts = weights // WEIGHT_UNITS
        rounds = [np.flatnonzero(counts > copy) | (copy << _RECORD_BITS) for copy in range(int(counts.max(initial=0)))]
        self._whole = np.concatenate([np.empty(0, np.int64), *rounds])  # the first copies of all, the second ones, ...
        self._tables: dict[int, IntArray] = {}

    def list_asked(self, epoch: int, entries: IntArray) -> IntArray:
        """Returns the record numbers at some entries of an epoch's table, with the copy numbers in the high bits."""
        with _LOCK:
            if epoch not in self._tables:
                self._tables[epoch] = np.concatenate((self._whole, self._draw(epoch)))
                for old in list(self._tables)[:-2]:
                    del self._tables[old]
            table = self._tables[epoch]
        return table[entries]

    def _draw(self, epoch: int) -> IntArray:
        """Draws records, each at most once, by the fractions of their weights: as many as the rounded sum of these."""
        fractions = self._weights % WEIGHT_UNITS
        candidates = np.flatnonzero(fractions)
        if not len(candidates):
            return candidates
        candidates = candidates[permutation(key_of(WEIGHTS, self._seed, epoch), len(candidates))]
        ends = np.cumsum(fractions[candidates])
        # Systematic sampling: the fractions lie end to end on a line, and each multiple of a whole unit draws a record.
        # The line begins at random, but only where it meets the same number of multiples in every epoch.
        rest, draw = int(ends[-1]) % WEIGHT_UNITS, key_of(WEIGHTS, self._seed, epoch, 1)
        is_down = 2 * rest < WEIGHT_UNITS
        begin = draw % (WEIGHT_UNITS - rest) if is_down else WEIGHT_UNITS - rest + draw % rest
        is_drawn = (ends + begin) // WEIGHT_UNITS > (ends - fractions[candidates] + begin) // WEIGHT_UNITS
        drawn = np.sort(candidates[is_drawn])
        return drawn | ((self._weights[drawn] // WEIGHT_UNITS) << _RECORD_BITS)
