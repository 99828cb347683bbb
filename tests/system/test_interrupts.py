"""A SIGINT that arrives where Python ignores what is raised."""

import gc
import os
import signal
import sys
import time
import weakref
from collections.abc import Callable

import pytest

from tfpipe.system.interrupts import keep_interrupts, restore_interrupts


def _interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)
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


@pytest.fixture
def ignored(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What Python's own hook gets to see."""
    seen: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: seen.append(unraisable.exc_type))
    return seen


@pytest.mark.parametrize("strike", [_in_a_finalizer, _in_a_callback_of_a_weak_reference, _in_three_garbage_collections])
def test_it_arrives_all_the_same(strike: Callable[[], None], ignored: list[object]) -> None:
    def wait() -> None:
        with keep_interrupts():
            strike()
            time.sleep(10)

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        wait()
    assert time.monotonic() - started < 5
    assert ignored == []


def test_clean_up_code_is_interrupted_by_nobody() -> None:
    """The interrupt was ignored once, and came; from then on it is not repeated."""
    cleaned = False

    def run() -> None:
        nonlocal cleaned
        with keep_interrupts():
            try:
                _in_a_finalizer()
                time.sleep(10)
            finally:
                time.sleep(0.2)
                cleaned = True

    with pytest.raises(KeyboardInterrupt):
        run()
    assert cleaned


def test_other_exceptions_are_left_to_the_hook_before(ignored: list[object]) -> None:
    class Faulty:
        def __del__(self) -> None:
            raise ZeroDivisionError

    with keep_interrupts():
        Faulty()
    assert ignored == [ZeroDivisionError]


def test_everything_is_as_before_afterwards(ignored: list[object]) -> None:
    hook, handler = sys.unraisablehook, signal.getsignal(signal.SIGALRM)
    with keep_interrupts():
        assert sys.unraisablehook is not hook
    assert (sys.unraisablehook, signal.getsignal(signal.SIGALRM)) == (hook, handler)


@pytest.mark.parametrize("link", ["__cause__", "__context__"])
def test_an_interrupt_that_compiled_code_has_changed_is_one_again(link: str) -> None:
    error = SystemError("<built-in function __import__> returned a result with an exception set")
    setattr(error, link, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt), restore_interrupts():
        raise error


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(ValueError, match="another"), restore_interrupts():
        raise ValueError("another") from OSError("cause")
