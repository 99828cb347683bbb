"""The records of finished datasets as a source of records: each is copied as it is, or with its image in another form.

An image or a feature that need not change is copied byte for byte. Of records that another program wrote, new ones are
made, see `foreign_records`. TensorFlow is not needed.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isqrt
from typing import Any

from beam_jobs.inputs.read_image import UnreadableError
from beam_jobs.plan.image_ref import ImageRef, PlannedImage
from beam_jobs.plan.merge_manifests import InputDatasets, SourceDataset
from beam_jobs.shards.foreign_records import NO_CLASS, identify_foreign, make_record
from beam_jobs.shards.record import Record, RejectedImage, check_source_size, make_image_features, make_list_features
from beam_jobs.shards.stored_records import read_columns, read_payload
from beam_jobs.shards.work_dir import PlanHeader, PlannedShard, WorkDir
from tfpipe.errors import FormatError
from tfpipe.format import schema as keys
from tfpipe.format.example import Feature, FeatureLike, decode_example, encode_example
from tfpipe.format.image_form import ImageForm
from tfpipe.images.normalize import BadImage, PreparedImage, prepare_image
from tfpipe.images.seekable import is_seekable
from tfpipe.storage import file_io

_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class DatasetRecords:
    """The records of finished datasets; see `RecordSource`.

    Attributes:
        header: The header of the plan.
        records: The datasets and the facts about their images.
    """

    header: PlanHeader
    records: InputDatasets

    @property
    def advice(self) -> str:
        """The advice about bad images, as a part of a sentence."""
        if any(source.foreign is not None for source in self.records.sources.values()):
            return "bring the files back as they were"
        return "save the undamaged records with `tfpipe repair`"

    @property
    def image_form(self) -> Mapping[str, Any]:
        """The requested form, or else the common form of the datasets."""
        return self.records.image

    @property
    def changed(self) -> Mapping[str, int]:
        """The counts of earlier changes, summed over the manifests."""
        return self.records.changed

    @property
    def noticed(self) -> Mapping[str, int]:
        """The counts of noticed properties that are still valid, summed over the manifests."""
        return self.records.noticed

    @property
    def is_seekable(self) -> Callable[[bytes], bool] | None:
        """The function that looks for restart markers, if the form asks for them or a dataset has some."""
        return is_seekable if self.header.form.seekable or self.records.seekable else None

    def get_fingerprint_facts(self) -> dict[str, Any]:
        """Returns what identifies the datasets, and how their labels and images change."""
        return {"records": self.records.get_fingerprint_facts()}

    def read_all(self, planned: Iterable[PlannedImage]) -> Iterator[tuple[PlannedImage, Callable[[], Record]]]:
        """Yields each record's place with the function that reads it."""
        return ((image, partial(self.read, image)) for image in planned)

    def read(self, planned: PlannedImage) -> Record:
        """Reads the record at the planned place, with the labels and the image form of the new dataset.

        Raises:
            RejectedImage: It is damaged, cannot be read, lacks a feature, or its image cannot be brought into the form.
        """
        check_source_size(planned)
        try:
            return self._read(planned)
        except UnreadableError as error:
            raise RejectedImage("unreadable", str(error)) from error
        except BadImage as error:
            raise RejectedImage("bad", error.reason) from error

    def _read(self, planned: PlannedImage) -> Record:
        header = self.header
        source, payload, features = _read_features(self.records, planned, header.unpacked)
        if source.foreign is not None:
            return make_record(header, source, planned, features)
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
                    changes[keys.CLASS_TEXT] = header.label_names[label].encode()
        if self.records.reformed:
            mask = _get_bytes(features, keys.IMAGE_MASK) if keys.IMAGE_MASK in header.schema else None
            images = _reform_all(old_images, mask, header.form, source)
            if any(new.encoded != old.encoded for new, old in zip(images, old_images, strict=True)):
                changes |= make_list_features(images) if several else make_image_features(images[0])
            if images and images[0].mask is not None and images[0].mask != mask:
                changes[keys.IMAGE_MASK] = images[0].mask
        name = _get_text(_take(features, 0), keys.IMAGE_FILENAME) if has_image else planned.path
        digest, dropped = _get_digest(features), features.keys() & self.records.dropped
        if changes or dropped:
            stored = {key: value for key, value in features.items() if key not in dropped} | changes
            return Record(encode_example(stored), stored, images, digest, name)
        return Record(payload, features, images, digest, name)

    def save_names(self, work: WorkDir, file: str, names: Sequence[str]) -> None:
        """Saves the names, which only the records hold."""
        file_io.write_file(work.names_path(file), json.dumps(names).encode(), makes_folders=True)

    def list_names(self, work: WorkDir, planned: PlannedShard) -> list[str]:
        """Returns the names that `save_names` saved."""
        names: list[str] = json.loads(file_io.read_whole(work.names_path(planned.file)))
        return names


def identify(datasets: InputDatasets, planned: ImageRef) -> tuple[bytes, int]:
    """Reads a record; returns the SHA-256 of its original and the new label of its class, or -1.

    Raises:
        UnreadableError: It is damaged or cannot be read.
        BadImage: It lacks a feature.
    """
    source, _, features = _read_features(datasets, planned, {})
    if source.foreign is not None:
        return identify_foreign(source, features)
    label = _get_new_label(source, features) if source.labels else -1
    return _get_digest(features), label


def _read_features(
    datasets: InputDatasets, planned: PlannedImage | ImageRef, unpacked: Mapping[str, str]
) -> tuple[SourceDataset, bytes, dict[str, Feature]]:
    """Checks the checksums, and returns the dataset of a record, its payload and its features with those of columns.

    Args:
        datasets: The datasets.
        planned: The place of the record.
        unpacked: The path of the unpacked file for each compressed shard.
    """
    location = planned.location
    source, file_name = datasets.locate(location.file)
    path = unpacked.get(location.file) or file_io.join(source.directory, file_name)
    payload = read_payload(path, file_name, location.offset, planned.size)
    try:
        features = decode_example(payload)
    except FormatError as error:
        raise UnreadableError(f"{file_name}: {str(error).rstrip('.')}") from error
    if source.columns:
        features |= read_columns(source.columns, planned.path)
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


def _reform_all(
    stored: Sequence[PreparedImage], mask: bytes | None, form: ImageForm, source: SourceDataset
) -> tuple[PreparedImage, ...]:
    """Returns all images of a record in another form. The error names one of several by its number, from 0."""
    images = []
    for number, image in enumerate(stored):
        try:
            images.append(_reform(image, mask, form, source))
        except BadImage as error:
            raise BadImage(f"image {number}: {error.reason}" if len(stored) > 1 else error.reason) from error
    return tuple(images)


def _reform(stored: PreparedImage, mask: bytes | None, form: ImageForm, source: SourceDataset) -> PreparedImage:
    """Returns the image and its mask in another form.

    Height and width stay those of the original if both forms are square.
    """
    if stored.format == "RAW":
        image = prepare_image(_as_ppm(stored.encoded), form, mask=mask)
        changed = [kind.replace("ppm_", "raw_") for kind in image.changed if kind != "ppm_to_raw"]
        image = replace(image, changed=tuple(changed))
    else:
        image = prepare_image(stored.encoded, form, mask=mask, plain=True)  # one from foreign records may lie turned
    return replace(image, height=stored.height, width=stored.width) if source.square and form.square else image


def _as_ppm(pixels: bytes) -> bytes:
    """Returns raw pixels as a file of the simplest format that holds them."""
    side = isqrt(len(pixels) // 3)
    if side * side * 3 != len(pixels):
        raise BadImage(f"{len(pixels)} bytes of raw pixels, which are not a square image")
    return b"P6 %d %d 255\n" % (side, side) + pixels


def _get_new_label(source: SourceDataset, features: Mapping[str, Feature]) -> int:
    label = _get_number(features, keys.CLASS_LABEL)
    if label == NO_CLASS and features.get(keys.CLASS_TEXT) == [b""]:
        return NO_CLASS
    if not 0 <= label < len(source.labels):
        raise BadImage(f"its label {label} is not one of the {len(source.labels)} classes")
    return source.labels[label]


def _get_digest(features: Mapping[str, Feature]) -> bytes:
    """Returns the SHA-256 of the original image.

    Of several images it is that of their SHA-256, of a record without an image that of all its features.
    """
    if keys.IMAGE_ENCODED not in features:
        return hashlib.sha256(encode_example(features)).digest()
    several = features.get(keys.IMAGE_SHA256)
    if isinstance(several, list) and len(several) > 1:
        return hashlib.sha256(b"".join(several)).digest()
    text = _get_text(features, keys.IMAGE_SHA256)
    try:
        digest = bytes.fromhex(text)
    except ValueError:
        digest = b""
    if len(digest) != _DIGEST_BYTES:
        raise BadImage(f"its {keys.IMAGE_SHA256} is not a valid SHA-256")
    return digest


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
