"""Compares the native JPEG decoder with TensorFlow's, bit by bit, on drawn files and crops.

python -m tests.fuzz.jpeg --cases 200000              builds the library of this checkout, in two processes
python -m tests.fuzz.jpeg --library PATH FILE...      another library, and files of one's own besides
python -m tests.fuzz.jpeg --seed N --cases 1          one file again, with all its crops

Files are numbered from --seed on. Where both decode a crop, its values must be equal to the bit. A file that was not
changed must not be refused. The first mismatch ends it with exit code 1; the file is kept under --output, and the
command that repeats it is printed.
"""

import random
import time
from collections import Counter
from pathlib import Path

import click

from tests.fuzz.jpeg import native
from tests.fuzz.jpeg.files import draw_file
from tests.fuzz.jpeg.workers import Run

_DETAILS = 600  # characters; all of them if a file is repeated


@click.command()
@click.option("--cases", type=click.IntRange(1), default=200_000, show_default=True, help="Crops, of all files.")
@click.option("--seed", type=click.IntRange(0), help="Of the first file.  [default: another each time, printed]")
@click.option("--library", type=click.Path(path_type=Path, exists=True), help="[default: built from this checkout]")
@click.option("--processes", type=click.IntRange(1), default=2, show_default=True)
@click.option("--keep-going", is_flag=True, help="Count mismatches, and keep the first three of each kind.")
@click.option("--output", type=click.Path(path_type=Path), default=Path("build/fuzz/jpeg"), show_default=True)
@click.argument("files", nargs=-1, type=click.Path(path_type=Path, exists=True, dir_okay=False))
def main(
    cases: int,
    seed: int | None,
    library: Path | None,
    processes: int,
    keep_going: bool,
    output: Path,
    files: tuple[Path, ...],
) -> None:
    """Compare the native JPEG decoder with TensorFlow's."""
    library = library or native.build(output)
    seed = random.randrange(2**40) if seed is None else seed
    given = " ".join(map(str, files))
    repeat = f"python -m tests.fuzz.jpeg --library {library} --cases 1 {given}".rstrip()
    print(f"seed {seed}, {library}", flush=True)
    begin = time.monotonic()
    counts, mismatches = Run(library, cases, seed, min(processes, cases), keep_going, files).wait()
    kinds: Counter[str] = Counter()
    for number, what, details, data in sorted(mismatches):
        kinds[what] += 1
        if kinds[what] <= 3:
            output.mkdir(parents=True, exist_ok=True)
            path = output / f"{number}.jpg"
            path.write_bytes(data or draw_file(number, files).data)
            told = details if cases == 1 else details[:_DETAILS]
            print(f"{what}\n  {told}\n  kept as {path}\n  {repeat} --seed {number}")
    for what, count in sorted(counts.items()):
        print(f"{count:>9,} {what}")
    for what, count in kinds.most_common():
        print(f"{count:>9,} FAILED: {what}")
    print(f"{time.monotonic() - begin:.0f} s, {'no mismatch' if not mismatches else 'MISMATCHES'}")
    raise SystemExit(1 if mismatches else 0)


if __name__ == "__main__":
    main()
