"""Gathers the written shards of a dataset for its manifest, in any order and by any number of processes.

Each shard counts the images of each class. A hundred thousand shards with a thousand classes would take 10 GB together,
so the counts of a split are added up while shards are gathered. Sums of whole numbers do not depend on their order.
"""

from collections import Counter
from dataclasses import dataclass, field, replace

from tfpipe.format.file_names import parse_shard_name
from tfpipe.writer.written_shard import WrittenShard


@dataclass
class GatheredShards:
    """The written shards, without their counts of classes and their lines about bad images.

    Attributes:
        shards: The shards.
        labels: The number of images of each class in all these shards, by split.
    """

    shards: list[WrittenShard] = field(default_factory=list)
    labels: dict[str, Counter[int]] = field(default_factory=dict)

    def __iadd__(self, other: "WrittenShard | GatheredShards") -> "GatheredShards":
        if isinstance(other, WrittenShard):
            split = parse_shard_name(other.info.file)[0]
            other = GatheredShards([other.strip()], {split: other.stats.labels})
        self.shards += other.shards
        for split, counts in other.labels.items():
            self.labels.setdefault(split, Counter()).update(counts)
        return self

    def list_shards(self) -> list[WrittenShard]:
        """Returns the shards. The first one of a split that has records holds the class counts of the whole split."""
        remaining = dict(self.labels)
        shards = []
        for shard in sorted(self.shards, key=_get_file):
            split = parse_shard_name(shard.info.file)[0]
            if shard.info.records and split in remaining:
                shard = replace(shard, stats=replace(shard.stats, labels=remaining.pop(split)))
            shards.append(shard)
        return shards


def _get_file(shard: WrittenShard) -> str:
    return shard.info.file
