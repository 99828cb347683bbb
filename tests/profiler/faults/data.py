"""The data of the faults: photograph-like images, drawn once and sharded by the project's own job."""

import gzip
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter

from tfpipe.dataset.load import load_manifest
from tfpipe.format import file_names, manifest_json
from tfpipe.format.example import decode_example, encode_example
from tfpipe.format.manifest import Manifest, ShardInfo
from tfpipe.format.record_index import decode_index, encode_index
from tfpipe.format.tfrecord import record_footer, record_header, scan_records


@dataclass(frozen=True)
class Images:
    """A folder of JPEGs of one size."""

    name: str
    width: int
    height: int
    number: int
    quality: int = 90


@dataclass(frozen=True)
class Shards:
    """A dataset of these images."""

    images: Images
    options: tuple[str, ...] = ("--num-shards", "8")
    copies: int = 1
    joined: bool = False
    unread_bytes: int = 0
    gzipped: bool = False

    @property
    def folder(self) -> str:
        parts = [self.images.name, *(option.strip("-") for option in self.options)]
        parts += [f"blob{self.unread_bytes}"] * bool(self.unread_bytes) + ["gzip"] * self.gzipped
        return "-".join([*parts, f"x{self.copies}"] if self.copies > 1 else parts) + "-joined" * self.joined


PHOTOS = Images("photos", 500, 375, 400)
"""The size that ImageNet's photographs have on average."""

FEW_PHOTOS = Images("few-photos", 500, 375, 64)
HUGE = Images("huge", 2000, 1500, 96)
TINY = Images("tiny", 48, 32, 1600)


def make_files(shards: Shards, folder: Path) -> str:
    """Returns the pattern of the files of `train`, as foreign ones, and writes them first if they are not there yet."""
    if not (shards.unread_bytes or shards.gzipped):
        return f"{make_shards(shards, folder).directory}/train-*"
    output = folder / shards.folder
    if not output.exists():
        manifest = make_shards(replace(shards, copies=1, unread_bytes=0, gzipped=False), folder)
        output.mkdir()
        for number, shard in enumerate(manifest.splits["train"].shards):
            first = output / f"train-{number:05d}-0000"
            _rewrite(Path(manifest.directory, shard.file), first, shards)
            for copy in range(1, shards.copies):
                os.link(first, output / f"train-{number:05d}-{copy:04d}")
    return f"{output}/train-*"


def _rewrite(source: Path, output: Path, shards: Shards) -> None:
    """Writes the records of a file anew, with the feature that nobody reads or compressed."""
    rng = np.random.default_rng(0)
    with source.open("rb") as file, (gzip.open if shards.gzipped else open)(output, "wb") as out:
        for _, payload in scan_records(file):
            if shards.unread_bytes:
                payload = encode_example({**decode_example(payload), "blob/unused": rng.bytes(shards.unread_bytes)})
            out.write(record_header(len(payload)) + payload + record_footer(payload))


def index_files(shards: Shards, folder: Path) -> Manifest:
    output = folder / f"{shards.folder}-index"
    if not output.exists():
        _run_tfpipe("index", make_files(shards, folder), "--output", str(output))
    return load_manifest(str(output))


def make_shards(shards: Shards, folder: Path) -> Manifest:
    """Returns the manifest of the shards, and writes them first if they are not there yet."""
    output = folder / shards.folder
    if shards.copies > 1 and not output.exists():
        copy = join_copies if shards.joined else _copy
        copy(make_shards(replace(shards, copies=1, joined=False), folder), shards.copies, output)
    if not output.exists():
        _run_tfpipe("shard", str(draw_images(shards.images, folder)), str(output), *shards.options)
    return load_manifest(str(output))


def _run_tfpipe(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "tfpipe", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"tfpipe {' '.join(arguments)} failed:\n{done.stderr[-2000:]}")


def join_copies(manifest: Manifest, copies: int, output: Path) -> None:
    """Writes a dataset with the records of `train` several times in each shard."""
    source, info = Path(manifest.directory), manifest.splits["train"]
    (output / file_names.INDEX_DIR).mkdir(parents=True)
    longer = []
    for shard in info.shards:
        index = decode_index((source / file_names.index_name(shard.file)).read_bytes(), shard.bytes, shard.records)
        with (output / shard.file).open("wb") as out:  # a copy after the other: this process is profiled later
            for _ in range(copies):
                out.write((source / shard.file).read_bytes())
        (output / file_names.index_name(shard.file)).write_bytes(encode_index(index[:, 1].tolist() * copies))
        longer.append(shard._replace(records=shard.records * copies, bytes=shard.bytes * copies))
    _write_manifest(manifest, tuple(longer), copies, output)


def _copy(manifest: Manifest, copies: int, output: Path) -> None:
    """Writes a dataset with the same shards of `train` several times, as further names of the same files."""
    source, info = Path(manifest.directory), manifest.splits["train"]
    (output / file_names.INDEX_DIR).mkdir(parents=True)
    copied: list[ShardInfo] = []
    for shard in info.shards * copies:
        name = file_names.shard_name("train", len(copied), len(info.shards) * copies)
        os.link(source / shard.file, output / name)
        os.link(source / file_names.index_name(shard.file), output / file_names.index_name(name))
        copied.append(shard._replace(file=name))
    _write_manifest(manifest, tuple(copied), copies, output)


def _write_manifest(manifest: Manifest, shards: tuple[ShardInfo, ...], copies: int, output: Path) -> None:
    info = manifest.splits["train"]
    whole = replace(
        info,
        shards=shards,
        formats={form: number * copies for form, number in info.formats.items()},
        class_counts=tuple(number * copies for number in info.class_counts),
    )
    (output / file_names.MANIFEST).write_text(manifest_json.dumps(replace(manifest, splits={"train": whole})))


def draw_images(images: Images, folder: Path) -> Path:
    """Returns the folder of images: two classes, no image twice. Draws them if they are not there yet."""
    source = folder / f"{images.name}-images"
    if source.exists():
        return source
    rng = np.random.default_rng(0)
    base = [_draw_picture(rng, images.width + 64, images.height + 64) for _ in range(min(images.number, 8))]
    for number in range(images.number):
        x, y = rng.integers(0, 64, 2)
        picture = base[number % len(base)].crop((x, y, x + images.width, y + images.height))
        if number % 2:
            picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        path = source / "train" / ("cat" if number % 3 else "dog") / f"{number:04d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture.save(path, "JPEG", quality=images.quality)
    return source


def _draw_picture(rng: np.random.Generator, width: int, height: int) -> Image.Image:
    """Draws clouds of several sizes, edges of shapes, and a little grain: about the bytes a pixel of a photograph."""
    pixels = np.zeros((height, width, 3), np.float32)
    for cells in (3, 8, 24, 80):
        noise = rng.integers(0, 256, (cells, cells * width // height + 1, 3), dtype=np.uint8)
        layer = Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC)
        pixels += np.asarray(layer, np.float32) / 4
    for _ in range(12):
        x, y = rng.integers(0, width), rng.integers(0, height)
        w, h = rng.integers(width // 12, width // 3), rng.integers(height // 12, height // 3)
        pixels[y : y + h, x : x + w] *= rng.uniform(0.5, 1.4, 3).astype(np.float32)
    grain = rng.normal(0, 9, (height, width, 1)).astype(np.float32)
    return Image.fromarray(np.clip(pixels + grain, 0, 255).astype(np.uint8)).filter(ImageFilter.GaussianBlur(0.6))
