"""Makes the files with which TensorFlow Datasets (TFDS) opens a dataset, without importing TFDS."""

import contextlib
import json
import logging
import re
from typing import TypeAlias

from tfpipe.errors import ConfigError
from tfpipe.format import file_names
from tfpipe.format.manifest import Manifest
from tfpipe.format.schema import CLASS_LABEL, IMAGE_ENCODED, FeatureSpec

VERSION = "1.0.0"
"""The version of the dataset that TFDS requires. All datasets have this one."""

_logger = logging.getLogger(__name__)
_Json: TypeAlias = dict[str, object]
_DTYPES = {"bytes": "string", "int64": "int64", "float": "float32"}
_ENCODING_FORMATS = {"JPEG": "jpeg", "PNG": "png"}
_CORE = "tensorflow_datasets.core.features"


def dataset_name(manifest: Manifest) -> str:
    """Returns the dataset's name in TFDS's form: a letter, then lower-case letters, digits and underscores."""
    name = re.sub(r"[^a-z0-9]+", "_", manifest.name.lower()).strip("_")
    return name if name[:1].isalpha() else f"dataset_{name}".rstrip("_")


def dataset_info_json(manifest: Manifest, file_format: str = "tfrecord") -> str:
    """Returns the text of `dataset_info.json`: splits, records of each shard, and the pattern of shard names."""
    splits = [
        {
            "name": split.name,
            "filepathTemplate": "{SPLIT}-{SHARD_X_OF_Y}.{FILEFORMAT}",
            "numBytes": str(split.bytes),
            "shardLengths": [str(shard.records) for shard in split.shards],
        }
        for _, split in sorted(manifest.splits.items())
    ]
    return _text(
        {
            "name": dataset_name(manifest),
            "description": f"{manifest.name}, written by tfpipe {manifest.tool_version}.",
            "version": VERSION,
            "fileFormat": file_format,
            "splits": splits,
        }
    )


def make_files(manifest: Manifest, file_format: str = "tfrecord") -> dict[str, str]:
    """Returns the text of each file with which TFDS opens the dataset; none if TFDS cannot hold its features."""
    if not can_represent(manifest):
        return {}
    files = {
        file_names.TFDS_FEATURES: features_json(manifest),
        file_names.TFDS_INFO: dataset_info_json(manifest, file_format),
    }
    return files | label_files(manifest)


def can_represent(manifest: Manifest) -> bool:
    """Returns whether TFDS can represent the features: some names it cannot nest, and some tensors it cannot read."""
    with contextlib.suppress(ConfigError):
        return bool(features_json(manifest))
    return False


def features_json(manifest: Manifest) -> str:
    """Returns the text of `features.json`: the kind and shape of every feature, nested by `/`."""
    tree: _Json = {}
    for spec in manifest.schema.features:
        *groups, leaf = spec.name.split("/")
        here = tree
        for group in groups:
            below = here.setdefault(group, {})
            if not isinstance(below, dict):
                raise ConfigError(f"Feature {spec.name!r} cannot lie inside feature {group!r}.")
            here = below
        if leaf in here:
            raise ConfigError(f"Feature {spec.name!r} cannot be a feature and a group of features.")
        here[leaf] = spec
    return _text(_nest(tree, manifest))


def label_files(manifest: Manifest) -> dict[str, str]:
    """Returns the text of each file in which TFDS looks for label names.

    TFDS strips names and drops empty ones. If a name would not survive that, all names are left out, and TFDS shows
    classes by number.
    """
    if CLASS_LABEL not in manifest.schema or not manifest.label_names:
        return {}
    names = manifest.label_names
    if any(not name or name != name.strip() or re.search("[\r\n\ud800-\udfff]", name) for name in names):
        _logger.warning(
            "TensorFlow Datasets will show classes by number: a label name is empty, not UTF-8, or has odd white space."
        )
        return {}
    return {f"{CLASS_LABEL.replace('/', '-')}.labels.txt": "\n".join(names) + "\n"}


def _nest(below: object, manifest: Manifest) -> _Json:
    """Converts a feature, or a group of nested features, to the JSON of TFDS."""
    if isinstance(below, FeatureSpec):
        return _feature(below, manifest)
    assert isinstance(below, dict)
    features = {name: _nest(inner, manifest) for name, inner in below.items()}
    return _node("features_dict.FeaturesDict", "featuresDict", {"features": features})


def _feature(spec: FeatureSpec, manifest: Manifest) -> _Json:
    if spec.name == IMAGE_ENCODED and spec.shape == ():  # a list of images stays bytes: TFDS would stack them
        return _image(manifest)
    if spec.name == CLASS_LABEL and manifest.label_names:
        return _node("class_label_feature.ClassLabel", "classLabel", {"numClasses": str(len(manifest.label_names))})
    if (tensor := spec.tensor) is not None:  # TFDS infers one unknown size, and has its own form for more
        if tensor.encoding != "raw" or tensor.num_unknown > 1 or tensor.dtype == "uint32":
            raise ConfigError(f"TensorFlow Datasets cannot read the tensors of {spec.name!r}.")
        return _tensor(tensor.dtype, tuple(-1 if size is None else size for size in tensor.shape), "bytes")
    if spec.shape is None:
        return _node("sequence_feature.Sequence", "sequence", {"feature": _value(spec, ()), "length": "-1"})
    return _value(spec, spec.shape)


def _value(spec: FeatureSpec, shape: tuple[int, ...]) -> _Json:
    if spec.dtype == "bytes" and not shape:
        return _node("text_feature.Text", "text", {})
    return _tensor(_DTYPES[spec.dtype], shape, "none")


def _image(manifest: Manifest) -> _Json:
    square = manifest.image.get("square")
    if manifest.image.get("encoding") == "raw":
        if not isinstance(square, int):
            raise ConfigError(f"Raw images need `square`, their side in pixels, got {square!r}.")
        return _tensor("uint8", (square, square, 3), "bytes")
    content: _Json = {"dtype": "uint8", "shape": _shape((-1, -1, 3))}
    # TFDS decodes by content. The format is for writers and stays open if both kinds occur.
    formats = {name for split in manifest.splits.values() for name, count in split.formats.items() if count}
    if len(formats) == 1 and (only := formats.pop()) in _ENCODING_FORMATS:
        content["encodingFormat"] = _ENCODING_FORMATS[only]
    return _node("image_feature.Image", "image", content)


def _tensor(dtype: str, shape: tuple[int, ...], encoding: str) -> _Json:
    return _node("tensor_feature.Tensor", "tensor", {"dtype": dtype, "shape": _shape(shape), "encoding": encoding})


def _shape(shape: tuple[int, ...]) -> _Json:
    return {"dimensions": [str(n) for n in shape]} if shape else {}


def _node(class_name: str, kind: str, content: _Json) -> _Json:
    return {"pythonClassName": f"{_CORE}.{class_name}", kind: content}


def _text(document: _Json) -> str:
    return json.dumps(document, indent=2, sort_keys=True) + "\n"
