"""A small finished dataset, and how its images are drawn; for the tests of every folder."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from PIL import Image

# How long a case takes says more about what else the machine does than about the code.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

DrawImages = Callable[[Path], Path]

CLASSES = {"cat": 6, "dog": 4, "owl": 2}
"""Images of each class in `train`; `validation` has one of each."""


@pytest.fixture(scope="session")
def draw_images() -> DrawImages:
    """Draws a folder of images with `train/` and `validation/`, three classes, and returns it.

    `train` has 12 good images (`cat` 6, `dog` 4, `owl` 2; every second one a PNG) and `cat/broken.jpg`, cut in
    half; `validation` has one JPEG of each class. Sizes differ from 24 x 16 to 35 x 27.
    """

    def draw(folder: Path) -> Path:
        seed = 0
        for name, count in CLASSES.items():
            for split, images in (("train", count), ("validation", 1)):
                for i in range(images):
                    kind = "PNG" if split == "train" and i % 2 else "JPEG"
                    path = folder / split / name / f"{i}.{'png' if kind == 'PNG' else 'jpg'}"
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(_image(seed, (24 + seed % 12, 16 + seed % 12), kind))
                    seed += 1
        whole = _image(99, (40, 40), "JPEG")
        (folder / "train" / "cat" / "broken.jpg").write_bytes(whole[: len(whole) // 2])
        return folder

    return draw


@pytest.fixture(scope="session")
def small_dataset(tmp_path_factory: pytest.TempPathFactory, draw_images: DrawImages) -> Path:
    """`draw_images` as the job writes it: 2 shards a split, one image quarantined. Not to be changed: copy it."""
    from beam_jobs import shard_job
    from beam_jobs.config import ShardConfig

    folder = tmp_path_factory.mktemp("small")
    images = draw_images(folder / "images")
    shard_job.run(ShardConfig(input=str(images), output=str(folder / "pets"), num_shards=2, workers=1))
    return folder / "pets"


def _image(seed: int, size: tuple[int, int], kind: str) -> bytes:
    width, height = size
    y, x = np.mgrid[0:height, 0:width]
    planes = [(x * (seed + 3)) % 256, (y * (seed + 5)) % 256, np.full((height, width), 17 * seed % 256)]
    buffer = io.BytesIO()
    Image.fromarray(np.stack(planes, axis=-1).astype(np.uint8)).save(buffer, kind)
    return buffer.getvalue()


class Foreign:
    """Writes TFRecords as any script does that knows nothing of tfpipe."""

    def image(self, seed: int, size: tuple[int, int] = (24, 16), kind: str = "JPEG") -> bytes:
        return _image(seed, size, kind)

    def example(self, features: dict[str, object]) -> bytes:
        """bytes, int, float, or a list of one of them, for each feature."""
        import tensorflow as tf

        lists = {bytes: ("bytes_list", tf.train.BytesList), int: ("int64_list", tf.train.Int64List)}
        made = {}
        for name, value in features.items():
            values = value if isinstance(value, list) else [value]
            field, kind = lists.get(type(values[0]) if values else float, ("float_list", tf.train.FloatList))
            made[name] = tf.train.Feature(**{field: kind(value=values)})
        return tf.train.Example(features=tf.train.Features(feature=made)).SerializeToString()

    def write(self, path: Path, records: Iterable[dict[str, object]], compression: str = "") -> Path:
        import tensorflow as tf

        path.parent.mkdir(parents=True, exist_ok=True)
        with tf.io.TFRecordWriter(str(path), tf.io.TFRecordOptions(compression_type=compression)) as writer:
            for record in records:
                writer.write(self.example(record))
        return path

    def records(self, first: int, count: int, base: int = 0) -> list[dict[str, object]]:
        """Of tf-models' names: three classes, every third image a PNG, and a number under `id`."""
        return [
            {
                "image/encoded": self.image(k, (24 + k % 5, 16 + k % 3), "PNG" if k % 3 == 2 else "JPEG"),
                "image/class/label": k % 3 + base,
                "image/filename": f"{k}.jpg".encode(),
                "id": k,
            }
            for k in range(first, first + count)
        ]

    def imagenet(self, folder: Path, compression: str = "", base: int = 1) -> Path:
        """40 records for training in 4 files, the third of them empty, and 7 for validation in one; labels from 1."""
        first = 0
        for k, count in enumerate((14, 16, 0, 10)):
            self.write(folder / f"train-{k:05d}-of-00004", self.records(first, count, base), compression)
            first += count
        self.write(folder / "validation-00000-of-00001", self.records(first, 7, base), compression)
        return folder


@pytest.fixture(scope="session")
def foreign() -> Foreign:
    """Writes TFRecords by TensorFlow's own writer."""
    return Foreign()
