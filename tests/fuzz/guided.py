"""One parser, guided by the code that its inputs reach: python -m tests.fuzz.guided NAME SECONDS SEED FOLDER

Needs atheris, which is Google's libFuzzer for Python: pip install atheris.
"""

import random
import sys

import atheris

with atheris.instrument_imports(include=["tfpipe"]):
    from tests.fuzz import at_random, mutate


def main() -> None:
    """Does not return: libFuzzer ends the process, with another exit code than 0 if it found something."""
    name, seconds, seed, folder = sys.argv[1:]
    parser = at_random.TARGETS[name]

    def mutator(data: bytes, max_size: int, seed: int) -> bytes:
        rng = random.Random(seed)
        changed = atheris.Mutate(data, max_size) if rng.random() < 0.3 else mutate.change(data, parser.kind, rng)
        return bytes(changed[:max_size])

    def run(data: bytes) -> None:
        at_random.run_timed(name, data)

    flags = [
        f"-max_total_time={seconds}",
        f"-seed={int(seed) + 1}",
        f"-max_len={at_random.MAX_BYTES}",
        "-rss_limit_mb=1024",
    ]
    flags += [f"-timeout={2 * at_random.SECONDS}", f"-artifact_prefix={folder}/{name}-"]
    at_random.limit()
    atheris.Setup([sys.argv[0], *flags, f"{folder}/{name}"], run, custom_mutator=mutator)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
