"""A lock between threads that is always free in a forked child, even if a thread of the parent held it.

Loaders fork workers while threads read. The guarded data must be valid at every point of a locked block.
"""

import os
import threading
import weakref

_LOCKS: weakref.WeakSet[threading.Lock] = weakref.WeakSet()


def make_fork_lock() -> threading.Lock:
    """Makes a lock that is free in a forked child."""
    lock = threading.Lock()
    _LOCKS.add(lock)
    return lock


def _free_all() -> None:
    for lock in _LOCKS:
        if lock.locked():
            lock.release()


os.register_at_fork(after_in_child=_free_all)
