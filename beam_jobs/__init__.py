"""The Apache Beam jobs of tfpipe: images in, TFRecord shards out. `tfpipe shard` runs them.

`WriteRecords` ends a Beam pipeline of your own, and `AddColumn` adds features to a finished dataset. They load Beam at
their first use.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from beam_jobs.records.add_column import AddColumn
    from beam_jobs.records.write_records import WriteRecords

__all__ = ["AddColumn", "WriteRecords"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tfpipe.system.extras import importing

    with importing(f"`beam_jobs.{name}`", "Apache Beam", "tfpipe[beam]"):
        from beam_jobs.records import add_column, write_records
    return getattr(add_column if name == "AddColumn" else write_records, name)
