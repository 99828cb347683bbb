"""Turns the fields that a user names into the stored schema, and the user's records into stored features."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tfpipe.errors import ConfigError
from tfpipe.fields import Field, Image, Images, Label, Labels, Mask, Tensor, Text, Values
from tfpipe.format import schema as keys
from tfpipe.format.example import FeatureLike
from tfpipe.format.image_form import ImageForm
from tfpipe.format.schema import RESERVED, FeatureSpec, Schema, check_names, image_schema, make_tensor_specs
from tfpipe.format.tensors.tensor_type import TensorType
from tfpipe.system.units import shorten

if TYPE_CHECKING:
    from tfpipe.images.normalize import PreparedImage

_MAX_CLASS = 65_535


class RecordForm:
    """The stored schema for a user's fields, and the conversion of a user's records to this schema."""

    def __init__(self, fields: Mapping[str, Field]) -> None:
        if not isinstance(fields, Mapping):
            raise ConfigError(
                f"`schema` must give each value its kind, as in {{'image': Image()}}, got {shorten(fields)}."
            )
        own = [_find_only(fields, kind) for kind in (Label, Image, Images, Mask)]
        self._label, self._image, self._images, self._mask = own
        label = fields[self._label] if self._label is not None else None
        self.label_names = _check_names(self._label or "", label) if isinstance(label, Label) else ()
        if len(set(self.label_names)) < len(self.label_names):
            raise ConfigError("The names of a Label must be different.")
        self._numbers = {name: number for number, name in enumerate(self.label_names)}
        if self._image is not None and self._images is not None:
            raise ConfigError(
                f"A record must have an Image or Images, got {self._image!r} and {self._images!r}. Make it one list."
            )
        if self._mask is not None and self._image is None:
            got = "none" if self._images is None else f"Images {self._images!r}"
            raise ConfigError(f"The Mask {self._mask!r} needs an Image in the same record, got {got}.")
        specs = [spec for name, field in fields.items() for spec in _make_specs(name, field)]
        if not specs:
            raise ConfigError("`schema` must name the values of a record, got none.")
        others = [spec for name, field in fields.items() if name not in own for spec in _make_specs(name, field)]
        check_names(others)
        for spec in others:
            if spec.name in RESERVED:
                raise ConfigError(f"A value must not be named {spec.name!r}: a batch has something else of that name.")
        self.schema = Schema(tuple(specs))
        self.image_form = ImageForm() if self._image is not None or self._images is not None else None

    def check(self, record: Any) -> dict[str, FeatureLike]:
        """Checks a user's record, and returns its features as `encode_example` takes them."""
        if not isinstance(record, Mapping):
            raise ConfigError(f"A record must be a mapping from names to values, got a {type(record).__name__}.")
        if self._label is None and self.image_form is None:
            return self.schema.check(record)
        values, made = dict(record), dict[str, Any]()
        for name in (self._label, self._image, self._images, self._mask):
            if name is not None and name not in values:
                raise ConfigError(f"A record must have exactly the schema's features: {name!r} missing.")
        if self._label is not None:
            number = self._find_class(values.pop(self._label))
            made |= {keys.CLASS_LABEL: number, keys.CLASS_TEXT: self.label_names[number]}
        if self._image is not None:
            assert self.image_form is not None
            mask = None if self._mask is None else (self._mask, values.pop(self._mask))
            made |= _make_image_values(f"Image {self._image!r}", values.pop(self._image), mask, self.image_form)
        if self._images is not None:
            assert self.image_form is not None
            images = values.pop(self._images)
            made |= _make_list_values(self._images, images, self.schema[keys.IMAGE_ENCODED].shape, self.image_form)
        return self.schema.check(values | made)

    def _find_class(self, label: Any) -> int:
        number = self._numbers.get(label) if isinstance(label, str) else label
        try:
            if number is not None and 0 <= int(number) == number < len(self.label_names):
                return int(number)
        except (TypeError, ValueError):
            pass
        raise ConfigError(
            f"Label {self._label!r} must be a class from 0 to {len(self.label_names) - 1} or its name, got {label!r}."
        )


def _find_only(fields: Mapping[str, Field], kind: type[Label | Image | Images | Mask]) -> str | None:
    """Returns the name of the only value of a kind; None if there is none."""
    names = [name for name, field in fields.items() if isinstance(field, kind)]
    if len(names) > 1:
        advice = " Give them as one list, of the kind Images." if kind is Image else ""
        raise ConfigError(f"A record must have at most one {kind.__name__}, got {', '.join(map(repr, names))}.{advice}")
    return names[0] if names else None


def _make_specs(name: str, field: Field) -> list[FeatureSpec]:
    if isinstance(field, Image | Images):
        number = field.number if isinstance(field, Images) else 1
        if number is not None and not (type(number) is int and 1 <= number <= keys.MAX_IMAGES):
            raise ConfigError(f"{name!r}: the number of Images must be from 1 to {keys.MAX_IMAGES:,}, got {number!r}.")
        shape = () if isinstance(field, Image) else None if number is None else (number,)
        return list(image_schema(labeled=False, boxes=False, box_labels=False, images=shape).features)
    if isinstance(field, Mask):
        return [keys.MASK]
    if isinstance(field, Label):
        return list(keys.class_schema().features)
    if isinstance(field, Text):
        return [FeatureSpec.make_text(name, field.doc)]
    if isinstance(field, Tensor | Values) and not isinstance(field.shape, Sequence | None):
        raise ConfigError(f"{name!r}: a shape must be a tuple of sizes, got {field.shape!r}.")
    if isinstance(field, Values):
        return [FeatureSpec(name, field.dtype, field.shape, field.doc)]
    if isinstance(field, Labels):
        if field.count is not None and not (type(field.count) is int and field.count >= 1):
            raise ConfigError(f"{name!r}: the `count` of Labels must be at least 1, got {field.count!r}.")
        shape = None if field.count is None else (field.count,)
        doc = field.doc or "classes, counted from 0"
        return [FeatureSpec(name, "int64", shape, doc, names=_check_names(name, field))]
    if not isinstance(field, Tensor):
        raise ConfigError(
            f"The kind of {name!r} must be a Tensor, a Text, Values, a Label, Labels, an Image, Images or a "
            f"Mask, got {field!r:.80}."
        )
    try:
        return make_tensor_specs(name, TensorType(field.dtype, tuple(field.shape)), field.doc)
    except ConfigError as error:
        raise ConfigError(f"{name!r}: {error}") from None


def _check_names(name: str, field: Label | Labels) -> tuple[str, ...]:
    """Returns the class names of a Label or Labels, after a check that they are texts."""
    names: Any = field.names
    is_list = isinstance(names, Iterable) and not isinstance(names, str)
    if not is_list or not names or not all(isinstance(each, str) and each for each in names):
        raise ConfigError(f"{name!r}: the names of classes must be texts, and at least one, got {names!r:.80}.")
    return tuple(names)


def make_image_features(image: PreparedImage) -> dict[str, Any]:
    """Returns the features of a record that describe its stored image."""
    return {
        keys.IMAGE_ENCODED: image.encoded,
        keys.IMAGE_FORMAT: image.format,
        keys.IMAGE_HEIGHT: image.height,
        keys.IMAGE_WIDTH: image.width,
        keys.IMAGE_CHANNELS: image.channels,
        keys.IMAGE_COLORSPACE: image.colorspace,
    }


def _make_image_values(name: str, image: Any, mask: tuple[str, Any] | None, form: ImageForm) -> dict[str, Any]:
    """Makes the features of an image, which may be a file's bytes or pixels, and of its mask."""
    from tfpipe.images.normalize import BadImage, prepare_image  # Pillow loads only for records with images

    data = _encode_image(name, image)
    mask_data = None if mask is None else _encode_mask(*mask)
    try:
        prepared = prepare_image(data, form, mask=mask_data)
    except BadImage as error:
        raise ConfigError(f"{name} cannot be stored: {error.reason}.") from None
    values = {
        **make_image_features(prepared),
        keys.IMAGE_FILENAME: "",
        keys.IMAGE_SHA256: hashlib.sha256(data).hexdigest(),
    }
    return values if mask is None else values | {keys.IMAGE_MASK: prepared.mask}


def _make_list_values(name: str, images: Any, shape: tuple[int, ...] | None, form: ImageForm) -> dict[str, list[Any]]:
    """Makes the features of several images: lists with one value for each."""
    must = f"Images {name!r} must be a list of {f'1 to {keys.MAX_IMAGES:,}' if shape is None else shape[0]} images"
    if not isinstance(images, list | tuple) and not (isinstance(images, np.ndarray) and images.ndim):
        raise ConfigError(f"{must}, got a {type(images).__name__}.")
    if not 1 <= len(images) <= keys.MAX_IMAGES or shape not in (None, (len(images),)):
        raise ConfigError(f"{must}, got {len(images):,}.")
    rows = [_make_image_values(f"Image {k} of {name!r}", image, None, form) for k, image in enumerate(images)]
    return {key: [row[key] for row in rows] for key in rows[0]}


def _encode_image(name: str, image: Any) -> bytes:
    from tfpipe.images.decode import make_image
    from tfpipe.images.transcode import encode

    if isinstance(image, bytes):
        return image
    pixels = np.asarray(image)
    is_gray, is_color = pixels.ndim == 2, pixels.ndim == 3 and pixels.shape[-1] == 3
    if pixels.dtype != np.uint8 or not (is_gray or is_color) or not pixels.size:
        got = f"{pixels.dtype} {list(pixels.shape)}" if pixels.dtype.kind in "biuf" else f"a {type(image).__name__}"
        raise ConfigError(
            f"{name} must be the bytes of a file, or uint8 [height, width, 3] or [height, width], got {got}."
        )
    return encode(make_image(np.ascontiguousarray(pixels)), "png", ImageForm())


def _encode_mask(name: str, mask: Any) -> bytes:
    from tfpipe.images.masks import encode_mask

    if isinstance(mask, bytes):
        return mask
    classes = np.asarray(mask)
    if classes.dtype.kind not in "biu" or classes.ndim != 2 or not classes.size:
        got = f"{classes.dtype} {list(classes.shape)}" if classes.dtype.kind in "biuf" else f"a {type(mask).__name__}"
        raise ConfigError(f"Mask {name!r} must be the bytes of a PNG, or whole numbers [height, width], got {got}.")
    low, high = int(classes.min()), int(classes.max())
    if low < 0 or high > _MAX_CLASS:
        raise ConfigError(f"Mask {name!r} must hold classes from 0 to {_MAX_CLASS:,}, got {low if low < 0 else high}.")
    if classes.dtype != np.uint16:
        classes = classes.astype(np.uint8 if high < 256 else np.uint16)
    return encode_mask(classes)
