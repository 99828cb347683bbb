"""One parser, without guidance and without atheris: python -m tests.fuzz.at_random NAME SECONDS SEED FOLDER"""

import hashlib
import random
import sys
import time
from collections.abc import Generator

from tests.fuzz import mutate, one

_MAX_KEPT = 500


def inputs(name: str, seed: object) -> Generator[bytes, bool, None]:
    """Changes of the seeds, and of what was read all the same; each must be tried before the next is asked for."""
    parser, rng = one.TARGETS[name], random.Random(f"{seed} {name}")
    kept = list(parser.seeds)
    while True:
        data = mutate.change(rng.choice(kept), parser.kind, rng)[: one.MAX_BYTES]
        was_read = yield data
        if was_read and len(kept) < _MAX_KEPT:
            kept.append(data)


def main() -> None:
    """Ends with an exception where a parser does."""
    name, seconds, seed, folder = sys.argv[1:]
    runs, end = 0, time.monotonic() + float(seconds)
    one.limit()
    tried = inputs(name, seed)
    data = next(tried)
    while time.monotonic() < end:
        runs += 1
        try:
            data = tried.send(one.run_timed(name, data))
        except BaseException:
            with open(f"{folder}/{name}-crash-{hashlib.sha256(data).hexdigest()[:16]}", "wb") as file:
                file.write(data)
            raise
    print(f"Done {runs} runs in {seconds} second(s)")


if __name__ == "__main__":
    main()
