"""The cache in files that a read plan reads beside its source while another process fills it. Loads no TensorFlow."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tfpipe.engine.stored_images import StoredImages


@dataclass(frozen=True, eq=False)
class FillingCache:
    """A cache in files that is filled while its source is read. It has the source's shards, of which each comes whole.

    Attributes:
        files: The path of each shard in the cache.
        places: An int64 variable of TensorFlow, of shape [records + shards]: the byte at which each record of a shard
            begins in the cache, and behind a shard's records the size of its file; -1 as long as a shard is not there.
        source_images: The form of the source's images, if the cache keeps them decoded; None if it keeps records as
            they are.
    """

    files: tuple[str, ...]
    places: Any = field(repr=False)
    source_images: StoredImages | None
