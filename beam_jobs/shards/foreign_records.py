"""Makes tfpipe's records of those that another program wrote.

The image and the class get tfpipe's own features, and classes count from 0. Every other feature of the schema keeps its
name and its values. The pixels are those that a plain decoder gives, so a pipeline reads what it read before.
"""

import hashlib
from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from beam_jobs.plan.image_ref import ImageRef, PlannedImage
from beam_jobs.plan.merge_manifests import SourceDataset
from beam_jobs.shards.record import Record, make_image_features
from beam_jobs.shards.work_dir import PlanHeader
from tfpipe.format import schema as keys
from tfpipe.format.example import Feature, encode_example
from tfpipe.format.manifest import Foreign
from tfpipe.format.schema import FeatureSpec
from tfpipe.images.normalize import BadImage, PreparedImage, prepare_image

NO_CLASS = -1
"""The label of an image without a class in a dataset that has classes. Its class text is empty."""


def make_record(header: PlanHeader, source: SourceDataset, planned: PlannedImage, old: Mapping[str, Feature]) -> Record:
    """Makes the record of the new dataset.

    Raises:
        BadImage: Its image cannot be stored, or a feature has another kind or number of values than its dataset says.
    """
    assert source.foreign is not None
    name, values = _get_name(old, planned), dict[str, Any]()
    images: tuple[PreparedImage, ...] = ()
    digest = _get_digest(old, source.foreign)
    if source.foreign.image_key is not None:
        image = prepare_image(_get_encoded(old, source.foreign), header.form, plain=True)
        images = (image,)
        values = {**make_image_features(image), keys.IMAGE_FILENAME: name, keys.IMAGE_SHA256: digest.hex()}
    label = NO_CLASS
    if header.label_names:
        label = get_foreign_label(old, source)
        text = header.label_names[label] if label != NO_CLASS else ""
        values |= {keys.CLASS_LABEL: label, keys.CLASS_TEXT: text.encode("utf-8", "surrogateescape")}
    made = values.keys() | header.schema.sizes_keys
    values |= {spec.name: _get_values(old, spec) for spec in header.schema.features if spec.name not in made}
    features = header.schema.check(values)
    return Record(encode_example(features), features, images, digest, name.decode("utf-8", "surrogateescape"))


def identify_foreign(source: SourceDataset, old: Mapping[str, Feature]) -> tuple[bytes, int]:
    """Returns the SHA-256 of a foreign record's image and the new label of its class, or -1.

    Raises:
        BadImage: It lacks a feature.
    """
    assert source.foreign is not None
    digest = _get_digest(old, source.foreign)
    return digest, get_foreign_label(old, source) if source.labels else NO_CLASS


def get_foreign_label(old: Mapping[str, Feature], source: SourceDataset) -> int:
    """Returns the new label of a foreign record. A stored number below 0 stands for no class.

    Raises:
        BadImage: It has no label, or one that is not a class.
    """
    assert source.foreign is not None
    assert source.foreign.label_key is not None
    key = source.foreign.label_key
    value = old.get(key)
    if not isinstance(value, np.ndarray) or value.dtype.kind != "i" or len(value) != 1:
        raise BadImage(f"its record must have one whole number as {key}")
    stored = int(value[0])
    if stored < 0:
        return NO_CLASS
    label = stored - source.foreign.label_base
    if not 0 <= label < len(source.labels):
        raise BadImage(f"its label {stored} is not one of the {len(source.labels)} classes")
    return source.labels[label]


def _get_digest(old: Mapping[str, Feature], foreign: Foreign) -> bytes:
    """Returns the SHA-256 of the image; of a record without one that of all its features."""
    content = encode_example(old) if foreign.image_key is None else _get_encoded(old, foreign)
    return hashlib.sha256(content).digest()


def _get_encoded(old: Mapping[str, Feature], foreign: Foreign) -> bytes:
    value = old.get(foreign.image_key) if foreign.image_key is not None else None
    if not isinstance(value, list) or len(value) != 1:
        raise BadImage(f"its record must have one image as {foreign.image_key}")
    return value[0]


def _get_name(old: Mapping[str, Feature], planned: PlannedImage | ImageRef) -> bytes:
    """Returns the file name in the record or, if it has none, the record's place."""
    value = old.get(keys.IMAGE_FILENAME)
    if isinstance(value, list) and len(value) == 1 and value[0]:
        return value[0]
    return planned.path.encode("utf-8", "surrogateescape")


def _get_values(old: Mapping[str, Feature], spec: FeatureSpec) -> Any:
    """Returns a feature's values for the encoder. A list that a record lacks is empty."""
    if spec.tensor is not None and spec.tensor.encoding == "raw":  # of a column
        return spec.decode(old)
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
