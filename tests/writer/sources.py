"""Records for the tests of `tfpipe.write`: functions that worker processes can import."""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from tfpipe.fields import Label, Tensor, Text, Values

SCHEMA = {
    "id": Values("int64"),
    "latents": Tensor("float16", (2, 3)),
    "tokens": Tensor("int32", (None,)),
    "frames": Tensor("uint8", (None, None, 3)),
    "caption": Text(),
    "class": Label(("cat", "dog")),
}


def make_record(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "latents": np.full((2, 3), number, np.float16),
        "tokens": np.arange(number % 4, dtype=np.int32),
        "frames": np.full((number % 2 + 1, number % 3 + 1, 3), number % 256, np.uint8),
        "caption": f"déjà {number}",
        "class": ("cat", "dog")[number % 2],
    }


def make_shard(shard: int) -> Iterator[dict[str, Any]]:
    """10 records of each shard; the file that CALLS names gets a line for each call."""
    if "CALLS" in os.environ:
        with open(os.environ["CALLS"], "a") as file:
            file.write(f"{shard}\n")
    yield from map(make_record, range(10 * shard, 10 * shard + 10))


def make_broken_shard(shard: int) -> Iterator[dict[str, Any]]:
    yield make_record(0)
    raise KeyError("lost")
