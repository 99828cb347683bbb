"""What `tfpipe shard --dry-run` says of bytes and seconds, beside what the same command then takes.

python tests/benchmarks/estimate_accuracy.py IMAGES --references 4000
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import click

_FORMS = {
    "keep": ["--encoding", "keep"],
    "resize-short": ["--resize-short", "256"],
    "raw": ["--encoding", "raw", "--square", "224"],
}


def _run(*args: str | Path) -> tuple[dict[str, Any], float]:
    started = time.monotonic()
    command = [sys.executable, "-m", "tfpipe", "shard", *map(str, args), "--json"]
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    return json.loads(out), time.monotonic() - started


@click.command()
@click.argument("images", type=click.Path(path_type=Path, exists=True))
@click.option("--references", type=int, default=4000, show_default=True, help="Hard links to the images, in turns.")
@click.option("--form", "forms", type=click.Choice(list(_FORMS)), multiple=True, default=list(_FORMS))
@click.option("--tmp", type=click.Path(path_type=Path), help="On the disk of IMAGES.")
def main(images: Path, references: int, forms: tuple[str, ...], tmp: Path | None) -> None:
    """For each form, a dry run and then the job."""
    found = sorted(path for path in images.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
    with tempfile.TemporaryDirectory(dir=tmp or images.parent) as folder:
        source, output = Path(folder) / "in", Path(folder) / "out"
        for i, path in enumerate(islice(cycle(found), references)):
            target = source / f"class{i % 10}" / f"{i:06d}{path.suffix}"
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(path, target)
        for form in forms:
            options = [*_FORMS[form], "--shard-size", "16MiB"]
            plan, dry_s = _run(source, output, *options, "--dry-run")
            result, wall_s = _run(source, output, *options)
            written = sum(split["bytes"] for split in result["splits"].values())
            estimate = plan["estimate"]
            num_bytes, seconds = estimate["output_bytes"], estimate["wall_s"]
            print(
                f"{form}: {num_bytes / 1e6:,.1f} MB expected, {written / 1e6:,.1f} written "
                f"({num_bytes / written - 1:+.1%}); "
                f"{seconds:.1f} s expected, {wall_s:.1f} taken, {seconds / wall_s - 1:+.1%}; "
                f"{estimate['sampled']} of {plan['images']:,} images sampled in {dry_s:.1f} s",
                flush=True,
            )
            shutil.rmtree(output)


if __name__ == "__main__":
    main()
