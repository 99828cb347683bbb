"""The thumbnails of records, for `tfpipe inspect --show` and `--page`, and for datasets and readers in a notebook."""

import base64
import html
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tfpipe.errors import DataError, FormatError, TfpipeError
from tfpipe.format import schema as keys
from tfpipe.format.manifest import Manifest
from tfpipe.images.contact_sheet import Tile, draw_contact_sheet, encode_png
from tfpipe.images.decode import decode_pixels, make_image
from tfpipe.images.errors import BadImage
from tfpipe.images.masks import read_mask
from tfpipe.readers.base import list_splits
from tfpipe.readers.data_source import DataSource, Record, data_source
from tfpipe.system.units import human_text

MAX_IMAGES_SHOWN = 8
"""The most images of one record that are shown."""

_NOTEBOOK_RECORDS, _NOTEBOOK_PX = 8, 112


def draw_for_notebook(shown: Any) -> str | None:
    """Returns eight images of a manifest, `DataSource` or reader as HTML; None if they cannot be drawn."""
    try:
        if isinstance(shown, DataSource):
            sources = [shown]
        else:
            every = [(shown, name) for name in shown.splits] if isinstance(shown, Manifest) else list_splits(shown.plan)
            sources = [data_source(manifest, split) for manifest, split in every]
        rows = [tiles for _, tiles in read_tiles(sources, _NOTEBOOK_RECORDS, _NOTEBOOK_PX)]
        sheet = draw_contact_sheet([row[0] for row in rows if row], columns=_NOTEBOOK_RECORDS, tile_px=_NOTEBOOK_PX)
    except TfpipeError:
        return None  # the notebook shows the repr, and reading the data raises the error
    text, data = html.escape(repr(shown)), base64.b64encode(encode_png(sheet)).decode()
    return f'<p>{text}</p><img alt="{len(rows)} records" src="data:image/png;base64,{data}">'


def read_tiles(sources: Sequence[DataSource], count: int, tile_px: int) -> Iterator[tuple[Record, list[Tile]]]:
    """Yields up to `count` records, spread evenly over the sources, with their images' tiles; closes the sources."""
    chosen = spread_evenly([len(source) for source in sources], count)
    if not any(chosen):
        names = " and ".join(dict.fromkeys(source.manifest.address for source in sources))
        raise DataError(f"{names} has no record to show.")
    for source, numbers in zip(sources, chosen, strict=True):
        manifest = source.manifest
        if manifest.image_key is None:
            raise FormatError(f"{manifest.address} must have an image to be drawn, and this dataset has none.")
        with source:
            for number in numbers:
                record = source[number]
                yield record, _make_tiles(manifest, record, tile_px)


def _make_tiles(manifest: Manifest, record: Record, tile_px: int) -> list[Tile]:
    """Makes the tile of a record's image, or one for each of several, up to 8."""
    position, title = f"{record.split}:{record.index}", human_text(record.label_name or record.name)
    tiles: list[Tile] = []
    texts = (record.features.get(spec.name) for spec in manifest.full_schema.features if spec.kind == "text")
    caption = next((human_text(values[0]) for values in texts if isinstance(values, list) and values), "")
    masks = (record.features.get(spec.name) for spec in manifest.schema.masks)
    mask = next((value[0] for value in masks if isinstance(value, list) and len(value) == 1), None)
    sides = [record.features.get(key) for key in (keys.BBOX_XMIN, keys.BBOX_YMIN, keys.BBOX_XMAX, keys.BBOX_YMAX)]
    lists = [side.tolist() for side in sides if isinstance(side, np.ndarray)]
    boxes = list(zip(*lists, strict=False)) if len(lists) == len(sides) else []
    for number, data in enumerate(record.encoded_images[:MAX_IMAGES_SHOWN]):
        note = f"{position} image {number}" if manifest.has_several_images else position
        try:
            image = make_image(decode_pixels(data, record._form))
            size = image.size
            image.thumbnail((tile_px, tile_px))
            classes = None if mask is None else read_mask(mask, math.prod(size))
            tiles.append(Tile(image, title, note, size, caption, classes, boxes))
        except BadImage:
            tiles.append(Tile(None, title, note))
    return tiles


def spread_evenly(lengths: Sequence[int], count: int) -> list[list[int]]:
    """Returns record numbers of each split: the middles of `count` equal parts of all records laid end to end."""
    total = sum(lengths)
    count = min(count, total)
    middles = [(2 * k + 1) * total // (2 * count) for k in range(count)]
    chosen, begin = [], 0
    for length in lengths:
        chosen.append([number - begin for number in middles if begin <= number < begin + length])
        begin += length
    return chosen
