"""Makes a manifest for shards that have lost theirs, as far as their records tell."""

import contextlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np

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
from tfpipe.integrity.verify import shard_files
from tfpipe.storage import file_io

_MAX_LABELS = 1_000_000
_MAX_LABELS_BYTES = 100 << 20
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
    summary = _RecordSummary()
    for name in names:
        for features in _examples(file_io.join(directory, name)):
            summary.add(features)
    if keys.IMAGE_ENCODED not in summary.counts:
        return None
    labels = _label_names(directory, summary)
    try:
        schema = summary.schema()
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
        image=summary.image(),
        tool_version=__version__,
    )


class _RecordSummary:
    """The features and labels of the records so far."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.kinds: dict[str, DType] = {}
        self.single: dict[str, bool] = {}
        self.texts: dict[int, str] = {}
        self.raw_bytes = 0
        self.images: set[int] = set()

    def add(self, features: Mapping[str, Feature]) -> None:
        """Adds one record."""
        for name, value in features.items():
            if value is None:
                continue
            self.counts[name] += 1
            kind: DType = "bytes" if isinstance(value, list) else "int64" if value.dtype.kind == "i" else "float"
            if len(value):
                self.kinds[name] = kind
            else:
                self.kinds.setdefault(name, kind)
            self.single[name] = self.single.get(name, True) and len(value) == 1
        label, text = features.get(keys.CLASS_LABEL), features.get(keys.CLASS_TEXT)
        if isinstance(label, np.ndarray) and label.size == 1 and 0 <= label[0] < _MAX_LABELS:
            name = text[0].decode("utf-8", "surrogateescape") if isinstance(text, list) and len(text) == 1 else ""
            self.texts.setdefault(int(label[0]), name)
        stored = features.get(keys.IMAGE_ENCODED)
        if isinstance(stored, list):
            self.images.add(len(stored))
        formats = features.get(keys.IMAGE_FORMAT)
        if isinstance(formats, list) and set(formats) == {b"RAW"} and isinstance(stored, list) and stored:
            self.raw_bytes = len(stored[0])

    def schema(self) -> keys.Schema:
        """Returns the schema: the format's own features, which are written together, then all other features."""
        boxes, box_labels = keys.BBOX_XMIN in self.counts, keys.BBOX_LABEL in self.counts
        most = max(self.images, default=0)
        images = () if most <= 1 else (most,) if len(self.images) == 1 else None
        standard = image_schema(
            labeled=keys.CLASS_LABEL in self.counts, boxes=boxes, box_labels=boxes and box_labels, images=images
        )
        extra = [
            FeatureSpec(name, self.kinds[name], () if self.single[name] else None)
            for name in sorted(self.counts.keys() - set(standard.names))
        ]
        return keys.Schema((*standard.features, *extra))

    def image(self) -> dict[str, object]:
        """Returns the image form, as far as the records show it."""
        side = math.isqrt(self.raw_bytes // 3)
        return {"encoding": "raw", "square": side} if side else {"encoding": "keep"}


def _examples(path: str) -> Iterator[dict[str, Feature]]:
    with contextlib.suppress(OSError, FormatError), file_io.open_file(path) as file:
        reader = HashedReader(file)
        for record in scan(reader):
            if isinstance(record, Intact):
                with contextlib.suppress(FormatError):
                    yield decode_example(reader.payload(record.offset, record.size))


def _label_names(directory: str, summary: _RecordSummary) -> tuple[str, ...]:
    """Returns the class names: from the file that lists them if it fits the records, else from the records."""
    if not summary.texts:
        return ()
    count = max(summary.texts) + 1
    with contextlib.suppress(OSError, DataError, FormatError, UnicodeDecodeError):
        listed = file_io.read_bytes(file_io.join(directory, _LABELS_FILE), _MAX_LABELS_BYTES).decode().splitlines()
        fits = len(listed) >= count and all(not name or listed[k] == name for k, name in summary.texts.items())
        if fits and len(set(listed)) == len(listed):
            return tuple(listed)
    names = [summary.texts.get(k) or f"class {k}" for k in range(count)]
    return tuple(names) if len(set(names)) == count else tuple(f"class {k}" for k in range(count))
