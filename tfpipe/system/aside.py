"""Runs a call that may never return in a thread of its own."""

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

Result = TypeVar("Result")


def run_aside(function: Callable[[], Result], name: str) -> Future[Result]:
    """Starts a function in a daemon thread, which the program does not wait for at its end; returns its future."""
    answer = Future[Result]()

    def run() -> None:
        try:
            answer.set_result(function())
        except BaseException as error:
            answer.set_exception(error)

    Thread(target=run, name=name, daemon=True).start()
    return answer
