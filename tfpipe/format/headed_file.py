"""A file that begins with a line of JSON and goes on with blocks of bytes, as views and layers do.

```
data = encode_headed("tfpipe view 1", {"name": "large", "sizes": [4]}, [b"...."])
node, body = decode_headed(data, "views/large.view", "tfpipe view 1", "Make it again by `tfpipe view`.")
```

The line has the checksum of itself and of the blocks.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping

from tfpipe.errors import FormatError
from tfpipe.format.json_reader import Node, parse_json

MAX_RECORDS = 1 << 33
"""The most records of a split that a header may name: a bitmap of so many takes 1 GB."""

_MAX_HEADER_BYTES = 1 << 26


def encode_headed(magic: str, header: Mapping[str, object], blocks: Iterable[bytes]) -> bytes:
    """Returns the content of a file.

    Args:
        magic: The name and the version of the format, such as "tfpipe view 1".
        header: The values of the line, which JSON knows.
        blocks: The bytes behind it. The header says how long each is.
    """
    body, line = b"".join(blocks), {"format": magic, **header}
    return _dump(line | {"sha256": _hash(line, body)}) + b"\n" + body


def decode_headed(data: bytes, where: str, magic: str, advice: str) -> tuple[Node, bytes]:
    """Returns the header of a file, and the bytes behind it.

    Args:
        data: The content of the file.
        where: The name of the file, for messages.
        magic: The name and the version of the format.
        advice: The sentence that says what to do with a damaged file.

    Raises:
        FormatError: It is damaged, or has another format.
    """
    text, newline, _ = data[:_MAX_HEADER_BYTES].partition(b"\n")
    body = data[len(text) + 1 :]
    try:
        node = parse_json(text.decode(), where)
    except UnicodeDecodeError:
        newline = b""
    if not newline:
        raise FormatError(f"{where} is not a {magic.split()[1]} of tfpipe, or is damaged.")
    if node.field("format").text() != magic:
        raise node.field("format").error(f"{magic!r}")
    line = json.loads(text)
    if line.pop("sha256", None) != _hash(line, body):
        raise FormatError(f"{where} is damaged: its bytes have another checksum. {advice}")
    return node, body


def inflate(data: bytes, size: int) -> bytes:
    """Decompresses as many bytes as there must be, and never more. Raises ValueError or zlib.error for any others."""
    inflater = zlib.decompressobj()
    plain = inflater.decompress(data, size + 1)
    if len(plain) != size or not inflater.eof:
        raise ValueError(f"it does not decompress to {size} bytes")
    return plain


def _dump(line: Mapping[str, object]) -> bytes:
    return json.dumps(line, ensure_ascii=False).encode()


def _hash(line: Mapping[str, object], body: bytes) -> str:
    return hashlib.sha256(_dump(line) + b"\n" + body).hexdigest()
