"""What is inside a record whose checksums hold: an Example, of the schema, with an image that decodes."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np
from numpy.typing import NDArray

from tfpipe.errors import ConfigError, FormatError
from tfpipe.format import schema as keys
from tfpipe.format.example import Feature, decode_example
from tfpipe.format.image_form import ImageForm
from tfpipe.format.manifest import Foreign, Manifest
from tfpipe.format.schema import FeatureSpec, Schema
from tfpipe.images.errors import BadImage
from tfpipe.images.verify import check_encoded, check_stored
from tfpipe.integrity.damage_kinds import Kind

IDENTITY_BYTES = 16
_MAGIC = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a")

Fault = tuple[Kind, str]


@dataclass(frozen=True, slots=True)
class Content:
    """One record's content."""

    faults: tuple[Fault, ...]
    features: Mapping[str, Feature]
    """Empty where the payload is no Example."""
    image_key: str = keys.IMAGE_ENCODED

    @property
    def key(self) -> str:
        """The path of the image's source, where the record has one."""
        value = _text(self.features, keys.IMAGE_FILENAME)
        return "" if value is None else value.decode("utf-8", "replace")

    @property
    def identity(self) -> bytes:
        """Equal for equal images: of the source file where its SHA-256 is known, else of what is stored."""
        digest = _text(self.features, keys.IMAGE_SHA256)
        if digest is not None and len(digest) == 64:
            try:
                return bytes.fromhex(digest.decode())[:IDENTITY_BYTES]
            except ValueError:
                pass
        image = _text(self.features, self.image_key) or b""
        return hashlib.blake2b(image, digest_size=IDENTITY_BYTES).digest()


@dataclass(frozen=True)
class ContentCheck:
    """How records are to be looked at; the same for all of a dataset.

    Attributes:
      schema: None where nothing is known of the records: then an Example is all that they must be, and what looks like
        an image is one.
      form: Of the images.
      label_names: Of the classes.
      decode: Decode the images.
      foreign: Where and how records are laid out that something else wrote.
    """

    schema: Schema | None = None
    form: ImageForm = field(default_factory=ImageForm)
    label_names: tuple[str, ...] = ()
    decode: bool = True
    foreign: Foreign | None = None

    @classmethod
    def of(cls, manifest: Manifest, decode: bool = True) -> "ContentCheck":
        """What the manifest asks of its records.

        Raises:
          FormatError: It names an image form that cannot be.
        """
        known = {name: manifest.image[name] for name in ImageForm.__dataclass_fields__ if name in manifest.image}
        try:
            form = ImageForm(**known)  # type: ignore[arg-type]
        except ConfigError as error:
            raise FormatError(f"The manifest's image form cannot be used: {error}") from None
        return cls(manifest.schema, form, manifest.label_names, decode, manifest.foreign)

    def label_of(self, features: Mapping[str, Feature]) -> int | None:
        """The record's class, counted from 0; None where it has none."""
        key = keys.CLASS_LABEL if self.foreign is None else self.foreign.label_key
        labels = features.get(key) if key is not None else None
        if not isinstance(labels, np.ndarray) or labels.size != 1 or labels.dtype.kind != "i":
            return None
        if self.foreign is None:
            return int(labels[0])
        # As in unlabelled splits of TFDS, what is negative is of no class.
        return int(labels[0]) - self.foreign.label_base if labels[0] >= 0 else None

    def look(self, payload: bytes) -> Content:
        """Checks one payload."""
        try:
            features = decode_example(payload)
        except FormatError as error:
            return Content((("example", str(error).rstrip(".")),), {})
        if self.schema is None:
            return Content(tuple(_foreign_faults(features)) if self.decode else (), features)
        faults = list(_schema_faults(self.schema, features, strict=self.foreign is None))
        if not faults:  # what follows relies on it
            faults += _label_faults(self.label_of(features), self.label_names, features)
            faults += self._image_faults(features)
        image_key = keys.IMAGE_ENCODED if self.foreign is None else self.foreign.image_key
        return Content(tuple(faults), features, image_key)

    def _image_faults(self, features: Mapping[str, Feature]) -> Iterator[Fault]:
        if self.foreign is not None:
            key = self.foreign.image_key
            yield from _foreign_faults({key: features.get(key)}, sure=True) if self.decode else ()
            return
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
        facts = {keys.IMAGE_CHANNELS: channels}
        if self.form.square is None:  # else the record tells the size of the original
            facts |= {keys.IMAGE_WIDTH: width, keys.IMAGE_HEIGHT: height}
        for key, fact in facts.items():
            said = features.get(key)
            if isinstance(said, np.ndarray) and said.size == 1 and said[0] != fact:
                yield "image", f"{key} says {said[0]}, the image says {fact}"


def _schema_faults(schema: Schema, features: Mapping[str, Feature], strict: bool) -> Iterator[Fault]:
    """`strict`: a list must be there even if it is empty, and nothing else may be."""
    for spec in schema.features:
        if spec.name not in features:
            if strict or spec.shape is not None:
                yield "schema", f"feature {spec.name!r} is missing"
        elif wrong := _wrong_value(spec, features[spec.name]):
            yield "schema", f"feature {spec.name!r} must be {wrong}"
    for name in features.keys() - set(schema.names) if strict else ():
        yield "schema", f"feature {name[:80]!r} is not in the schema"


def _wrong_value(spec: FeatureSpec, value: Feature) -> str:
    """How a value differs from what it must be; empty where it does not."""
    kind = "nothing" if value is None else "bytes" if isinstance(value, list) else _dtype_name(value)
    count = 0 if value is None else len(value)
    if spec.shape is None:
        return "" if kind in (spec.dtype, "nothing") or not count else f"a list of {spec.dtype}, got {kind}"
    if kind != spec.dtype:
        return f"{spec.dtype}, got {kind}"
    must = prod(spec.shape)
    return "" if count == must else f"{must} {spec.dtype}, got {count}"


def _dtype_name(value: NDArray[np.int64] | NDArray[np.float32]) -> str:
    return "int64" if value.dtype.kind == "i" else "float"


def _label_faults(label: int | None, names: tuple[str, ...], features: Mapping[str, Feature]) -> Iterator[Fault]:
    if label is None or not names:
        return
    if not 0 <= label < len(names):
        yield "label", f"label {label} is none of the {len(names)} classes"
        return
    text = _text(features, keys.CLASS_TEXT)
    if text is not None and text != names[label].encode("utf-8", "surrogateescape"):
        yield "label", f"label {label} is {names[label]!r}, its text is {text[:80].decode('utf-8', 'replace')!r}"


def _foreign_faults(features: Mapping[str, Feature], sure: bool = False) -> Iterator[Fault]:
    """`sure`: these are images, whatever they look like."""
    for name, value in features.items():
        for one in value if isinstance(value, list) else ():
            if sure or one.startswith(_MAGIC) or (one[:4] == b"RIFF" and one[8:12] == b"WEBP"):
                try:
                    check_encoded(one)
                except BadImage as error:
                    yield "image", f"feature {name[:80]!r}: {error.reason}"


def _text(features: Mapping[str, Feature], name: str) -> bytes | None:
    """The one value of a bytes feature."""
    value = features.get(name)
    return value[0] if isinstance(value, list) and len(value) == 1 else None
