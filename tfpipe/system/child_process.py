"""Ends a child process with its parent, and keeps it silent after Ctrl-C."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any


def die_with_parent() -> None:
    """Makes this `multiprocessing` child exit as soon as its parent has ended, even by `kill -9`.

    A thread waits for the parent, so this also works below a fork server.
    """
    from multiprocessing import parent_process

    def exit_after(parent: Any) -> None:
        parent.join()
        os._exit(1)

    if (parent := parent_process()) is not None:
        threading.Thread(target=exit_after, args=(parent,), daemon=True).start()


@contextlib.contextmanager
def defer_interrupts() -> Iterator[None]:
    """Keeps Ctrl-C from the processes that the block starts; this process gets it after the block.

    Without it, a process that is interrupted before its first line prints a traceback.
    """
    from multiprocessing import resource_tracker  # every command imports this module, and few start processes

    resource_tracker.ensure_running()  # multiprocessing starts it before a process, and lets interrupts in again
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    # The mask holds for this thread and for the processes it starts. The kernel may give the signal to another thread
    # of this process; Python then runs the handler in the main thread, so the handler is deferred too.
    pending: list[int] = []
    handler = signal.getsignal(signal.SIGINT)  # None if it was not set from Python, and so cannot be set again
    is_deferred = handler is not None and threading.current_thread() is threading.main_thread()
    if is_deferred:
        signal.signal(signal.SIGINT, lambda number, _: pending.append(number))
    try:
        yield
    finally:
        if is_deferred:
            signal.signal(signal.SIGINT, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if pending:
            signal.raise_signal(signal.SIGINT)


@contextlib.contextmanager
def silence_stderr() -> Iterator[None]:
    """Drops what the block writes to standard error, also from C++: TensorFlow logs as it loads, at any log level."""
    sys.stderr.flush()
    stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)
