"""Ctrl-C that is never lost.

Python raises KeyboardInterrupt wherever the main thread happens to be. If that is a finalizer (`__del__`), a callback
of the garbage collector or one of a weak reference, no caller can catch it: Python prints "Exception ignored in ..."
and the program goes on. JAX, for one, runs Python code in each garbage collection.

Python hands such an exception to `sys.unraisablehook`. Here that hook sends the signal once more, a moment later, until
the exception arises in code that can pass it on. An interrupt that is on its way already is never raised twice, so
clean-up code is left alone.
"""

import contextlib
import signal
import sys
from collections.abc import Iterator

_AGAIN_AFTER_S = 0.02


@contextlib.contextmanager
def restore_interrupts() -> Iterator[None]:
    """Raises KeyboardInterrupt where compiled code has made another error of it.

    If it strikes while an extension module is imported, as TensorFlow's are, Python reports a SystemError, "returned a
    result with an exception set", and some libraries an ImportError.
    """
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, KeyboardInterrupt):
            cause = cause.__cause__ or cause.__context__
        if cause is None:
            raise
        raise KeyboardInterrupt from error


@contextlib.contextmanager
def keep_interrupts() -> Iterator[None]:
    """Repeats SIGINT while the block runs, as long as Python ignores the KeyboardInterrupt.

    It must be entered in the main thread. It takes SIGALRM and its timer for itself.
    """
    hook_before = sys.unraisablehook

    # A thread could hold the signal back as well, but starting one here could be interrupted; a timer cannot.
    def interrupt_later(unraisable: "sys.UnraisableHookArgs") -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_AFTER_S)
        else:
            hook_before(unraisable)

    # SIGINT and not KeyboardInterrupt: its handler may have been changed, and it may be blocked for a while.
    handler_before = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    sys.unraisablehook = interrupt_later
    try:
        yield
    finally:
        sys.unraisablehook = hook_before
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler_before)
