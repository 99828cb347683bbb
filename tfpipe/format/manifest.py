"""What a finished dataset says of itself. The JSON text of it is made and read in `manifest_json.py`.

The manifest is written last, so its presence means that every shard is complete.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from tfpipe.format.schema import CLASS_LABEL, IMAGE_ENCODED, Schema

FORMAT_VERSION = 2
"""The highest that is read. Raised when a reader of the version before could misread the data; fields it may ignore do
not raise it. A manifest is written with the lowest version that it needs: 2 where it has `foreign`, else 1."""

Compression: TypeAlias = Literal["", "GZIP", "ZLIB"]
"""Of a whole file, as TensorFlow names it; "" is none."""


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """One file of records."""

    file: str
    """Its name, without a folder: `train-00003-of-00008.tfrecord`. Of foreign shards any name, relative to where they
    lie."""
    records: int
    bytes: int
    """Size of the file."""
    sha256: str
    """Of the file, as 64 lower-case hexadecimal digits."""


@dataclass(frozen=True, slots=True)
class ImageSizes:
    """Extent of a split's images, in pixels, as the records say it: of the originals where `square` was asked for."""

    min_height: int
    max_height: int
    mean_height: float
    min_width: int
    max_width: int
    mean_width: float


@dataclass(frozen=True, slots=True)
class SplitInfo:
    """One split: its shards and what is in them."""

    name: str
    shards: tuple[ShardInfo, ...]
    """In the order of their index."""
    formats: Mapping[str, int]
    """Images stored in each form, such as `{"JPEG": 20, "PNG": 3}`."""
    class_counts: tuple[int, ...]
    """Images of each class, in the order of the label names; empty where there are no labels."""
    sizes: ImageSizes

    @property
    def num_shards(self) -> int:
        """Number of files."""
        return len(self.shards)

    @property
    def records(self) -> int:
        """Records in all shards."""
        return sum(shard.records for shard in self.shards)

    @property
    def bytes(self) -> int:
        """Size of all shards."""
        return sum(shard.bytes for shard in self.shards)

    @property
    def fingerprint(self) -> str:
        """Of the shards' names, sizes and checksums, as 64 hexadecimal digits: equal ones hold the same records."""
        shards = [[shard.file, shard.bytes, shard.sha256] for shard in self.shards]
        return hashlib.sha256(json.dumps(shards).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Duplicates:
    """Images whose source files are equal byte for byte."""

    within: Mapping[str, int]
    """By split: images that occur earlier in the same split."""
    across: int
    """Images that occur in another split too, which lets a model be tested on what it was trained on."""
    dropped: int
    """Images left out because of it."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """How to read shards that something else wrote: what `tfpipe index` found out about them."""

    root: str
    """The directory that their names are relative to: `.` for the manifest's own, else an absolute path."""
    image_key: str
    """The feature that holds the image's file."""
    label_key: str | None
    """The feature that holds the class; None where there are no labels that can be used."""
    label_base: int
    """What is stored for class 0: 0 or 1. Class k, of the name at position k, is stored as k + `label_base`."""
    compression: Compression
    """Of every file. Where there is one, records can be read from the first on only, and there is no index."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """A finished dataset."""

    name: str
    splits: Mapping[str, SplitInfo]
    label_names: tuple[str, ...]
    """Name of class 0, 1, ...; empty where there are no labels."""
    schema: Schema
    seed: int
    """Of the shuffle that ordered the records."""
    changed: Mapping[str, int]
    """How many images were changed, by what was done to them; those of the datasets that it was made from included."""
    noticed: Mapping[str, int]
    """How many images have a property worth knowing and were left as they are."""
    skipped: Mapping[str, int]
    """How many inputs were no images, by reason."""
    quarantined: int
    """Images that could not be repaired and are in no shard."""
    duplicates: Duplicates
    image: Mapping[str, object]
    """The image form asked for: `encoding`, `resize_short`, `square`, `quality`, ...; scalars only. `made_from` says
    in words which forms the images had before, where they were no originals."""
    fingerprint: str
    """Of the inputs and options: equal fingerprints give equal shards."""
    tool_version: str
    """Version of tfpipe that wrote the dataset, or its manifest."""
    foreign: Foreign | None = None
    """Where and how the shards lie that something else wrote; None where tfpipe wrote them, beside the manifest."""
    directory: str = field(default="", compare=False)
    """Where it was loaded from, a local path or a URL; not part of the file."""

    @property
    def format_version(self) -> int:
        """The lowest that says all of it."""
        return 1 if self.foreign is None else 2

    @property
    def image_key(self) -> str:
        """The feature that holds the image."""
        return IMAGE_ENCODED if self.foreign is None else self.foreign.image_key

    @property
    def label_key(self) -> str | None:
        """The feature that holds the class; None where there are no labels."""
        if self.foreign is not None:
            return self.foreign.label_key
        return CLASS_LABEL if CLASS_LABEL in self.schema else None

    @property
    def label_base(self) -> int:
        """What is stored for class 0."""
        return 0 if self.foreign is None else self.foreign.label_base

    @property
    def compression(self) -> Compression:
        """Of every shard."""
        return "" if self.foreign is None else self.foreign.compression

    def shard_directory(self, directory: str) -> str:
        """Where the shards lie, a local path or a URL, if the manifest lies in `directory`."""
        return directory if self.foreign is None or self.foreign.root == "." else self.foreign.root
