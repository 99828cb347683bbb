"""Fuzzes every parser of `tfpipe.format`.

python -m tests.fuzz --minutes 10                     all, one after another; coverage-guided where atheris is installed
python -m tests.fuzz --target manifest --input FILE   one input again

An input that ends in another error than the promised one, takes 5 s or 2 GB is kept under --output, with the command
that repeats it, and the exit code is 1.
"""

import importlib.util
import random
import re
import subprocess
import sys
from pathlib import Path

import click

from tests.fuzz import at_random
from tests.fuzz.targets import TARGETS

_GRACE_S = 120  # to start, and for the last inputs


@click.command()
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), default=10, show_default=True, help="In all.")
@click.option(
    "--target", "targets", multiple=True, type=click.Choice(list(TARGETS)), help="Only these.  [default: all]"
)
@click.option("--seed", type=click.IntRange(0, 2**31), help="Of the changes.  [default: another each time, printed]")
@click.option("--output", type=click.Path(path_type=Path), default=Path("build/fuzz"), show_default=True)
@click.option("--input", "given", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Run this alone.")
def main(minutes: float, targets: tuple[str, ...], seed: int | None, output: Path, given: Path | None) -> None:
    """Fuzz the parsers; inputs that fail, and those that reach new code, are kept."""
    names = targets or tuple(TARGETS)
    if given is not None:
        at_random.limit()
        for name in names:
            print(f"{name}: {'read' if at_random.run_timed(name, given.read_bytes()) else 'refused, as it must be'}")
        return
    seed = random.randrange(2**31) if seed is None else seed
    module = "guided" if importlib.util.find_spec("atheris") else "at_random"
    seconds = max(1, round(minutes * 60 / len(names)))
    print(f"seed {seed}, {module.replace('_', ' ')}, {seconds} s for each of {len(names)} parsers", flush=True)
    failed = [name for name in names if not _fuzz(name, module, seconds, seed, output)]
    print("every parser held" if not failed else f"failed: {', '.join(failed)}")
    raise SystemExit(1 if failed else 0)


def _fuzz(name: str, module: str, seconds: int, seed: int, output: Path) -> bool:
    """Fuzzes one parser in a process of its own, and says what came of it."""
    (output / name).mkdir(parents=True, exist_ok=True)
    for k, data in enumerate(TARGETS[name].seeds):
        (output / name / f"seed-{k}").write_bytes(data)
    before = set(output.glob(f"{name}-*"))
    done = subprocess.run(
        [sys.executable, "-m", f"tests.fuzz.{module}", name, str(seconds), str(seed), str(output)],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=seconds + _GRACE_S,
    )
    said = done.stdout + done.stderr
    runs = re.findall(r"Done (\d+) runs in|^#(\d+)", said, re.MULTILINE)
    edges = re.findall(r"cov: (\d+)", said)
    count = max((int(a or b) for a, b in runs), default=0)
    print(f"{name:14}{count:>10,} runs{f', {edges[-1]} edges' if edges else ''}{', FAILED' if done.returncode else ''}")
    for path in sorted(set(output.glob(f"{name}-*")) - before):
        print(f"  python -m tests.fuzz --target {name} --input {path}")
    if done.returncode:
        print(said[-3000:])
    return not done.returncode


if __name__ == "__main__":
    main()
