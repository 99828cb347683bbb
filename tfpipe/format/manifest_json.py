"""The manifest as JSON text, and back; reading trusts nothing."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict

from tfpipe.errors import ConfigError, FormatError
from tfpipe.format import naming
from tfpipe.format.checked_json import MAX_COUNT, Node, parse_json
from tfpipe.format.manifest import FORMAT_VERSION, Duplicates, ImageSizes, Manifest, ShardInfo, SplitInfo
from tfpipe.format.schema import Schema

_SHA256 = re.compile(r"[0-9a-f]{64}")


def dumps(manifest: Manifest) -> str:
    """The manifest as JSON text, ASCII only, that ends with a newline.

    Equal manifests give equal text: what has no order is sorted. A shard and a feature take one line each, so
    that two manifests can be compared line by line.
    """
    document = {
        "format_version": FORMAT_VERSION,
        "name": manifest.name,
        "tool_version": manifest.tool_version,
        "fingerprint": manifest.fingerprint,
        "seed": manifest.seed,
        "image": _sorted(manifest.image),
        "schema": manifest.schema.to_json(),
        "label_names": list(manifest.label_names),
        "splits": {name: _split_to_json(split) for name, split in sorted(manifest.splits.items())},
        "changed": _sorted(manifest.changed),
        "noticed": _sorted(manifest.noticed),
        "skipped": _sorted(manifest.skipped),
        "quarantined": manifest.quarantined,
        "duplicates": {
            "within": _sorted(manifest.duplicates.within),
            "across": manifest.duplicates.across,
            "dropped": manifest.duplicates.dropped,
        },
    }
    return _render(document, "") + "\n"


def _split_to_json(split: SplitInfo) -> dict[str, object]:
    return {
        "num_shards": split.num_shards,
        "records": split.records,
        "bytes": split.bytes,
        "formats": _sorted(split.formats),
        "class_counts": list(split.class_counts),
        "sizes": asdict(split.sizes),
        "shards": [asdict(shard) for shard in split.shards],
    }


def _sorted(mapping: Mapping[str, object]) -> dict[str, object]:
    return dict(sorted(mapping.items()))


def _render(value: object, indent: str) -> str:
    """Objects over several lines, lists of objects with one line each, everything else on one line."""
    deeper = indent + "  "
    if isinstance(value, dict) and value:
        lines = [f"{deeper}{json.dumps(key)}: {_render(below, deeper)}" for key, below in value.items()]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    if isinstance(value, list) and value and isinstance(value[0], dict):
        lines = [deeper + json.dumps(element, allow_nan=False) for element in value]
        return "[\n" + ",\n".join(lines) + f"\n{indent}]"
    return json.dumps(value, allow_nan=False)


def loads(text: str, where: str = naming.MANIFEST) -> Manifest:
    """Reads a manifest and checks all of it.

    Fields it does not know are ignored: a newer tfpipe may add them without raising the format version.

    Args:
      text: What `dumps` gave.
      where: The file's name, for messages.

    Raises:
      FormatError: The text is no manifest, needs a newer tfpipe, or contradicts itself; the message names the
        place.
    """
    root = parse_json(text, where)
    version = root.field("format_version").count(1)
    if version > FORMAT_VERSION:
        raise FormatError(
            f"{where} has format version {version}, this tfpipe reads up to {FORMAT_VERSION}: "
            "it needs a newer tfpipe. Run: pip install --upgrade tfpipe"
        )
    label_names = _label_names(root.field("label_names"))
    splits = {name: _split(name, node, len(label_names)) for name, node in root.field("splits").items()}
    duplicates = root.field("duplicates")
    return Manifest(
        name=root.field("name").text(),
        splits=splits,
        label_names=label_names,
        schema=Schema.from_json(root.field("schema")),
        seed=root.field("seed").count(-MAX_COUNT - 1),
        changed=root.field("changed").counts(),
        noticed=root.field("noticed").counts(),
        skipped=root.field("skipped").counts(),
        quarantined=root.field("quarantined").count(),
        duplicates=Duplicates(
            within=duplicates.field("within").counts(),
            across=duplicates.field("across").count(),
            dropped=duplicates.field("dropped").count(),
        ),
        image={key: node.scalar() for key, node in root.field("image").items()},
        fingerprint=root.field("fingerprint").text(),
        tool_version=root.field("tool_version").text(),
    )


def _label_names(node: Node) -> tuple[str, ...]:
    seen: set[str] = set()
    for element in node.elements():
        if element.text() in seen:
            raise element.error("a name that no other class has")
        seen.add(element.text())
    return tuple(element.text() for element in node.elements())


def _split(name: str, node: Node, num_classes: int) -> SplitInfo:
    try:
        naming.check_split_name(name)
    except ConfigError as error:
        raise node.refuse(error) from None
    shard_nodes = node.field("shards").elements()
    split = SplitInfo(
        name=name,
        shards=tuple(_shard(shard, name, i, len(shard_nodes)) for i, shard in enumerate(shard_nodes)),
        formats=node.field("formats").counts(),
        class_counts=_class_counts(node.field("class_counts"), num_classes),
        sizes=_sizes(node.field("sizes")),
    )
    # Readers choose a decoder by these counts, so they must be of all records and of no other.
    if sum(split.formats.values()) != split.records:
        raise node.field("formats").error(f"counts that sum to the {split.records} records of the shards")
    if sum(split.class_counts) > split.records:
        raise node.field("class_counts").error(f"counts that sum to at most {split.records}, the records of the shards")
    return split


def _shard(node: Node, split: str, index: int, num_shards: int) -> ShardInfo:
    file = node.field("file")
    # Comparing with the one right name leaves no room for folders, other splits or repetitions.
    expected = naming.shard_name(split, index, num_shards)
    if file.text() != expected:
        raise file.error(repr(expected))
    sha256 = node.field("sha256")
    if not _SHA256.fullmatch(sha256.text()):
        raise sha256.error("64 lower-case hexadecimal digits")
    return ShardInfo(expected, node.field("records").count(), node.field("bytes").count(), sha256.text())


def _class_counts(node: Node, num_classes: int) -> tuple[int, ...]:
    counts = tuple(element.count() for element in node.elements())
    if counts and len(counts) != num_classes:
        raise node.error(f"empty or a count for each of the {num_classes} label names")
    return counts


def _sizes(node: Node) -> ImageSizes:
    return ImageSizes(
        min_height=node.field("min_height").count(),
        max_height=node.field("max_height").count(),
        mean_height=node.field("mean_height").number(),
        min_width=node.field("min_width").count(),
        max_width=node.field("max_width").count(),
        mean_width=node.field("mean_width").number(),
    )
