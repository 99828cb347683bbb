"""Checks the content of a record whose checksums hold: it is an Example, fits the schema, and its image decodes."""

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np

from tfpipe.errors import FormatError
from tfpipe.format import schema as keys
from tfpipe.format.digest_groups import DIGEST_BYTES
from tfpipe.format.example import Feature, decode_example, encode_example
from tfpipe.format.image_form import ImageForm
from tfpipe.format.manifest import Foreign, Manifest, list_images
from tfpipe.format.schema import FeatureSpec, Schema
from tfpipe.images.errors import BadImage
from tfpipe.images.masks import check_mask
from tfpipe.images.normalize import check_encoded, check_stored
from tfpipe.images.seekable import is_seekable
from tfpipe.images.sniff import sniff_format
from tfpipe.integrity.damage_kinds import Kind

IDENTITY_BYTES = 16
_MAGIC = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a")

Fault = tuple[Kind, str]


@dataclass(frozen=True, slots=True)
class Content:
    """The features of one record, and the faults that its check found."""

    faults: tuple[Fault, ...]  # the kind of each, and the end of a sentence about it
    features: Mapping[str, Feature]  # empty if it is not a valid Example
    image_keys: tuple[str, ...] = (keys.IMAGE_ENCODED,)  # empty without an image

    @property
    def key(self) -> str:
        """The path of the image's source; empty if the record does not give it."""
        value = _text(self.features, keys.IMAGE_FILENAME)
        return "" if value is None else value.decode("utf-8", "surrogateescape")

    def find_markers(self) -> bool | None:
        """Returns whether all JPEGs have restart markers, for decoding crops; None without a JPEG."""
        jpegs = [image for image in self._images if sniff_format(image) == "jpeg"]
        return all(map(is_seekable, jpegs)) if jpegs else None

    @property
    def identity(self) -> bytes:
        """The first 16 bytes of the SHA-256 of the source image or, if the record lacks it, of the stored data."""
        value = self.features.get(keys.IMAGE_SHA256)
        if isinstance(value, list) and len(value) == 1 and len(value[0]) == 2 * DIGEST_BYTES:
            with contextlib.suppress(ValueError):
                return bytes.fromhex(value[0].decode())[:IDENTITY_BYTES]
        content = b"".join(self._images) if self.image_keys else encode_example(self.features)
        if isinstance(value, list) and len(value) > 1:
            content = b"".join(value)
        return hashlib.sha256(content).digest()[:IDENTITY_BYTES]

    @property
    def _images(self) -> list[bytes]:
        return list_images(self.features, self.image_keys)


@dataclass(frozen=True)
class ContentCheck:
    """The check that every record of a dataset must pass."""

    schema: Schema | None = None  # None: any Example is valid if values that look like images decode
    form: ImageForm = field(default_factory=ImageForm)
    label_names: tuple[str, ...] = ()
    decode: bool = True  # whether images are decoded
    foreign: Foreign | None = None
    image_keys: tuple[str, ...] = (keys.IMAGE_ENCODED,)  # empty without images

    @classmethod
    def from_manifest(cls, manifest: Manifest, decode: bool = True) -> "ContentCheck":
        """Builds the check that a manifest asks for."""
        form, image_keys = ImageForm.recorded(manifest.image), manifest.image_keys
        return cls(manifest.schema, form, manifest.label_names, decode, manifest.foreign, image_keys)

    def get_label(self, features: Mapping[str, Feature]) -> int | None:
        """Returns the class of a record, counted from 0, or None if it has no class."""
        key = keys.CLASS_LABEL if self.foreign is None else self.foreign.label_key
        labels = features.get(key) if key is not None else None
        if not isinstance(labels, np.ndarray) or labels.size != 1 or labels.dtype.kind != "i":
            return None
        if self.foreign is None:
            has_class = labels[0] != -1 or _text(features, keys.CLASS_TEXT) != b""
            return int(labels[0]) if has_class else None
        # A negative label means no class, as in the unlabeled splits of TFDS.
        return int(labels[0]) - self.foreign.label_base if labels[0] >= 0 else None

    def check(self, payload: bytes) -> Content:
        """Decodes and checks the payload of one record."""
        try:
            features = decode_example(payload)
        except FormatError as error:
            return Content((("example", str(error).rstrip(".")),), {})
        if self.schema is None:
            return Content(tuple(_foreign_faults(features)) if self.decode else (), features)
        faults = list(_schema_faults(self.schema, features, strict=self.foreign is None))
        faults += _kind_faults(self.schema, features) if not faults else ()
        if not faults:  # the next checks rely on a record that fits the schema
            faults += _label_faults(self.get_label(features), self.label_names, features)
            faults += _class_faults(self.schema, features)
            if self.foreign is not None:
                images = {key: features.get(key) for key in self.image_keys}
                faults += _foreign_faults(images, sure=True) if self.decode else ()
            elif self.image_keys:
                several = self.schema.has_several_images
                faults += self._several_faults(features) if several else self._stored_faults(features)
        return Content(tuple(faults), features, self.image_keys)

    def _several_faults(self, features: Mapping[str, Feature]) -> Iterator[Fault]:
        """Yields the faults of a list of images. The text about an image begins with its number, from 0."""
        lists = {name: values for name in keys.IMAGE_KEYS if (values := features.get(name)) is not None}
        count = len(lists.get(keys.IMAGE_ENCODED, ()))
        wrong = [f"{len(lists.get(name, ()))} {name}" for name in keys.IMAGE_KEYS if len(lists.get(name, ())) != count]
        if wrong or not count:
            yield "image", f"it has {count} {keys.IMAGE_ENCODED}" + (f", but {wrong[0]}" if wrong else "")
            return
        for number in range(count):
            row = {name: values[number : number + 1] for name, values in lists.items()}
            yield from ((kind, f"image {number}: {text}") for kind, text in self._stored_faults(row))

    def _stored_faults(self, features: Mapping[str, Feature]) -> Iterator[Fault]:
        """Yields the faults of one stored image."""
        encoded, kind = _text(features, keys.IMAGE_ENCODED), _text(features, keys.IMAGE_FORMAT)
        if encoded is None or kind is None:
            return
        name = kind.decode("ascii", "replace")
        if name not in ("JPEG", "PNG", "RAW"):
            yield "image", f"{keys.IMAGE_FORMAT} must be JPEG, PNG or RAW, got {name[:40]!r}"
            return
        if not self.decode:
            return
        try:
            width, height, channels = check_stored(encoded, name, self.form)
        except BadImage as error:
            yield "image", error.reason
            return
        yield from self._mask_faults(features, (width, height))
        sizes = {keys.IMAGE_CHANNELS: channels}
        if self.form.square is None:  # with `square` the record gives the size of the original
            sizes |= {keys.IMAGE_WIDTH: width, keys.IMAGE_HEIGHT: height}
        for key, value in sizes.items():
            recorded = features.get(key)
            if isinstance(recorded, np.ndarray) and recorded.size == 1 and recorded[0] != value:
                yield "image", f"{key} says {recorded[0]}, the image says {value}"

    def _mask_faults(self, features: Mapping[str, Feature], size: tuple[int, int]) -> Iterator[Fault]:
        """Yields a fault for each mask that does not decode or has another size than the image's (width, height)."""
        for spec in self.schema.masks if self.schema is not None else ():
            try:
                mask_size = check_mask(spec.check_stored(features), self.form.max_pixels)
            except BadImage as error:
                yield "image", f"feature {spec.name!r}: {error.reason}"
                continue
            if mask_size != size:
                sizes = f"{mask_size[0]} x {mask_size[1]} pixels, the image {size[0]} x {size[1]}"
                yield "image", f"feature {spec.name!r} has {sizes}"


def _schema_faults(schema: Schema, features: Mapping[str, Feature], strict: bool) -> Iterator[Fault]:
    """Yields the differences from the schema. With `strict`, missing lists and unknown features count too."""
    for spec in schema.features:
        if spec.name not in features:
            if strict or spec.shape is not None:
                yield "schema", f"feature {spec.name!r} is missing"
        elif wrong := _wrong_value(spec, features[spec.name]):
            yield "schema", f"feature {spec.name!r} must be {wrong}"
    for name in features.keys() - set(schema.names) if strict else ():
        yield "schema", f"feature {name[:80]!r} is not in the schema"


def _wrong_value(spec: FeatureSpec, value: Feature) -> str:
    """Returns what a value must be and what it is, or "" if it fits its specification."""
    kind = "nothing" if value is None else "bytes"
    if isinstance(value, np.ndarray):
        kind = "int64" if value.dtype.kind == "i" else "float"
    count = 0 if value is None else len(value)
    if spec.shape is None:
        return "" if kind in (spec.dtype, "nothing") or not count else f"a list of {spec.dtype}, got {kind}"
    if kind != spec.dtype:
        return f"{spec.dtype}, got {kind}"
    expected = prod(spec.shape)
    return "" if count == expected else f"{expected} {spec.dtype}, got {count}"


def _kind_faults(schema: Schema, features: Mapping[str, Feature]) -> Iterator[Fault]:
    """Yields a fault for each tensor or text whose stored values are not valid."""
    for spec in schema.features:
        value = features.get(spec.name)
        if spec.kind != "values" and value is not None and len(value):
            try:
                spec.check_stored(features)
            except FormatError as error:
                yield "schema", f"{str(error)[:1].lower()}{str(error)[1:].rstrip('.')}"


def _label_faults(label: int | None, names: tuple[str, ...], features: Mapping[str, Feature]) -> Iterator[Fault]:
    if label is None or not names:
        return
    if not 0 <= label < len(names):
        yield "label", f"label {label} is not one of the {len(names)} classes"
        return
    text = _text(features, keys.CLASS_TEXT)
    if text is not None and text != names[label].encode("utf-8", "surrogateescape"):
        shown = text[:80].decode("utf-8", "surrogateescape")
        yield "label", f"label {label} is {names[label]!r}, its text is {shown!r}"


def _class_faults(schema: Schema, features: Mapping[str, Feature]) -> Iterator[Fault]:
    """Yields a fault for each list of classes with a number that is not a class."""
    for spec in schema.features:
        value = features.get(spec.name) if spec.names else None
        for number in map(int, () if value is None else value):
            if not 0 <= number < len(spec.names):
                text = f"feature {spec.name!r} holds {number}, which is not one of the {len(spec.names)} classes"
                yield "label", text
                break


def _foreign_faults(features: Mapping[str, Feature], sure: bool = False) -> Iterator[Fault]:
    """Yields a fault for each image that does not decode. With `sure` every bytes value counts as an image."""
    for name, value in features.items():
        for data in value if isinstance(value, list) else ():
            if sure or data.startswith(_MAGIC) or (data[:4] == b"RIFF" and data[8:12] == b"WEBP"):
                try:
                    check_encoded(data)
                except BadImage as error:
                    yield "image", f"feature {name[:80]!r}: {error.reason}"


def _text(features: Mapping[str, Feature], name: str) -> bytes | None:
    """Returns the value of a bytes feature that has exactly one, else None."""
    value = features.get(name)
    return value[0] if isinstance(value, list) and len(value) == 1 else None
