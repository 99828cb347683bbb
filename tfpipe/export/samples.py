"""Reads the records of a shard as samples: image files, a class, and all other features."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfpipe.engine.record_reader import RecordReader
from tfpipe.errors import FormatError
from tfpipe.format.example import Feature
from tfpipe.format.image_form import ImageForm
from tfpipe.format.manifest import Manifest
from tfpipe.format.schema import FeatureSpec
from tfpipe.readers.data_source import Record, data_source

_ADVICE = "Copy the dataset again, or save the undamaged records with `tfpipe repair`."

# The ending of a file of each format that `sniff_format` knows.
_ENDINGS = {"jpeg": "jpg", "tiff": "tif"}
_PAYLOADS_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Sample:
    """One record in the form that the writers of other formats take."""

    number: int  # in its split, from 0
    record: Record
    files: Sequence[tuple[bytes, str]]  # images, or PNGs of raw pixels, each with the ending of its name
    features: dict[str, Any]  # all but the image, the class and sizes of tensors; a mask is the bytes of its PNG


@dataclass(frozen=True, slots=True)
class ShardJob:
    """A shard to export."""

    split: str
    name: str  # of the exported file, without its ending: `train-00003-of-00008`
    rows: range  # the shard's records, by their numbers in the split, or in the view of it that is exported
    num_bytes: int  # of the shard


def list_columns(manifest: Manifest) -> tuple[FeatureSpec, ...]:
    """Returns all features but the image, the class and sizes of tensors, in the schema's order."""
    schema = manifest.full_schema
    taken = {*manifest.image_keys, manifest.label_key, *schema.sizes_keys}
    return tuple(spec for spec in schema.features if spec.name not in taken)


def read_payloads(job: ShardJob, manifest: Manifest) -> Iterator[bytes]:
    """Yields the bytes of each record, a `tf.train.Example` with the features of added columns."""
    with RecordReader(manifest.directory, manifest, job.split) as reader:
        for begin in job.rows[::_PAYLOADS_AT_ONCE]:
            yield from reader.read_payloads(range(begin, min(begin + _PAYLOADS_AT_ONCE, job.rows.stop)))


def read_samples(job: ShardJob, manifest: Manifest) -> Iterator[Sample]:
    """Yields the records of a shard as samples."""
    columns, chosen = list_columns(manifest), manifest.splits[job.split].chosen
    with data_source(manifest, job.split) as source:
        for record in source[job.rows.start : job.rows.stop]:
            try:
                files = _get_files(record, manifest) if manifest.image_key is not None else []
                values = {
                    spec.name: _get_value(spec, record.features) for spec in columns if spec.name in record.features
                }
            except FormatError as error:
                raise FormatError(f"Record {record.index} of {job.split!r}: {error} {_ADVICE}") from None
            number = record.index if chosen is None else int(chosen.numbers[record.index])
            yield Sample(number, record, files, values)


def _get_value(spec: FeatureSpec, features: dict[str, Feature]) -> Any:
    """Returns a feature's value; a bfloat16 tensor becomes float32, because NumPy and other formats lack bfloat16."""
    if spec.tensor is not None and spec.tensor.dtype == "bfloat16":
        return (spec.check_stored(features).astype(np.uint32) << 16).view(np.float32)
    return spec.decode(features)


def _get_files(record: Record, manifest: Manifest) -> list[tuple[bytes, str]]:
    """Returns a record's image as a file, or its several images."""
    from tfpipe.images.decode import decode_pixels, make_image
    from tfpipe.images.errors import BadImage
    from tfpipe.images.sniff import sniff_format
    from tfpipe.images.transcode import encode

    form = ImageForm() if manifest.foreign is not None else ImageForm.recorded(manifest.image)
    try:
        if form.encoding == "raw":
            pixels = [make_image(decode_pixels(data, form)) for data in record.encoded_images]
            return [(encode(image, "png", form), "png") for image in pixels]
        kinds = map(sniff_format, record.encoded_images)
        return [(data, _ENDINGS.get(kind, kind)) for data, kind in zip(record.encoded_images, kinds, strict=True)]
    except BadImage as error:
        raise FormatError(f"its image cannot be used, {error}.") from None
