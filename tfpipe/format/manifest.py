"""The description of a finished dataset, which is written last: its presence means that every shard is complete."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tfpipe.errors import ConfigError
from tfpipe.format import file_names
from tfpipe.format.json_reader import MAX_COUNT, matching, whole
from tfpipe.format.schema import CLASS_LABEL, IMAGE_ENCODED, Schema
from tfpipe.format.tensors.tensor_stats import MaskStats, TensorStats
from tfpipe.format.view import ViewSplit
from tfpipe.system import notebook
from tfpipe.system.units import human_bytes, human_count

FORMAT_VERSION = 1
"""The version that is written, and the highest that is read. It rises when a reader of the version before could misread
the data, and not for fields that such a reader may ignore."""

Compression: TypeAlias = Literal["", "GZIP", "ZLIB"]
"""The compression of a whole file, by TensorFlow's names; "" for none."""

SHA256 = matching(r"[0-9a-f]{64}", "64 lower-case hexadecimal digits")
"""The rule for a checksum."""


class ShardInfo(NamedTuple):
    """One file of records."""

    file: str  # a bare name, but with a folder in layers (`layers/2-1f0c9a77be52/`) and in foreign datasets
    records: int
    bytes: int
    sha256: Annotated[str, SHA256]


@dataclass(frozen=True, slots=True)
class ImageSizes:
    """The heights and widths of a split's images in pixels; with the image form `square` those of the originals."""

    min_height: int
    max_height: int
    mean_height: float
    min_width: int
    max_width: int
    mean_width: float


@dataclass(frozen=True, slots=True)
class ImagesPerRecord:
    """The numbers of images per record, for a split whose records have several images."""

    total: int  # in all records
    min: Annotated[int, whole(1)]  # in one record
    max: Annotated[int, whole(1)]


@dataclass(frozen=True)
class SplitInfo:
    """One split: its shards and their contents."""

    name: str
    shards: tuple[ShardInfo, ...]  # in the order of their shard index
    formats: Mapping[str, int]  # images in each format, such as `{"JPEG": 20, "PNG": 3}`
    class_counts: tuple[int, ...]  # in the order of the label names; empty without labels
    sizes: ImageSizes
    seekable_jpegs: int = 0  # JPEGs with restart markers, for decoding crops; 0 if not counted
    tensors: Mapping[str, TensorStats] = field(default_factory=dict)
    masks: Mapping[str, MaskStats] = field(default_factory=dict)
    images_per_record: ImagesPerRecord | None = None  # None if each record has one, or none
    label_counts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # records with each class of a list
    unpacked_bytes: int = 0  # of all records, framing included, if each is a gzip member of its own; else 0
    chosen: ViewSplit | None = field(default=None, compare=False, repr=False)  # the records of a view; None for all
    optional = ("seekable_jpegs", "tensors", "masks", "images_per_record", "label_counts", "unpacked_bytes")

    def __repr__(self) -> str:
        sizes = (human_count(self.records, "record"), human_count(self.num_shards, "shard"), human_bytes(self.bytes))
        return f"<{self.name!r}: {', '.join(sizes)}>"

    @property
    def seekable(self) -> bool:
        """Whether there are JPEGs, and all of them have restart markers from which a crop can be decoded."""
        return 0 < self.seekable_jpegs == self.formats.get("JPEG", 0)

    @property
    def num_shards(self) -> int:
        """The number of shards."""
        return len(self.shards)

    @cached_property
    def records(self) -> int:
        """The number of records in all shards, or of those that a view reads."""
        return sum(shard.records for shard in self.shards) if self.chosen is None else self.chosen.records

    @property
    def records_per_shard(self) -> tuple[int, ...]:
        """The number of records in each shard, or of those that a view reads."""
        stored = [shard.records for shard in self.shards]
        if self.chosen is None:
            return tuple(stored)
        return tuple(np.diff(np.searchsorted(self.chosen.numbers, np.cumsum(stored)), prepend=0).tolist())

    @cached_property
    def bytes(self) -> int:
        """The size of all shards in bytes, or of the records that a view reads."""
        return sum(shard.bytes for shard in self.shards) if self.chosen is None else self.chosen.bytes

    @property
    def memory_bytes(self) -> float:
        """The bytes of all records once uncompressed, or of those that a view reads (of gzip files an estimate)."""
        stored = sum(shard.bytes for shard in self.shards)
        return self.bytes * self.unpacked_bytes / stored if self.unpacked_bytes else self.bytes

    @property
    def stored_records(self) -> int:
        """The number of records in all shards, also those that a view leaves out."""
        return sum(shard.records for shard in self.shards)

    @property
    def stored_fingerprint(self) -> str:
        """The `fingerprint` of all records in the shards, also those that a view leaves out."""
        return replace(self, chosen=None).fingerprint

    @property
    def fingerprint(self) -> str:
        """A hash of the shards' names, sizes and checksums and of a view's records. Equal hashes mean equal records."""
        shards = [[shard.file, shard.bytes, shard.sha256] for shard in self.shards]
        if self.chosen is not None:
            shards.append(["view", self.chosen.records, self.chosen.digest])
        return hashlib.sha256(json.dumps(shards).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Duplicates:
    """The images whose source files are equal byte for byte."""

    within: Mapping[str, int]  # images that occur earlier in the same split, for each split
    across: int  # images that occur in several splits, so that a model is tested on its training data
    dropped: int  # images left out because an equal image is stored


@dataclass(frozen=True, slots=True)
class Foreign:
    """The properties of another program's shards that `tfpipe index` found and that readers need."""

    root: str  # what shards' names are relative to: `.` for the manifest's directory, else an absolute path
    image_key: str | None  # None without images; the feature may be a list of images
    label_key: str | None  # None without usable labels; a feature of floats has no classes
    label_base: Annotated[int, whole(0, 1)]  # the number stored for class 0: 0 or 1
    compression: Compression  # of every file
    more_images: tuple[str, ...] = ()  # further features with one image per record
    optional = ("more_images",)

    @property
    def image_keys(self) -> tuple[str, ...]:
        """The features that hold images."""
        return () if self.image_key is None else (self.image_key, *self.more_images)


def get_images_shape(schema: Schema, image_keys: Sequence[str]) -> tuple[int, ...] | None:
    """Returns the shape of the images of a record: `()` for one or none, `(n,)` for n, None for any number."""
    if len(image_keys) > 1:
        return (len(image_keys),)
    return schema[image_keys[0]].shape if image_keys and image_keys[0] in schema else ()


def list_images(features: Mapping[str, Any], image_keys: Iterable[str]) -> list[bytes]:
    """Lists the images of a record: the values of the features `image_keys`, in this order."""
    values = (features.get(key) for key in image_keys)
    return [image for images in values if isinstance(images, list) for image in images]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The description of a finished dataset.

    Attributes:
        name: The name of the dataset.
        tool_version: The version of tfpipe that wrote the dataset, or its manifest.
        fingerprint: The hash of the inputs and options. Equal fingerprints give equal shards.
        seed: The seed of the shuffle that ordered the records.
        image: The options of the requested `ImageForm`, scalars only.
            `made_from` tells in words which forms the images had before, if they were not originals.
        schema: The features of every record.
        label_names: The names of class 0, 1, ...; empty without labels.
        foreign: The properties of shards that another program wrote; None if tfpipe wrote them, beside the manifest.
        stands_on: The fingerprint of each split that a column belongs to; empty for a dataset of its own.
        splits: The splits by their names.
        changed: The number of images that were changed, by the kind of change. The counts of the datasets that this
            one was made from are included.
        noticed: The number of images with a property worth knowing that were stored as they are, by property.
        skipped: The number of inputs that are not images, by reason.
        quarantined: The number of images that could not be repaired and are in no shard.
        duplicates: The counts of images whose bytes are equal.
        directory: The directory that the manifest was loaded from, a local path or a URL. It is not part of the file.
        view: The name of the view through which the dataset is read, as in `flowers@large`, or the number of a layer,
            as in `flowers@2`; empty for all records of the newest layer. It is not part of the file either.
        columns: The columns that were added to the records. Each lies in a folder of its own as a dataset does, with as
            many records in each split. They are not part of the file either.
        layer: The number of the layer that is read. It is not part of the file either.
        withheld: The numbers of the records of each split that were deleted since a training run began. They are not
            read, but keep their numbers, so that the run can resume in the same order.
        layers: The manifests of the first layer and of those that were appended to it, each as it lies on disk. Empty
            without appended ones.
        version: The text that changes when the file on a local disk is written anew; empty for one elsewhere.
    """

    name: str  # the file has the fields in this order
    tool_version: str
    fingerprint: str = ""
    seed: Annotated[int, whole(-MAX_COUNT - 1)] = 0
    image: Mapping[str, object] = field(default_factory=dict)
    schema: Schema
    label_names: tuple[str, ...] = ()
    foreign: Foreign | None = None
    stands_on: Mapping[str, str] = field(default_factory=dict)
    splits: Mapping[str, SplitInfo]
    changed: Mapping[str, int] = field(default_factory=dict)
    noticed: Mapping[str, int] = field(default_factory=dict)
    skipped: Mapping[str, int] = field(default_factory=dict)
    quarantined: int = 0
    duplicates: Duplicates = Duplicates({}, 0, 0)
    directory: str = field(default="", compare=False)
    view: str = field(default="", compare=False)
    columns: tuple["Manifest", ...] = field(default=(), compare=False, repr=False)
    layer: int = field(default=1, compare=False)
    withheld: Mapping[str, NDArray[np.int64]] = field(default_factory=dict, compare=False, repr=False)
    layers: tuple["Manifest", ...] = field(default=(), compare=False, repr=False)
    version: str = field(default="", compare=False, repr=False)
    optional = ("foreign", "stands_on")

    def __repr__(self) -> str:
        splits = ", ".join(f"{name} {human_count(split.records, 'record')}" for name, split in self.splits.items())
        classes = human_count(len(self.label_names), "class", "classes") if self.label_names else "no classes"
        size = human_bytes(sum(split.bytes for split in self.splits.values()))
        return f"<{self.address or self.name}: {splits}, {classes}, {size}>"

    def _repr_html_(self) -> str | None:
        return notebook.show(self)

    @property
    def address(self) -> str:
        """The text that opens the same data again: the directory, and behind an `@` the view."""
        return f"{self.directory}@{self.view}" if self.view else self.directory

    def get_split(self, split: str) -> SplitInfo:
        """Returns the entry of a split; raises a ConfigError if there is no such split."""
        if split not in self.splits:
            raise ConfigError(f"The dataset has no split {split!r}; it has {', '.join(self.splits)}.")
        return self.splits[split]

    @property
    def image_key(self) -> str | None:
        """The feature that holds the image; None if the records have no image."""
        return next(iter(self.image_keys), None)

    @property
    def image_keys(self) -> tuple[str, ...]:
        """The features that hold images: none, one, or several in another program's records."""
        if self.foreign is not None:
            return self.foreign.image_keys
        has_images = IMAGE_ENCODED in self.schema or any(split.formats for split in self.splits.values())
        return (IMAGE_ENCODED,) if has_images else ()

    @property
    def images_shape(self) -> tuple[int, ...] | None:
        """The shape of the images of a record: `()` for one or none, `(n,)` for n, None for any number."""
        return get_images_shape(self.schema, self.image_keys)

    @property
    def has_several_images(self) -> bool:
        """Whether every record has a list of images."""
        return self.images_shape != ()

    @property
    def label_key(self) -> str | None:
        """The feature that holds the class; None without labels."""
        if self.foreign is not None:
            key = self.foreign.label_key
            return key if key is None or key not in self.schema or self.schema[key].dtype == "int64" else None
        return CLASS_LABEL if CLASS_LABEL in self.schema else None

    @property
    def value_key(self) -> str | None:
        """The feature of floats that the user of `tfpipe index` named as the label; None without one."""
        key = None if self.foreign is None else self.foreign.label_key
        return None if key == self.label_key else key

    @property
    def label_base(self) -> int:
        """The number that is stored for class 0."""
        return 0 if self.foreign is None else self.foreign.label_base

    @property
    def compression(self) -> Compression:
        """The compression of every shard."""
        return "" if self.foreign is None else self.foreign.compression

    @property
    def random_access(self) -> bool:
        """Whether shards have indexes: they are not compressed, or each record is a gzip member of its own."""
        return not self.compression or any(split.unpacked_bytes for split in self.splits.values())

    @property
    def promised_lists(self) -> list[str]:
        """The files beside the shards that list quarantined and duplicate images, if there are such images."""
        has_duplicates = bool(self.duplicates.within or self.duplicates.across)
        lists = {file_names.QUARANTINE: self.quarantined > 0, file_names.DUPLICATES: has_duplicates}
        return [name for name, is_promised in lists.items() if is_promised]

    @property
    def full_schema(self) -> Schema:
        """The features of every record with those of its columns, which come last."""
        added = (spec for column in self.columns for spec in column.schema.features)
        return Schema((*self.schema.features, *added)) if self.columns else self.schema

    def keep_columns(self, features: Iterable[str]) -> "Manifest":
        """Returns the manifest with only those columns that hold one of the features."""
        kept = set(features)
        return replace(self, columns=tuple(column for column in self.columns if kept & set(column.schema.names)))

    def choose(self, split: str, chosen: ViewSplit | None) -> "Manifest":
        """Returns the manifest with a view of one split; None shows all of its records."""
        return replace(self, splits={**self.splits, split: replace(self.splits[split], chosen=chosen)})

    def shard_directory(self, directory: str) -> str:
        """Returns the directory of the shards, a local path or a URL, for a manifest in `directory`."""
        return directory if self.foreign is None or self.foreign.root == "." else self.foreign.root
