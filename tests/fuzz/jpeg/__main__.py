"""Compares the native JPEG decoder with TensorFlow's, bit by bit, on drawn files and crops.

python -m tests.fuzz.jpeg --cases 200000              builds the library of this checkout
python -m tests.fuzz.jpeg --library PATH FILE...      another library, and files of one's own besides
python -m tests.fuzz.jpeg --seed N --cases 1          one file again, with all its crops

Files are numbered from --seed on. Where both decode a crop, its values must be equal to the bit. A file that was not
changed must not be refused. The first mismatch ends it with exit code 1; the file is kept under --output, and the
command that repeats it is printed. Where the process dies, the last line of --output/progress has the file's number.
"""

import os
import random
import time
from collections import Counter
from pathlib import Path

import click

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

from tests.fuzz.jpeg import native
from tests.fuzz.jpeg.compare import Mismatch, compare_file

_DETAILS = 600  # characters; all of them if a file is repeated


@click.command()
@click.option("--cases", type=click.IntRange(1), default=200_000, show_default=True, help="Crops, of all files.")
@click.option("--seed", type=click.IntRange(0), help="Of the first file.  [default: another each time, printed]")
@click.option("--library", type=click.Path(path_type=Path, exists=True), help="[default: built from this checkout]")
@click.option("--keep-going", is_flag=True, help="Count mismatches, and keep the first three of each kind.")
@click.option("--output", type=click.Path(path_type=Path), default=Path("build/fuzz/jpeg"), show_default=True)
@click.argument("files", nargs=-1, type=click.Path(path_type=Path, exists=True, dir_okay=False))
def main(
    cases: int, seed: int | None, library: Path | None, keep_going: bool, output: Path, files: tuple[Path, ...]
) -> None:
    """Compare the native JPEG decoder with TensorFlow's."""
    output.mkdir(parents=True, exist_ok=True)
    library = library or native.build(output)
    number = random.randrange(2**40) if seed is None else seed
    repeat = f"python -m tests.fuzz.jpeg --library {library} --cases 1 {' '.join(map(str, files))}".rstrip()
    print(f"seed {number}, {library}", flush=True)
    begin, functions = time.monotonic(), native.Native(library)
    counts: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    while counts["crops"] < cases and (keep_going or not kinds):
        (output / "progress").write_text(f"{number}\n")
        try:
            compare_file(functions, number, files, counts)
        except Mismatch as error:
            what = f"{error.what} ({error.file.family})"
            kinds[what] += 1
            if kinds[what] <= 3:
                path = output / f"{number}.jpg"
                path.write_bytes(error.data)
                told = f"{error.details}; {error.crop}; {error.file.family}: {error.file.description}"
                told = told if cases == 1 else told[:_DETAILS]
                print(f"{what}\n  {told}\n  kept as {path}\n  {repeat} --seed {number}")
        number += 1
    for what, count in sorted(counts.items()):
        print(f"{count:>9,} {what}")
    for what, count in kinds.most_common():
        print(f"{count:>9,} FAILED: {what}")
    print(f"{time.monotonic() - begin:.0f} s, {'no mismatch' if not kinds else 'MISMATCHES'}")
    raise SystemExit(1 if kinds else 0)


if __name__ == "__main__":
    main()
