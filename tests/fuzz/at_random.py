"""One parser on inputs that are changed at random, in bounds of time and memory."""

import random
import resource
import signal
from collections.abc import Generator
from types import FrameType

from tests.fuzz import mutate
from tests.fuzz.targets import TARGETS
from tfpipe.errors import FormatError

_MAX_KEPT = 500
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


def inputs(name: str, seed: object) -> Generator[bytes, bool, None]:
    """Changes of the seeds, and of what was read all the same; each must be tried before the next is asked for."""
    parser, rng = TARGETS[name], random.Random(f"{seed} {name}")
    kept = list(parser.seeds)
    while True:
        data = mutate.change(rng.choice(kept), parser.kind, rng)[:MAX_BYTES]
        was_read = yield data
        if was_read and len(kept) < _MAX_KEPT:
            kept.append(data)
