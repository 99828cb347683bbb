"""How many of 20 mislabelled images, planted among 2,000, a training finds by their losses.

python tests/benchmarks/mislabelled.py [--framework torch]
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
import numpy as np
from PIL import Image, ImageDraw

ROOT = Path(__file__).resolve().parents[2]
SHAPES, SIDE = ("circle", "square", "triangle"), 64
IMAGES, WRONG, SHOWN = 2000, 20, 40


def draw(shape: str, rng: np.random.Generator) -> Image.Image:
    """Draws one shape in a color of its own, anywhere on a noisy ground."""
    ground = rng.integers(0, 110, 3) + rng.normal(0, 12, (SIDE, SIDE, 3))
    image = Image.fromarray(np.clip(ground, 0, 255).astype(np.uint8))
    radius = int(rng.integers(12, 26))
    x, y = (int(rng.integers(radius + 2, SIDE - radius - 2)) for _ in "xy")
    corners = {"circle": None, "square": 4, "triangle": 3}[shape]
    color, pen = tuple(int(part) for part in rng.integers(140, 256, 3)), ImageDraw.Draw(image)
    if corners is None:
        pen.ellipse((x - radius, y - radius, x + radius, y + radius), color)
    else:
        pen.regular_polygon((x, y, radius), corners, float(rng.uniform(-10, 10)), color)
    return image


def write_images(folder: Path, rng: np.random.Generator) -> set[str]:
    """Writes the images into folders of their classes, some into a wrong one; returns the names of these."""
    wrong = set(rng.choice(IMAGES, WRONG, replace=False).tolist())
    names = set()
    for number in range(IMAGES):
        shape = number % len(SHAPES)
        said = (shape + int(rng.integers(1, len(SHAPES)))) % len(SHAPES) if number in wrong else shape
        path = folder / SHAPES[said] / f"{number:04}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        draw(SHAPES[shape], rng).save(path, quality=90)
        if number in wrong:
            names.add(path.relative_to(folder).as_posix())
    return names


def run(*arguments: object) -> str:
    """Runs a command of tfpipe, and returns what it prints."""
    command = [sys.executable, "-m", "tfpipe", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return done.stdout


@click.command()
@click.option("--framework", default="torch", show_default=True, help="The library that trains.")
@click.option("--epochs", default=6, show_default=True, help="The number of epochs.")
@click.option("--seed", default=0, show_default=True, help="The seed of the images and of the training.")
def main(framework: str, epochs: int, seed: int) -> None:
    """Plant mislabelled images, train `small_cnn`, and count how many are among those with the largest losses."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        names = write_images(folder / "images", np.random.default_rng(seed))
        run("shard", folder / "images", folder / "shapes")
        config = folder / "config.toml"
        config.write_text("batch_size = 64\nimage_size = 64\n\n[augment_options]\nscale = [0.5, 1.0]\n")
        training = (
            "--config",
            config,
            "--framework",
            framework,
            "--epochs",
            epochs,
            "--seed",
            seed,
            "--output",
            folder / "run",
        )
        run("train", folder / "shapes", "--record-losses", *training)
        found: list[dict[str, Any]] = json.loads(run("steps", folder / "run", "--worst", SHOWN, "--json"))["worst"]
    hits = [one["name"] in names for one in found]
    click.echo(
        f"{sum(hits)} of {WRONG} mislabelled images are among the {SHOWN} with the largest losses after {epochs} "
        f"epochs, {sum(hits[:WRONG])} among the first {WRONG}."
    )


if __name__ == "__main__":
    main()
