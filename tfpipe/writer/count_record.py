"""Adds a record to a shard's statistics for the manifest, for all writers: jobs of images, `tfpipe.write`, repairs.

count_record(stats, features, schema=schema)    # the features before they are encoded, or as they are decoded
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tfpipe.errors import ConfigError
from tfpipe.format.image_form import ImageForm
from tfpipe.format.schema import CLASS_LABEL, IMAGE_ENCODED, IMAGE_FORMAT, IMAGE_HEIGHT, IMAGE_WIDTH, Schema
from tfpipe.format.shard_stats import ShardStats

_WHOLE, _LISTS = (int, np.integer), (list, np.ndarray)  # tuples: a union would be made anew for each record


def count_record(
    stats: ShardStats,
    features: Mapping[str, Any],
    *,
    schema: Schema,
    max_pixels: int = ImageForm.max_pixels,
    is_seekable: Callable[[bytes], bool] | None = None,
    refuse_nan: bool = False,
) -> None:
    """Adds a checked or decoded record to the statistics. A value that the record lacks is not counted."""
    if schema.masks:
        from tfpipe.images.masks import count_masks  # Pillow loads only for records with images

        count_masks(stats, schema, features, max_pixels)
    label = _get_only(features, CLASS_LABEL)
    label = int(label) if isinstance(label, _WHOLE) and label >= 0 else None  # below 0: of no class
    if schema.has_several_images:
        lists = (_list_values(features, key) for key in (IMAGE_FORMAT, IMAGE_HEIGHT, IMAGE_WIDTH))
        images = list(zip(*lists, strict=False))
        for number, (kind, height, width) in enumerate(images):
            stats.add(_to_text(kind), _to_count(height), _to_count(width), None if number else label)
        stats.per_record.add(len(images))
    else:
        kind, height, width = (_get_only(features, key) for key in (IMAGE_FORMAT, IMAGE_HEIGHT, IMAGE_WIDTH))
        stats.add(_to_text(kind), _to_count(height), _to_count(width), label)
    if is_seekable is not None:
        encoded = zip(_list_values(features, IMAGE_FORMAT), _list_values(features, IMAGE_ENCODED), strict=False)
        stats.seekable_jpegs += sum(_to_text(kind) == "JPEG" and is_seekable(data) for kind, data in encoded)
    stats.add_classes(schema, features)
    with_nan = stats.add_tensors(schema, features)
    if with_nan and refuse_nan:
        raise ConfigError(f"Feature {with_nan[0]!r} must hold no NaN, since `refuse_nan` is set.")


def _get_only(features: Mapping[str, Any], key: str) -> Any:
    value = features.get(key)
    return value if not isinstance(value, _LISTS) else value[0] if len(value) == 1 else None


def _list_values(features: Mapping[str, Any], key: str) -> Any:
    value = features.get(key)
    return () if value is None else value if isinstance(value, _LISTS) else (value,)


def _to_text(kind: Any) -> str | None:
    return kind.decode("ascii", "replace") if isinstance(kind, bytes) else kind if isinstance(kind, str) else None


def _to_count(pixels: Any) -> int | None:
    return max(0, int(pixels)) if isinstance(pixels, _WHOLE) else None
