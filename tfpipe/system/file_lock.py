"""A lock that one process holds at a time: an flock(2) on a file, which the kernel drops however the process ends.

On a folder that several machines share, it holds where that file system knows flock, as NFS does.
"""

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from typing import BinaryIO


@contextlib.contextmanager
def hold_lock(path: str, when_held: Callable[[], None]) -> Iterator[BinaryIO]:
    """Holds a lock in the block, or as long as a child process has the file of the lock open.

    `when_held` is called if another process holds it, and raises, or this process waits. A holder may remove the file.
    """
    while True:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "ab", buffering=0, opener=open_no_link) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                when_held()
                fcntl.flock(file, fcntl.LOCK_EX)
            if _is_at(path, file):
                yield file
                return


def open_no_link(path: str, flags: int) -> int:
    """Opens a file as `open` does by default, but refuses a link. For the argument `opener` of `open`."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def _is_at(path: str, file: BinaryIO) -> bool:
    """Returns whether an open file still has its name: the last holder of the lock may have removed it meanwhile."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
