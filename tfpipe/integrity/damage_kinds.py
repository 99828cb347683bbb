"""What can be wrong with a dataset: a closed set of kinds, and where one of them was found."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

Kind = Literal[
    "length_crc",
    "payload_crc",
    "truncated",
    "garbage",
    "missing",
    "example",
    "schema",
    "image",
    "label",
    "index",
    "size",
    "sha256",
    "count",
    "duplicate",
    "extra",
    "manifest",
    "unreadable",
    "compressed",
    "changed",
]
KINDS: Mapping[Kind, str] = {
    "length_crc": "the checksum of a record's length is wrong",
    "payload_crc": "the checksum of a record's payload is wrong, or bytes were inserted or removed in it",
    "truncated": "the file ends before the record does",
    "garbage": "bytes that belong to no record, or in which none can be made out",
    "missing": "a record that the index knows, or a file that the manifest promises, is not there",
    "example": "a payload is no tf.train.Example",
    "schema": "a feature is missing, is unknown, or has another kind or number of values than the schema says",
    "image": "an image cannot be decoded, or is not what the record says of it",
    "label": "a label is out of range, or its text is not the class's name",
    "index": "the index is missing, damaged, or of another file",
    "size": "a file has another size than the manifest says, and no damaged record explains it",
    "sha256": "a file has another SHA-256 than the manifest says, and no damaged record explains it",
    "count": "the manifest counts other records, classes or formats than there are",
    "duplicate": "an image occurs in two splits",
    "extra": "a shard or an index that the manifest does not know",
    "manifest": "the manifest is missing or cannot be used",
    "unreadable": "a file cannot be opened or read",
    "compressed": "a compressed file cannot be unpacked from here on",
    "changed": "a file changed while it was read",
}
assert set(KINDS) == set(get_args(Kind))

OF_RECORDS: frozenset[Kind] = frozenset(
    (
        "length_crc",
        "payload_crc",
        "truncated",
        "garbage",
        "missing",
        "example",
        "schema",
        "image",
        "label",
        "compressed",
    )
)
"""Those that a record can have; the others are of files and of the dataset."""


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing that is wrong."""

    file: str
    """Its name in the dataset, or its path where there is no dataset."""
    kind: Kind
    detail: str
    """A sentence without its first capital and its full stop."""
    record: int | None = None
    """Number in the file, from 0; None for what is wrong with the file or the dataset."""
    offset: int | None = None
    """Where it begins or should begin in the file, in bytes."""
    key: str = ""
    """Of the record: the path of its image, where it can be read."""

    def to_json(self) -> dict[str, object]:
        """As JSON values."""
        fields = {"file": self.file, "record": self.record, "offset": self.offset, "kind": self.kind}
        return {**fields, "detail": self.detail, "key": self.key or None}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "Damage":
        """The inverse of `to_json`."""
        return cls(**{**fields, "key": fields["key"] or ""})
