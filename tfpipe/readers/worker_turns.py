"""Keeps the workers of a PyTorch DataLoader out of step, so that their batches come one by one.

All workers begin at the same moment, and each makes a batch of its own. So the batches of n workers would be ready
together, and then none for a long time:

```
in step        worker 0  |--------|--------|          out of step     worker 0  |--------|--------|
               worker 1  |--------|--------|                          worker 1      |--------|--------|
```

A worker therefore waits with its batch until the worker before it has made an n-th of the batch before it. After the
first batch that is a moment, since all are about as fast: no images per second are lost. What a worker sees of another
may be old, or the other may be gone: so it waits no longer than an n-th of its own last batch took.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from tfpipe.readers.batch_reader import Run
from tfpipe.system.hash_permutation import IntArray

MOST_WORKERS = 1024
"""The workers that can take turns. More than that do not wait."""
_FIRST_WAIT_S = 1.0
"""The longest wait before a worker knows how long a batch takes, in seconds."""
_LOOK_EVERY_S = 0.001


def take_turns(rows: IntArray, batch_size: int, worker: int, workers: int) -> Run:
    """Begins a pass of one worker.

    Args:
        rows: The number of rows that each worker has made in this pass, int64 [MOST_WORKERS], in memory that all share.
        batch_size: The number of rows in a batch.
        worker: The number of this worker, from 0.
        workers: The number of workers.

    Returns:
        A `map` that makes the rows of the worker's next batch when it is the worker's turn.
    """
    if not 1 < workers <= MOST_WORKERS:
        return map
    rows[worker] = 0
    before = worker - 1 if worker else workers - 1
    begun, longest_wait = 0, _FIRST_WAIT_S

    def make_rows(make_row: Callable[[int], None], numbers: Iterable[int]) -> Iterator[None]:
        nonlocal begun, longest_wait
        rows_before = batch_size * ((begun if worker else begun - 1) + 1 / workers)
        deadline = time.monotonic() + longest_wait
        while rows[before] < rows_before and time.monotonic() < deadline:
            time.sleep(_LOOK_EVERY_S)
        start = time.monotonic()
        for number in numbers:
            make_row(number)
            rows[worker] += 1
            yield
        begun += 1
        rows[worker] = begun * batch_size  # the last batch of an evaluation has fewer rows
        longest_wait = (time.monotonic() - start) / workers

    return make_rows
