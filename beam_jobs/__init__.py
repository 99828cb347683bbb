"""The Apache Beam jobs of tfpipe: images in, TFRecord shards out. `tfpipe shard` runs them.

`ReadRecords` begins a Beam pipeline of your own, and `WriteRecords` ends one. They load Beam at their first use.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from beam_jobs.read_records import ReadRecords
    from beam_jobs.write_records import WriteRecords

__all__ = ["ReadRecords", "WriteRecords"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tfpipe.system.extras import importing

    with importing(f"`beam_jobs.{name}`", "Apache Beam", "tfpipe[beam]"):
        from beam_jobs.read_records import ReadRecords
        from beam_jobs.write_records import WriteRecords
    return {"ReadRecords": ReadRecords, "WriteRecords": WriteRecords}[name]
