"""Random configurations: every face gives the batches that a slow reference makes with TensorFlow alone."""

import io
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import tensorflow as tf
import torch
from PIL import Image

import tfpipe
from tests.beam_jobs.datasets import make_dataset
from tests.beam_jobs.images import save_image, write_files
from tests.beam_jobs.inputs.parquet_files import write_table
from tests.mask_files import make_mask
from tests.service.workers import start_workers
from tfpipe.engine.config.augment_config import AugmentOptions
from tfpipe.engine.config.pipeline_config import PipelineConfig, ServiceOptions
from tfpipe.engine.order import Order
from tfpipe.format.image_form import ImageForm
from tfpipe.format.manifest import Manifest
from tfpipe.readers.grain import GrainBatches
from tfpipe.readers.jax import JaxBatches
from tfpipe.readers.numpy import NumpyBatches
from tfpipe.readers.torch import TorchBatches, data_loader
from tfpipe.system.hash_permutation import EXAMPLE, key_of

CASES, QUICK_CASES = 40, 20
NAME, MASK = "image/filename", "image/mask"
LENGTHS = {"pair": (2,), "values": (3,), "image/object/bbox/xmin": (2,), MASK: ()}
"""Numbers, lists that are padded, boxes, and masks; and how many numbers a batch has of each record."""
KINDS = {
    "jpeg": ("JPEG", ImageForm(), ("cat", "dog", "owl")),
    "png": ("PNG", ImageForm(), ("owl", "cat")),
    "raw": ("PNG", ImageForm("raw", square=24), ("dog", "cat", "ant")),
}


def draw_image(seed: int, kind: str) -> bytes:
    drawn = np.random.default_rng(seed)
    height, width = drawn.integers(20, 60, 2).tolist()
    small = drawn.integers(0, 256, (5, 6, 3)).astype(np.uint8)
    return save_image(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC), kind)


@pytest.fixture(scope="module")
def manifests(tmp_path_factory) -> dict[str, tfpipe.Manifest]:
    made = {}
    for offset, (name, (kind, form, classes)) in enumerate(KINDS.items()):
        count = 30 + 5 * offset
        files, rows = {}, []
        for k in range(count):
            image = draw_image(100 * offset + k, kind)
            files |= {f"{k}.{kind.lower()}": image, f"{k}.mask.png": make_mask(k, Image.open(io.BytesIO(image)).size)}
            sides = {"xmin": k / 100, "ymin": 0.1, "xmax": 0.9, "ymax": 0.8}
            row = {"image": f"{k}.{kind.lower()}", "label": classes[k % len(classes)], "mask": f"{k}.mask.png"}
            row |= {"pair": [k + 0.5, k / 8], "values": list(range(k % 5))}
            rows.append(row | {side: [place] * (k % 4) for side, place in sides.items()})
        folder = tmp_path_factory.mktemp("faces") / name
        source = write_table(write_files(folder / "in", files) / "t.jsonl", rows)
        make_dataset(source, folder / "out", num_shards=3, form=form)
        made[name] = tfpipe.load_manifest(str(folder / "out"))
    return made


def draw_case(number: random.Random) -> dict[str, Any]:
    """Draws what to read, how, and which step of it."""
    hosts = number.randrange(1, 8)
    mixed = number.random() < 0.4
    names = number.sample(sorted(LENGTHS), number.randrange(len(LENGTHS) + 1))
    return {
        "names": number.sample(sorted(KINDS), 2 if mixed else 1),
        "weights": [number.choice((1, 2, 5)), number.choice((1, 3))][: 2 if mixed else 1],
        "hosts": hosts,
        "host": number.randrange(hosts),
        "step": number.randrange(60),
        "training": mixed or number.random() < 0.8,
        "options": {
            "batch_size": hosts * number.randrange(2 if hosts > 1 else 4, 24 // hosts + 2),
            "image_size": number.choice((8, (12, 20))),
            "image_dtype": number.choice(("uint8", "float32", "bfloat16")),
            "one_hot": number.random() < 0.3,
            "seed": number.randrange(100),
            "block_records": number.choice((1, 2, 5)),
            "cache": number.choice(("none", "none", "bytes", "decoded")),
            "decoded_size": 30,
            "max_boxes": 2,
            "extra_features": (NAME, *names),
            "pad_to": {"values": 3} if "values" in names else {},
        },
    }


@pytest.fixture(scope="module")
def service() -> ServiceOptions:
    return ServiceOptions(workers=start_workers(2))


@pytest.mark.parametrize(
    "seed", [*range(QUICK_CASES), *(pytest.param(k, marks=pytest.mark.slow) for k in range(QUICK_CASES, CASES))]
)
def test_all_faces_give_the_batches_of_the_reference(manifests, seed, service):
    case = draw_case(random.Random(seed))
    print(case)
    options = AugmentOptions(dct_scaling=False)
    config = PipelineConfig(**case["options"], training=case["training"], augment_options=options)
    chosen = [manifests[name] for name in case["names"]]
    data: Any = chosen[0]
    if len(chosen) > 1:
        data = tfpipe.mix({one.directory: weight for one, weight in zip(chosen, case["weights"], strict=True)})
    expected = make_expected(chosen, case, config)
    for face, batch in read_faces(data, case, config, service).items():
        np.testing.assert_array_equal(batch["label"], expected["label"], err_msg=face)
        if NAME in batch:
            assert batch[NAME] == expected[NAME], face
        for name in config.extra_features[1:]:
            assert np.asarray(batch[name]).tolist() == expected[name], (face, name)
        if not config.training:
            assert batch["mask"].tolist() == expected["mask"], face
        level = 1.0 if config.image_dtype == "uint8" else 1 / 255 / 0.224
        most = {"uint8": 0.51, "float32": 0.0001, "bfloat16": 0.02}[config.image_dtype]
        if config.cache == "decoded" and config.training:
            most += level  # a cached image may be rounded to another level
        assert np.abs(batch["image"].astype(np.float64) - expected["image"]).max() <= most, face


def make_expected(chosen: list[tfpipe.Manifest], case: dict[str, Any], config: PipelineConfig) -> dict[str, Any]:
    sources = [Dataset(manifest, "train") for manifest in chosen]
    share, host = config.batch_size // case["hosts"], case["host"]
    if config.training:
        rows = list_rows(sources, case["weights"], config, case["step"])[host * share : (host + 1) * share]
    else:
        total = len(sources[0].records)
        begin, end = (total * part // case["hosts"] for part in (host, host + 1))
        largest = (total + case["hosts"] - 1) // case["hosts"]
        steps = (largest + share - 1) // share
        first = begin + case["step"] % steps * share
        rows = [(sources[0], 0, k) for k in range(first, max(min(first + share, end), first))]
    names = list(dict.fromkeys(name for source in sources for name in source.names))
    labels = [names.index(source.names[source.get(k, "image/class/label")[0]]) for source, _, k in rows]
    filled = share - len(rows)
    images = [make_image(source, k, epoch, config) for source, epoch, k in rows]
    images += [np.zeros((*config.size, 3))] * filled
    numbers = np.array(labels + [0] * filled)
    vectors = np.eye(len(names))[numbers]
    vectors[len(rows) :] = 0
    features: dict[str, list[Any]] = {}
    for name in config.extra_features[1:]:
        get = make_mask_crop if name == MASK else get_numbers
        features[name] = [get(source, k, epoch, config, name) for source, epoch, k in rows]
        features[name] += np.zeros((filled, *(config.size if name == MASK else LENGTHS[name])), int).tolist()
    return {
        **features,
        "image": np.stack(images),
        "label": vectors if config.one_hot else numbers,
        NAME: [source.get(k, NAME)[0] for source, _, k in rows] + [b""] * filled,
        "mask": [True] * len(rows) + [False] * filled,
    }


def read_faces(
    data: Any, case: dict[str, Any], config: PipelineConfig, service: ServiceOptions
) -> dict[str, dict[str, Any]]:
    """Reads one batch by each face; JAX has one process here, so it takes no part for several hosts.

    A service serves NumPy and `tf.data` where no cache is asked for.
    """
    rank = (case["host"], case["hosts"])
    by_numpy = NumpyBatches(data, "train", config, rank=rank, num_threads=2)
    step = case["step"] if config.training else case["step"] % len(by_numpy)
    faces = {"numpy": by_numpy.read(step), "numpy again": by_numpy.read(step)}
    faces["grain"] = GrainBatches(data, "train", config, None if config.training else 1, rank, num_threads=2)[step]
    served = replace(config, service=service if config.cache == "none" else ServiceOptions())
    if served != config:
        faces["numpy by workers"] = NumpyBatches(data, "train", served, rank=rank, num_threads=2).read(step)
    start = step if config.training else 0
    passed = 0 if config.training else step
    faces["numpy ahead"] = take(NumpyBatches(data, "train", config, start, rank, num_threads=2), passed)
    tensors = take(data_loader(TorchBatches(data, "train", config, start, rank=rank)), passed)
    image = tensors["image"].movedim(1, -1)
    tensors = {name: value.numpy() if isinstance(value, torch.Tensor) and name != "image" else value
               for name, value in tensors.items()}  # fmt: skip
    faces["torch"] = {**tensors, "image": image.float().numpy() if image.dtype == torch.bfloat16 else image.numpy()}
    if config.image_dtype == "bfloat16":
        for face in faces.keys() - {"torch"}:
            bits = faces[face]["image"].astype(np.uint32) << 16
            faces[face]["image"] = bits.view(np.float32)
    if case["hosts"] == 1:
        numbers = replace(config, extra_features=config.extra_features[1:])
        arrays = take(JaxBatches(data, "train", numbers, start, num_threads=2), passed)
        assert isinstance(arrays["image"], jax.Array)
        faces["jax"] = {name: np.asarray(value) for name, value in arrays.items()}
    context = tf.distribute.InputContext(case["hosts"], case["host"], case["hosts"])
    for face, each in {"tf.data": config, **({"tf.data by workers": served} if served != config else {})}.items():
        batch = take(tfpipe.build_dataset(data, "train", each, context, start).as_numpy_iterator(), passed)
        if config.image_dtype == "bfloat16":
            batch["image"] = batch["image"].astype(np.float32)
        faces[face] = {**batch, NAME: batch[NAME].tolist()}
    for face, batch in faces.items():
        np.testing.assert_array_equal(batch["image"], faces["numpy"]["image"], err_msg=face)
    return faces


def take(batches: Any, passed: int) -> Any:
    """Takes the batch after some others, and leaves the rest."""
    iterator = iter(batches)
    for _ in range(passed):
        next(iterator)
    return next(iterator)


def test_the_cases_have_every_kind() -> None:
    cases = [draw_case(random.Random(seed)) for seed in range(QUICK_CASES)]
    assert {name for case in cases for name in case["names"]} == set(KINDS)
    assert {case["hosts"] for case in cases} == set(range(1, 8))
    assert {len(case["names"]) for case in cases} == {1, 2}
    for name, values in (("image_dtype", {"uint8", "float32", "bfloat16"}), ("cache", {"none", "bytes", "decoded"})):
        assert {case["options"][name] for case in cases} == values
    assert {name for case in cases for name in case["options"]["extra_features"]} == {NAME, *LENGTHS}


FLIP_KEY = np.array((0x243F6A88, 0x05A308D3), np.int32)


class Dataset:
    """The records of a split, all in memory."""

    def __init__(self, manifest: Manifest, split: str) -> None:
        shards = manifest.splits[split].shards
        files = [str(Path(manifest.directory) / shard.file) for shard in shards]
        self.records = [tf.train.Example.FromString(data.numpy()) for data in tf.data.TFRecordDataset(files)]
        self.side = manifest.image.get("square") if manifest.image.get("encoding") == "raw" else None
        self.names = manifest.label_names

    def get(self, number: int, name: str) -> Any:
        feature = self.records[number].features.feature[name]
        return getattr(feature, feature.WhichOneof("kind") or "bytes_list").value

    def decode(self, number: int) -> Any:
        """Decodes the whole image of a record: uint8 [height, width, 3]."""
        data = self.get(number, "image/encoded")[0]
        if self.side is not None:
            return np.frombuffer(data, np.uint8).reshape(self.side, self.side, 3)
        return tf.io.decode_image(data, channels=3).numpy()


def make_image(dataset: Dataset, number: int, epoch: int, config: PipelineConfig) -> Any:
    """Crops, resizes, flips and converts the image of a record."""
    pixels, options = dataset.decode(number), config.augment_options
    if config.training and config.cache == "decoded":
        pixels = np.rint(tf.image.resize(pixels, [config.decoded_size] * 2).numpy())
    (top, left, bottom, right), flip = choose_crop(dataset, number, epoch, config, pixels.shape[:2])
    image = tf.image.resize(pixels[top:bottom, left:right], config.size).numpy()
    image = image[:, ::-1] if flip else image
    if config.image_dtype == "uint8":
        return image
    return (image / 255 - np.array(options.mean)) / np.array(options.std)


def make_mask_crop(dataset: Dataset, number: int, epoch: int, config: PipelineConfig, name: str) -> list[Any]:
    """Crops the mask of a record as its image, and takes the class under the center of each pixel."""
    classes = tf.io.decode_png(dataset.get(number, name)[0], channels=1).numpy()[..., 0].astype(int)
    if config.training and config.cache == "decoded":
        classes = resize_nearest(classes, [config.decoded_size] * 2)
    (top, left, bottom, right), flip = choose_crop(dataset, number, epoch, config, classes.shape)
    mask = resize_nearest(classes[top:bottom, left:right], config.size)
    return list((mask[:, ::-1] if flip else mask).tolist())


def get_numbers(dataset: Dataset, number: int, _: int, config: PipelineConfig, name: str) -> list[Any]:
    """Returns the numbers of a feature, cut or padded as the config says: lists with -1, and boxes with 0."""
    values, is_box = list(dataset.get(number, name)), name.startswith("image/object/")
    length = config.max_boxes if is_box else config.pad_to.get(name, len(values))
    return (values + [0.0 if is_box else -1] * length)[:length]


def resize_nearest(classes: Any, size: Sequence[Any]) -> Any:
    rows, columns = (
        ((2 * np.arange(out) + 1) * side) // (2 * out) for side, out in zip(classes.shape, size, strict=True)
    )
    return classes[rows[:, None], columns]


def choose_crop(dataset: Dataset, number: int, epoch: int, config: PipelineConfig, stored: Any) -> Any:
    """Returns the top, left, bottom and right of a crop of a stored image, and whether it is mirrored."""
    original = [int(dataset.get(number, f"image/{name}")[0]) for name in ("height", "width")]
    (height, width), options, flip = config.size, config.augment_options, False
    if config.training:
        seed = np.array([key_of(EXAMPLE, config.seed, epoch, number)], "<u8").view("<i4").astype(np.int32)
        _, _, box = tf.image.stateless_sample_distorted_bounding_box(
            [*original, 3],
            tf.zeros([1, 0, 4]),
            seed,
            min_object_covered=0.0,
            aspect_ratio_range=options.ratio,
            area_range=options.scale,
            max_attempts=10,
            use_image_if_no_bounding_boxes=True,
        )
        corners = np.rint(box.numpy().reshape(2, 2) * np.array(stored, np.float32)).astype(int)
        top, left = np.minimum(corners[0], np.array(stored) - 1)
        bottom, right = np.maximum(corners[1], (top + 1, left + 1))
        flip = options.flip and bool(
            tf.random.stateless_uniform([], seed ^ FLIP_KEY, minval=0, maxval=2, dtype=tf.int32) == 1
        )
    else:
        units = [side / out for side, out in zip(original, (height, width), strict=True)]
        share = [min(units) / unit * options.crop_fraction for unit in units]
        rows, cols = (max(int(part * side + 0.5), 1) for part, side in zip(share, stored, strict=True))
        top, left = (stored[0] - rows) // 2, (stored[1] - cols) // 2
        bottom, right = top + rows, left + cols
    return (top, left, bottom, right), flip


def list_rows(sources: Sequence[Dataset], weights: Sequence[float], config: PipelineConfig, step: int) -> list[Any]:
    batch = config.batch_size
    exact = [batch * weight / sum(weights) for weight in weights]
    shares = [int(part) for part in exact]
    for part in sorted(range(len(exact)), key=lambda part: (shares[part] - exact[part], part))[: batch - sum(shares)]:
        shares[part] += 1
    parts = []
    for dataset, share in zip(sources, shares, strict=True):
        order = Order(len(dataset.records), share, config.block_records or 1, config.seed)
        epoch, place = order.locate(step)
        parts.append([(dataset, epoch, number) for number in order.list_numbers(epoch, place).tolist()])
    rows: list[Any] = []
    for row in range(batch):  # as evenly as they can be
        lacks = [share * (row + 1) - (share - len(part)) * batch for share, part in zip(shares, parts, strict=True)]
        rows.append(parts[int(np.argmax(lacks))].pop(0))
    return rows
