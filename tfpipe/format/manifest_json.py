"""Writes the manifest as JSON text and reads it back. Reading trusts nothing."""

import json
import os
import posixpath
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from tfpipe.errors import ConfigError, FormatError
from tfpipe.format import file_names
from tfpipe.format.json_reader import MAX_COUNT, join, parse_json, read, refuse, to_json, whole, wrong
from tfpipe.format.manifest import FORMAT_VERSION, Foreign, Manifest, SplitInfo
from tfpipe.format.schema import IMAGE_ENCODED, IMAGE_KEYS, DType, Schema
from tfpipe.format.tensors.tensor_stats import TensorStats
from tfpipe.format.tfrecord import FRAME_BYTES

MAX_BYTES = 32 << 20
"""The largest manifest that is read. `file_names.MAX_SHARDS` shards take half of it."""

_STATS = ("tensors", "masks", "images_per_record", "label_counts")
_MAX_INFLATION = 1032  # no file unpacks to more times its size (zlib's manual, "Maximum Compression Factor")


def dumps(manifest: Manifest) -> str:
    """Encodes the manifest as sorted ASCII text with a line for each shard and feature, which suits `diff`."""
    splits = {name: _split_to_json(split) for name, split in sorted(manifest.splits.items())}
    fields = to_json(replace(manifest, splits={}))
    return _render({"format_version": FORMAT_VERSION, **fields, "splits": splits}, "") + "\n"


def _split_to_json(split: SplitInfo) -> dict[str, object]:
    return {
        "num_shards": split.num_shards,
        "records": split.records,
        "bytes": split.bytes,
        **({"unpacked_bytes": split.unpacked_bytes} if split.unpacked_bytes else {}),
        "formats": to_json(split.formats),
        **({"seekable": split.seekable, "seekable_jpegs": split.seekable_jpegs} if split.seekable_jpegs else {}),
        "class_counts": split.class_counts,
        "sizes": to_json(split.sizes),
        **stats_to_json(split, split.tensors, split.label_counts),
        "shards": [shard._asdict() for shard in split.shards],
    }


def stats_to_json(
    split: SplitInfo, tensors: Mapping[str, TensorStats], label_counts: Mapping[str, tuple[int, ...]]
) -> dict[str, Any]:
    """Returns the JSON fields for the tensors, masks, images per record and lists of classes of a split, if any."""
    stats = to_json(replace(split, shards=(), tensors=tensors, label_counts=label_counts))
    return {name: stats[name] for name in _STATS if name in stats}


def _render(value: object, indent: str) -> str:
    """Renders an object on several lines, a list of objects with one line each, and any other value on one line."""
    deeper = indent + "  "
    if isinstance(value, dict) and value:
        lines = [f"{deeper}{json.dumps(key)}: {_render(below, deeper)}" for key, below in value.items()]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    if isinstance(value, list) and value and isinstance(value[0], dict):
        lines = [deeper + json.dumps(element, allow_nan=False) for element in value]
        return "[\n" + ",\n".join(lines) + f"\n{indent}]"
    return json.dumps(value, allow_nan=False)


def loads(text: str, where: str = file_names.MANIFEST) -> Manifest:
    """Reads a manifest and checks all of it. Unknown fields are ignored: a newer tfpipe may add them."""
    root = read(parse_json(text, where), dict[str, Any], where)
    if "format_version" not in root:
        raise FormatError(f"{where}: format_version is missing.")
    version = read(root["format_version"], Annotated[int, whole(1)], where, "format_version")
    if version > FORMAT_VERSION:
        raise FormatError(
            f"{where} has format version {version}, this tfpipe reads up to {FORMAT_VERSION}: it needs a newer tfpipe."
        )
    num_shards = 0
    for name, split in read(root.get("splits", {}), dict[str, Any], where, "splits").items():
        try:
            file_names.check_split_name(name)
        except ConfigError as error:
            raise refuse(where, join("splits", name), error) from None
        if isinstance(split, dict):
            split["name"] = name
            num_shards += len(split["shards"]) if isinstance(split.get("shards"), list) else 0
    if num_shards > file_names.MAX_SHARDS:  # they would take long to read
        reason = f"there must be at most {file_names.MAX_SHARDS:,} shards in all, got {num_shards:,}."
        raise refuse(where, "splits", reason)
    manifest: Manifest = read(root, Manifest, where)
    _check(manifest, root["splits"], where)
    if manifest.has_several_images:
        return manifest
    splits = {name: replace(split, images_per_record=None) for name, split in manifest.splits.items()}
    return replace(manifest, splits=splits)


def _check(manifest: Manifest, splits: Mapping[str, Any], where: str) -> None:
    """Checks that the fields of a manifest agree with each other."""
    schema, foreign = manifest.schema, manifest.foreign
    if len(set(manifest.label_names)) < len(manifest.label_names):
        twice, name = next((i, name) for i, name in enumerate(manifest.label_names) if name in manifest.label_names[:i])
        raise wrong(where, f"label_names[{twice}]", "a name that no other class has", name)
    if foreign is not None:
        _check_foreign(foreign, schema, where)
    elif schema.has_several_images:
        shape = schema[IMAGE_ENCODED].shape
        if any(name not in schema or schema[name].shape != shape for name in IMAGE_KEYS) or schema.masks:
            names = ", ".join(IMAGE_KEYS)
            raise refuse(where, "schema", f"several images need lists of one shape in {names}, and have no masks.")
    files: set[str] = set()
    for split in manifest.splits.values():
        _check_shards(split, files, foreign, where)
        _check_counts(split, manifest, where)
        jpegs, seekable = split.formats.get("JPEG", 0), splits[split.name].get("seekable")
        if split.seekable_jpegs > jpegs:
            at = f"splits.{split.name}.seekable_jpegs"
            raise wrong(where, at, f"a whole number of at least 0 and at most {jpegs}", split.seekable_jpegs)
        # Readers choose a decoder by `seekable`. Manifests without such JPEGs, and older ones, have neither field.
        if "seekable_jpegs" in splits[split.name] and seekable is not split.seekable:
            must = f"true if all {jpegs} JPEGs are seekable, else false; {split.seekable_jpegs} are"
            raise wrong(where, f"splits.{split.name}.seekable", must, seekable)


def _check_foreign(foreign: Foreign, schema: Schema, where: str) -> None:
    # All shards lie below this directory, so the manifest shows what it reads. Shard names cannot lead out of it.
    path = re.sub(r"^(gs|s3|az):/(?=/[^/])", "", foreign.root)  # for a bucket: its name and the path in it
    if foreign.root != "." and (not posixpath.isabs(path) or posixpath.normpath(path) != path):
        must = "'.' or an absolute path without . and .., or such a place in a bucket"
        raise wrong(where, "foreign.root", must, foreign.root)
    try:
        names_a_path = b"\0" not in os.fsencode(foreign.root)
    except UnicodeEncodeError:
        names_a_path = False
    if not names_a_path:
        raise wrong(where, "foreign.root", "a path that a file can have", foreign.root)
    keys: list[tuple[str, str | None, tuple[DType, ...], bool]] = [
        ("image_key", foreign.image_key, ("bytes",), True),
        ("label_key", foreign.label_key, ("int64", "float"), False),
        *((f"more_images[{i}]", key, ("bytes",), False) for i, key in enumerate(foreign.more_images)),
    ]
    for field, key, dtypes, takes_lists in keys:
        if key is None:
            continue
        fits = key in schema and schema[key].dtype in dtypes and schema[key].kind == "values"
        if not fits or not (takes_lists or schema[key].shape == ()):
            must = f"a feature of the schema with one value of {' or '.join(dtypes)}"
            raise wrong(where, f"foreign.{field}", must, key)


def _check_shards(split: SplitInfo, files: set[str], foreign: Foreign | None, where: str) -> None:
    """Checks the names of shards, and that each can hold its records. `files` collects the names of foreign shards."""
    at, factor = f"splits.{split.name}.shards", _MAX_INFLATION if foreign is not None and foreign.compression else 1
    for i, shard in enumerate(split.shards):
        if foreign is not None:
            try:
                file_names.check_foreign_name(shard.file)
            except FormatError as error:
                raise refuse(where, f"{at}[{i}].file", error) from None
            if shard.file in files:
                raise wrong(where, f"{at}[{i}].file", "a name that no other shard has", shard.file)
            files.add(shard.file)
        elif shard.file != (name := file_names.shard_name(split.name, i, split.num_shards)):
            # Only one name is right, so folders, other splits and repetitions are all refused here.
            raise wrong(where, f"{at}[{i}].file", repr(name), shard.file)
        if shard.records * FRAME_BYTES > shard.bytes * factor:
            most = shard.bytes * factor // FRAME_BYTES
            must = f"at most {most}, since a record takes {FRAME_BYTES} bytes or more"
            raise wrong(where, f"{at}[{i}].records", must, shard.records)
    if split.bytes > MAX_COUNT:
        raise refuse(where, at, f"the sizes of the shards must sum to at most {MAX_COUNT}, got {split.bytes}.")
    if not split.unpacked_bytes:
        return
    at = f"splits.{split.name}.unpacked_bytes"
    if foreign is None or foreign.compression != "GZIP":
        raise refuse(where, at, "only GZIP files have it.")
    least, most = split.records * FRAME_BYTES, split.bytes * _MAX_INFLATION
    if not least <= split.unpacked_bytes <= most:
        raise wrong(where, at, f"a number from {least} to {most}", split.unpacked_bytes)


def _check_counts(split: SplitInfo, manifest: Manifest, where: str) -> None:
    """Checks the counts of classes and of formats. These must cover all images: readers choose a decoder by them."""
    at, records, classes = f"splits.{split.name}", split.records, len(manifest.label_names)
    if split.class_counts and len(split.class_counts) != classes:
        must = f"empty or a count for each of the {classes} label names"
        raise wrong(where, f"{at}.class_counts", must, list(split.class_counts))
    if sum(split.class_counts) > records:
        must = f"counts that sum to at most {records}, the records of the shards"
        raise wrong(where, f"{at}.class_counts", must, list(split.class_counts))
    for key, counts in split.label_counts.items():
        classes = len(manifest.schema[key].names) if key in manifest.schema else 0
        if len(counts) > classes or max(counts, default=0) > records:
            path = join(f"{at}.label_counts", key)
            raise wrong(where, path, f"at most {classes} counts, each at most {records}", list(counts))
    images, what, several = records, f"the {records} records of the shards", split.images_per_record
    shape = manifest.images_shape
    if shape != () and several is not None:
        images, what = several.total, f"the {several.total} images"
    if not (IMAGE_ENCODED in manifest.schema if manifest.foreign is None else manifest.foreign.image_key is not None):
        images, what = 0, "0, since the records have no image"
    if sum(split.formats.values()) != images:
        raise wrong(where, f"{at}.formats", f"counts that sum to {what}", dict(split.formats))
    if shape == () or not records:
        return
    at += ".images_per_record"
    if several is None:
        raise FormatError(f"{where}: {at} is missing.")
    if shape is not None and not several.min == several.max == shape[0]:
        raise refuse(where, at, f"`min` and `max` must be {shape[0]}, as the schema says.")
    if not several.min * records <= several.total <= several.max * records:
        raise refuse(where, at, f"`total` must fit {records} records with `min` to `max` images each.")
