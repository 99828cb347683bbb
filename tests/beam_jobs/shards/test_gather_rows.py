"""Gathered shards give the numbers that the shards themselves give."""

from __future__ import annotations

import random

from beam_jobs.shards.gather_rows import GatheredShards
from tfpipe.format.manifest import ShardInfo
from tfpipe.format.shard_stats import ShardStats, merge_stats
from tfpipe.writer.written_shard import WrittenShard


def make_shard(split: str, k: int, labels: dict[int, int]) -> WrittenShard:
    stats = ShardStats()
    for label, count in labels.items():
        for _ in range(count):
            stats.add("JPEG", 10 + k, 20, label)
    file, lines = f"{split}-0000{k}-of-00003.tfrecord", [{"path": str(k)}] * k
    return WrittenShard(ShardInfo(file, stats.images, 100, "0" * 64), stats, lines, k)


def test_class_counts_are_those_of_the_split_in_any_order() -> None:
    shards = [make_shard("a", 0, {}), make_shard("a", 1, {0: 2, 7: 1}), make_shard("a", 2, {7: 4})]
    shards += [make_shard("b", k, {k: 1}) for k in range(3)]
    for seed in range(5):
        random.Random(seed).shuffle(shards)
        first, second = GatheredShards(), GatheredShards()
        for shard in shards[::2]:
            first += shard
        for shard in shards[1::2]:
            second += shard
        first += second
        gathered = first.list_shards()
        assert [shard.info.file for shard in gathered] == sorted(shard.info.file for shard in shards)
        for split in "ab":
            given = [shard for shard in shards if shard.info.file.startswith(split)]
            rows = [shard for shard in gathered if shard.info.file.startswith(split)]
            assert merge_stats(shard.stats for shard in rows) == merge_stats(shard.stats for shard in given)
            assert [bool(shard.stats.labels) for shard in rows if shard.info.records] == [True] + [False] * (
                sum(shard.info.records > 0 for shard in given) - 1
            )
        assert [(shard.num_left_out, shard.left_out) for shard in gathered] == [(k, []) for k in (0, 1, 2) * 2]
