"""A layer: what one `append` or `delete` changed in a dataset, in a small file that is written last.

```
flowers/
  manifest.json, train-00000-of-00008.tfrecord      layer 1
  layers/2.layer, layers/2/                         appended records: a dataset of their own, and its entry
  layers/3.layer                                    hidden records
```

The number of a layer is that of the state that it made: `flowers@2` is the dataset before the records were hidden. The
newest entry says what `flowers` is. An entry is a line of JSON, and behind it the hidden records, compressed.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from tfpipe.format import file_names
from tfpipe.format.json_reader import Node
from tfpipe.format.view import Hidden, check_records, decode_headed, encode_headed, inflate

Kind = Literal["append", "delete"]
"""The change that a layer makes to the state below it."""

LAYER_SUFFIX = ".layer"
MAX_LAYER_BYTES = 1 << 32

_MAGIC = "tfpipe layer 1"
_ENTRY = re.compile(r"([1-9][0-9]{0,8})\.layer")
_DTYPES = ("<i8", "<i4", "<i8")  # of the numbers, the labels and the sizes of hidden records


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """The entry of a layer.

    Attributes:
        number: The number of the layer, from 2.
        kind: The change: "append" or "delete".
        when: The time of the change, as 2026-11-26T07:40:00Z.
        tool_version: The version of tfpipe that wrote it.
        below: The `SplitInfo.stored_fingerprint` of each split of the state below.
        records: The number of records of each split that were appended or hidden.
        hidden: The hidden records of each split, numbered as the state below has them.
        appended: The `SplitInfo.stored_fingerprint` of each split of the appended records.
    """

    number: int
    kind: Kind
    when: str
    tool_version: str
    below: Mapping[str, str]
    records: Mapping[str, int] = field(default_factory=dict)
    hidden: Mapping[str, Hidden] = field(default_factory=dict)
    appended: Mapping[str, str] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Returns the bytes of the entry's file."""
        hidden, blocks = {}, []
        for name, split in self.hidden.items():
            arrays: list[NDArray[Any]] = [np.diff(split.numbers, prepend=0), split.labels, split.sizes]
            packed = [zlib.compress(array.astype(kind).tobytes()) for array, kind in zip(arrays, _DTYPES, strict=True)]
            hidden[name] = {"records": split.records, "packed_bytes": [len(block) for block in packed]}
            blocks += packed
        header: dict[str, object] = {
            "layer": self.number,
            "kind": self.kind,
            "when": self.when,
            "tool_version": self.tool_version,
            "below": dict(self.below),
            "records": dict(self.records),
        }
        header |= {"hidden": hidden} if self.kind == "delete" else {}
        header |= {"appended": dict(self.appended)} if self.kind == "append" else {}
        return encode_headed(_MAGIC, header, blocks)


def layer_file(number: int) -> str:
    """Returns the file of an entry, relative to the dataset: `layers/2.layer`."""
    return f"{layer_folder(number)}{LAYER_SUFFIX}"


def layer_folder(number: int) -> str:
    """Returns the folder of appended records, relative to the dataset: `layers/2`."""
    return f"{file_names.LAYERS_DIR}/{number}"


def list_numbers(names: Iterable[str]) -> list[int]:
    """Lists the numbers of the entries among the names of a folder, ascending."""
    return sorted(int(match[1]) for name in names if (match := _ENTRY.fullmatch(name)))


def decode_layer(data: bytes, where: str, number: int, records: Callable[[], Mapping[str, int]]) -> Layer:
    """Reads what `Layer.encode` wrote.

    Args:
        data: The bytes of the file.
        where: The name of the file, for messages.
        number: The number of the layer, as its name says.
        records: A function that returns the number of records of each split in the shards below the layer. What the
            entry claims is compared with it before hidden records take memory.

    Raises:
        FormatError: It is damaged, or not an entry that this release can read.
    """
    node, body = decode_headed(data, where, _MAGIC, "Copy it again from the dataset.")
    node.field("layer").count(number, number)
    kind: Kind = node.field("kind").choice(get_args(Kind))
    return Layer(
        number,
        kind,
        node.field("when").text(),
        node.field("tool_version").text(),
        node.field("below").mapping(Node.text),
        node.field("records").counts(),
        _decode_hidden(node.field("hidden"), body, where, records()) if kind == "delete" else {},
        node.field("appended").mapping(Node.text) if kind == "append" else {},
    )


def _decode_hidden(node: Node, body: bytes, where: str, most: Mapping[str, int]) -> dict[str, Hidden]:
    splits, at = {}, 0
    for name, split in node.items():
        records = check_records(split, "records", where, name, most, "Copy it again from the dataset.")
        arrays = []
        for size, kind in zip(split.field("packed_bytes").elements(), _DTYPES, strict=False):
            block, at = body[at : at + size.count()], at + size.count()
            try:
                arrays.append(np.frombuffer(inflate(block, records * np.dtype(kind).itemsize), kind))
            except (ValueError, zlib.error) as error:
                raise split.refuse(f"it is damaged: {error}.") from None
        if len(arrays) != len(_DTYPES):
            raise split.field("packed_bytes").error(f"a list of {len(_DTYPES)} sizes")
        splits[name] = Hidden(np.cumsum(arrays[0]), arrays[1].astype(np.int32), arrays[2].astype(np.int64))
    return splits
