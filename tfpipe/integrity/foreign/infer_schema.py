"""Infers the keys of foreign records from the first record, and their schema and labels from a scan of all."""

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias, get_args

import numpy as np

from tfpipe.errors import ConfigError, DataError
from tfpipe.format.example import Feature
from tfpipe.format.schema import CLASS_LABEL, IMAGE_ENCODED, DType, FeatureSpec, Schema
from tfpipe.format.tensors.tensor_stats import TensorStats
from tfpipe.format.tensors.tensor_type import Encoding, TensorType, read_tensor_proto
from tfpipe.images.decode import read_image_header
from tfpipe.images.errors import BadImage
from tfpipe.integrity.foreign.metadata_files import Metadata
from tfpipe.integrity.foreign.scan_file import FeatureStats, FileScan, Keys, check_formats

LabelBase: TypeAlias = Literal["auto", "0", "1"]

_LABEL_KEYS = (CLASS_LABEL, "label", "class", "labels", "class_id", "target", "cls")
_IMAGE_KEYS = (IMAGE_ENCODED, "image", "image_raw", "img", "jpeg", "jpg", "png")
_TENSOR = re.compile(r"(?P<name>.+)=\s*(?P<dtype>\w+)\s*\[(?P<shape>[^\[\]]*)\]\s*")
_MAX_SHOWN = 12
_MAX_CLASSES = 1_000_000


def choose_keys(first: Mapping[str, Feature], named: Keys, metadata: Metadata) -> Keys:
    """Chooses the features of image and label: by options, TFDS's supervised keys, usual names, or TFDS's features."""
    tensors = {spec.name for spec in named.tensors}
    others = {key: value for key, value in first.items() if key not in tensors}
    images = named.images
    if not images:
        usual = (*metadata.supervised, *_IMAGE_KEYS, *metadata.images)
        likely = [key for key in usual if _may_be_image(others.get(key))]
        readable = [key for key in (*likely, *sorted(others)) if _is_image(others.get(key))]
        candidates = list(dict.fromkeys(readable)) or likely
        if candidates and candidates[0] not in likely and len(candidates) > 1:
            raise ConfigError(f"Name one of several images with `image_key`: {', '.join(candidates[:_MAX_SHOWN])}.")
        images = tuple(candidates[:1])
    labels = (*metadata.supervised, *_LABEL_KEYS, *metadata.classes)
    label = named.label or next((key for key in labels if _is_number(others.get(key), "i")), None)
    for key in images:
        if not isinstance(others.get(key), list):
            raise ConfigError(f"`image_key` must name a feature with an image; {_name_features(first)}, got {key!r}.")
    if label is not None and not _is_number(others.get(label), "if"):
        raise ConfigError(
            f"`label_key` must name a feature with one int64 or float value; {_name_features(first)}, got {label!r}."
        )
    text = f"{label[: -len('label')]}text" if label is not None and label.endswith("label") else None
    return Keys(images, label, text if text in first else None, named.tensors)


def _is_number(value: Feature, kinds: str) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in kinds and value.size == 1


def _may_be_image(value: Feature) -> bool:
    """Returns whether a value is bytes that are neither a text, such as the name of a file, nor a tensor."""
    if not isinstance(value, list) or not value or read_tensor_proto(value[0]) is not None:
        return False
    return not value[0].decode("utf-8", "replace").replace("\ufffd", "\0").isprintable()


def _is_image(value: Feature) -> bool:
    with contextlib.suppress(BadImage):
        return isinstance(value, list) and len(value) > 0 and bool(read_image_header(value[0]))
    return False


def find_tensors(
    texts: Sequence[str], first: Mapping[str, Feature], widths: Mapping[str, int]
) -> tuple[FeatureSpec, ...]:
    """Finds the types of the tensors that the user named in `texts`, by the first record."""
    specs: dict[str, FeatureSpec] = {}
    for text in texts:
        match = _TENSOR.fullmatch(text)
        if match is None or match["name"] in specs:
            raise ConfigError(
                f"`tensors` must name each feature once, as in elevation=float32[64,64], image/encoded=uint8"
                f"[image/shape] or rgb=uint8[?,1024], got {text!r}."
            )
        name, value = match["name"], first.get(match["name"])
        if value is None:
            raise ConfigError(f"`tensors` must name features with values; {_name_features(first)}, got {name!r}.")
        dtype: DType = "bytes" if isinstance(value, list) else "float" if value.dtype.kind == "f" else "int64"
        encoding: Encoding = "raw" if isinstance(value, list) and len(value) == 1 and name not in widths else "list"
        try:
            tensor = _find_type(match["dtype"], match["shape"], encoding, first)
            specs[name] = FeatureSpec.make_tensor(name, tensor, dtype=dtype)
        except ConfigError as error:
            raise ConfigError(f"`tensors` {text}: {error}") from None
    return tuple(specs.values())


def _find_type(dtype: str, text: str, encoding: Encoding, first: Mapping[str, Feature]) -> TensorType:
    """Returns the type of a tensor whose shape is a list of sizes, or the name of the feature that holds them."""
    if (key := text.strip()) not in first:
        tensor = TensorType.parse(f"{dtype}[{text}]")
        if tensor.num_unknown > 1:
            raise ConfigError("it has one ? at most. Name the feature that holds the shape in place of sizes.")
        return replace(tensor, encoding=encoding)
    sizes = first[key]
    if not isinstance(sizes, np.ndarray) or sizes.dtype != np.int64:
        raise ConfigError(f"{key!r} must hold the size of each axis as int64.")
    shape = (None,) * len(sizes)
    # `TensorType` checks the dtype.
    return TensorType(dtype, shape, encoding, key if len(sizes) > 1 else None)  # type: ignore[arg-type]


def _name_features(features: Mapping[str, Feature]) -> str:
    """Lists the features of the first record, for an error message."""
    names = sorted(features)
    more = f" and {len(names) - _MAX_SHOWN:,} more" if len(names) > _MAX_SHOWN else ""
    return f"the first record has {', '.join(map(repr, names[:_MAX_SHOWN])) or 'no feature'}{more}"


def infer_schema(scan: FileScan, keys: Keys, notes: list[str]) -> Schema:
    """Infers the shape of each feature. A feature of several dtypes or with an invalid name gets a note instead."""
    named = {spec.name: spec for spec in keys.tensors}
    specs = []
    for name, stats in sorted(scan.features.items()):
        if not stats.kinds:
            continue
        if (spec := named.get(name)) is not None:
            tensor, shape = spec.tensor, _find_sizes(scan.stats.tensors[name])
            if tensor is not None and tensor.sizes is not None and shape.count(None) < 2:  # no feature need tell them
                spec = FeatureSpec.make_tensor(name, replace(tensor, shape=shape, sizes=None), dtype=spec.dtype)
            specs.append(spec)
        elif len(stats.kinds) > 1:
            notes.append(f"Left out: {name!r} is {' in some records and '.join(sorted(stats.kinds))} in others.")
        elif stats.width == -1 and name not in keys.images:
            notes.append(f"Left out: the steps of {name!r} have different numbers of values.")
        else:
            try:
                specs.append(_spec(name, stats, scan))
            except ConfigError as error:
                notes.append(f"Left out: {error}")
    return Schema(tuple(specs))


def _spec(name: str, stats: FeatureStats, scan: FileScan) -> FeatureSpec:
    (dtype,) = (kind for kind in get_args(DType) if kind in stats.kinds)
    missing = scan.records - stats.records
    if stats.tensor is not None and stats.tensor.encoding == "list":
        return FeatureSpec.make_tensor(name, stats.tensor, dtype=dtype)
    if missing:
        return FeatureSpec(name, dtype, None, f"missing in {missing:,} of {scan.records:,} records")
    if stats.min_values != stats.max_values or not stats.max_values:
        return FeatureSpec(name, dtype, None, f"{stats.min_values:,} to {stats.max_values:,} values")
    if stats.tensor is not None and stats.max_values == 1:  # as `tf.io.serialize_tensor` wrote it
        return FeatureSpec.make_tensor(name, replace(stats.tensor, shape=_find_sizes(scan.stats.tensors[name])))
    return FeatureSpec(name, dtype, () if stats.max_values == 1 else (stats.max_values,))


def _find_sizes(stats: TensorStats) -> tuple[int | None, ...]:
    """Returns the size of each axis, but None up to the last axis that differs: unknown sizes must come first."""
    low, high = stats.min_sizes, stats.max_sizes
    unknown = max((k + 1 for k in range(len(low)) if low[k] != high[k] or not low[k]), default=0)
    return (None,) * unknown + high[unknown:]


def check_images(schema: Schema, scan: FileScan, keys: Keys, where: str) -> None:
    """Checks that every record has an image in each image feature, or a list of images in the only one."""
    for key in keys.images:
        stats, spec = scan.features.get(key), next((spec for spec in schema.features if spec.name == key), None)
        has_all = stats is not None and stats.records == scan.records and stats.min_values > 0
        fits = spec is not None and (spec.dtype, spec.kind) == ("bytes", "values")
        if not fits or not has_all or (len(keys.images) > 1 and spec is not None and spec.shape != ()):
            why = "of several kinds" if spec is None else spec.doc or "a list"
            raise DataError(f"Each of the {scan.records:,} records must have one image under {key!r}; it is {why}.")
    check_formats(scan.stats, keys, where)


def infer_labels(
    schema: Schema, scan: FileScan, keys: Keys, base: LabelBase, metadata: Metadata
) -> tuple[str | None, int, tuple[str, ...]]:
    """Infers the feature with the class (None without), the number stored for class 0, and the names of classes.

    Classes without names get their numbers. A negative label means no class, as in the unlabeled splits of TFDS.
    """
    key, notes = keys.label, metadata.notes
    if key is None:
        notes.append(f"No feature was found to be a class: the dataset has no labels.{_suggest_label(schema)}")
        return None, 0, ()
    if key in schema and (schema[key].dtype, schema[key].shape) == ("float", ()):
        return key, 0, ()
    stored = sorted(label for label in scan.stats.labels if label >= 0)
    if (reason := _find_no_classes(schema, key, stored)) is not None:
        notes.append(f"The dataset has no labels: {key!r} {reason}.")
        return None, 0, ()
    names = metadata.classes.get(key) or metadata.listed
    if base != "auto":
        first = int(base)
    elif key in metadata.classes:
        first = 0
    else:  # the number of class names tells the first number
        first = int(stored[0] > 0 and stored[-1] >= len(names) if names else stored[0] == 1)
    if stored[0] < first:
        raise ConfigError(f"`label_base` {base} must be at most the smallest label, got {stored[0]}.")
    if negative := sum(count for label, count in scan.stats.labels.items() if label < 0):
        notes.append(f"{negative:,} labels are below 0 and belong to no class.")
    count = stored[-1] - first + 1
    if names and len(names) < count:
        notes.append(f"Not used: {len(names):,} label names for {count:,} classes.")
        names = ()
    return key, first, names or _names_in_records(scan, first, count)


def _suggest_label(schema: Schema) -> str:
    """Returns advice on features that are named like labels but hold no classes."""
    usual = [schema[key] for key in _LABEL_KEYS if key in schema and schema[key].kind == "values"]
    advice = ""
    for name in [spec.name for spec in usual if (spec.dtype, spec.shape) == ("float", ())][:1]:
        advice += f" {name!r} holds a number: --label-key {name} makes it a value of each batch."
    for name in [spec.name for spec in usual if spec.dtype == "bytes"][:1]:
        advice += f" {name!r} holds texts: list it in `extra_features`, and number them in the trainer."
    return advice


def _find_no_classes(schema: Schema, key: str, stored: Sequence[int]) -> str | None:
    """Returns why the values of a feature cannot be classes, or None if they can."""
    if key not in schema or schema[key].dtype != "int64" or schema[key].shape != ():
        return f"is {schema[key].doc if key in schema else 'of several kinds'}"
    if not stored:
        return "has no value of at least 0"
    return f"reaches {stored[-1]:,}, which is too large for a class" if stored[-1] >= _MAX_CLASSES else None


def _names_in_records(scan: FileScan, base: int, count: int) -> tuple[str, ...]:
    """Returns the class names in the records if each class has its own name, else the stored numbers."""
    numbers = tuple(str(k + base) for k in range(count))
    names = list(numbers)
    for label, texts in scan.texts.items():
        if len(texts) > 1:
            return numbers
        if base <= label < base + count:
            names[label - base] = next(iter(texts)).decode("utf-8", "surrogateescape")
    return tuple(names) if len(set(names)) == count and all(names) else numbers
