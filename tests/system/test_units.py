"""Sizes in words."""

from typing import Any

from tests.refusals import refusal
from tfpipe.errors import ConfigError
from tfpipe.system.units import human_bytes, human_count, human_rate, human_share, parse_bytes


def test_sizes() -> None:
    sizes: dict[str | int, int] = {
        **{"128MiB": 128 * 2**20, "2GB": 2 * 10**9, "3 TiB": 3 * 2**40, "1.5 kb": 1500, "4096": 4096, "7B": 7},
        **{"9007199254740993": 2**53 + 1, 0: 0, 4096: 4096},  # the first: no float is in between
    }
    assert {size: parse_bytes(size) for size in sizes} == sizes
    assert {type(parse_bytes(size)) for size in sizes} == {int}
    none: tuple[Any, ...] = ("", "big", "-1MB", "1 XB", "1e9", "MiB", "1" * 5000, "٣KB", -1, True, 1.5, None)
    for size in none:
        sentence = f"`ram_budget` must be a size such as 128MiB or 2GB, got {size!r}."
        assert refusal(ConfigError, parse_bytes, size, "ram_budget") == sentence


def test_bytes_rates_and_shares_in_words() -> None:
    counts = {0: "0 B", 999: "999 B", 1000: "1.0 KB", 27_047_992: "27.0 MB", 1.5e9: "1.5 GB", 3e12: "3.0 TB"}
    assert {count: human_bytes(count) for count in counts} == counts
    assert [human_rate(rate) for rate in (8.24, 10, 1059.4, float("inf"))] == ["8.2", "10", "1,059", "any rate"]
    assert [human_share(share) for share in (0, 0.004, 0.26, 1)] == ["0 %", "under 1 %", "26 %", "100 %"]


def test_counts_with_their_noun() -> None:
    assert [human_count(n, "shard") for n in (0, 1, 2000)] == ["0 shards", "1 shard", "2,000 shards"]
