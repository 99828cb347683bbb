"""Images of random pixels, and the folders, tar files and zip archives that hold them."""

import io
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

Files = Mapping[str, bytes]


def make_image(seed: int, size: tuple[int, int], image_format: str, **options: Any) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)
    return save_image(Image.fromarray(pixels), image_format, **options)


def save_image(image: Image.Image, image_format: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, image_format, **options)
    return buffer.getvalue()


def make_exif(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def make_jpeg(seed: int, size: tuple[int, int] = (24, 16), **options: Any) -> bytes:
    return make_image(seed, size, "JPEG", **options)


def make_png(seed: int, size: tuple[int, int] = (24, 16)) -> bytes:
    return make_image(seed, size, "PNG")


def make_photos(class_counts: Mapping[str, int], seed: int = 0) -> dict[str, bytes]:
    """Returns different images by name: `cat/000.jpg`, `cat/001.jpg`, ... for each class and its count."""
    names = [f"{name}/{i:03d}.jpg" for name, count in class_counts.items() for i in range(count)]
    return {name: make_jpeg(1000 * seed + i) for i, name in enumerate(names)}


def write_files(folder: Path, files: Files) -> Path:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def write_many(folder: Path, count: int) -> Path:
    """Writes enough images for something to happen in the middle of the work."""
    pool = [make_jpeg(i, (256, 192)) for i in range(40)]
    return write_files(folder, {f"{'abc'[i % 3]}/{i:04d}.jpg": pool[i % 40] for i in range(count)})


def make_tar(files: Files, mode: str = "w", extra: Sequence[tarfile.TarInfo] = ()) -> bytes:
    """Returns a tar file of `files`, with members that have no content in `extra`."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        for info in extra:
            tar.addfile(info)
    return buffer.getvalue()


def write_tar(path: Path, files: Files, mode: str = "w") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(make_tar(files, mode))
    return path


def write_zip(path: Path, files: Files, method: int = zipfile.ZIP_DEFLATED) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path
