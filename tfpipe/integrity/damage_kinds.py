"""The kinds of damage that a dataset can have, and the description of one damage."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "length_crc",  # the checksum of a record's length is wrong
    "payload_crc",  # the checksum of a record's payload is wrong, or bytes were inserted or removed in it
    "truncated",  # the file ends before the record does
    "garbage",  # bytes belong to no record, by the index
    "missing",  # a record that the index knows, or a file that the manifest promises, does not exist
    "example",  # a payload is not a tf.train.Example
    "schema",  # a feature is missing, is unknown, or has another kind or number of values than the schema says
    "image",  # an image cannot be decoded, or differs from what the record says about it
    "label",  # a label is out of range, or its text is not the class's name
    "compressed",  # a compressed file cannot be unpacked from here on
    "index",  # the index is missing, damaged, or belongs to another file
    "size",  # a file has another size than the manifest says, and no damaged record explains it
    "sha256",  # a file has another SHA-256 than the manifest says, and no damaged record explains it
    "count",  # the manifest counts other records, classes or formats than there are
    "duplicate",  # an image occurs in two splits
    "extra",  # the manifest does not know a shard or an index
    "manifest",  # the manifest is missing or cannot be used
    "unreadable",  # a file cannot be opened or read
    "changed",  # a file changed while it was read
    "view",  # a view is damaged, or was made for other shards
    "column",  # a column cannot be used, or does not have the value of a record
    "layer",  # a layer's entry or its records cannot be used
    "info",  # the record info of a shard is damaged; remove the file, and the next view makes it again
]
"""The kinds of damage: those of records up to "compressed", then those of files and of the dataset."""


@dataclass(frozen=True, slots=True)
class Damage:
    """One damage that was found."""

    file: str  # its name in the dataset, or its path if there is no dataset
    kind: Kind
    detail: str  # a sentence without its first capital and full stop
    record: int | None = None  # from 0; None for damage of the file or the dataset
    offset: int | None = None  # in bytes, where the record begins or should
    key: str = ""  # the path of the record's image; empty if it cannot be read

    def to_json(self) -> dict[str, object]:
        """Returns the damage as JSON values."""
        fields = {"file": self.file, "record": self.record, "offset": self.offset, "kind": self.kind}
        return {**fields, "detail": self.detail, "key": self.key or None}
