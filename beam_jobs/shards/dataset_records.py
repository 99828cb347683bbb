"""Makes records from those of finished datasets: each is copied as it is, or with its image in another form.

A record that another program wrote is made anew, from the pixels that a plain decoder gives.
"""

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import isqrt, prod
from typing import TYPE_CHECKING, Any

from beam_jobs.inputs.read_image import UnreadableError
from beam_jobs.plan.image_ref import ImageRef, PlannedImage
from beam_jobs.plan.merge_manifests import InputDatasets, SourceDataset
from beam_jobs.shards.record import NewRecord, check_source_size, make_list_features, rejecting
from beam_jobs.shards.work_dir import PlanHeader
from tfpipe.dataset.load import load_manifest
from tfpipe.errors import DataError, FormatError
from tfpipe.format import schema as keys
from tfpipe.format.digest_groups import DIGEST_BYTES
from tfpipe.format.example import Feature, FeatureLike, decode_example, encode_example
from tfpipe.format.image_form import ImageForm
from tfpipe.format.manifest import Foreign, list_images
from tfpipe.format.tfrecord import read_record_at
from tfpipe.images.normalize import BadImage, PreparedImage, prepare_image
from tfpipe.storage import file_io
from tfpipe.writer.record_form import make_image_features

if TYPE_CHECKING:
    from tfpipe.engine.record_reader import RecordReader

_MAX_COLUMNS = 64  # that one worker keeps open

NO_CLASS = -1
"""The label of an image without a class in a dataset that has classes. Its class text is empty."""


@dataclass(frozen=True, slots=True)
class DatasetRecords:
    """The records of finished datasets, from which the records of a new one are made."""

    header: PlanHeader
    records: InputDatasets

    def read_all(self, planned: Iterable[PlannedImage]) -> Iterator[tuple[PlannedImage, Callable[[], NewRecord]]]:
        """Yields each planned record with the function that reads it."""
        return ((image, partial(self.read, image)) for image in planned)

    @rejecting()
    def read(self, planned: PlannedImage) -> NewRecord:
        """Reads a planned record, and changes its label and its image to those of the new dataset."""
        check_source_size(planned)
        header = self.header
        source, payload, features = _read_features(self.records, planned, header.unpacked)
        if source.foreign is not None:
            return _make_record(header, source, planned, features)
        has_image = keys.IMAGE_ENCODED in header.schema
        several = header.schema.has_several_images
        old_images = images = _get_images(features, several) if has_image else ()
        changes: dict[str, FeatureLike] = {}
        if header.label_names:
            old_label = _get_number(features, keys.CLASS_LABEL)
            label = _get_new_label(source, features)
            if label != old_label:
                changes[keys.CLASS_LABEL] = label
                if keys.CLASS_TEXT in features:
                    changes[keys.CLASS_TEXT] = header.label_names[label].encode("utf-8", "surrogateescape")
        if self.records.reformed:
            mask = _get_bytes(features, keys.IMAGE_MASK) if keys.IMAGE_MASK in header.schema else None
            images = tuple(_reform(old_images, number, mask, header.form, source) for number in range(len(old_images)))
            if any(new.encoded != old.encoded for new, old in zip(images, old_images, strict=True)):
                changes |= make_list_features(images) if several else make_image_features(images[0])
            if images and images[0].mask is not None and images[0].mask != mask:
                changes[keys.IMAGE_MASK] = images[0].mask
        name = _get_text(_take(features, 0), keys.IMAGE_FILENAME) if has_image else planned.path
        digest, dropped = _get_digest(features), features.keys() & self.records.dropped
        if changes or dropped:
            stored = {key: value for key, value in features.items() if key not in dropped} | changes
            return NewRecord(encode_example(stored), stored, images, digest, name)
        return NewRecord(payload, features, images, digest, name)


def identify(datasets: InputDatasets, planned: ImageRef) -> tuple[bytes, int]:
    """Reads a record; returns the SHA-256 of its original and the new label of its class, or -1."""
    source, _, features = _read_features(datasets, planned, {})
    digest = _get_digest(features) if source.foreign is None else _hash_foreign(features, source.foreign)
    return digest, _get_new_label(source, features) if source.labels else NO_CLASS


def _read_features(
    datasets: InputDatasets, planned: PlannedImage | ImageRef, unpacked: Mapping[str, str]
) -> tuple[SourceDataset, bytes, dict[str, Feature]]:
    """Reads a record, checks its checksums, and returns its dataset, payload and features, added columns included."""
    location = planned.location
    source, file_name = datasets.locate(location.file)
    path = unpacked.get(location.file) or file_io.join(source.directory, file_name)
    payload = _read_payload(path, file_name, location.offset, planned.size)
    try:
        features = decode_example(payload)
    except FormatError as error:
        raise UnreadableError(f"{file_name}: {str(error).rstrip('.')}") from error
    if source.columns:
        features |= _read_columns(source.columns, planned.path)
        payload = encode_example(features)
    return source, payload, features


def _get_images(features: Mapping[str, Feature], several: bool) -> tuple[PreparedImage, ...]:
    """Returns the image of a record, or its several images."""
    if not several:
        return (_get_image(features),)
    counts = {0 if (value := features.get(name)) is None else len(value) for name in keys.IMAGE_KEYS}
    if len(counts) > 1 or not max(counts):
        raise BadImage(f"its record must have as many values of each of {', '.join(keys.IMAGE_KEYS)}, and one at least")
    return tuple(_get_image(_take(features, number)) for number in range(max(counts)))


def _take(features: Mapping[str, Feature], number: int) -> dict[str, Feature]:
    """Returns the features of one of several images."""
    values = {name: features.get(name) for name in keys.IMAGE_KEYS}
    return {name: None if value is None else value[number : number + 1] for name, value in values.items()}


def _get_image(features: Mapping[str, Feature]) -> PreparedImage:
    return PreparedImage(
        encoded=_get_bytes(features, keys.IMAGE_ENCODED),
        format=_get_text(features, keys.IMAGE_FORMAT),
        height=_get_number(features, keys.IMAGE_HEIGHT),
        width=_get_number(features, keys.IMAGE_WIDTH),
        channels=_get_number(features, keys.IMAGE_CHANNELS),
        colorspace=_get_text(features, keys.IMAGE_COLORSPACE),
        changed=(),
        noticed=(),
        boxes=(),  # fractions of an upright image, so they hold whatever its size
    )


def _reform(
    stored: Sequence[PreparedImage], number: int, mask: bytes | None, form: ImageForm, source: SourceDataset
) -> PreparedImage:
    """Returns an image of a record and its mask in another form. Of several images, an error names the number, from 0.

    Height and width stay those of the original if both forms are square.
    """
    old = stored[number]
    try:
        if old.format == "RAW":
            side = isqrt(len(old.encoded) // 3)
            if side * side * 3 != len(old.encoded):
                raise BadImage(f"{len(old.encoded)} bytes of raw pixels, which are not a square image")
            # A PPM is the simplest format that holds raw pixels.
            image = prepare_image(b"P6 %d %d 255\n" % (side, side) + old.encoded, form, mask=mask)
            changed = [kind.replace("ppm_", "raw_") for kind in image.changed if kind != "ppm_to_raw"]
            image = replace(image, changed=tuple(changed))
        else:
            image = prepare_image(old.encoded, form, mask=mask, plain=True)  # one from foreign records may lie turned
    except BadImage as error:
        raise BadImage(f"image {number}: {error.reason}" if len(stored) > 1 else error.reason) from error
    return replace(image, height=old.height, width=old.width) if source.square and form.square else image


def _get_new_label(source: SourceDataset, features: Mapping[str, Feature]) -> int:
    """Returns the new label of a record. A negative label that another program wrote means no class."""
    foreign = source.foreign
    key, base = (keys.CLASS_LABEL, 0) if foreign is None else (foreign.label_key or "", foreign.label_base)
    stored = _get_number(features, key)
    if stored < 0 and (foreign is not None or (stored == NO_CLASS and features.get(keys.CLASS_TEXT) == [b""])):
        return NO_CLASS
    if not 0 <= stored - base < len(source.labels):
        raise BadImage(f"its label {stored} is not one of the {len(source.labels)} classes")
    return source.labels[stored - base]


def _get_digest(features: Mapping[str, Feature]) -> bytes:
    """Returns the SHA-256 of the original image.

    For several images it is the SHA-256 of theirs; for a record without an image, the SHA-256 of all its features.
    """
    if keys.IMAGE_ENCODED not in features:
        return hashlib.sha256(encode_example(features)).digest()
    several = features.get(keys.IMAGE_SHA256)
    if isinstance(several, list) and len(several) > 1:
        return hashlib.sha256(b"".join(several)).digest()
    with contextlib.suppress(ValueError):
        digest = bytes.fromhex(_get_text(features, keys.IMAGE_SHA256))
        if len(digest) == DIGEST_BYTES:
            return digest
    raise BadImage(f"its {keys.IMAGE_SHA256} is not a valid SHA-256")


def _get_number(features: Mapping[str, Feature], name: str) -> int:
    value = features.get(name)
    if value is None or isinstance(value, list) or value.dtype.kind != "i" or len(value) != 1:
        raise BadImage(f"its record must have one whole number as {name}")
    return int(value[0])


def _get_bytes(features: Mapping[str, Feature], name: str) -> bytes:
    value = features.get(name)
    if not isinstance(value, list) or len(value) != 1:
        raise BadImage(f"its record must have one text as {name}")
    return value[0]


def _get_text(features: Mapping[str, Feature], name: str) -> str:
    """Returns a text; bytes that are not UTF-8 are escaped."""
    return _get_bytes(features, name).decode("utf-8", "surrogateescape")


def _read_payload(path: str, name: str, offset: int, size: int) -> bytes:
    """Reads one record by one request. Nothing is read ahead, because the records' order is random."""
    try:
        data = file_io.read_range(path, offset, size)
        return read_record_at(
            lambda at, count: data[at - offset : at - offset + count], offset + len(data), offset, size
        )
    except FormatError as error:
        raise UnreadableError(f"{name}: {str(error).rstrip('.')}") from error
    except OSError as error:
        raise UnreadableError(f"{name} cannot be read: {error.strerror or error}") from error


def _read_columns(columns: Iterable[tuple[str, str]], record: str) -> dict[str, Feature]:
    """Reads the features that added columns have for the record at a path such as `flowers/train:17`."""
    split, _, number = record.partition("/")[2].rpartition(":")
    features: dict[str, Feature] = {}
    for address, name in columns:
        try:
            features |= _open_column(address, name, split)[int(number)]
        except (FormatError, DataError, OSError) as error:
            raise UnreadableError(f"the column {name} cannot be read: {str(error).rstrip('.')}") from error
    return features


@lru_cache(maxsize=_MAX_COLUMNS)
def _open_column(address: str, name: str, split: str) -> "RecordReader":
    from tfpipe.engine.record_reader import RecordReader  # takes 40 ms, and few datasets have columns

    column = next(column for column in load_manifest(address).columns if column.name == name)
    return RecordReader(column.directory, column, split)


def _make_record(
    header: PlanHeader, source: SourceDataset, planned: PlannedImage, old: Mapping[str, Feature]
) -> NewRecord:
    """Makes a record of the new dataset from one that another program wrote."""
    assert source.foreign is not None
    name, values = _get_name(old, planned), dict[str, Any]()
    images: tuple[PreparedImage, ...] = ()
    digest = _hash_foreign(old, source.foreign)
    if source.foreign.image_key is not None:
        encoded, shape = _list_encoded(old, source.foreign), header.schema[keys.IMAGE_ENCODED].shape
        if (shape is not None and prod(shape) != len(encoded)) or len(encoded) > keys.MAX_IMAGES:
            most = f"at most {keys.MAX_IMAGES:,} images" if shape is None else f"{prod(shape)} images"
            must = "one image" if shape == () else most
            raise BadImage(f"its record must have {must} as {source.foreign.image_key}, got {len(encoded):,}")
        images = tuple(prepare_image(data, header.form, plain=True) for data in encoded)
        if shape == ():
            values = {**make_image_features(images[0]), keys.IMAGE_FILENAME: name, keys.IMAGE_SHA256: digest.hex()}
        else:
            names = [name + f"/{number}".encode() for number in range(len(images))]
            sha256 = [hashlib.sha256(data).hexdigest() for data in encoded]
            values = {**make_list_features(images), keys.IMAGE_FILENAME: names, keys.IMAGE_SHA256: sha256}
    label = NO_CLASS
    if header.label_names:
        label = _get_new_label(source, old)
        text = header.label_names[label] if label != NO_CLASS else ""
        values |= {keys.CLASS_LABEL: label, keys.CLASS_TEXT: text.encode("utf-8", "surrogateescape")}
    made = values.keys() | header.schema.sizes_keys
    values |= {spec.name: _get_values(old, spec) for spec in header.schema.features if spec.name not in made}
    features = header.schema.check(values)
    return NewRecord(encode_example(features), features, images, digest, name.decode("utf-8", "surrogateescape"))


def _hash_foreign(old: Mapping[str, Feature], foreign: Foreign) -> bytes:
    """Returns the SHA-256 of a record's images; of a record without images, the SHA-256 of all its features."""
    content = encode_example(old) if foreign.image_key is None else b"".join(_list_encoded(old, foreign))
    return hashlib.sha256(content).digest()


def _list_encoded(old: Mapping[str, Feature], foreign: Foreign) -> list[bytes]:
    images = list_images(old, foreign.image_keys)
    if not images:
        raise BadImage(f"its record must have one image as {foreign.image_key}")
    return images


def _get_name(old: Mapping[str, Feature], planned: PlannedImage | ImageRef) -> bytes:
    """Returns the file name in the record or, if it has none, the record's path in the plan."""
    value = old.get(keys.IMAGE_FILENAME)
    if isinstance(value, list) and len(value) == 1 and value[0]:
        return value[0]
    return planned.path.encode("utf-8", "surrogateescape")


def _get_values(old: Mapping[str, Feature], spec: keys.FeatureSpec) -> Any:
    """Returns a feature's values for the encoder. A list that a record lacks is empty."""
    if spec.tensor is not None and spec.tensor.encoding != "proto":
        try:
            return spec.decode(old)
        except FormatError as error:
            raise BadImage(str(error).rstrip(".")) from None
    value = old.get(spec.name)
    if value is None or not len(value):
        if spec.shape is not None:
            raise BadImage(f"its record has no {spec.name}")
        return []
    kind = "bytes" if isinstance(value, list) else "float" if value.dtype.kind == "f" else "int64"
    if kind != spec.dtype or (spec.shape is not None and len(value) != prod(spec.shape)):
        expected = "a list of" if spec.shape is None else str(prod(spec.shape))
        raise BadImage(f"its {spec.name} must be {expected} {spec.dtype}, got {len(value)} {kind}")
    if spec.shape != ():
        return value
    return value[0] if isinstance(value, list) else value[0].item()
