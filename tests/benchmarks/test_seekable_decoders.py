"""The benchmark of other decoders, on a few small JPEGs: its rows, and what it says of what it cannot measure."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import pytest
from PIL import Image

from tests.benchmarks.seekable_decoders import AS_IS, OPTIMAL, SEEKABLE, format_row, measure, write_forms
from tests.conftest import PATH_OF_REPOSITORY, ROOT
from tfpipe.images.seekable import is_seekable

COMMAND = [sys.executable, str(ROOT / "tests" / "benchmarks" / "seekable_decoders.py")]


def draw(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Draws waves and much noise, so that each pixel differs from its neighbors, in color too."""
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x / 17 + y / 29), np.cos(x / 11 - y / 23), np.sin((x + y) / 7)]
    noise = np.random.default_rng(seed).normal(0, 40, (height, width, 3))
    return np.clip(128 + 60 * np.stack(waves, -1) + noise, 0, 255).astype(np.uint8)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Four JPEGs that can be made seekable, one of them gray and one progressive; a CMYK one and a damaged one."""
    folder = tmp_path / "images"
    (folder / "class").mkdir(parents=True)
    for number, mode in enumerate(("RGB", "RGB", "L", "RGB", "CMYK", "RGB")):
        buffer = io.BytesIO()
        image = Image.fromarray(draw(60 + number, 90)).convert(mode)
        image.save(buffer, "JPEG", quality=80 + number, progressive=number == 1)
        data = buffer.getvalue()
        (folder / "class" / f"{number}.jpg").write_bytes(data[: len(data) // 2] if number == 5 else data)
    return folder


@pytest.mark.slow
def test_each_decoder_has_a_row(images: Path, tmp_path: Path) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "simplejpeg.py").write_text("raise ImportError('there is none')")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "jpegtran").write_text("#!/bin/sh\nexec /bin/cat\n")
    (tmp_path / "bin" / "jpegtran").chmod(0o755)
    names = ("Pillow", "TensorFlow", "simplejpeg", "tfpipe's native library")
    options = [option for name in names for option in ("--only", name)]
    done = subprocess.run(
        [*COMMAND, str(images), "--rounds", "2", "--json", str(tmp_path / "figures.json"), *options],
        env={
            **os.environ,
            "PATH": str(tmp_path / "bin"),
            "PYTHONPATH": os.pathsep.join([str(tmp_path / "modules"), PATH_OF_REPOSITORY]),
        },
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows = json.loads((tmp_path / "figures.json").read_text())["rows"]
    assert tuple(rows) == names
    assert rows.pop("simplejpeg") == {"failed": "ImportError: there is none"}
    for row in rows.values():
        assert row["images"] == 4
        assert row["unequal"] == {AS_IS: 0, OPTIMAL: 0, SEEKABLE: 0}
        assert {form: len(times) for form, times in row["cpu_s"].items()} == {AS_IS: 2, OPTIMAL: 2, SEEKABLE: 2}
    lines = done.stdout.splitlines()
    assert lines[0].startswith("4 JPEGs, 1 of them progressive as they are; 2 of other kinds or damaged, left out; ")
    missing = f"{'simplejpeg':30} not measured: ImportError: there is none (pip install simplejpeg)"
    assert lines[-2] == missing
    assert all(line.endswith("   same pixels") for line in (*lines[-4:-2], lines[-1]))


def test_without_jpegtran_two_forms_are_left(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    about = write_forms(images, tmp_path / "forms")
    assert "optimal codes: not measured: there is no jpegtran" in about
    assert {path.name for path in (tmp_path / "forms").iterdir()} == {AS_IS, SEEKABLE}
    originals = sorted(path.read_bytes() for path in images.rglob("*.jpg"))
    assert all(path.read_bytes() in originals for path in (tmp_path / "forms" / AS_IS).iterdir())
    assert all(is_seekable(path.read_bytes()) for path in (tmp_path / "forms" / SEEKABLE).iterdir())


def test_a_folder_without_jpegs_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(click.ClickException, match=r" must hold JPEGs that can be made seekable, got none in 0\.$"):
        write_forms(tmp_path, tmp_path)


def test_pixels_that_differ_are_not_hidden(tmp_path: Path) -> None:
    for form, seeds in ((AS_IS, (1, 2, 3)), (SEEKABLE, (1, 4, 5))):
        (tmp_path / form).mkdir()
        for number, seed in enumerate(seeds):
            Image.fromarray(draw(16, 16, seed)).save(tmp_path / form / f"{number}.jpg")
    assert measure(tmp_path, "Pillow", 1)["unequal"] == {AS_IS: 0, SEEKABLE: 2}
    row = {
        "version": "1.2",
        "images": 100,
        "unequal": {AS_IS: 0, SEEKABLE: 2},
        "cpu_s": {AS_IS: [0.2, 0.5, 0.2], SEEKABLE: [0.25, 0.5, 0.4]},
    }
    assert format_row("Pillow", row).split() == "Pillow 1.2 500 250 0.800 (0.500-1.000) PIXELS DIFFER: 2 images".split()
