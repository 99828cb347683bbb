"""How fast `tfpipe shard` reads the same images from other inputs than a folder: README.md has the details.

python tests/benchmarks/input_speed.py IMAGES --references 6000 --rounds 3
"""

import io
import json
import sys
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import click
import pyarrow
import pyarrow.parquet
from shard_speed import Run, adopt_orphans, make_references, run_command, spread

_FILES = 16
_ROWS_PER_GROUP = 100

Image = tuple[Path, str]
"""An image and its class."""


def _link_folder(images: Sequence[Image], target: Path) -> Path:
    return images[0][0].parents[1]


def _write_table(images: Sequence[Image], target: Path) -> Path:
    lines = [json.dumps({"image": str(path), "label": name}) + "\n" for path, name in images]
    (target / "images.jsonl").write_text("".join(lines))
    return target / "images.jsonl"


def _write_tars(images: Sequence[Image], target: Path) -> Path:
    """Writes tars of WebDataset: `KEY.jpg`, `KEY.cls` and `KEY.txt`."""
    classes = sorted({name for _, name in images})
    for k in range(_FILES):
        with tarfile.open(target / f"{k:05}.tar", "w") as tar:
            for path, name in images[k::_FILES]:
                members = {".jpg": path.read_bytes(), ".cls": b"%d" % classes.index(name), ".txt": name.encode()}
                for ending, data in members.items():
                    info = tarfile.TarInfo(path.stem + ending)
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
    return target


def _write_parquet(images: Sequence[Image], target: Path) -> Path:
    """Writes Parquet files as Hugging Face's `datasets` do."""
    classes = sorted({name for _, name in images})
    for k in range(_FILES):
        rows = images[k::_FILES]
        table = pyarrow.table(
            {
                "image": [{"bytes": path.read_bytes(), "path": path.name} for path, _ in rows],
                "label": [classes.index(name) for _, name in rows],
            }
        )
        path = target / f"train-{k:05}-of-{_FILES:05}.parquet"
        pyarrow.parquet.write_table(table, path, row_group_size=_ROWS_PER_GROUP)
    return target


INPUTS: dict[str, Callable[[Sequence[Image], Path], Path]] = {
    "folder": _link_folder,
    "table": _write_table,
    "tars": _write_tars,
    "parquet": _write_parquet,
}
"""What writes each input into a folder, and returns what `tfpipe shard` is given."""


@click.command(help=__doc__)
@click.argument("images", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--references", default=6000, show_default=True, help="Hard links to the images, in turns.")
@click.option("--rounds", default=3, show_default=True, help="Runs of each, in turns.")
@click.option("--tmp", type=click.Path(path_type=Path), help="Folder for inputs and results.  [default: the system's]")
def main(images: Path, references: int, rounds: int, tmp: Path | None) -> None:
    """Each run is a process of its own, and starts with an empty output."""
    adopt_orphans()
    runs: dict[str, list[Run]] = {name: [] for name in INPUTS}
    with tempfile.TemporaryDirectory(prefix="tfpipe-inputs-", dir=tmp) as folder:
        source = Path(folder, "images")
        make_references(images, source, references)
        listed = sorted((path, path.parent.name) for path in source.rglob("*") if path.is_file())
        inputs = {}
        for name, write in INPUTS.items():
            target = Path(folder, name)
            target.mkdir()
            inputs[name] = write(listed, target)
        for _ in range(rounds):
            for name, path in inputs.items():
                output = Path(folder, "out")
                command = [sys.executable, "-m", "tfpipe", "shard", str(path), str(output), f"--num-shards={_FILES}"]
                runs[name].append(run_command(name, command, len(listed), output, Path(folder, "log.txt")))
    click.echo("| | images/s | per CPU-second | peak MB | x folder | x folder, CPU |\n|---|---|---|---|---|---|")
    for name, mine in runs.items():
        both = list(zip(mine, runs["folder"], strict=True))
        cells = [
            spread([one.per_second for one in mine]),
            spread([one.per_cpu_second for one in mine]),
            spread([one.peak_bytes / 2**20 for one in mine]),
            spread([one.per_second / other.per_second for one, other in both], 2),
            spread([one.per_cpu_second / other.per_cpu_second for one, other in both], 2),
        ]
        click.echo(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
