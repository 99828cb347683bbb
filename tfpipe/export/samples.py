"""Reads the records of a shard as samples: an image file, a class, and all other features."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfpipe.engine.record_reader import RecordReader
from tfpipe.errors import FormatError
from tfpipe.format.compressed import scan_compressed
from tfpipe.format.example import Feature, decode_example
from tfpipe.format.image_form import ImageForm
from tfpipe.format.manifest import Manifest, ShardInfo, list_images
from tfpipe.format.schema import FeatureSpec
from tfpipe.format.tfrecord import FRAME_BYTES, scan_records
from tfpipe.integrity.check_file import FileJob, Tally
from tfpipe.readers.data_source import get_label, get_text
from tfpipe.storage.file_io import open_file

_ADVICE = "Copy the dataset again, or save the undamaged records with `tfpipe repair`."

# The ending of a file of each format that `sniff_format` knows.
_ENDINGS = {"jpeg": "jpg", "tiff": "tif"}


@dataclass(frozen=True, slots=True)
class Sample:
    """One record in the form that the writers of other formats take."""

    number: int  # in its split, from 0
    name: str  # of the image file; empty if unknown; bytes that are not UTF-8 as surrogates
    files: Sequence[tuple[bytes, str]]  # images, or PNGs of raw pixels, each with the ending of its name
    label: int | None  # from 0
    features: dict[str, Any]  # all but the image, the class and sizes of tensors; a mask is the bytes of its PNG


@dataclass(frozen=True, slots=True)
class ShardJob:
    """A shard to export."""

    file: FileJob
    shard: ShardInfo
    first: int  # the number of its first record in the split
    name: str  # of the exported file, without its ending: `train-00003-of-00008`
    rows: NDArray[np.int64] | None = None  # indices in the shard of the visible records, ascending: [n]; None: all

    @property
    def num_records(self) -> int:
        """The number of records to export."""
        return self.shard.records if self.rows is None else len(self.rows)


def list_columns(manifest: Manifest) -> tuple[FeatureSpec, ...]:
    """Returns all features but the image, the class and sizes of tensors, in the schema's order."""
    schema = manifest.full_schema
    taken = {*manifest.image_keys, manifest.label_key, *schema.sizes_keys}
    return tuple(spec for spec in schema.features if spec.name not in taken)


def read_payloads(job: ShardJob, manifest: Manifest, progress: Tally) -> Iterator[tuple[int, bytes]]:
    """Yields the number and the bytes of each record to export, a `tf.train.Example` with features of added columns."""
    columns = [RecordReader(column.directory, column, job.file.split) for column in manifest.columns]
    for number, payload in _scan_payloads(job, progress):
        yield number, payload + b"".join([column.read_payload(number) for column in columns])


def _scan_payloads(job: ShardJob, progress: Tally) -> Iterator[tuple[int, bytes]]:
    path, shard, count, num_bytes = job.file.path, job.shard, 0, 0
    try:
        with open_file(path) as file:
            compression = job.file.compression
            payloads = scan_compressed(file, compression) if compression else (data for _, data in scan_records(file))
            rows = None if job.rows is None else set(job.rows.tolist())
            for payload in payloads:
                if rows is None or count in rows:
                    yield job.first + count, payload
                count, num_bytes = count + 1, num_bytes + len(payload) + FRAME_BYTES
                progress.step(min(num_bytes, shard.bytes), count)
    except FileNotFoundError:
        raise FormatError(f"{path} is missing. {_ADVICE}") from None
    except FormatError as error:
        raise FormatError(f"{path}: {error} {_ADVICE}") from None
    if count != shard.records:
        raise FormatError(f"{path} must have {shard.records:,} records, got {count:,}. {_ADVICE}")
    progress.step(shard.bytes, count, at_end=True)


def read_samples(job: ShardJob, manifest: Manifest, progress: Tally) -> Iterator[Sample]:
    """Yields the records of a shard as samples."""
    columns = list_columns(manifest)
    form = ImageForm() if manifest.foreign is not None else ImageForm.recorded(manifest.image)
    name_key = manifest.schema.name_key
    for number, payload in read_payloads(job, manifest, progress):
        try:
            features = decode_example(payload)
            files = [] if manifest.image_key is None else _get_files(features, manifest, form)
            values = {spec.name: _get_value(spec, features) for spec in columns if spec.name in features}
        except FormatError as error:
            raise FormatError(f"Record {number} of {job.file.split!r}: {error} {_ADVICE}") from None
        name = get_text(features, name_key).decode("utf-8", "surrogateescape")
        yield Sample(number, name, files, get_label(features, manifest), values)


def _get_value(spec: FeatureSpec, features: dict[str, Feature]) -> Any:
    """Returns a feature's value; a bfloat16 tensor becomes float32, because NumPy and other formats lack bfloat16."""
    if spec.tensor is not None and spec.tensor.dtype == "bfloat16":
        return (spec.check_stored(features).astype(np.uint32) << 16).view(np.float32)
    return spec.decode(features)


def _get_files(features: dict[str, Feature], manifest: Manifest, form: ImageForm) -> list[tuple[bytes, str]]:
    """Returns a record's image as a file, or its several images."""
    from tfpipe.images.decode import decode_pixels, make_image
    from tfpipe.images.errors import BadImage
    from tfpipe.images.sniff import sniff_format
    from tfpipe.images.transcode import encode

    values, several = list_images(features, manifest.image_keys), manifest.has_several_images
    if not values or (len(values) > 1 and not several):
        raise FormatError(f"it must have {'a list of' if several else 'one'} {manifest.image_key}.")
    try:
        if form.encoding == "raw":
            pixels = [make_image(decode_pixels(value, form)) for value in values]
            return [(encode(image, "png", form), "png") for image in pixels]
        kinds = map(sniff_format, values)
        return [(value, _ENDINGS.get(kind, kind)) for value, kind in zip(values, kinds, strict=True)]
    except BadImage as error:
        raise FormatError(f"its image cannot be used, {error}.") from None
