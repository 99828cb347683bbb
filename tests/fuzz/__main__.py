"""Fuzzes every parser of `tfpipe.format`.

python -m tests.fuzz --minutes 10                     all, one after another
python -m tests.fuzz --target manifest --input FILE   one input again

An input that ends in another error than the promised one, takes 5 s or 2 GB is kept under --output, with the command
that repeats it, and the exit code is 1.
"""

import hashlib
import random
import time
import traceback
from pathlib import Path

import click

from tests.fuzz import targets as parsers


@click.command()
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), default=10, show_default=True, help="In all.")
@click.option(
    "--target", "targets", multiple=True, type=click.Choice(list(parsers.TARGETS)), help="Only these.  [default: all]"
)
@click.option("--seed", type=click.IntRange(0, 2**31), help="Of the changes.  [default: another each time, printed]")
@click.option("--output", type=click.Path(path_type=Path), default=Path("build/fuzz"), show_default=True)
@click.option("--input", "given", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Run this alone.")
def main(minutes: float, targets: tuple[str, ...], seed: int | None, output: Path, given: Path | None) -> None:
    """Fuzz the parsers; inputs that fail are kept."""
    names = targets or tuple(parsers.TARGETS)
    parsers.limit()
    if given is not None:
        for name in names:
            print(f"{name}: {'read' if parsers.run_timed(name, given.read_bytes()) else 'refused, as it must be'}")
        return
    seed = random.randrange(2**31) if seed is None else seed
    seconds = minutes * 60 / len(names)
    print(f"seed {seed}, {seconds:.0f} s for each of {len(names)} parsers", flush=True)
    failed = [name for name in names if not _fuzz(name, seconds, seed, output)]
    print("every parser held" if not failed else f"failed: {', '.join(failed)}")
    raise SystemExit(1 if failed else 0)


def _fuzz(name: str, seconds: float, seed: int, output: Path) -> bool:
    """Fuzzes one parser, and says what came of it."""
    runs, end, tried = 0, time.monotonic() + seconds, parsers.inputs(name, seed)
    data = next(tried)
    while time.monotonic() < end:
        runs += 1
        try:
            data = tried.send(parsers.run_timed(name, data))
        except (Exception, parsers.TooSlow):
            traceback.print_exc()
            output.mkdir(parents=True, exist_ok=True)
            kept = output / f"{name}-{hashlib.sha256(data).hexdigest()[:16]}"
            kept.write_bytes(data)
            print(f"{name:14}{runs:>10,} runs, FAILED\n  python -m tests.fuzz --target {name} --input {kept}")
            return False
    print(f"{name:14}{runs:>10,} runs", flush=True)
    return True


if __name__ == "__main__":
    main()
