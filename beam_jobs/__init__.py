"""The Apache Beam jobs of tfpipe: images in, TFRecord shards out. `tfpipe shard` runs them.

`WriteRecords` ends a Beam pipeline of your own. It loads Beam at its first use.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from beam_jobs.records.write_records import WriteRecords

__all__ = ["WriteRecords"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tfpipe.system.extras import importing

    with importing(f"`beam_jobs.{name}`", "Apache Beam", "tfpipe[beam]"):
        from beam_jobs.records.write_records import WriteRecords
    return WriteRecords
