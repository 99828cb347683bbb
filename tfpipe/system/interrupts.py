"""Repeats a Ctrl-C that Python or compiled code drops, as in a finalizer or during a garbage collection.

An interrupt is remembered, and raised again until it leaves the block. Code with its own handler is left alone.
"""

import contextlib
import signal
import sys
from collections.abc import Iterator
from types import FrameType, TracebackType

_AGAIN_AFTER_S = 0.1

_is_pending = False  # whether an interrupt has come and has not left `keep_interrupts` yet


@contextlib.contextmanager
def restore_interrupts() -> Iterator[None]:
    """Raises KeyboardInterrupt in place of another error into which compiled code has turned it.

    If Ctrl-C comes while an extension module is imported, as TensorFlow's are, Python reports a SystemError, "returned
    a result with an exception set", and some libraries an ImportError. TensorFlow's own compiled code may raise an
    empty TypeError without a cause. So any error counts as the interrupt if `keep_interrupts` still has one to raise.
    """
    try:
        yield
    except Exception as error:
        if not (_is_pending or _comes_from_interrupt(error)):
            raise
        raise KeyboardInterrupt from error


@contextlib.contextmanager
def keep_interrupts() -> Iterator[None]:
    """Repeats SIGINT while the block runs, until its KeyboardInterrupt has left the block.

    It must be entered in the main thread, and uses SIGALRM and its timer. A SIGINT that goes to another handler, set
    within the block, is not repeated. If SIGINT is ignored, as in a background job of a shell, it stays ignored.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    global _is_pending
    print_unraisable, print_uncaught = sys.unraisablehook, sys.excepthook

    def interrupt(number: int, frame: FrameType | None) -> None:
        global _is_pending
        _is_pending = True
        # Setting a timer cannot be interrupted, unlike starting a thread. The timer repeats, because a signal that the
        # system gives to another thread does not wake this one.
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_AFTER_S, _AGAIN_AFTER_S)
        signal.default_int_handler(number, frame)

    def interrupt_again(*_: object) -> None:
        if not _comes_from_interrupt(sys.exc_info()[1]):
            # SIGINT and not KeyboardInterrupt: the handler of SIGINT may have been changed, or the signal blocked.
            signal.raise_signal(signal.SIGINT)

    def print_other_unraisable(unraisable: "sys.UnraisableHookArgs") -> None:
        if not _comes_from_interrupt(unraisable.exc_value):
            print_unraisable(unraisable)

    def print_other(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:  # compiled code calls it when it drops an exception
        if not _comes_from_interrupt(error):
            print_uncaught(kind, error, traceback)

    handler_before = signal.signal(signal.SIGALRM, interrupt_again)
    signal.signal(signal.SIGINT, interrupt)
    sys.unraisablehook, sys.excepthook = print_other_unraisable, print_other
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        _is_pending = False
        if signal.getsignal(signal.SIGINT) is interrupt:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.unraisablehook, sys.excepthook = print_unraisable, print_uncaught
        signal.signal(signal.SIGALRM, handler_before)


def _comes_from_interrupt(error: BaseException | None) -> bool:
    """Tests whether an error, or one in its chain of causes, is an interrupt. The chain may be a cycle."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, KeyboardInterrupt):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False
