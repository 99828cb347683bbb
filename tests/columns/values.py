"""Functions of a record, in a module that worker processes import quickly."""

from tfpipe.readers.data_source import Record


def get_index(record: Record) -> int:
    return record.index


def skip_odd(record: Record) -> int | None:
    return None if record.index % 2 else record.index + 1


def skip_first(record: Record) -> int | None:
    return record.index or None
