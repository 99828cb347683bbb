"""From what was seen in foreign records to what a manifest says of them: keys, schema, labels. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np

from tfpipe.errors import ConfigError, DataError
from tfpipe.format.example import Feature
from tfpipe.format.schema import CLASS_LABEL, IMAGE_ENCODED, DType, FeatureSpec, Schema
from tfpipe.images.errors import BadImage
from tfpipe.images.image_header import read_image_header
from tfpipe.integrity.foreign.metadata_files import Metadata
from tfpipe.integrity.foreign.scan_file import FeatureTally, Keys, Survey

LabelBase: TypeAlias = Literal["auto", "0", "1"]

_IMAGE_KEYS = (IMAGE_ENCODED, "image", "image_raw", "img", "jpeg", "jpg", "png")
_LABEL_KEYS = (CLASS_LABEL, "label", "class", "labels", "class_id", "target", "cls")
_MAX_CLASSES = 1_000_000
_MAX_SHOWN = 12


@dataclass(frozen=True)
class Labels:
    """The classes of a dataset.

    Attributes:
      key: The feature; None where there are no labels that can be used.
      base: What is stored for class 0.
      names: Of the classes; their stored numbers where nobody names them.
    """

    key: str | None = None
    base: int = 0
    names: tuple[str, ...] = ()


def choose_keys(first: Mapping[str, Feature], asked: Keys, sidecars: Metadata) -> Keys:
    """Where image and label lie, by what was asked for, by TFDS' word, by usual names, or by looking at the bytes.

    Args:
      first: The first record.
      asked: What the user named; empty for what is to be found.
      sidecars: What stands beside the files.

    Raises:
      ConfigError: The feature that was asked for is not there, or no image is found.
    """
    image = asked.image or _choose_image(first, sidecars)
    label = asked.label or next((key for key in (*sidecars.classes, *_LABEL_KEYS) if _is_one(first, key, int)), None)
    for key, option, kind in ((image, "image_key", bytes), (label, "label_key", int)):
        if key is not None and not _is_one(first, key, kind):
            what = "image" if kind is bytes else "int64"
            raise ConfigError(f"`{option}` must name a feature with one {what} value; {_shown(first)}, got {key!r}.")
    text = f"{label[: -len('label')]}text" if label is not None and label.endswith("label") else None
    return Keys(image, label, text if text in first else None)


def _choose_image(first: Mapping[str, Feature], sidecars: Metadata) -> str:
    likely = [key for key in (*sidecars.images, *_IMAGE_KEYS) if _is_one(first, key, bytes)]
    readable = [key for key in (*likely, *sorted(first)) if _is_image(first.get(key))]
    found = list(dict.fromkeys(readable)) or likely
    if not found:
        raise ConfigError(f"Name the feature that holds the image with `image_key`; {_shown(first)}.")
    if found[0] not in likely and len(found) > 1:
        raise ConfigError(f"Name one of several images with `image_key`: {', '.join(found[:_MAX_SHOWN])}.")
    return found[0]


def _is_one(features: Mapping[str, Feature], key: str, kind: type) -> bool:
    value = features.get(key)
    if kind is bytes:
        return isinstance(value, list) and len(value) == 1
    return isinstance(value, np.ndarray) and value.dtype == np.int64 and value.size == 1


def _is_image(value: Feature | None) -> bool:
    if not isinstance(value, list) or len(value) != 1:
        return False
    try:
        read_image_header(value[0])
    except BadImage:
        return False
    return True


def _shown(features: Mapping[str, Feature]) -> str:
    names = sorted(features)
    more = f" and {len(names) - _MAX_SHOWN:,} more" if len(names) > _MAX_SHOWN else ""
    return f"the first record has {', '.join(map(repr, names[:_MAX_SHOWN])) or 'no feature'}{more}"


def infer_schema(seen: Survey, notes: list[str]) -> Schema:
    """One value everywhere, always n values, or a list of any length.

    Left out, with a note: a feature of several kinds, which no parser takes, and one whose name is no text.
    """
    specs = []
    for name, tally in sorted(seen.features.items()):
        if len(tally.kinds) != 1:
            if tally.kinds:
                notes.append(f"Left out: {name!r} is {' in some records and '.join(sorted(tally.kinds))} in others.")
            continue
        try:
            specs.append(_spec(name, tally, seen.records))
        except ConfigError as error:
            notes.append(f"Left out: {error}")
    return Schema(tuple(specs))


def _spec(name: str, tally: FeatureTally, records: int) -> FeatureSpec:
    dtype = next(one for one in get_args(DType) if one in tally.kinds)
    missing = records - tally.records
    if missing:
        return FeatureSpec(name, dtype, None, f"missing in {missing:,} of {records:,} records")
    if tally.fewest != tally.most or not tally.most:
        return FeatureSpec(name, dtype, None, f"{tally.fewest:,} to {tally.most:,} values")
    return FeatureSpec(name, dtype, () if tally.most == 1 else (tally.most,))


def check_images(schema: Schema, key: str, records: int) -> None:
    """Refuses a dataset in which some record has no image.

    Raises:
      DataError: One has none, or several.
    """
    if key not in schema or schema[key].dtype != "bytes" or schema[key].shape != ():
        why = schema[key].doc if key in schema else "of several kinds"
        raise DataError(f"Each of the {records:,} records must have one image under {key!r}; it is {why}.")


def infer_labels(schema: Schema, seen: Survey, keys: Keys, base: LabelBase, told: Metadata, notes: list[str]) -> Labels:
    """The classes, their names, and what is stored for the first of them.

    Without a word of the user, TFDS counts from 0; a list of names says it by its length; else the smallest label is
    that of class 0 if it is 0 or 1. Negative labels, as in TFDS' unlabelled splits, are of no class.
    """
    key = keys.label
    if key is None:
        notes.append("No feature was found to be a class: the dataset has no labels.")
        return Labels()
    stored = sorted(label for label in seen.stats.labels if label >= 0)
    reason = _no_classes(schema, key, stored)
    if reason is not None:
        notes.append(f"The dataset has no labels: {key!r} {reason}.")
        return Labels()
    names = told.classes.get(key) or told.listed
    first = _base(base, stored, key in told.classes, len(names))
    if stored[0] < first:
        raise ConfigError(f"`label_base` {base} must be at most the smallest label, got {stored[0]}.")
    if negative := sum(count for label, count in seen.stats.labels.items() if label < 0):
        notes.append(f"{negative:,} labels are below 0 and of no class.")
    count = stored[-1] - first + 1
    if names and len(names) < count:
        notes.append(f"Not used: {len(names):,} label names for {count:,} classes.")
        names = ()
    return Labels(key, first, names or _names_in_records(seen, first, count))


def _no_classes(schema: Schema, key: str, stored: Sequence[int]) -> str | None:
    """Why the values are no classes."""
    if key not in schema or schema[key].dtype != "int64" or schema[key].shape != ():
        return f"is {schema[key].doc if key in schema else 'of several kinds'}"
    if not stored:
        return "has no value of at least 0"
    return f"reaches {stored[-1]:,}, which is no class" if stored[-1] >= _MAX_CLASSES else None


def _base(asked: LabelBase, stored: Sequence[int], of_tfds: bool, names: int) -> int:
    if asked != "auto":
        return int(asked)
    if of_tfds:
        return 0
    if names:
        return int(stored[-1] >= names)
    return int(stored[0] == 1)


def _names_in_records(seen: Survey, base: int, count: int) -> tuple[str, ...]:
    """What the records call their classes, where each has a name of its own; else the numbers that are stored."""
    numbers = tuple(str(k + base) for k in range(count))
    names = list(numbers)
    for label, texts in seen.texts.items():
        if len(texts) > 1:
            return numbers
        if base <= label < base + count:
            names[label - base] = next(iter(texts)).decode("utf-8", "replace")
    return tuple(names) if len(set(names)) == count and all(names) else numbers
