"""One record out of a finished dataset, as it is or in another form. Without TensorFlow.

What nothing asks to change is carried over byte for byte: the image, and every feature.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import isqrt
from typing import NamedTuple

from beam_jobs.inputs.read_image import UnreadableError
from beam_jobs.plan.image_ref import ImageRef, PlannedImage
from beam_jobs.plan.merge_manifests import Source
from beam_jobs.shards.work_dir import PlanHeader
from beam_jobs.storage import filesystem
from tfpipe.errors import FormatError
from tfpipe.format import schema as keys
from tfpipe.format.example import Feature, FeatureLike, decode_example, encode_example
from tfpipe.format.image_form import ImageForm
from tfpipe.format.tfrecord import read_record, read_record_at
from tfpipe.images.normalize import BadImage, PreparedImage, prepare_image
from tfpipe.system import file_io

_DIGEST_BYTES = 32


class Record(NamedTuple):
    """What is written of one image.

    Attributes:
        payload: The Example.
        image: As it is stored.
        sha256: Digest of the original.
        label: Its class; -1: none.
        name: File name of the original.
    """

    payload: bytes
    image: PreparedImage
    sha256: bytes
    label: int
    name: str


def carry(header: PlanHeader, planned: PlannedImage) -> Record:
    """The record at the planned place, with the labels and in the form of the new dataset.

    Raises:
        UnreadableError: It is damaged, or cannot be read.
        BadImage: It lacks a feature, or its image cannot be brought into the form.
    """
    records = header.records
    assert records is not None
    source = _source(records.sources, planned)
    payload, features = _read(source, planned)
    stored = _stored_image(features)
    changes: dict[str, FeatureLike] = {}
    label = -1
    if header.label_names:
        old = _number(features, keys.CLASS_LABEL)
        label = _new_label(source, old)
        if label != old:
            changes[keys.CLASS_LABEL] = label
            if keys.CLASS_TEXT in features:
                changes[keys.CLASS_TEXT] = header.label_names[label].encode()
    image = stored
    if records.reformed:
        image = _reform(stored, header.form, source)
        if image.encoded != stored.encoded:
            changes |= _image_features(image)
    if changes:
        payload = encode_example(features | changes)
    return Record(payload, image, _digest(features), label, _text(features, keys.IMAGE_FILENAME))


def identify(sources: Mapping[str, Source], planned: ImageRef) -> tuple[bytes, int]:
    """The digest of a record's original, and the new label of its class or -1; reads the record.

    Raises:
        UnreadableError, BadImage: As `carry`.
    """
    source = _source(sources, planned)
    _, features = _read(source, planned)
    label = _new_label(source, _number(features, keys.CLASS_LABEL)) if source.labels else -1
    return _digest(features), label


def _source(sources: Mapping[str, Source], planned: PlannedImage | ImageRef) -> Source:
    return sources[planned.location.rpartition("/")[0]]


def _read(source: Source, planned: PlannedImage | ImageRef) -> tuple[bytes, dict[str, Feature]]:
    """Payload and features, the checksums checked."""
    file_name = planned.location.rpartition("/")[2]
    try:
        payload = _read_payload(filesystem.join(source.directory, file_name), planned.offset, planned.size)
        return payload, decode_example(payload)
    except FormatError as error:
        raise UnreadableError(f"{file_name}: {str(error).rstrip('.')}") from error
    except OSError as error:
        raise UnreadableError(f"{file_name} cannot be read: {error.strerror or error}") from error


def _read_payload(path: str, offset: int, size: int) -> bytes:
    """Without read-ahead: the records of a shard to be lie scattered. One request where the file is remote."""
    if not filesystem.is_remote(path):
        with file_io.open_file(path) as file:
            return read_record(file, offset, size)
    data = filesystem.read_range(path, offset, size)
    return read_record_at(lambda at, count: data[at - offset : at - offset + count], offset + len(data), offset, size)


def _stored_image(features: Mapping[str, Feature]) -> PreparedImage:
    return PreparedImage(
        encoded=_bytes(features, keys.IMAGE_ENCODED),
        format=_text(features, keys.IMAGE_FORMAT),
        height=_number(features, keys.IMAGE_HEIGHT),
        width=_number(features, keys.IMAGE_WIDTH),
        channels=_number(features, keys.IMAGE_CHANNELS),
        colorspace=_text(features, keys.IMAGE_COLORSPACE),
        changed=(),
        noticed=(),
        boxes=(),  # fractions of an upright image, so they hold whatever its size
    )


def _reform(stored: PreparedImage, form: ImageForm, source: Source) -> PreparedImage:
    """The image in another form. Height and width stay those of the original where both forms are square."""
    if stored.format == "RAW":
        image = prepare_image(_as_ppm(stored.encoded), form)
        changed = [kind.replace("ppm_", "raw_") for kind in image.changed if kind != "ppm_to_raw"]
        image = replace(image, changed=tuple(changed))
    else:
        image = prepare_image(stored.encoded, form)
    return replace(image, height=stored.height, width=stored.width) if source.square and form.square else image


def _as_ppm(pixels: bytes) -> bytes:
    """Raw pixels as a file of the simplest format that holds them."""
    side = isqrt(len(pixels) // 3)
    if side * side * 3 != len(pixels):
        raise BadImage(f"{len(pixels)} bytes of raw pixels, which make no square")
    return b"P6 %d %d 255\n" % (side, side) + pixels


def _image_features(image: PreparedImage) -> dict[str, FeatureLike]:
    return {
        keys.IMAGE_ENCODED: image.encoded,
        keys.IMAGE_FORMAT: image.format,
        keys.IMAGE_HEIGHT: image.height,
        keys.IMAGE_WIDTH: image.width,
        keys.IMAGE_CHANNELS: image.channels,
        keys.IMAGE_COLORSPACE: image.colorspace,
    }


def _new_label(source: Source, label: int) -> int:
    if not 0 <= label < len(source.labels):
        raise BadImage(f"its label is {label}, which is none of the {len(source.labels)} classes")
    return source.labels[label]


def _digest(features: Mapping[str, Feature]) -> bytes:
    text = _text(features, keys.IMAGE_SHA256)
    try:
        digest = bytes.fromhex(text)
    except ValueError:
        digest = b""
    if len(digest) != _DIGEST_BYTES:
        raise BadImage(f"its {keys.IMAGE_SHA256} is no SHA-256")
    return digest


def _number(features: Mapping[str, Feature], name: str) -> int:
    value = features.get(name)
    if value is None or isinstance(value, list) or value.dtype.kind != "i" or len(value) != 1:
        raise BadImage(f"its record has no {name} of one whole number")
    return int(value[0])


def _bytes(features: Mapping[str, Feature], name: str) -> bytes:
    value = features.get(name)
    if not isinstance(value, list) or len(value) != 1:
        raise BadImage(f"its record has no {name} of one text")
    return value[0]


def _text(features: Mapping[str, Feature], name: str) -> str:
    """Bytes that are not UTF-8 come as escaped text."""
    return _bytes(features, name).decode("utf-8", "surrogateescape")
