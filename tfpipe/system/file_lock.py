"""A lock that one process holds at a time: an flock(2) on a file, which the kernel drops however the process ends.

On a folder that several machines share, it holds where that file system knows flock, as NFS does.
"""

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from typing import BinaryIO


@contextlib.contextmanager
def lock_file(path: str, when_locked: Callable[[], None]) -> Iterator[BinaryIO]:
    """Holds a lock on a file during the block, and for as long as a child process keeps the file open.

    If another process has it, `when_locked` is called, and may raise; else this process waits. A holder may delete the
    file and its folder.
    """
    while True:
        with _open(path) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                when_locked()
                fcntl.flock(file, fcntl.LOCK_EX)
            if _is_at(path, file):
                yield file
                return


def _open(path: str, attempts: int = 100) -> BinaryIO:
    """Opens a lock's file in its folder, which the last holder may delete meanwhile."""
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return open(path, "ab", buffering=0, opener=open_no_link)
    except FileNotFoundError:
        if not attempts:
            raise
    return _open(path, attempts - 1)


def open_no_link(path: str, flags: int) -> int:
    """Opens a file for `open`, as its argument `opener`, but refuses a symbolic link."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def _is_at(path: str, file: BinaryIO) -> bool:
    """Tests whether a path still names an open file: the last holder of the lock may have deleted it meanwhile."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
