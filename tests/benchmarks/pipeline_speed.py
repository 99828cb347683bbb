"""How fast the input pipeline is, by kinds of stored images and of pipeline; README.md has the details.

python tests/benchmarks/pipeline_speed.py IMAGES --rounds 3 --beside "sh other_loaders.sh"
"""

import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from batch_times import PERIOD_S, measure
from shard_speed import make_references

BATCH, NUM_SHARDS = 64, 16

FORMS: dict[str, tuple[str, ...]] = {
    "original": (),
    "seekable": ("--seekable",),
    "short256": ("--resize-short", "256"),
    "short256-seekable": ("--resize-short", "256", "--seekable"),
    "square256": ("--encoding", "jpeg", "--square", "256", "--quality", "90"),
    "raw256": ("--encoding", "raw", "--square", "256"),
}
"""How the images are stored: options of `tfpipe shard`."""

FLOATS: dict[str, Any] = {"image_dtype": "float32"}

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "host uint8, original": ("original", {}),
    "host uint8, seekable": ("seekable", {}),
    "host float32, original": ("original", FLOATS),
    "host float32, seekable": ("seekable", FLOATS),
    "host uint8, short256": ("short256", {}),
    "host uint8, short256, seekable": ("short256-seekable", {}),
    "host uint8, original, throughput": ("original", {"order": "throughput"}),
    "host uint8, short256, throughput": ("short256", {"order": "throughput"}),
    "device, square256": ("square256", {"augment": "device"}),
    "device, raw256": ("raw256", {"augment": "device"}),
    "raw256, throughput": ("raw256", {"order": "throughput"}),
    "cache bytes, host uint8, original": ("original", {"cache": "bytes"}),
    "cache decoded, device, original": ("original", {"cache": "decoded", "augment": "device"}),
    "cache decoded, host uint8, original": ("original", {"cache": "decoded"}),
}
"""Stored form, and options of `PipelineConfig`."""

TORCH = {
    "PyTorch, original": ("original", {}),
    "PyTorch, float32, original": ("original", FLOATS),
    "PyTorch, seekable": ("seekable", {}),
}
"""The same for the reader for PyTorch."""

BY_HAND = {
    "by hand uint8, original": "original",
    "by hand float32, original": "original",
    "by hand uint8, short256": "short256",
}
"""The usual recipe, written out with `tf.data`, over the same shards."""


@click.command()
@click.argument("images", type=click.Path(exists=True, file_okay=False))
@click.option("--references", default=6000, show_default=True, help="Hard links to the images, in turns.")
@click.option("--seconds", default=2 * PERIOD_S, show_default=True, help="How long a variant is measured in a round.")
@click.option("--rounds", default=3, show_default=True, help="Every variant runs once a round, in a new process.")
@click.option("--only", multiple=True, help="Only variants whose name contains this; may be given several times.")
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="NAME=JSON",
    help="An option for all variants, such as tf_data.cycle_length=16.",
)
@click.option("--beside", help="A command that prints JSON lines with images_per_cpu_s, run in every round.")
@click.option("--tmp", type=click.Path(), help="Where the shards are written.  [default: the system's]")
@click.option("--json", "json_file", type=click.Path(), help="Write all runs to this file.")
def main(
    images: str,
    references: int,
    seconds: float,
    rounds: int,
    only: tuple[str, ...],
    changes: tuple[str, ...],
    beside: str | None,
    tmp: str | None,
    json_file: str | None,
) -> None:
    """Measure pipelines over the folder IMAGES, in turns, and print the median of each."""
    names = [name for name in (*VARIANTS, *TORCH, *BY_HAND) if not only or any(part in name for part in only)]
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=tmp) as folder:
        make_references(Path(images), Path(folder, "images"), references)
        for form in {form_of(name) for name in names}:
            shard(f"{folder}/images", f"{folder}/{form}", FORMS[form])
        for _ in range(rounds):
            if beside:
                runs += json_lines(["sh", "-c", beside])
            for name in names:
                arguments = ["--child", f"{folder}/{form_of(name)}", name, str(seconds), *changes]
                runs += json_lines([sys.executable, __file__, *arguments])
                click.echo(f"{runs[-1]['images_per_cpu_s']:8,.0f}  {name}", err=True)
    if json_file:
        Path(json_file).write_text(json.dumps(runs, indent=1) + "\n")
    columns = f"{'images per CPU-second':>24} {'per second':>11} {'first':>8} {'p99 / median':>13} {'memory':>8}"
    click.echo(f"{columns}   {rounds} rounds, {os.cpu_count()} cores, {references:,} images: median (range)")
    for name in dict.fromkeys(title(run) for run in runs):
        mine = [run for run in runs if title(run) == name]
        cpu = sorted(run["images_per_cpu_s"] for run in mine)
        wall = statistics.median(run["images_per_wall_s"] for run in mine)
        line = f"{statistics.median(cpu):8,.0f} ({cpu[0]:6,.0f}-{cpu[-1]:6,.0f}) {wall:11,.0f}"
        if "first_batch_s" in mine[0]:  # other loaders say less
            first = statistics.median(run["first_batch_s"] for run in mine)
            uneven = statistics.median(run["p99_ms"] / run["median_ms"] for run in mine)
            memory = statistics.median(run["peak_bytes"] for run in mine)
            line += f" {first:6.2f} s {uneven:13.2f} {memory / 1e9:5.2f} GB"
        click.echo(f"{line}   {name}")


def form_of(name: str) -> str:
    """How the images of a variant are stored."""
    return BY_HAND[name] if name in BY_HAND else (VARIANTS | TORCH)[name][0]


def title(run: dict[str, Any]) -> str:
    """What a run is called in the table."""
    return f"{run['peer']}: {run['variant']}"


def shard(images: str, output: str, options: tuple[str, ...]) -> None:
    """Writes the shards of one form."""
    command = [sys.executable, "-m", "tfpipe", "shard", images, output, "--num-shards", str(NUM_SHARDS), *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def json_lines(command: list[str]) -> list[dict[str, Any]]:
    """The objects that a command prints, one a line."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{shlex.join(command)} failed:\n{done.stderr[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def child(directory: str, name: str, seconds: str, *changes: str) -> None:
    """Measures one variant in this process and prints one JSON line."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tfpipe
    from tfpipe.system.options import replace_options

    def make_batches() -> Iterator[Any]:
        if name in BY_HAND:
            from pipeline_by_hand import dataset

            return iter(dataset(directory, BATCH, "float32" in name))
        options = {**(VARIANTS | TORCH)[name][1], **{k: json.loads(v) for k, v in (c.split("=", 1) for c in changes)}}
        config = replace_options(tfpipe.PipelineConfig(batch_size=BATCH), options)
        manifest = tfpipe.load_manifest(directory)
        if name in TORCH:
            from tfpipe.readers.torch import TorchBatches, data_loader

            loader = data_loader(TorchBatches(manifest, "train", config))
            return (batch for _ in range(2**30) for batch in loader)
        return iter(tfpipe.build_dataset(manifest, "train", config))

    # Their imports are none of the pipeline's time.
    if name in TORCH:
        import torch  # noqa: F401
    else:
        import tensorflow  # noqa: F401

    times = measure(make_batches, BATCH, float(seconds))
    wall = statistics.mean(times.images_per_s)
    peer = "tf.data" if name in BY_HAND else "tfpipe"
    print(json.dumps({"peer": peer, "variant": name, "images_per_wall_s": wall, **asdict(times)}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
    else:
        main()
