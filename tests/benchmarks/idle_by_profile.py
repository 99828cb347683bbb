"""Compares the idle time that `tfpipe profile` says with that of a plain loop over the same batches; see README.md.

python tests/benchmarks/idle_by_profile.py IMAGES --rounds 3 --json idle.json
python tests/benchmarks/idle_by_profile.py IMAGES --only DataLoader --busy      # while another program takes a core
"""

import contextlib
import io
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import click
import numpy as np

BATCH, SIDE = 64, 224
STEPS_MS = (10.0, 20.0, 30.0, 60.0, 100.0)
WARM_UP_S, SECONDS = 4.0, 5.0
TF_DATA = {"engine": "auto", "textbook": "throughput"}
"""The pipelines of tfpipe, and the `order` with which they come."""
INPUTS = (*TF_DATA, "DataLoader", "Grain")
FOLDER = "IDLE_BY_PROFILE_FOLDER"
"""The variable of the environment with the folder: "images" and "dataset" lie in it."""


@click.command()
@click.argument("images", type=click.Path(exists=True, file_okay=False))
@click.option("--rounds", default=3, show_default=True, help="How often each row is measured.")
@click.option("--only", type=click.Choice(INPUTS), multiple=True, help="Only this input; repeatable.  [default: all]")
@click.option("--step-ms", "steps_ms", type=float, multiple=True, help="Only this step; repeatable.  [default: five]")
@click.option("--busy", is_flag=True, help="Let another program take a core meanwhile.")
@click.option("--json", "json_file", type=click.Path(), help="Write all rows to this file.")
def main(
    images: str, rounds: int, only: tuple[str, ...], steps_ms: tuple[float, ...], busy: bool, json_file: str | None
) -> None:
    """Profile inputs made of the JPEGs in IMAGES and iterate over them in a plain loop, in processes of their own."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {FOLDER: folder, "TF_CPP_MIN_LOG_LEVEL": "3"}
        Path(folder, "images").symlink_to(Path(images).resolve())
        run("tfpipe", "shard", f"{folder}/images/", f"{folder}/dataset")
        with taking_a_core() if busy else contextlib.nullcontext():
            for name, step_ms in product(only or INPUTS, steps_ms or STEPS_MS):
                rows.append(measure(name, step_ms, rounds))
                click.echo(format_row(rows[-1]))
    if json_file:
        Path(json_file).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def measure(name: str, step_ms: float, rounds: int) -> dict[str, Any]:
    """Measures the idle shares of one input, in turns."""
    row: dict[str, Any] = {"input": name, "step_ms": step_ms, "loop": [], "profile": []}
    for _ in range(rounds):
        before, profile = loop_apart(name, step_ms), run_profile(name, step_ms)
        # The machine's speed moves within seconds, so the loop runs in front of the profile and behind it.
        row["loop"].append((before + loop_apart(name, step_ms)) / 2)
        row["profile"].append(profile["idle_fraction"])
    return row


def format_row(row: dict[str, Any]) -> str:
    """Returns the medians of a row, and the round that is farthest apart, in percent."""
    loop, profile = (100 * statistics.median(row[key]) for key in ("loop", "profile"))
    worst = max((100 * (b - a) for a, b in zip(row["loop"], row["profile"], strict=True)), key=abs)
    apart = f"apart {profile - loop:+.1f} ({worst:+.1f})"
    return f"{row['input']:12}{row['step_ms']:>5.0f} ms  loop {loop:5.1f}  profile {profile:5.1f}  {apart}"


def run_profile(name: str, step_ms: float) -> dict[str, Any]:
    """Returns the report of `tfpipe profile`."""
    which = ["--loader", f"{Path(__file__).stem}:make_{name.lower()}"]
    if name in TF_DATA:
        config = Path(os.environ[FOLDER], f"{name}.toml")
        config.write_text(f'order = "{TF_DATA[name]}"\nbatch_size = {BATCH}\n', encoding="utf-8")
        which = [f"{os.environ[FOLDER]}/dataset", "--config", str(config)]
    document: dict[str, Any] = json.loads(run("tfpipe", "profile", *which, f"--step-ms={step_ms:g}", "--json"))
    return document


def loop_apart(name: str, step_ms: float) -> float:
    """Returns the idle share of a plain loop in a process of its own."""
    return float(run(__file__, name, str(step_ms)))


def run(program: str, *args: str) -> str:
    """Runs a module or a file of Python, and returns what it prints."""
    start = [program] if program.endswith(".py") else ["-m", program]
    done = subprocess.run(
        [sys.executable, *start, *args], capture_output=True, text=True, cwd=Path(__file__).parent, check=False
    )
    if done.returncode:
        raise click.ClickException(f"{program} {' '.join(args)}: {done.stderr}")
    return done.stdout


@contextlib.contextmanager
def taking_a_core() -> Iterator[None]:
    """Lets another program compute meanwhile."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as program:
        try:
            yield
        finally:
            program.kill()


def loop(name: str, step_ms: float) -> float:
    """Takes batches in a plain loop with a step that sleeps, and returns the share of the time without a step.

    A thread that wakes late, since others hold Python's lock, is late with the next step as well.
    """
    batches = repeat(make(name))
    next(batches)
    for seconds in (WARM_UP_S, SECONDS):
        steps, begins = 0, time.perf_counter()
        while time.perf_counter() - begins < seconds:
            next(batches)
            time.sleep(step_ms / 1e3)
            steps += 1
        share = 1 - steps * step_ms / 1e3 / (time.perf_counter() - begins)
    return share


def repeat(batches: Iterable[Any]) -> Iterator[Any]:
    """Yields the batches of one epoch after another."""
    while True:
        yield from batches


def make(name: str) -> Any:
    """Makes an input."""
    if name not in TF_DATA:
        return globals()[f"make_{name.lower()}"]()
    import tfpipe

    config = tfpipe.PipelineConfig(batch_size=BATCH, order=TF_DATA[name])  # type: ignore[arg-type]
    return tfpipe.build_dataset(tfpipe.load_manifest(f"{os.environ[FOLDER]}/dataset"), "train", config)


class Photos:
    """The photographs in a folder as random crops: a dataset for PyTorch, and a source for Grain."""

    def __init__(self, folder: str) -> None:
        self.paths = sorted(Path(folder).rglob("*.*"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> np.ndarray:
        from PIL import Image

        image = Image.open(io.BytesIO(self.paths[index].read_bytes())).convert("RGB")
        share = random.uniform(0.3, 1.0)
        width, height = (max(round(side * share), 1) for side in image.size)
        left, top = (random.randint(0, whole - part) for whole, part in zip(image.size, (width, height), strict=True))
        return np.asarray(image.resize((SIDE, SIDE), box=(left, top, left + width, top + height)))


def make_dataloader() -> Any:
    """Returns a DataLoader as it is usually written."""
    import torch

    return torch.utils.data.DataLoader(
        Photos(f"{os.environ[FOLDER]}/images"),  # type: ignore[arg-type]
        batch_size=BATCH,
        shuffle=True,
        num_workers=os.cpu_count() or 1,
        persistent_workers=True,
    )


def make_grain() -> Any:
    """Returns a dataset of Grain with as many threads as it takes by default."""
    import grain

    return (
        grain.MapDataset.source(Photos(f"{os.environ[FOLDER]}/images"))
        .shuffle(seed=1)
        .repeat()
        .batch(BATCH)
        .to_iter_dataset()
    )


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in INPUTS:
        print(loop(sys.argv[1], float(sys.argv[2])))
    else:
        main()
