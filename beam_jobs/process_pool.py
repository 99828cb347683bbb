"""The worker processes of the job: what they load, and the error for one that dies.

Beam's own multi-process mode was slower in every trial: it distributes the work in advance, and each worker imports
Beam. It also waits forever when a worker is killed. `concurrent.futures` reports a dead worker within seconds.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from beam_jobs import job_stores

if TYPE_CHECKING:
    from tfpipe.system.process_pool import WorkerPool

Item = TypeVar("Item")
Result = TypeVar("Result")

_SMALL_IMAGES, _SMALL_BYTES = 1000, 40 << 20


@cache
def _get_workers() -> "WorkerPool":
    from tfpipe.system.process_pool import WorkerPool  # loads `multiprocessing`, which a job in threads does not need

    return WorkerPool(
        preload=["beam_jobs.shards.job", "pyarrow.parquet"],
        death="A worker process died: it was killed, or memory ran out. Finished shards are kept; run the same command "
        "again to go on, with fewer --workers if memory was short.",
    )


def start_early() -> None:
    """Starts the fork server, which imports what workers need while this process does its own imports."""
    _get_workers().start_early()


def map_unordered(
    function: Callable[..., Result], items: Iterable[Item], workers: int, *, shared: tuple[object, ...] = ()
) -> Iterator[Result]:
    """Yields what worker processes return for the items, in any order. They open stores as this process does.

    Arguments are as in `WorkerPool.map_unordered`, but with 0 `workers` this process does the work.
    """
    if not workers:
        return (function(*shared, item) for item in items)
    return _get_workers().map_unordered(function, items, workers, shared=shared, set_up=job_stores.share_options())


def map_in_order(function: Callable[[Item], Result], items: Iterable[Item], workers: int) -> Iterator[Result]:
    """Yields what `map_unordered` yields, in the order of the items."""
    waiting: dict[int, Result] = {}
    next_number = 0
    for number, result in map_unordered(_call_numbered, enumerate(items), workers, shared=(function,)):
        waiting[number] = result
        while next_number in waiting:
            yield waiting.pop(next_number)
            next_number += 1


def _call_numbered(function: Callable[[Item], Result], numbered: tuple[int, Item]) -> tuple[int, Result]:
    number, item = numbered
    return number, function(item)


def is_small(images: int, num_bytes: int) -> bool:
    """Returns whether images are so few and small that this process writes them before worker processes can start."""
    return images <= _SMALL_IMAGES and num_bytes <= _SMALL_BYTES


def holds_little(path: str) -> bool:
    """Returns whether a path is a folder of this machine whose files are as few and small as `is_small` asks."""
    files = num_bytes = 0
    try:
        for size in _iterate_sizes(path):
            files, num_bytes = files + 1, num_bytes + size
            if not is_small(files, num_bytes):
                return False
    except OSError:
        return False
    return True


def _iterate_sizes(folder: str) -> Iterator[int]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield 0  # a folder counts as a file, so that a tree of many empty folders is not walked to its end
                yield from _iterate_sizes(entry.path)
            else:
                yield entry.stat().st_size
