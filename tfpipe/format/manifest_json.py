"""Writes the manifest as JSON text and reads it back. Reading trusts nothing."""

import json
import os
import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from typing import Any, get_args

from tfpipe.errors import ConfigError, FormatError
from tfpipe.format import file_names
from tfpipe.format.json_reader import MAX_COUNT, Node, parse_json
from tfpipe.format.manifest import (
    FORMAT_VERSION,
    Compression,
    Duplicates,
    Foreign,
    ImageSizes,
    ImagesPerRecord,
    Manifest,
    ShardInfo,
    SplitInfo,
    get_images_shape,
)
from tfpipe.format.schema import IMAGE_ENCODED, IMAGE_KEYS, DType, Schema
from tfpipe.format.tensors.tensor_stats import MaskStats, TensorStats
from tfpipe.format.tfrecord import FRAME_BYTES

MAX_BYTES = 32 << 20
"""The largest manifest that is read. `file_names.MAX_SHARDS` shards take half of it."""

_SHA256 = re.compile(r"[0-9a-f]{64}")
_PER_RECORD = (("total", 0), ("min", 1), ("max", 1))  # the fields, and the least value of each
_MAX_INFLATION = 1032  # no file unpacks to more times its size (zlib's manual, "Maximum Compression Factor")


def dumps(manifest: Manifest) -> str:
    """Returns the manifest as ASCII text, sorted, with a line for each shard and feature, so that versions compare."""
    document = {
        "format_version": FORMAT_VERSION,
        "name": manifest.name,
        "tool_version": manifest.tool_version,
        "fingerprint": manifest.fingerprint,
        "seed": manifest.seed,
        "image": _sorted(manifest.image),
        "schema": manifest.schema.to_json(),
        "label_names": list(manifest.label_names),
        **({} if manifest.foreign is None else {"foreign": foreign_to_json(manifest.foreign)}),
        **({"stands_on": _sorted(manifest.stands_on)} if manifest.stands_on else {}),
        "splits": {name: _split_to_json(split) for name, split in sorted(manifest.splits.items())},
        "changed": _sorted(manifest.changed),
        "noticed": _sorted(manifest.noticed),
        "skipped": _sorted(manifest.skipped),
        "quarantined": manifest.quarantined,
        "duplicates": asdict(manifest.duplicates) | {"within": _sorted(manifest.duplicates.within)},
    }
    return _render(document, "") + "\n"


def _split_to_json(split: SplitInfo) -> dict[str, object]:
    return {
        "num_shards": split.num_shards,
        "records": split.records,
        "bytes": split.bytes,
        **({"unpacked_bytes": split.unpacked_bytes} if split.unpacked_bytes else {}),
        "formats": _sorted(split.formats),
        **({"seekable": split.seekable, "seekable_jpegs": split.seekable_jpegs} if split.seekable_jpegs else {}),
        "class_counts": list(split.class_counts),
        "sizes": asdict(split.sizes),
        **stats_to_json(split, split.tensors, split.label_counts),
        "shards": [asdict(shard) for shard in split.shards],
    }


def stats_to_json(
    split: SplitInfo, tensors: Mapping[str, TensorStats], label_counts: Mapping[str, tuple[int, ...]]
) -> dict[str, Any]:
    """Returns the fields about tensors, masks, several images and lists of classes that a split or its columns have."""
    fields: dict[str, Any] = {}
    if tensors:
        fields["tensors"] = {name: stats.to_json() for name, stats in tensors.items()}
    if split.masks:
        fields["masks"] = {name: stats.to_json() for name, stats in split.masks.items()}
    if (several := split.images_per_record) is not None:
        fields["images_per_record"] = {"total": several.total, "min": several.smallest, "max": several.largest}
    if label_counts:
        fields["label_counts"] = {name: list(counts) for name, counts in label_counts.items()}
    return fields


def _sorted(mapping: Mapping[str, object]) -> dict[str, object]:
    return dict(sorted(mapping.items()))


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
    root = parse_json(text, where)
    version = root.field("format_version").count(1)
    if version > FORMAT_VERSION:
        raise FormatError(
            f"{where} has format version {version}, this tfpipe reads up to {FORMAT_VERSION}: it needs a newer tfpipe."
        )
    label_names = _label_names(root.field("label_names"))
    schema = Schema.from_json(root.field("schema"))
    foreign = _foreign(root, schema)
    if foreign is None and schema.has_several_images:
        _check_several(root, schema)
    splits = _splits(root.field("splits"), len(label_names), schema, foreign)
    duplicates = root.field("duplicates")
    return Manifest(
        name=root.field("name").text(),
        splits=splits,
        label_names=label_names,
        schema=schema,
        seed=root.field("seed").count(-MAX_COUNT - 1),
        changed=root.field("changed").counts(),
        noticed=root.field("noticed").counts(),
        skipped=root.field("skipped").counts(),
        quarantined=root.field("quarantined").count(),
        duplicates=Duplicates(
            duplicates.field("within").counts(), *(duplicates.field(name).count() for name in ("across", "dropped"))
        ),
        image=root.field("image").mapping(Node.scalar),
        fingerprint=root.field("fingerprint").text(),
        tool_version=root.field("tool_version").text(),
        foreign=foreign,
        stands_on=root.mapping(Node.text, "stands_on"),  # only a column has it
    )


def _label_names(node: Node) -> tuple[str, ...]:
    names: dict[str, None] = {}
    for element in node.elements():
        if element.text() in names:
            raise element.error("a name that no other class has")
        names[element.text()] = None
    return tuple(names)


def _foreign(document: Node, schema: Schema) -> Foreign | None:
    """Reads the facts about foreign shards, which only their manifests have."""
    node = document.get("foreign")
    if node is None:
        return None
    root, image_key, label_key = node.field("root"), node.field("image_key"), node.field("label_key")
    # All shards lie below one directory, which this field shows to everybody. Their names cannot lead out of it.
    path = re.sub(r"^(gs|s3|az):/(?=/[^/])", "", root.text())  # of a bucket its name and the path in it
    if root.text() != "." and (not posixpath.isabs(path) or posixpath.normpath(path) != path):
        raise root.error("'.' or an absolute path without . and .., or such a place in a bucket")
    if not _names_a_path(root.text()):
        raise root.error("a path that a file can have")
    return Foreign(
        root=root.text(),
        image_key=None if image_key.value is None else _key(image_key, schema, ("bytes",), takes_lists=True),
        label_key=None if label_key.value is None else _key(label_key, schema, ("int64", "float")),
        label_base=node.field("label_base").count(0, 1),
        compression=node.field("compression").choice(get_args(Compression)),
        more_images=node.get_or("more_images", []).tuple(lambda key: _key(key, schema, ("bytes",))),
    )


def foreign_to_json(foreign: Foreign) -> dict[str, Any]:
    """Returns the facts about foreign shards as JSON values."""
    fields = asdict(foreign)
    if not foreign.more_images:  # others stay byte for byte
        del fields["more_images"]
    return fields


def _key(node: Node, schema: Schema, dtypes: tuple[DType, ...], takes_lists: bool = False) -> str:
    name = node.text()
    fits = name in schema and schema[name].dtype in dtypes and schema[name].kind == "values"
    if not fits or not (takes_lists or schema[name].shape == ()):
        raise node.error(f"a feature of the schema with one value of {' or '.join(dtypes)}")
    return name


def _names_a_path(text: str) -> bool:
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def _check_several(root: Node, schema: Schema) -> None:
    """Checks the features of records with several images."""
    shape = schema[IMAGE_ENCODED].shape
    if any(name not in schema or schema[name].shape != shape for name in IMAGE_KEYS) or schema.masks:
        names = ", ".join(IMAGE_KEYS)
        raise root.field("schema").refuse(f"several images need lists of one shape in {names}, and have no masks.")


def _check_number(field: Node, split: SplitInfo, shape: tuple[int, ...] | None) -> None:
    """Checks that a split can have these numbers of images in its records."""
    counts, records = split.images_per_record, split.records
    assert counts is not None
    if shape is not None and not counts.smallest == counts.largest == shape[0]:
        raise field.refuse(f"`min` and `max` must be {shape[0]}, as the schema says.")
    if not counts.smallest * records <= counts.total <= counts.largest * records:
        raise field.refuse(f"`total` must fit {records} records with `min` to `max` images each.")


def _splits(node: Node, num_classes: int, schema: Schema, foreign: Foreign | None) -> dict[str, SplitInfo]:
    """Reads every split. A list of shards that would take long to read is refused first."""
    nodes = dict(node.items())
    for name, one in nodes.items():
        try:
            file_names.check_split_name(name)
        except ConfigError as error:
            raise one.refuse(error) from None
    shards = sum(len(one.field("shards").values()) for one in nodes.values())
    if shards > file_names.MAX_SHARDS:
        raise node.refuse(f"there must be at most {file_names.MAX_SHARDS:,} shards in all, got {shards:,}.")
    names: set[str] | None = None if foreign is None else set()
    factor = _MAX_INFLATION if foreign is not None and foreign.compression else 1
    has_images = IMAGE_ENCODED in schema if foreign is None else foreign.image_key is not None
    shape = get_images_shape(schema, (IMAGE_ENCODED,) if foreign is None else foreign.image_keys)
    several = shape != ()
    splits = {}
    for name, one in nodes.items():
        split = splits[name] = _split(name, one, num_classes, names, several)
        _check_formats(one.field("formats"), split, has_images)
        _check_sizes(one.field("shards"), split, factor)
        if split.unpacked_bytes:
            _check_unpacked(one.field("unpacked_bytes"), split, foreign)
        for key, counts in split.label_counts.items():
            classes = len(schema[key].names) if key in schema else 0
            if len(counts) > classes or max(counts, default=0) > split.records:
                field = one.field("label_counts").field(key)
                raise field.error(f"at most {classes} counts, each at most {split.records}")
        if several and split.records:
            _check_number(one.field("images_per_record"), split, shape)
    return splits


def _check_sizes(node: Node, split: SplitInfo, factor: int) -> None:
    """Checks that each shard can hold its records. A shard can unpack to `factor` times its size."""
    for i, shard in enumerate(split.shards):
        if shard.records * FRAME_BYTES > shard.bytes * factor:
            max_records = shard.bytes * factor // FRAME_BYTES
            records = node.element(i).field("records")
            raise records.error(f"at most {max_records}, since a record takes {FRAME_BYTES} bytes or more")
    if split.bytes > MAX_COUNT:
        raise node.refuse(f"the sizes of the shards must sum to at most {MAX_COUNT}, got {split.bytes}.")


def _check_unpacked(node: Node, split: SplitInfo, foreign: Foreign | None) -> None:
    """Checks that the shards of a split can be gzip files with a member for each record."""
    if foreign is None or foreign.compression != "GZIP":
        raise node.refuse("only GZIP files have it.")
    least, most = split.records * FRAME_BYTES, split.bytes * _MAX_INFLATION
    if not least <= split.unpacked_bytes <= most:
        raise node.error(f"a number from {least} to {most}")


def _split(name: str, node: Node, num_classes: int, foreign_names: set[str] | None, several: bool) -> SplitInfo:
    """Reads one split. Those without masks and the like do not have their fields."""
    counts = node.field("class_counts").tuple(Node.count)
    if counts and len(counts) != num_classes:
        raise node.field("class_counts").error(f"empty or a count for each of the {num_classes} label names")
    per_record = node.get("images_per_record") if several else None
    split = SplitInfo(
        name=name,
        shards=tuple(_shards(name, node.field("shards"), foreign_names)),
        formats=node.field("formats").counts(),
        class_counts=counts,
        sizes=_sizes(node.field("sizes")),
        seekable_jpegs=_seekable_jpegs(node),
        tensors=node.mapping(TensorStats.from_json, "tensors"),
        masks=node.mapping(MaskStats.from_json, "masks"),
        images_per_record=None
        if per_record is None
        else ImagesPerRecord(*(per_record.field(key).count(least) for key, least in _PER_RECORD)),
        label_counts=node.mapping(lambda counts: counts.tuple(Node.count), "label_counts"),
        unpacked_bytes=node.get_or("unpacked_bytes", 0).count(),
    )
    if sum(split.class_counts) > split.records:
        raise node.field("class_counts").error(f"counts that sum to at most {split.records}, the records of the shards")
    return split


def _check_formats(node: Node, split: SplitInfo, has_images: bool) -> None:
    """Checks the counts by which readers choose a decoder: they must cover exactly the images of the split."""
    several = split.images_per_record
    images = split.records if several is None else several.total
    if sum(split.formats.values()) != (images if has_images else 0):
        records = f"the {split.records} records of the shards" if several is None else f"the {images} images"
        what = records if has_images else "0, since the records have no image"
        raise node.error(f"counts that sum to {what}")


def _seekable_jpegs(node: Node) -> int:
    """Reads the number of seekable JPEGs. Manifests without such JPEGs, and older ones, do not have the field."""
    found = node.get("seekable_jpegs")
    if found is None:
        return 0
    jpegs = node.field("formats").counts().get("JPEG", 0)
    count = found.count(0, jpegs)
    # Readers choose a decoder by `seekable`.
    if node.field("seekable").value is not (0 < count == jpegs):
        raise node.field("seekable").error(f"true if all {jpegs} JPEGs are seekable, else false; {count} are")
    return count


def _shards(split: str, node: Node, foreign_names: set[str] | None) -> Iterator[ShardInfo]:
    """Reads the shards of a split, of which there may be 100,000: nodes are made of foreign and of wrong ones only."""
    values = node.values()
    for i, value in enumerate(values):
        expected = file_names.shard_name(split, i, len(values)) if foreign_names is None else foreign_names
        yield _right_shard(value, expected) or _shard(node.element(i), expected)


def _right_shard(value: Any, expected: object) -> ShardInfo | None:
    """Reads a shard that has this name; None if anything about it may be wrong."""
    try:
        file, records, size, digest = value["file"], value["records"], value["bytes"], value["sha256"]
        is_right = (
            file == expected
            and type(records) is type(size) is int
            and 0 <= min(records, size) <= max(records, size) <= MAX_COUNT
            and _SHA256.fullmatch(digest)
        )
    except (LookupError, TypeError):
        return None
    return ShardInfo(file, records, size, digest) if is_right else None


def _shard(node: Node, expected: str | set[str]) -> ShardInfo:
    """Reads one shard. `expected` is its name or, for a foreign shard, the set of names so far, which it joins."""
    file, sha256 = node.field("file"), node.field("sha256")
    name, digest = file.text(), sha256.text()
    if isinstance(expected, set):
        try:
            file_names.check_foreign_name(name)
        except FormatError as error:
            raise file.refuse(error) from None
        if name in expected:
            raise file.error("a name that no other shard has")
        expected.add(name)
    elif name != expected:
        # Only one name is right, so folders, other splits and repetitions are all refused here.
        raise file.error(repr(expected))
    if not _SHA256.fullmatch(digest):
        raise sha256.error("64 lower-case hexadecimal digits")
    return ShardInfo(name, node.field("records").count(), node.field("bytes").count(), digest)


def _sizes(node: Node) -> ImageSizes:
    values: dict[str, Any] = {
        field.name: node.field(field.name).number() if field.type is float else node.field(field.name).count()
        for field in fields(ImageSizes)
    }
    return ImageSizes(**values)
