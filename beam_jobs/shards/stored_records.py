"""The stored bytes of a record of a finished dataset, and the values that columns have of it."""

from bisect import bisect_right
from collections.abc import Iterable
from functools import lru_cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from beam_jobs.inputs.read_image import UnreadableError
from tfpipe.dataset.load import load_manifest
from tfpipe.errors import DataError, FormatError
from tfpipe.format import file_names
from tfpipe.format.example import Feature, decode_example
from tfpipe.format.manifest import Manifest, ShardInfo
from tfpipe.format.record_index import decode_index
from tfpipe.format.tfrecord import read_record, read_record_at
from tfpipe.storage import file_io

_MAX_COLUMNS, _MAX_INDEXES = 64, 256  # of one worker: 16 bytes a record of the shards that it reads from


def read_payload(path: str, name: str, offset: int, size: int) -> bytes:
    """Reads one record, at a remote place by one request. Reads nothing ahead: a new shard's records lie scattered.

    Raises:
        UnreadableError: It is damaged or cannot be read.
    """
    try:
        if not file_io.is_url(path):
            with file_io.open_file(path) as file:
                return read_record(file, offset, size)
        data = file_io.read_range(path, offset, size)
        return read_record_at(
            lambda at, count: data[at - offset : at - offset + count], offset + len(data), offset, size
        )
    except FormatError as error:
        raise UnreadableError(f"{name}: {str(error).rstrip('.')}") from error
    except OSError as error:
        raise UnreadableError(f"{name} cannot be read: {error.strerror or error}") from error


def read_columns(columns: Iterable[tuple[str, str]], place: str) -> dict[str, Feature]:
    """Reads the features that columns have of a record.

    Args:
        columns: The columns: of each the address of the dataset with its layer, as in `/data/flowers@1`, and the name.
        place: The place of the record in its dataset, such as `flowers/train:17`.

    Raises:
        UnreadableError: They are damaged or cannot be read.
    """
    split, _, number = place.partition("/")[2].rpartition(":")
    features: dict[str, Feature] = {}
    for address, name in columns:
        try:
            column = _open(address, name)
            directory, shards = column.directory, column.splits[split].shards
            ends = list(accumulate(shard.records for shard in shards))
            place_in = bisect_right(ends, int(number))
            shard = shards[place_in]
            path = file_io.join(directory, shard.file)
            offset, size = _load_index(directory, shard)[int(number) - ends[place_in] + shard.records].tolist()
            features |= decode_example(read_payload(path, shard.file, offset, size))
        except (FormatError, DataError, OSError) as error:
            raise UnreadableError(f"the column {name} cannot be read: {str(error).rstrip('.')}") from error
    return features


@lru_cache(maxsize=_MAX_COLUMNS)
def _open(address: str, name: str) -> Manifest:
    return next(column for column in load_manifest(address).columns if column.name == name)


@lru_cache(maxsize=_MAX_INDEXES)
def _load_index(directory: str, shard: ShardInfo) -> NDArray[np.int64]:
    data = file_io.read_whole(file_io.join(directory, file_names.index_name(shard.file)))
    return decode_index(data, shard.bytes, shard.records)
