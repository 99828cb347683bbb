"""The ways to write images as TFRecord shards that `shard_speed.py` compares, each a process of its own.

    python shard_contestants.py NAME IMAGES OUTPUT RESIZE_SHORT     RESIZE_SHORT 0: the images as they are

`loop`, `pool` and `beam-classic` do for each image what tfpipe does: a full decode, the SHA-256 of the
source, the same record; `loop` and `pool` also the SHA-256 of the shard. `pool-pillow` is `pool` with the check that
anybody would write: Pillow decodes every pixel. The others do what their users
usually do: bytes in, bytes out, unchecked. Whatever is imported here counts as start-up, so each contestant
imports its own.
"""

import hashlib
import io
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

NUM_SHARDS = 16
TFPIPE = ("tfpipe", "tfpipe-1", "tfpipe-seekable")
ONLY_IF_ASKED = ("tfpipe-seekable", "pool-pillow")
_QUALITY = 95
_WRITE_BUFFER_BYTES = 1 << 20

Contestant = Callable[[Path, Path, int], None]


def command(name: str, images: Path, output: Path, resize_short: int) -> list[str]:
    """The command line of a contestant."""
    if name not in TFPIPE:
        return [sys.executable, __file__, name, str(images), str(output), str(resize_short)]
    options = [f"--num-shards={NUM_SHARDS}"]
    if resize_short:
        options.append(f"--resize-short={resize_short}")
    if name == "tfpipe-1":
        options.append("--workers=1")
    if name == "tfpipe-seekable":
        options.append("--seekable")
    return [sys.executable, "-m", "tfpipe", "shard", str(images), str(output), *options]


def _list_images(images: Path) -> list[tuple[str, int]]:
    """Path and label of every image in class folders."""
    classes = sorted(entry.name for entry in os.scandir(images))
    return [
        (entry.path, label)
        for label, name in enumerate(classes)
        for entry in sorted(os.scandir(images / name), key=lambda entry: entry.name)
    ]


def _prepare_record(path: str, label: int, form: Any, schema: Any, by_pillow: bool = False) -> bytes:
    """Reads, checks and normalizes one image as tfpipe does, and encodes its record."""
    from tfpipe.format import schema as keys
    from tfpipe.format.example import encode_example
    from tfpipe.images.normalize import prepare_image

    with open(path, "rb", buffering=0) as file:
        data = file.read()
    image = _load_whole(data) if by_pillow else prepare_image(data, form, filename=path)
    payload = encode_example(
        schema.check(
            {
                keys.IMAGE_ENCODED: image.encoded,
                keys.IMAGE_FORMAT: image.format,
                keys.IMAGE_HEIGHT: image.height,
                keys.IMAGE_WIDTH: image.width,
                keys.IMAGE_CHANNELS: image.channels,
                keys.IMAGE_COLORSPACE: image.colorspace,
                keys.IMAGE_FILENAME: path,
                keys.IMAGE_SHA256: hashlib.sha256(data).hexdigest(),
                keys.CLASS_LABEL: label,
                keys.CLASS_TEXT: os.path.basename(os.path.dirname(path)),
            }
        )
    )
    return payload


def _load_whole(data: bytes) -> Any:
    """Decodes every pixel, and returns what a record says of the image."""
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        image.load()
        channels = len(image.getbands())
        return SimpleNamespace(
            encoded=data,
            format=image.format,
            height=image.height,
            width=image.width,
            channels=channels,
            colorspace="Grayscale" if channels == 1 else "RGB",
        )


def _form_and_schema(resize_short: int) -> tuple[Any, Any]:
    from tfpipe.format.image_form import ImageForm
    from tfpipe.format.schema import image_schema

    return ImageForm(resize_short=resize_short or None), image_schema(labeled=True, boxes=False, box_labels=False)


def _write_shard(
    output: Path, resize_short: int, job: tuple[int, Sequence[tuple[str, int]]], by_pillow: bool = False
) -> str:
    """Writes one shard; its SHA-256 as text."""
    from tfpipe.format.tfrecord import record_footer, record_header

    shard, images = job
    form, schema = _form_and_schema(resize_short)
    digest = hashlib.sha256()
    with open(output / f"train-{shard:05}-of-{NUM_SHARDS:05}.tfrecord", "wb", buffering=_WRITE_BUFFER_BYTES) as out:
        for path, label in images:
            payload = _prepare_record(path, label, form, schema, by_pillow)
            for part in (record_header(len(payload)), payload, record_footer(payload)):
                out.write(part)
                digest.update(part)
    return digest.hexdigest()


def _shard_jobs(images: Path) -> list[tuple[int, Sequence[tuple[str, int]]]]:
    listed = _list_images(images)
    return [(shard, listed[shard::NUM_SHARDS]) for shard in range(NUM_SHARDS)]


def loop(images: Path, output: Path, resize_short: int) -> None:
    """One process, one shard after another: what the work itself costs."""
    for job in _shard_jobs(images):
        _write_shard(output, resize_short, job)


def pool(images: Path, output: Path, resize_short: int, by_pillow: bool = False) -> None:
    """As many forked processes as cores, a shard per task: the least that the work can take here."""
    write_shard = partial(_write_shard, output, resize_short, by_pillow=by_pillow)
    with multiprocessing.get_context("fork").Pool(len(os.sched_getaffinity(0))) as workers:
        for _ in workers.imap_unordered(write_shard, _shard_jobs(images)):
            pass
        workers.close()
        workers.join()


def pool_pillow(images: Path, output: Path, resize_short: int) -> None:
    """The pool with the check that anybody would write. It keeps images as they are."""
    if resize_short:
        raise SystemExit("pool-pillow keeps images as they are: leave --resize-short out.")
    pool(images, output, resize_short, by_pillow=True)


def beam_classic(images: Path, output: Path, resize_short: int) -> None:
    """The usual graph with tfpipe's checks in it: encode each image, shuffle the records, write them."""
    _run_classic_graph(images, output, partial(_beam_record, *_form_and_schema(resize_short)))


def beam_classic_unchecked(images: Path, output: Path, resize_short: int) -> None:
    """The usual graph as it is usually written, with TensorFlow's protos."""
    _run_classic_graph(images, output, partial(_tensorflow_record, resize_short))


def _beam_record(form: Any, schema: Any, image: tuple[str, int]) -> bytes:
    return _prepare_record(*image, form, schema)


def _tensorflow_record(resize_short: int, image: tuple[str, int]) -> bytes:
    from tensorflow.train import BytesList, Example, Feature, Features, Int64List

    path, label = image
    features = {
        "image/encoded": Feature(bytes_list=BytesList(value=[_usual_bytes(path, resize_short)])),
        "image/filename": Feature(bytes_list=BytesList(value=[path.encode()])),
        "image/class/label": Feature(int64_list=Int64List(value=[label])),
    }
    record: bytes = Example(features=Features(feature=features)).SerializeToString()
    return record


def _run_classic_graph(images: Path, output: Path, to_record: Callable[[tuple[str, int]], bytes]) -> None:
    import apache_beam

    beam: Any = apache_beam  # its functions have no types
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        _ = (
            pipeline
            | beam.Create(_list_images(images))
            | beam.Map(to_record)
            | beam.Reshuffle()
            | beam.io.WriteToTFRecord(str(output / "train"), num_shards=NUM_SHARDS, file_name_suffix=".tfrecord")
        )


def tfds_generator(images: Path, output: Path, resize_short: int) -> None:
    """TensorFlow Datasets without Beam, the peer that most data sets are made with."""

    def generate(listed: Sequence[tuple[str, int]]) -> Iterator[tuple[str, dict[str, Any]]]:
        return (_tfds_example(resize_short, image) for image in listed)

    _build_tfds(images, output, generate)


def tfds_beam(images: Path, output: Path, resize_short: int) -> None:
    """TensorFlow Datasets by way of Beam."""
    import apache_beam

    beam: Any = apache_beam

    def generate(listed: Sequence[tuple[str, int]]) -> Any:
        return beam.Create(listed) | beam.Map(partial(_tfds_example, resize_short))

    _build_tfds(images, output, generate)


def _tfds_example(resize_short: int, image: tuple[str, int]) -> tuple[str, dict[str, Any]]:
    path, label = image
    return path, {"image": _usual_bytes(path, resize_short), "label": label}


def _build_tfds(images: Path, output: Path, generate: Callable[[Sequence[tuple[str, int]]], Any]) -> None:
    import tensorflow_datasets as tfds

    listed = _list_images(images)
    names = sorted({os.path.basename(os.path.dirname(path)) for path, _ in listed})

    class Sharded(tfds.core.GeneratorBasedBuilder):  # type: ignore[misc]
        """The images with their labels."""

        VERSION = tfds.core.Version("1.0.0")

        def _info(self) -> Any:
            features = {
                "image": tfds.features.Image(encoding_format="jpeg"),
                "label": tfds.features.ClassLabel(names=names),
            }
            return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

        def _split_generators(self, dl_manager: Any) -> Any:
            return {"train": self._generate_examples()}

        def _generate_examples(self) -> Any:
            return generate(listed)

    config = tfds.download.DownloadConfig(try_download_gcs=False, num_shards=NUM_SHARDS, beam_runner="FnApiRunner")
    Sharded(data_dir=output).download_and_prepare(download_config=config)


def _usual_bytes(path: str, resize_short: int) -> bytes:
    """The image as people usually store it: its bytes, or made smaller with Pillow and encoded again."""
    if not resize_short:
        return Path(path).read_bytes()
    from PIL import Image

    with Image.open(path) as opened:
        image = opened.convert("RGB")
    if min(image.size) > resize_short:
        scale = resize_short / min(image.size)
        size = round(image.width * scale), round(image.height * scale)
        image = image.resize(size, Image.Resampling.BICUBIC)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=_QUALITY)
    return buffer.getvalue()


CONTESTANTS: dict[str, Contestant | None] = {
    **dict.fromkeys(TFPIPE),  # command lines of their own
    "loop": loop,
    "pool": pool,
    "pool-pillow": pool_pillow,
    "beam-classic": beam_classic,
    "beam-classic-unchecked": beam_classic_unchecked,
    "tfds": tfds_generator,
    "tfds-beam": tfds_beam,
}

if __name__ == "__main__":
    chosen = CONTESTANTS[sys.argv[1]]
    assert chosen is not None
    chosen(Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
