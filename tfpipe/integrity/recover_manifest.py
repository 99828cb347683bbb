"""Makes a manifest for shards that have lost theirs, as far as their records tell."""

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import get_args

from tfpipe._version import __version__
from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.format import file_names
from tfpipe.format import schema as keys
from tfpipe.format.example import Feature, decode_example
from tfpipe.format.manifest import ImageSizes, Manifest, ShardInfo, SplitInfo
from tfpipe.format.recovery.hashed_reader import HashedReader
from tfpipe.format.recovery.scan import Intact, scan
from tfpipe.format.schema import DType, FeatureSpec, image_schema
from tfpipe.format.tfrecord import FRAME_BYTES
from tfpipe.integrity.foreign.scan_file import FeatureStats, FileScan, Keys
from tfpipe.integrity.verify import shard_files
from tfpipe.storage import file_io

_MAX_LABELS = 1_000_000
_MAX_LABELS_BYTES = 100 << 20
_KEYS = Keys(None, keys.CLASS_LABEL, keys.CLASS_TEXT)
_LABELS_FILE = f"{keys.CLASS_LABEL.replace('/', '-')}.labels.txt"


def recover_manifest(directory: str, listing: Mapping[str, int]) -> Manifest | None:
    """Makes a manifest from the common properties of all records in a directory's shards.

    The records tell the schema, the form of raw images, and the names of the classes that occur, or that the file for
    TFDS lists. They do not tell how images were changed before they were written, or how records were shuffled.

    Args:
        directory: The directory or URL of the dataset.
        listing: Its files, as `verify.list_files` returns them.

    Returns:
        The manifest, in which the counts and checksums of shards mean nothing. None if no shard has an Example with an
        image.
    """
    names = shard_files(listing)
    scan, raw_bytes = FileScan(), 0
    for name in names:
        for features in _examples(file_io.join(directory, name)):
            scan.add(_KEYS, {key: value for key, value in features.items() if value is not None}, name)
            raw_bytes = _find_raw(features) or raw_bytes
    if keys.IMAGE_ENCODED not in scan.features:
        return None
    labels = _label_names(directory, scan)
    try:
        schema = _infer_schema(scan)
    except ConfigError as error:
        raise DataError(f"The manifest cannot be made from the records of {directory}: {error}") from None
    splits = {}
    for split in dict.fromkeys(file_names.parse_shard_name(name).split for name in names):
        split_files = [name for name in names if file_names.parse_shard_name(name).split == split]
        shards = tuple(ShardInfo(name, listing[name] // FRAME_BYTES, listing[name], "0" * 64) for name in split_files)
        splits[split] = SplitInfo(split, shards, {}, (0,) * len(labels), ImageSizes(0, 0, 0, 0, 0, 0))
    return Manifest(
        name=file_io.make_absolute(directory).rpartition("/")[2],
        splits=splits,
        label_names=labels,
        schema=schema,
        image=_infer_form(raw_bytes),
        tool_version=__version__,
    )


def _infer_schema(scan: FileScan) -> keys.Schema:
    """Returns the schema: the format's own features, which are written together, then all other features."""
    found = scan.features
    boxes, box_labels = keys.BBOX_XMIN in found, keys.BBOX_LABEL in found
    least, most = found[keys.IMAGE_ENCODED].min_values, found[keys.IMAGE_ENCODED].max_values
    images = () if most <= 1 else (most,) if least == most else None
    standard = image_schema(
        labeled=keys.CLASS_LABEL in found, boxes=boxes, box_labels=boxes and box_labels, images=images
    )
    extra = [
        FeatureSpec(name, _get_dtype(stats), () if stats.min_values == stats.max_values == 1 else None)
        for name, stats in sorted(found.items())
        if name not in standard
    ]
    return keys.Schema((*standard.features, *extra))


def _get_dtype(stats: FeatureStats) -> DType:
    return next((kind for kind in get_args(DType) if kind in stats.kinds), "bytes")


def _infer_form(raw_bytes: int) -> dict[str, object]:
    """Returns the image form, as far as the records show it: from the bytes of a raw image, 0 without one."""
    side = math.isqrt(raw_bytes // 3)
    return {"encoding": "raw", "square": side} if side else {"encoding": "keep"}


def _find_raw(features: Mapping[str, Feature]) -> int:
    """Returns the bytes of the first image of a record if it is raw, else 0."""
    stored, formats = features.get(keys.IMAGE_ENCODED), features.get(keys.IMAGE_FORMAT)
    is_raw = isinstance(stored, list) and isinstance(formats, list) and stored and set(formats) == {b"RAW"}
    return len(stored[0]) if is_raw and isinstance(stored, list) else 0


def _examples(path: str) -> Iterator[dict[str, Feature]]:
    with contextlib.suppress(OSError, FormatError), file_io.open_file(path) as file:
        reader = HashedReader(file)
        for record in scan(reader):
            if isinstance(record, Intact):
                with contextlib.suppress(FormatError):
                    yield decode_example(reader.payload(record.offset, record.size))


def _label_names(directory: str, scan: FileScan) -> tuple[str, ...]:
    """Returns the class names: from the file that lists them if it fits the records, else from the records."""
    labels = [label for label in scan.stats.labels if 0 <= label < _MAX_LABELS]
    if not labels:
        return ()
    texts = {label: min(scan.texts.get(label, {b""})).decode("utf-8", "surrogateescape") for label in labels}
    count = max(texts) + 1
    with contextlib.suppress(OSError, DataError, FormatError, UnicodeDecodeError):
        listed = file_io.read_bytes(file_io.join(directory, _LABELS_FILE), _MAX_LABELS_BYTES).decode().splitlines()
        fits = len(listed) >= count and all(not name or listed[k] == name for k, name in texts.items())
        if fits and len(set(listed)) == len(listed):
            return tuple(listed)
    names = [texts.get(k) or f"class {k}" for k in range(count)]
    return tuple(names) if len(set(names)) == count else tuple(f"class {k}" for k in range(count))
