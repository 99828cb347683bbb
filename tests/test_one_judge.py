"""What `shard` stores and `verify` calls intact, TensorFlow, NumPy, JAX and PyTorch read."""

import json
import os
import random
import struct
import time
import zlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import torch
from numpy.typing import NDArray
from PIL import Image

from tests.beam_jobs.datasets import make_dataset, read_records
from tests.beam_jobs.images import save_image, write_files
from tests.images.tiff import write_planes
from tests.mask_files import make_chunk
from tests.native.jpeg_writer import Options, draw_waves
from tfpipe import PipelineConfig, build_dataset
from tfpipe.format.image_form import ImageForm
from tfpipe.images.decode import decode_pixels
from tfpipe.images.skip_by_name import get_skip_reason
from tfpipe.integrity.verify import VerifyConfig, verify
from tfpipe.readers.jax import JaxBatches
from tfpipe.readers.numpy import NumpyBatches
from tfpipe.readers.torch import TorchBatches, data_loader

SURPLUS = (
    "damaged JPEG: it has more data than blocks, as after a flipped bit; if a viewer shows it whole, save it anew there"
)


@dataclass(frozen=True)
class Sharded:
    """What became of images."""

    stored: dict[str, bytes]
    reasons: dict[str, str]
    changed: dict[str, int]


def shard_and_read(folder: Path, images: dict[str, bytes], form: ImageForm | None = None) -> Sharded:
    """Shards images of one class, verifies what was stored, and reads all of it by every face."""
    source = write_files(folder / "in", {f"cat/{name}": data for name, data in images.items()})
    manifest = make_dataset(source, folder / "out", form=form or ImageForm(), max_bad=len(images), workers=1)
    lists = (folder / "out").glob("quarantine/quarantined.jsonl")
    lines = [json.loads(line) for file in lists for line in file.read_text().splitlines()]
    records = read_records(folder / "out")
    report = verify(str(folder / "out"), VerifyConfig(workers=0))
    assert (report.records, report.damaged) == (len(records), [])
    read_by_every_face(folder / "out", len(records))
    return Sharded(
        {Path(record["image/filename"][0].decode()).stem: record["image/encoded"][0] for record in records},
        {Path(line["path"]).stem: line["reason"] for line in lines},
        dict(manifest.changed),
    )


def read_by_every_face(dataset: Path, count: int) -> None:
    """Reads an evaluation pass. The pixels of Pillow differ by little."""
    config = PipelineConfig(batch_size=1, training=False, augment="none", image_size=16, image_dtype="uint8")
    faces = {
        "tensorflow": [batch["image"].numpy() for batch in build_dataset(str(dataset), "train", config)],
        "numpy": [batch["image"] for batch in NumpyBatches(str(dataset), "train", config)],
        "jax": [np.asarray(batch["image"]) for batch in JaxBatches(str(dataset), "train", config)],
    }
    loader = data_loader(TorchBatches(str(dataset), "train", config), num_workers=0)
    faces["torch"] = [torch.movedim(batch["image"], -3, -1).numpy() for batch in loader]
    for images in faces.values():
        assert len(images) == count
        for image, expected in zip(images, faces["tensorflow"], strict=True):
            assert np.abs(image.astype(int) - expected).mean() < 4
    for record in read_records(dataset):
        data = record["image/encoded"][0]
        if record["image/format"][0] != b"RAW":
            by_pillow = decode_pixels(data, ImageForm()).astype(int)
            assert np.abs(by_pillow - decode_by_tensorflow(data)).mean() < 4


def draw(height: int, width: int, seed: int = 0, mode: str = "RGB") -> Image.Image:
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(y / (9 + c) + c) * np.cos(x / (7 + 2 * c)) for c in range(len(mode))]
    pixels = 128 + 90 * np.stack(waves, -1) + rng.normal(0, 8, (height, width, len(mode)))
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8), mode)


def draw_sampled(factors: tuple[tuple[int, int], ...], options: Options | None = None) -> bytes:
    return draw_waves(48, 64, factors, options or Options())


def decode_by_tensorflow(data: bytes) -> NDArray[np.uint8]:
    return np.asarray(tf.io.decode_image(data, channels=3, expand_animations=False))


@pytest.mark.parametrize("tries", [60, pytest.param(1500, marks=pytest.mark.slow)])
def test_a_marker_among_the_image_data(tries: int, tmp_path: Path) -> None:
    photos = [draw(96, 128, seed) for seed in range(4)]
    encoded = [save_image(photo, "JPEG") for photo in photos]
    rng, images = random.Random(8), {}
    for k in range(tries):
        data = bytearray(encoded[k % 4])
        places = range(data.index(b"\xff\xda") + 14, len(data) - 10)
        # Before a zero it is data, and no decoder can know that it was other data.
        data[rng.choice([place for place in places if data[place + 1]])] = 0xFF
        images[f"{k}.jpg"] = bytes(data)
    got = shard_and_read(tmp_path, {**images, "whole.jpg": encoded[0]})
    assert got.stored["whole"] == encoded[0]
    usual = {"damaged JPEG: its image data is damaged"}
    assert usual <= set(got.reasons.values()) <= {*usual, SURPLUS}
    assert len(got.reasons) > 0.9 * tries
    for name in got.stored.keys() - {"whole"}:
        differences = np.abs(decode_by_tensorflow(got.stored[name]).astype(int) - photos[int(name) % 4])
        assert (differences > 40).any(-1).mean() < 0.2


@pytest.mark.parametrize(
    "form", [ImageForm(resize_short=32), ImageForm("raw", square=32), ImageForm(reencode_progressive=True)]
)
def test_damage_is_found_where_an_image_is_encoded_anew(form: ImageForm, tmp_path: Path) -> None:
    data = bytearray(save_image(draw(96, 128), "JPEG", progressive=True))
    middle = (data.rindex(b"\xff\xda") + len(data)) // 2
    data[middle : middle + 2] = b"\xff\x02"
    whole = save_image(draw(96, 128), "JPEG")
    images = {"damaged.jpg": bytes(data), "surplus.jpg": whole[:-2] + b"\x12" * 30 + whole[-2:], "a.jpg": whole}
    got = shard_and_read(tmp_path, images, form)
    assert ("a" in got.stored, "damaged" in got.reasons) == (True, True)
    assert got.reasons["surplus"] == SURPLUS


def test_fractional_sampling(tmp_path: Path) -> None:
    images = {"bad.jpg": draw_sampled(((3, 1), (2, 1), (2, 1))), "good.jpg": draw_sampled(((3, 1), (1, 1), (1, 1)))}
    got = shard_and_read(tmp_path, images)
    assert got.stored == {"good": images["good.jpg"]}
    assert got.reasons == {"bad": "JPEG whose sampling factors do not divide each other, which no decoder reads"}


@pytest.mark.parametrize("form", [ImageForm(), ImageForm(resize_short=24)], ids=["kept", "resized"])
@pytest.mark.parametrize("luma", [(4, 2), (2, 4), (4, 1)], ids=str)
def test_crops_of_color_at_a_quarter_and_a_half(luma: tuple[int, int], form: ImageForm, tmp_path: Path) -> None:
    """Reads crops at half the size, of which libjpeg leaves most color columns as they were in memory."""
    got = shard_and_read(tmp_path, {"a.jpg": draw_sampled((luma, (1, 1), (1, 1)))}, form)
    assert got.changed.get("rare_jpeg_reencoded", 0) == (luma != (4, 1))
    crop = tf.io.decode_and_crop_jpeg(got.stored["a"], [4, 4, 6, 6], channels=3, ratio=2).numpy()
    whole = tf.io.decode_jpeg(got.stored["a"], channels=3, ratio=2).numpy()
    np.testing.assert_array_equal(crop[:, 2:-2], whole[4:10, 6:8])


@pytest.mark.parametrize("adobe", [None, 0, 2])
def test_cmyk_becomes_the_rgb_that_tensorflow_makes(adobe: int | None, tmp_path: Path) -> None:
    data = draw_sampled(((1, 1),) * 4, Options(adobe=adobe))
    got = shard_and_read(tmp_path, {"a.jpg": data})
    assert got.changed == {"cmyk_to_rgb": 1}
    assert np.abs(decode_by_tensorflow(got.stored["a"]).astype(int) - decode_by_tensorflow(data)).mean() < 4


def test_a_component_that_is_named_twice(tmp_path: Path) -> None:
    data = bytearray(draw_sampled(((2, 2), (1, 1), (1, 1))))
    frame, scan = data.index(b"\xff\xc0"), data.index(b"\xff\xda")
    data[frame + 13], data[scan + 7] = data[frame + 10], data[scan + 5]
    assert shard_and_read(tmp_path, {"a.jpg": bytes(data)}).changed == {"rare_jpeg_reencoded": 1}


def test_sums_in_headers_have_limits(tmp_path: Path) -> None:
    jpeg, png = save_image(draw(16, 16), "JPEG"), save_image(draw(16, 16))
    text = make_chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(4_000_001), 9))
    junk = {"fill": b"\xff" * 1_000_000, "restarts": b"\xff\xd0" * 500_000}
    segments = {"comments": b"\xff\xfe\0\2" * 250_000, "applications": b"\xff\xe0\0\2" * 250_000}
    chunks = {"texts": 1000 * text, "empty": 200_000 * make_chunk(b"abCd", b"")}
    images = {f"{name}.jpg": jpeg[:2] + middle + jpeg[2:] for name, middle in (junk | segments).items()}
    images |= {f"{name}.png": png[:33] + middle + png[33:] for name, middle in chunks.items()}
    begin = time.process_time()
    got = shard_and_read(tmp_path, {**images, "short.png": png[:33] + text + png[33:]})
    assert time.process_time() - begin < 15  # 38 for the texts alone without a limit
    assert got.stored.keys() == {"fill", "restarts", "short"}
    assert got.reasons == {
        **dict.fromkeys(segments, "JPEG of more than 10,000 segments"),
        "texts": "PNG whose texts, up to a zTXt chunk, expand to more than 8000000 bytes",
        "empty": "PNG of more than 100,000 chunks",
    }


def test_rare_files_of_other_formats(tmp_path: Path) -> None:
    pixels = np.array([[0xF800, 0x07E0], [0x001F, 0xFFFF]], np.uint16).repeat(8, 0).repeat(8, 1)
    head = struct.pack(
        "<IHHIIiiHHIIiiII", 66 + pixels.nbytes, 0, 0, 66, 40, 16, 16, 1, 16, 3, pixels.nbytes, 0, 0, 0, 0
    )
    masks = struct.pack("<III", 0xF800, 0x07E0, 0x001F)  # 5, 6 and 5 bits
    images = {
        "565.bmp": b"BM" + head + masks + pixels[::-1].tobytes(),  # from the last row to the first
        "planar.tif": write_planes([bytes(128)] * 3, (8, 8)),
        "32.tif": save_image(Image.fromarray(np.arange(64, dtype=np.int32).reshape(8, 8)), "TIFF"),
    }
    got = shard_and_read(tmp_path, images)
    assert got.reasons == {
        "planar": "a TIFF of 16-bit samples in separate planes, which is not read; save it with interleaved samples",
        "32": "samples of 32 bits, whose white nobody knows; save them with 8 or 16 bits",
    }
    assert got.changed == {"bmp_to_png": 1}
    colors = [tuple(color) for color in decode_by_tensorflow(got.stored["565"]).reshape(-1, 3).tolist()]
    assert Counter(colors) == dict.fromkeys([(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)], 64)


@pytest.mark.slow
def test_the_images_of_pillow(tmp_path: Path) -> None:
    """Shards the images that Pillow tests itself with: all formats that it reads, damaged and hostile files too."""
    folder = os.environ.get("TFPIPE_PILLOW_IMAGES")
    if not folder:
        pytest.skip(
            "TFPIPE_PILLOW_IMAGES must name Tests/images of Pillow's sources (`pip download --no-binary :all:`)"
        )
    files = sorted(path for path in Path(folder).rglob("*") if path.is_file() and not get_skip_reason(path.name))
    images = {f"{k:04}{path.suffix}": path.read_bytes() for k, path in enumerate(files)}
    got = shard_and_read(tmp_path, images)
    assert len(got.stored) + len(got.reasons) == len(images)
    assert len(got.stored) > 0.6 * len(images)
