"""A record counts as far as it describes itself, whoever wrote it."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from tfpipe.format.schema import MASK, Schema, image_schema
from tfpipe.format.shard_stats import ShardStats
from tfpipe.images.errors import BadImage
from tfpipe.writer.count_record import count_record

IMAGE = image_schema(labeled=True, boxes=False, box_labels=False)
WHOLE = {"image/format": "PNG", "image/height": 20, "image/width": 30, "image/class/label": 4}


def count(features: dict[str, Any], schema: Schema = IMAGE, **options: Any) -> ShardStats:
    stats = ShardStats()
    count_record(stats, features, schema=schema, **options)
    return stats


def test_checked_and_decoded_values_count_the_same() -> None:
    decoded = {name: [value.encode()] if isinstance(value, str) else np.array([value]) for name, value in WHOLE.items()}
    stats = count(WHOLE)
    assert count(decoded) == stats
    assert (stats.formats, stats.heights.total, stats.widths.total, stats.labels) == ({"PNG": 1}, 20, 30, {4: 1})


def test_what_a_record_lacks_is_not_counted() -> None:
    odd: dict[str, Any] = {
        "image/format": [b"\xff"],
        "image/height": np.array([np.nan], np.float32),
        "image/width": np.array([-3]),
        "image/class/label": np.array([-1]),
    }
    stats = count(odd)
    assert (stats.images, stats.formats, stats.labels) == (1, {"\ufffd": 1}, Counter())
    assert (stats.heights.smallest, stats.widths.largest) == (None, 0)
    assert count({name: [] for name in odd}) == count(dict.fromkeys(odd)) == count({}) == ShardStats(images=1)


def test_a_damaged_mask_leaves_the_counts_as_they_were() -> None:
    stats = ShardStats()
    with pytest.raises(BadImage):
        count_record(stats, WHOLE | {"image/mask": b"no mask"}, schema=Schema((*IMAGE.features, MASK)))
    assert stats == ShardStats()
