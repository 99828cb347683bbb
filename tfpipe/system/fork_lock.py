"""A lock between threads that is always free in a forked child, even if a thread of the parent held it.

Loaders fork workers while threads read. The guarded data must be valid at every point of a locked block.
"""

from __future__ import annotations

import os
import threading
import weakref


class ForkLock:
    """A lock for `with` blocks that is free in a forked child. A pickled copy is an independent lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _LOCKS.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[type[ForkLock], tuple[()]]:
        return ForkLock, ()


_LOCKS: weakref.WeakSet[ForkLock] = weakref.WeakSet()


def _free_all() -> None:
    for lock in _LOCKS:
        lock._lock = threading.Lock()


os.register_at_fork(after_in_child=_free_all)
