"""A SIGINT that arrives where Python ignores what is raised."""

import contextlib
import gc
import signal
import sys
import time
import weakref
from collections.abc import Callable

import pytest

from tfpipe.system.interrupts import keep_interrupts, restore_interrupts


def _interrupt() -> None:
    signal.raise_signal(signal.SIGINT)  # in this thread: another one could take it while this one begins to sleep
    for _ in range(100):  # Python looks for signals between two instructions
        pass


class _Finalized:
    def __del__(self) -> None:
        _interrupt()


def _in_a_finalizer() -> None:
    _Finalized()


def _in_a_callback_of_a_weak_reference() -> None:
    def finished(_: object) -> None:
        _interrupt()

    holder = type("Holder", (), {})()
    reference = weakref.ref(holder, finished)
    del holder
    assert reference() is None


def _in_three_garbage_collections() -> None:
    strikes = iter(range(3))

    def strike(phase: str, info: object) -> None:
        if next(strikes, None) is not None:
            _interrupt()

    gc.callbacks.append(strike)
    try:
        gc.collect()
        until = time.monotonic() + 10
        while time.monotonic() < until:
            time.sleep(0.001)
            gc.collect(0)
    finally:
        gc.callbacks.remove(strike)


def _in_code_that_drops_it() -> None:
    with contextlib.suppress(BaseException):
        _interrupt()


@pytest.fixture
def ignored(monkeypatch) -> list[object]:
    """What Python's own hook gets to see."""
    seen: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: seen.append(unraisable.exc_type))
    return seen


@pytest.mark.parametrize(
    "strike",
    [*(_in_a_finalizer, _in_a_callback_of_a_weak_reference, _in_three_garbage_collections), _in_code_that_drops_it],
)
def test_it_arrives_all_the_same(strike: Callable[[], None], ignored: list[object]) -> None:
    def wait() -> None:
        with keep_interrupts():
            strike()
            time.sleep(10)

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        wait()
    assert time.monotonic() - started < 9  # of 10
    assert ignored == []


def test_clean_up_code_is_interrupted_by_nobody() -> None:
    """The interrupt was ignored once, and came; while it is handled it is not repeated, whatever errors come then."""
    done: list[str] = []

    def run() -> None:
        with keep_interrupts():
            try:
                try:
                    _in_a_finalizer()
                    time.sleep(10)
                finally:
                    with contextlib.suppress(ZeroDivisionError):
                        raise ZeroDivisionError
                    time.sleep(0.3)
                    done.append("finally")
            except KeyboardInterrupt:
                time.sleep(0.3)
                done.append("except")
                raise

    with pytest.raises(KeyboardInterrupt):
        run()
    assert done == ["finally", "except"]


def test_an_error_that_compiled_code_prints_and_drops_is_not_seen(capsys: pytest.CaptureFixture[str]) -> None:
    with keep_interrupts():
        sys.excepthook(SystemError, _made_of(KeyboardInterrupt()), None)
        sys.excepthook(SystemError, _made_of(ZeroDivisionError()), None)
    assert capsys.readouterr().err.count("SystemError") == 1


def _made_of(cause: BaseException) -> SystemError:
    error = SystemError("<built-in function __import__> returned a result with an exception set")
    error.__cause__ = cause
    return error


def test_who_ignores_sigint_goes_on_ignoring_it() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with keep_interrupts():
            _interrupt()
            time.sleep(0.3)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_everything_is_as_before_afterwards_and_other_exceptions_reach_the_hook_before(ignored: list[object]) -> None:
    def look() -> list[object]:
        return [sys.unraisablehook, sys.excepthook, *map(signal.getsignal, (signal.SIGALRM, signal.SIGINT))]

    class Faulty:
        def __del__(self) -> None:
            raise ZeroDivisionError

    before = look()
    with keep_interrupts():
        assert not any(now is then for now, then in zip(look(), before, strict=True))
        Faulty()
    assert (look(), ignored) == (before, [ZeroDivisionError])


@pytest.mark.parametrize("link", ["__cause__", "__context__"])
def test_an_interrupt_that_compiled_code_has_changed_is_one_again(link: str) -> None:
    error = SystemError("<built-in function __import__> returned a result with an exception set")
    setattr(error, link, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt), restore_interrupts():
        raise error


def change_an_interrupt() -> None:
    with contextlib.suppress(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    raise TypeError


def test_an_error_without_a_trace_of_the_interrupt_that_it_was_is_one_again() -> None:
    """TensorFlow's compiled code raised an empty TypeError."""
    with pytest.raises(KeyboardInterrupt), keep_interrupts(), restore_interrupts():
        change_an_interrupt()
    with pytest.raises(TypeError), keep_interrupts(), restore_interrupts():  # the next one is forgotten
        raise TypeError


def test_other_errors_stay_what_they_are() -> None:
    error = ValueError("another")
    for cause in (OSError("cause"), error):  # which may be the error itself
        with pytest.raises(ValueError, match="another"), restore_interrupts():
            raise error from cause
