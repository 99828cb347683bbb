"""Reads a manifest of images: CSV, JSONL or Parquet, one row per image.

Columns: `image` (a path relative to the table, absolute, or a URL), `label` (a name, or a number from 0),
optional `split`; boxes as `xmin`, `ymin`, `xmax`, `ymax` (fractions of width and height; a number, or a list for
several boxes) with an optional `box_label` (a number or a list). Every further column becomes a feature of the same
name. A CSV cell holds a list as JSON: `[0.1, 0.5]`.
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

from beam_jobs.config import ShardConfig
from beam_jobs.inputs.column_types import Column, infer_column
from beam_jobs.plan.columnar import NumberColumn
from beam_jobs.plan.image_ref import Box, ImageRef, Value
from beam_jobs.plan.image_table import TELL_EVERY, RefList
from beam_jobs.plan.split_and_shard import Listing
from beam_jobs.storage import filesystem
from tfpipe.errors import ConfigError, DataError
from tfpipe.format.file_names import check_split_name
from tfpipe.system.extras import importing
from tfpipe.system.progress import Observer, Progress

_BOX_COLUMNS = ("xmin", "ymin", "xmax", "ymax")
_KNOWN = ("image", "label", "split", *_BOX_COLUMNS, "box_label")
_MAX_LABEL = 10_000_000
_SIZES_AT_ONCE = 10_000

Row = dict[str, Any]


def is_table(path: str) -> bool:
    """Whether the name is that of a manifest."""
    return path.lower().endswith(tuple(_READERS))


def list_table(config: ShardConfig, observer: Observer | None = None) -> Listing:
    """The images of a manifest.

    Raises:
        ConfigError: `--group-by` names no column.
        DataError: The table cannot be read, or a cell is not what its column must hold; names the row.
        MissingDependencyError: A Parquet file, and no pyarrow.
    """
    path = config.input
    suffix = next(suffix for suffix in _READERS if path.lower().endswith(suffix))
    with filesystem.explain_os_errors(f"read {path}"), filesystem.open_read(path) as file:
        rows = enumerate(_READERS[suffix](file, path), start=1)
        first = next(rows, None)
        if first is None:
            raise DataError(f"{path} holds no rows.")
        columns = _columns(first[1], path, config)
        refs = RefList()
        for number, row in chain([first], rows):
            refs.append(_ref(row, number, columns, config))
            if observer is not None and number % TELL_EVERY == 0:
                observer.progress(Progress(number))
    root = posixpath.dirname(path)
    refs = refs.replaced(sizes=_sizes(refs, root))
    refs, label_names, numeric = _with_labels(refs, path)
    extra = _type_extra(refs, columns, path, from_text=suffix == ".csv")
    name = posixpath.basename(path)[: -len(suffix)]
    return Listing(name, root, refs, label_names, tuple(one.spec for one in extra), numeric_labels=numeric)


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
        raise DataError(f"{path} is no CSV in UTF-8 ({error}).") from error


def _read_jsonl(file: Any, path: str) -> Iterator[Row]:
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line.decode("utf-8-sig"))
            if b"\\u" in line:  # half a surrogate pair is JSON, but no text that can be stored
                json.dumps(row, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}, line {number}: no JSON ({error}).") from error
        if not isinstance(row, dict):
            raise DataError(f"{path}, line {number}: must be a JSON object, got {type(row).__name__}.")
        yield row


def _read_parquet(file: Any, path: str) -> Iterator[Row]:
    with importing("A Parquet manifest", "pyarrow", "tfpipe[beam]"):
        import pyarrow
        import pyarrow.parquet
    try:
        for batch in pyarrow.parquet.ParquetFile(file).iter_batches(batch_size=10_000):
            yield from batch.to_pylist()
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise DataError(f"{path} is damaged or no Parquet ({error}).") from error


_READERS: dict[str, Callable[[Any, str], Iterator[Row]]] = {
    ".csv": _read_csv,
    ".jsonl": _read_jsonl,
    ".ndjson": _read_jsonl,
    ".parquet": _read_parquet,
}


def _columns(row: Row, path: str, config: ShardConfig) -> tuple[str, ...]:
    """The further columns, in the table's order; checks the header."""
    if "image" not in row:
        raise DataError(f"{path} must have a column 'image', got {', '.join(map(str, row))}.")
    boxes = [name for name in _BOX_COLUMNS if name in row]
    if boxes and len(boxes) < len(_BOX_COLUMNS):
        raise DataError(f"Boxes need the columns xmin, ymin, xmax and ymax; {path} has only {', '.join(boxes)}.")
    if config.group_by and config.group_by not in row:
        raise ConfigError(f"--group-by must name a column of {path}, got {config.group_by!r}.")
    return tuple(name for name in row if name not in _KNOWN)


def _ref(row: Row, number: int, columns: Sequence[str], config: ShardConfig) -> ImageRef:
    where = f"{config.input}, row {number}"
    image = row.get("image")
    if not isinstance(image, str) or not image or "\0" in image:
        raise DataError(f"{where}: 'image' must be a path, got {image!r}.")
    unknown = [name for name in row if name not in _KNOWN and name not in columns]
    if unknown:
        raise DataError(f"{where}: column {unknown[0]!r} is not in the first row; every row needs the same columns.")
    boxes, box_labels = _boxes(row, where), tuple(_box_labels(row.get("box_label"), where))
    if len(box_labels) not in (0, len(boxes)):
        raise DataError(
            f"{where}: 'box_label' must hold one number for each of the {len(boxes)} boxes, got {len(box_labels)}."
        )
    split = row.get("split")
    group = "" if config.group_by is None else str(row.get(config.group_by))
    return ImageRef(
        path=image if filesystem.is_remote(image) else posixpath.normpath(image),
        split=_split(split, where) if split is not None else "",
        label=_label(row.get("label"), where) if row.get("label") is not None else None,
        group=group,
        boxes=boxes,
        box_labels=box_labels,
        extra=cast(tuple[Value, ...], tuple(row.get(name) for name in columns)),  # typed once all are seen
    )


def _split(value: Any, where: str) -> str:
    try:
        return check_split_name(str(value))
    except ConfigError as error:
        raise DataError(f"{where}: {error}") from error


def _label(value: Any, where: str) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise DataError(f"{where}: 'label' must be a name or a number from 0, got {value!r}.")
    return value if isinstance(value, str) else str(value)


def _list(value: Any, where: str) -> list[Any]:
    """A cell as a list: nothing, one value, a list, or a JSON list as text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: must be a number or a list of numbers, got {value!r}.") from error
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _boxes(row: Row, where: str) -> tuple[Box, ...]:
    sides = [_list(row.get(name), f"{where}: {name!r}") for name in _BOX_COLUMNS]
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


def _box_labels(value: Any, where: str) -> Iterable[int]:
    labels = _list(value, f"{where}: 'box_label'")
    if not all(type(label) is int for label in labels):
        raise DataError(f"{where}: 'box_label' must be whole numbers, got {value!r}.")
    return labels


def _sizes(refs: RefList, root: str) -> NumberColumn:
    """Bytes of each image. A size that cannot be had counts as 0: reading the image later says why."""
    sizes = np.zeros(len(refs), np.int64)
    for rows in _asked_together(refs, root):
        found = filesystem.sizes([filesystem.join(root, refs.paths[i]) for i in rows])
        sizes[rows] = np.maximum(found, 0)
    return NumberColumn.of(sizes, 0)


def _asked_together(refs: RefList, root: str) -> Iterator[list[int]]:
    """Rows in parts that are bounded: of a remote folder all, which is listed once, of other files so many."""
    remote: dict[str, array[int]] = defaultdict(lambda: array("q"))
    local: list[int] = []
    for i, path in enumerate(refs.paths):
        place = filesystem.join(root, path)
        if filesystem.is_remote(place):
            remote[place.rpartition("/")[0]].append(i)
            continue
        local.append(i)
        if len(local) == _SIZES_AT_ONCE:
            yield local
            local = []
    yield local
    yield from (rows.tolist() for rows in remote.values())


def _with_labels(refs: RefList, path: str) -> tuple[RefList, tuple[str, ...], bool]:
    """The class names, the position being the label, and whether the table holds numbers."""
    missing = refs.labels.counts().get(None, 0)
    if missing == len(refs):
        return refs, (), False
    if missing:
        raise DataError(f"{path}: every row must have a 'label' or none may, but {missing} of {len(refs)} have none.")
    names = sorted(str(label) for label in refs.labels.texts)
    if not all(name.isdecimal() and name.isascii() for name in names):
        return refs, tuple(names), False
    highest = max(map(int, names))
    if highest > _MAX_LABEL:
        raise DataError(f"{path}: a label must be at most {_MAX_LABEL}, got {highest}.")
    plain = [str(int(name or 0)) for name in refs.labels.texts]  # "007" and "7" are one class
    return refs.replaced(labels=refs.labels.renamed(plain)), tuple(str(i) for i in range(highest + 1)), True


def _type_extra(refs: RefList, columns: Sequence[str], path: str, *, from_text: bool) -> list[Column]:
    """Types each further column by all of its values, and converts them in place."""
    extra = [infer_column(name, refs.extras(k), path, from_text=from_text) for k, name in enumerate(columns)]
    if extra:
        refs.replace_extras([one.convert for one in extra])
    return extra
