"""What restart markers in a JPEG cost other decoders, which decode whole images; README.md has the details.

python tests/benchmarks/seekable_decoders.py IMAGES --rounds 5
"""

import collections
import functools
import hashlib
import importlib
import io
import itertools
import json
import operator
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from tfpipe.images.errors import BadImage
from tfpipe.images.jpeg import read_header
from tfpipe.images.seekable import make_seekable
from tfpipe.native import jpeg

AS_IS, OPTIMAL, SEEKABLE = "as it is", "optimal codes", "seekable"
BATCH = 32  # the forms take turns of so many images, which one core decodes in 50 ms

Decode = Callable[[Sequence[bytes]], Iterator[Any]]
"""Decodes a batch of JPEGs, one after the other, into images of the library's own, which NumPy takes as arrays."""


def open_pillow() -> Decode:
    from PIL import Image

    def decode(data: bytes) -> Image.Image:
        image = Image.open(io.BytesIO(data))
        image.load()
        return image

    return functools.partial(map, decode)


def open_tensorflow(dct_method: str = "") -> Decode:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.set_visible_devices([], "GPU")
    return functools.partial(map, functools.partial(tf.io.decode_jpeg, channels=3, dct_method=dct_method))


def open_torchvision() -> Decode:
    import torch
    from torchvision.io import ImageReadMode, decode_jpeg

    torch.set_num_threads(1)

    def decode(data: bytes) -> torch.Tensor:
        return decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8), ImageReadMode.RGB)

    return functools.partial(map, decode)


def open_simplejpeg() -> Decode:
    import simplejpeg

    return functools.partial(map, simplejpeg.decode_jpeg)


def open_opencv() -> Decode:
    import cv2

    cv2.setNumThreads(1)
    flags = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
    return functools.partial(map, lambda data: cv2.imdecode(np.frombuffer(data, np.uint8), flags))


def open_dali() -> Decode:
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=BATCH, num_threads=1, device_id=None, prefetch_queue_depth=1)
    def make_pipeline() -> Any:
        encoded = fn.external_source(name="encoded", dtype=types.UINT8, ndim=1)
        return fn.decoders.image(encoded, device="cpu", output_type=types.RGB, adjust_orientation=False)

    pipeline = make_pipeline()
    pipeline.build()

    def decode(jpegs: Sequence[bytes]) -> Iterator[Any]:
        (images,) = pipeline.run(encoded=[np.frombuffer(data, np.uint8) for data in jpegs])
        return (images.at(k) for k in range(len(jpegs)))

    return decode


def open_tfpipe() -> Decode:

    def decode(data: bytes) -> np.ndarray:
        header = read_header(data, jpeg.MAX_PIXELS)
        pixels = np.empty((header.height, header.width, 3), np.uint8)
        jpeg.decode(data, (0, 0, header.height, header.width), pixels)
        return pixels

    return functools.partial(map, decode)


class Decoder(NamedTuple):
    """The module that has its version, the packages that pip installs, and the function that opens it."""

    module: str
    package: str
    open: Callable[[], Decode]


DECODERS = {
    "Pillow": Decoder("PIL", "pillow", open_pillow),
    "TensorFlow": Decoder("tensorflow", "tensorflow", open_tensorflow),
    "TensorFlow, accurate": Decoder("tensorflow", "tensorflow", lambda: open_tensorflow("INTEGER_ACCURATE")),
    "torchvision": Decoder("torchvision", "torch torchvision", open_torchvision),
    "simplejpeg": Decoder("simplejpeg", "simplejpeg", open_simplejpeg),
    "OpenCV": Decoder("cv2", "opencv-python-headless", open_opencv),
    "DALI on the CPU": Decoder("nvidia.dali", "nvidia-dali-cuda120", open_dali),
    "tfpipe's native library": Decoder("tfpipe", "tfpipe", open_tfpipe),
}


def write_forms(images: Path, folder: Path) -> str:
    """Writes a folder of JPEGs for each form, and returns a line about them."""
    files = sorted(path for path in images.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    jpegtran, written, progressive, sizes = shutil.which("jpegtran"), 0, 0, collections.Counter[str]()
    for path in files:
        data = path.read_bytes()
        try:
            header, seekable = read_header(data, jpeg.MAX_PIXELS), make_seekable(data, jpeg.MAX_PIXELS)
            if seekable is None or header.components not in (1, 3):  # few decoders take CMYK
                continue
            forms = {AS_IS: data, SEEKABLE: seekable}
            if jpegtran:
                command = [jpegtran, "-optimize", "-copy", "none"]
                forms[OPTIMAL] = subprocess.run(command, input=data, check=True, capture_output=True).stdout
        except (BadImage, subprocess.CalledProcessError):
            continue
        for form, content in forms.items():
            (folder / form).mkdir(parents=True, exist_ok=True)
            (folder / form / f"{written:08d}.jpg").write_bytes(content)
            sizes[form] += len(content)
        written, progressive = written + 1, progressive + header.progressive
    if not written:
        raise click.ClickException(f"{images} must hold JPEGs that can be made seekable, got none in {len(files)}.")
    relative = ", ".join(f"{form} {sizes[form] / sizes[AS_IS]:.3f}" for form in sizes if form != AS_IS)
    left = "" if jpegtran else f"\n{OPTIMAL}: not measured: there is no jpegtran; install libjpeg-turbo-progs"
    return (
        f"{written:,} JPEGs, {progressive:,} of them progressive as they are; "
        f"{len(files) - written:,} of other kinds or damaged, left out; bytes: {relative}{left}"
    )


def measure(folder: Path, name: str, rounds: int) -> dict[str, Any]:
    """Compares the pixels of each form with those of the JPEGs as they are, then decodes them in turns."""
    decode = DECODERS[name].open()
    forms = [form for form in (AS_IS, OPTIMAL, SEEKABLE) if (folder / form).exists()]
    jpegs = {form: [path.read_bytes() for path in sorted((folder / form).iterdir())] for form in forms}
    batches = [slice(start, start + BATCH) for start in range(0, len(jpegs[AS_IS]), BATCH)]
    digests = {form: [make_digest(image) for part in batches for image in decode(jpegs[form][part])] for form in forms}
    cpu_s = {form: [0.0] * rounds for form in forms}
    for k in range(rounds):
        for part, form in itertools.product(batches, forms):
            started = time.process_time()
            collections.deque(decode(jpegs[form][part]), maxlen=0)
            cpu_s[form][k] += time.process_time() - started
    return {
        "version": importlib.import_module(DECODERS[name].module).__version__,
        "images": len(jpegs[AS_IS]),
        "unequal": {form: sum(map(operator.ne, digests[form], digests[AS_IS])) for form in forms},
        "cpu_s": cpu_s,
    }


def make_digest(image: Any) -> bytes:
    pixels = np.asarray(image)
    return hashlib.sha256(repr(pixels.shape).encode() + pixels.tobytes()).digest()


def run_alone(folder: Path, name: str, rounds: int) -> dict[str, Any]:
    """Measures a decoder in a process of its own, because two of these libraries may not bear each other."""
    command = [sys.executable, __file__, str(folder), "--rounds", str(rounds), "--one", name]
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def format_row(name: str, row: dict[str, Any]) -> str:
    if "failed" in row:
        return f"{name:30} not measured: {row['failed']} (pip install {DECODERS[name].package})"
    line = f"{name + ' ' + row['version']:30}"
    for form, cpu_s in row["cpu_s"].items():
        line += f"{row['images'] / statistics.median(cpu_s):8,.0f}"
        if form != AS_IS:
            ratios = sorted(map(operator.truediv, row["cpu_s"][AS_IS], cpu_s))
            line += f" {statistics.median(ratios):.3f} ({ratios[0]:.3f}-{ratios[-1]:.3f})"
    unequal = sum(row["unequal"].values())
    return f"{line}   {f'PIXELS DIFFER: {unequal} images' if unequal else 'same pixels'}"


@click.command()
@click.argument("images", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Of each form; the medians count.")
@click.option("--only", multiple=True, type=click.Choice(list(DECODERS)), help="This decoder; repeat for more.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the figures of every round there.")
@click.option("--one", hidden=True, help="The decoder to measure in this process.")
def main(images: Path, rounds: int, only: tuple[str, ...], json_path: Path | None, one: str | None) -> None:
    """Decode the JPEGs of the folder IMAGES whole, on one thread, as they are and with restart markers."""
    if one is not None:
        click.echo(json.dumps(measure(images, one, rounds)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        about = write_forms(images, Path(temporary))
        forms = [form for form in (AS_IS, OPTIMAL, SEEKABLE) if Path(temporary, form).exists()]
        click.echo(f"{about}\nPython {platform.python_version()}, {platform.machine()}; {rounds} rounds")
        click.echo(f"images per CPU-second, ratio (range): {' | '.join(forms)}")
        rows = {}
        for name in only or DECODERS:
            rows[name] = run_alone(Path(temporary), name, rounds)
            click.echo(format_row(name, rows[name]))
    if json_path:
        json_path.write_text(json.dumps({"images": about, "rows": rows}, indent=1) + "\n")
    if any(sum(row.get("unequal", {}).values()) for row in rows.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
