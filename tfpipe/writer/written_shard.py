"""A finished shard, and the JSON row about it in a working folder, by which a later run knows that it is finished."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tfpipe._version import __version__
from tfpipe.errors import DataError
from tfpipe.format import file_names, manifest_json, tfds_metadata
from tfpipe.format.file_names import shard_name
from tfpipe.format.json_reader import read, to_json
from tfpipe.format.manifest import Manifest, ShardInfo, SplitInfo
from tfpipe.format.shard_stats import ShardStats, merge_stats
from tfpipe.writer.record_form import RecordForm
from tfpipe.writer.working_folder import hash_values


@dataclass(frozen=True)
class WrittenShard:
    """A finished shard."""

    info: ShardInfo
    stats: ShardStats = field(default_factory=ShardStats)  # empty for a shard of a complete dataset
    left_out: list[dict[str, Any]] = field(default_factory=list)  # a line about each record left out, until `strip`
    num_left_out: int = 0
    kept: bool = False  # whether an earlier run wrote it

    def strip(self) -> WrittenShard:
        """Returns the shard without its counts by class and its lines about left-out records, which can be large."""
        return replace(self, stats=replace(self.stats, labels=Counter()), left_out=[])

    def to_json(self) -> dict[str, Any]:
        """Returns the fields of a row as JSON values."""
        return {"info": self.info._asdict(), **to_json(self.stats), "left_out": self.left_out}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> WrittenShard:
        """Inverts `to_json`. Raises KeyError, TypeError, ValueError or AttributeError for any other value."""
        info, left_out = ShardInfo(**fields["info"]), fields["left_out"]
        return cls(info, read(fields, ShardStats), left_out, len(left_out))


def renumber(split: str, shards: Iterable[WrittenShard]) -> list[tuple[str, WrittenShard]]:
    """Returns the shards of a split that have records, renumbered without gaps, each after its previous name."""
    full = [shard for shard in shards if shard.info.records]
    names = [shard_name(split, number, len(full)) for number in range(len(full))]
    return [
        (shard.info.file, replace(shard, info=shard.info._replace(file=name)))
        for shard, name in zip(full, names, strict=True)
    ]


def make_split_info(split: str, shards: Sequence[WrittenShard], num_classes: int) -> SplitInfo:
    """Returns the manifest's entry for a split with these shards, in order. Without labels it has 0 classes."""
    stats = merge_stats(shard.stats for shard in shards)
    return stats.to_split_info(split, [shard.info for shard in shards], num_classes)


def make_manifest(name: str, form: RecordForm, shards: Mapping[str, Sequence[WrittenShard]]) -> Manifest:
    """Makes the manifest of a dataset with the shards of each split."""
    num_classes = len(form.label_names)
    splits = {split: make_split_info(split, written, num_classes) for split, written in shards.items()}
    for split, info in splits.items():
        if not info.records:
            raise DataError(f"Split {split!r} must have a record, got none.")
    return Manifest(
        name=name or "dataset",
        splits=splits,
        label_names=form.label_names,
        schema=form.schema,
        image={} if form.image_form is None else form.image_form.to_json(),
        fingerprint=hash_values(*(split.fingerprint for split in splits.values())),
        tool_version=__version__,
    )


def make_dataset_files(manifest: Manifest) -> dict[str, bytes]:
    """Returns the content of each file by its name, the manifest last, in the order in which they must be written."""
    files = {name: text.encode() for name, text in tfds_metadata.make_files(manifest).items()}
    return files | {file_names.MANIFEST: manifest_json.dumps(manifest).encode()}
