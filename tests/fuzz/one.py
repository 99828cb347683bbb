"""One input given to one parser, with what it may take: errors other than those it promises, hangs and memory count."""

import resource
import signal
from types import FrameType

from tests.fuzz.targets import TARGETS
from tfpipe.errors import FormatError

SECONDS = 5
"""Of CPU, for one input of at most `MAX_BYTES`."""
MAX_BYTES = 1 << 16
_MAX_MEMORY_BYTES = 2 << 30  # addresses of the whole process, a third of which the libraries take


class TooSlow(BaseException):
    """No parser catches it."""


def run(name: str, data: bytes) -> bool:
    """Whether the input was read: False where it was refused with `FormatError`."""
    try:
        TARGETS[name].parse(data)
    except FormatError:
        return False
    return True


def limit() -> None:
    """Bounds memory for the rest of this process, and gets `run_timed` ready."""
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY_BYTES, _MAX_MEMORY_BYTES))

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooSlow(f"more than {SECONDS} s")

    signal.signal(signal.SIGVTALRM, stop)


def run_timed(name: str, data: bytes) -> bool:
    """`run`, with `TooSlow` where it takes too long."""
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        return run(name, data)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
