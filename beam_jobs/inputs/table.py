"""Lists the images of a manifest: a CSV, JSONL or Parquet table with one row for each image.

    image       path relative to the table, absolute path, or URL
    label       optional: name of the class, or its number from 0
    split       optional: name of the split
    xmin, ymin, xmax, ymax
                optional: boxes as fractions of width and height; a number, or a list for several boxes
    box_label   optional: class number of the box, or a list

Every further column becomes a feature of the same name. A CSV cell holds a list as JSON: `[0.1, 0.5]`.
"""

import csv
import io
import json
import math
import posixpath
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from beam_jobs.config import ShardConfig
from beam_jobs.inputs.column_types import infer_column
from beam_jobs.plan.image_ref import Box, ImageRef, Value
from beam_jobs.plan.image_table import TELL_EVERY, ImageTable, ImageTableBuilder
from beam_jobs.plan.listing import Listing
from beam_jobs.storage import filesystem
from tfpipe.errors import ConfigError, DataError
from tfpipe.format.file_names import check_split_name
from tfpipe.format.schema import FeatureSpec
from tfpipe.system.progress import Observer, Progress

_BOX_COLUMNS = ("xmin", "ymin", "xmax", "ymax")
_KNOWN = ("image", "label", "split", *_BOX_COLUMNS, "box_label")
_MAX_LABEL = 10_000_000
_SIZES_AT_ONCE = 10_000  # local files whose sizes are read in one call

Row = dict[str, Any]


def is_table(path: str) -> bool:
    """Checks whether the name is that of a manifest."""
    return path.lower().endswith(tuple(_READERS))


def list_table(config: ShardConfig, observer: Observer | None = None) -> Listing:
    """Lists the images of a manifest.

    Args:
        config: The configuration that names the manifest as its input.
        observer: The observer of the listing, which gets the number of rows read so far now and then.

    Raises:
        ConfigError: The manifest has no column named `group_by`.
        DataError: The table cannot be read, or a cell does not fit its column. The message names the row.
    """
    path = config.input
    suffix = next(suffix for suffix in _READERS if path.lower().endswith(suffix))
    with filesystem.explain_os_errors(f"read {path}"), filesystem.open_read(path) as file:
        rows = enumerate(_READERS[suffix](file, path), start=1)
        first = next(rows, None)
        if first is None:
            raise DataError(f"{path} holds no rows.")
        extra_columns = _check_header(first[1], path, config)
        builder = ImageTableBuilder()
        for number, row in chain([first], rows):
            builder.append(_parse_row(row, number, extra_columns, config))
            if observer is not None and number % TELL_EVERY == 0:
                observer.progress(Progress(number))
    root = posixpath.dirname(path)
    images = builder.finish()
    images = images.replace_sizes(_read_sizes(images, root))
    images, label_names, numeric_labels = _number_labels(images, path)
    images, features = _type_extra(images, extra_columns, path, from_text=suffix == ".csv")
    name = posixpath.basename(path)[: -len(suffix)]
    return Listing(name, root, images, label_names, features, numeric_labels=numeric_labels)


def _read_csv(file: Any, path: str) -> Iterator[Row]:
    csv.field_size_limit(1 << 26)
    try:
        with io.TextIOWrapper(file, "utf-8-sig", newline="") as text:
            reader = csv.DictReader(text, restval=None)
            for row in reader:
                if None in row:
                    raise DataError(f"{path}, line {reader.line_num}: the row has more cells than the header.")
                yield {key: value if value != "" else None for key, value in row.items()}
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not a CSV file in UTF-8 ({error}).") from error


def _read_jsonl(file: Any, path: str) -> Iterator[Row]:
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line.decode("utf-8-sig"))
            if b"\\u" in line:  # half a surrogate pair is valid JSON, but not a text that can be stored
                json.dumps(row, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}, line {number}: not valid JSON ({error}).") from error
        if not isinstance(row, dict):
            raise DataError(f"{path}, line {number}: must be a JSON object, got {type(row).__name__}.")
        yield row


def _read_parquet(file: Any, path: str) -> Iterator[Row]:
    import pyarrow.parquet  # loads long, and most manifests are CSV

    try:
        for batch in pyarrow.parquet.ParquetFile(file).iter_batches(batch_size=10_000):
            yield from batch.to_pylist()
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise DataError(f"{path} is damaged or is not a Parquet file ({error}).") from error


_READERS: dict[str, Callable[[Any, str], Iterator[Row]]] = {
    ".csv": _read_csv,
    ".jsonl": _read_jsonl,
    ".ndjson": _read_jsonl,
    ".parquet": _read_parquet,
}


def _check_header(row: Row, path: str, config: ShardConfig) -> tuple[str, ...]:
    """Checks the names of the columns, and returns those of the further columns in the table's order."""
    if "image" not in row:
        raise DataError(f"{path} must have a column 'image', got {', '.join(map(str, row))}.")
    boxes = [name for name in _BOX_COLUMNS if name in row]
    if boxes and len(boxes) < len(_BOX_COLUMNS):
        raise DataError(f"Boxes need the columns xmin, ymin, xmax and ymax; {path} has only {', '.join(boxes)}.")
    if config.group_by and config.group_by not in row:
        raise ConfigError(f"`group_by` must name a column of {path}, got {config.group_by!r}.")
    return tuple(name for name in row if name not in _KNOWN)


def _parse_row(row: Row, number: int, extra_columns: Sequence[str], config: ShardConfig) -> ImageRef:
    where = f"{config.input}, row {number}"
    image = row.get("image")
    if not isinstance(image, str) or not image or "\0" in image:
        raise DataError(f"{where}: 'image' must be a path, got {image!r}.")
    unknown = [name for name in row if name not in _KNOWN and name not in extra_columns]
    if unknown:
        raise DataError(f"{where}: column {unknown[0]!r} is not in the first row; every row needs the same columns.")
    boxes, box_labels = _parse_boxes(row, where), tuple(_parse_box_labels(row.get("box_label"), where))
    if len(box_labels) not in (0, len(boxes)):
        raise DataError(
            f"{where}: 'box_label' must hold one number for each of the {len(boxes)} boxes, got {len(box_labels)}."
        )
    split = row.get("split")
    group = "" if config.group_by is None else str(row.get(config.group_by))
    return ImageRef(
        path=image if filesystem.is_url(image) else posixpath.normpath(image),
        split=_parse_split(split, where) if split is not None else "",
        label=_parse_label(row.get("label"), where) if row.get("label") is not None else None,
        group=group,
        boxes=boxes,
        box_labels=box_labels,
        extra=cast(
            tuple[Value, ...], tuple(row.get(name) for name in extra_columns)
        ),  # converted when all rows are known
    )


def _parse_split(value: Any, where: str) -> str:
    try:
        return check_split_name(str(value))
    except ConfigError as error:
        raise DataError(f"{where}: {error}") from error


def _parse_label(value: Any, where: str) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise DataError(f"{where}: 'label' must be a name or a number from 0, got {value!r}.")
    return value if isinstance(value, str) else str(value)


def _parse_list(value: Any, where: str) -> list[Any]:
    """Returns a cell as a list. The cell may be empty, one value, a list, or a JSON list as text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: must be a number or a list of numbers, got {value!r}.") from error
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _parse_boxes(row: Row, where: str) -> tuple[Box, ...]:
    sides = [_parse_list(row.get(name), f"{where}: {name!r}") for name in _BOX_COLUMNS]
    if len({len(side) for side in sides}) > 1:
        raise DataError(f"{where}: xmin, ymin, xmax and ymax must hold equally many numbers.")
    boxes = tuple(zip(*sides, strict=True))
    for box in boxes:
        numbers = all(isinstance(x, (int, float)) and math.isfinite(x) for x in box)
        if not numbers or not (0 <= box[0] <= box[2] <= 1 and 0 <= box[1] <= box[3] <= 1):
            raise DataError(
                f"{where}: a box must be fractions of width and height, 0 <= xmin <= xmax <= 1 and "
                f"0 <= ymin <= ymax <= 1, got xmin, ymin, xmax, ymax = {', '.join(map(str, box))}."
            )
    return boxes


def _parse_box_labels(value: Any, where: str) -> Iterable[int]:
    labels = _parse_list(value, f"{where}: 'box_label'")
    if not all(type(label) is int for label in labels):
        raise DataError(f"{where}: 'box_label' must be whole numbers, got {value!r}.")
    return labels


def _read_sizes(images: ImageTable, root: str) -> NDArray[np.int64]:
    """Returns the size of each image in bytes, or 0 if it is unknown. The worker that reads the image reports why."""
    sizes = np.zeros(len(images), np.int64)
    for rows in _group_rows(images, root):
        paths = [filesystem.join(root, path) for path in images.get_paths(np.array(rows, np.int64))]
        sizes[rows] = np.maximum(filesystem.get_sizes(paths), 0)
    return sizes


def _group_rows(images: ImageTable, root: str) -> Iterator[list[int]]:
    """Yields row numbers in bounded groups.

    All rows of one remote folder form one group, because a folder is listed once. Local rows come in groups of
    `_SIZES_AT_ONCE`.
    """
    remote: dict[str, array[int]] = defaultdict(lambda: array("q"))
    local: list[int] = []
    for row, path in enumerate(images.iterate_paths()):
        full_path = filesystem.join(root, path)
        if filesystem.is_url(full_path):
            remote[full_path.rpartition("/")[0]].append(row)
            continue
        local.append(row)
        if len(local) == _SIZES_AT_ONCE:
            yield local
            local = []
    yield local
    yield from (rows.tolist() for rows in remote.values())


def _number_labels(images: ImageTable, path: str) -> tuple[ImageTable, tuple[str, ...], bool]:
    """Returns the images, the class names in the order of their labels, and whether the table holds numbers."""
    missing = images.count_values("label").get(None, 0)
    if missing == len(images):
        return images, (), False
    if missing:
        raise DataError(f"{path}: every row must have a 'label' or none may, but {missing} of {len(images)} have none.")
    codes, texts = images.get_codes("label")
    names = sorted(map(str, texts))
    if not all(name.isdecimal() and name.isascii() for name in names):
        return images, tuple(names), False
    highest = max(map(int, names))
    if highest > _MAX_LABEL:
        raise DataError(f"{path}: a label must be at most {_MAX_LABEL}, got {highest}.")
    # "007" and "7" are one class.
    images = images.replace_texts("label", codes, [str(int(text or 0)) for text in texts])
    return images, tuple(str(i) for i in range(highest + 1)), True


def _type_extra(
    images: ImageTable, names: Sequence[str], path: str, *, from_text: bool
) -> tuple[ImageTable, tuple[FeatureSpec, ...]]:
    """Infers a feature for each further column from all of its values, and converts the values."""
    columns = [
        infer_column(name, images.get_extras(position), path, from_text=from_text)
        for position, name in enumerate(names)
    ]
    if columns:
        images = images.convert_extras([column.convert for column in columns])
    return images, tuple(column.spec for column in columns)
