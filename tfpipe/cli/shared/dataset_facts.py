"""Facts about a finished dataset that several commands print."""

import json
from collections.abc import Iterator
from contextlib import suppress

from tfpipe.format import schema as keys
from tfpipe.format.manifest import Manifest

_MAX_REASONS = 3
_OURS = frozenset((*keys.IMAGE_KEYS, *keys.class_schema().names, *keys.BOX_COLUMNS, keys.BBOX_TEXT, keys.IMAGE_MASK))


def list_columns(manifest: Manifest) -> list[str]:
    """Returns the features that are kept beside the image, the class, the boxes and the mask."""
    schema = manifest.full_schema
    return [name for name in schema.names if name not in _OURS | schema.sizes_keys]


def read_quarantined(head: bytes) -> list[dict[str, str]]:
    """Returns the first images that were set aside for different reasons, each with its path and the reason.

    Args:
        head: The beginning of the list in the dataset. Lines that are damaged or cut off are left out.
    """
    rows: dict[str, dict[str, str]] = {}
    for row in _read_rows(head):
        rows.setdefault(row["reason"], row)
    return list(rows.values())[:_MAX_REASONS]


def _read_rows(head: bytes) -> Iterator[dict[str, str]]:
    for line in head.split(b"\n"):
        with suppress(ValueError, KeyError, TypeError, RecursionError):
            row = json.loads(line)
            yield {"path": str(row["path"]), "reason": str(row["reason"])}
