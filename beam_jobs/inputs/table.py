"""Lists the images of a manifest: a CSV, TSV, JSONL or Parquet table with one row for each image.

    image       path relative to the table, absolute path, or URL; in Parquet also the image itself
    images      instead of `image`, for several images of a record: a list of such
    label       optional: name of the class, or its number from 0; or a list of such, for several classes
    split       optional: name of the split; `val`, `valid` and `dev` mean `validation`
    xmin, ymin, xmax, ymax
                optional: boxes as fractions of width and height; a number, or a list for several boxes
    box_label   optional: class number of the box, or a list
    mask        optional: path of the image's mask, a PNG whose values are classes; relative as that of the image
    caption     optional: text
    target      optional: number, the target of a regression

Options such as `label_column` name other columns for these. Every further column becomes a feature of the same name. A
CSV cell holds a list as JSON: `[0.1, 0.5]`.
"""

import json
import mimetypes
import posixpath
import shlex
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any, TypeGuard, cast

import numpy as np
from numpy.typing import NDArray

from beam_jobs.config import ShardConfig
from beam_jobs.inputs.column_types import CAPTION, TARGET, Column, ColumnFacts
from beam_jobs.inputs.facts import Facts, Meaning
from beam_jobs.inputs.folder import Look, list_begin
from beam_jobs.inputs.label_file import name_numbers, put_known_first, rename_labels
from beam_jobs.inputs.parquet_rows import EmbeddedImage
from beam_jobs.inputs.parquet_tensors import TensorColumns, infer_tensors
from beam_jobs.inputs.table_files import (
    Row,
    TablePart,
    find_columns,
    get_location,
    get_root,
    get_suffix,
    is_parquet_folder,
    is_table,
    is_text_table,
    list_parts,
    make_name,
    read_rows,
)
from beam_jobs.plan.image_ref import SINGLE, Box, FileRef, ImageLocation, ImageRef, Value, list_files
from beam_jobs.plan.image_table import TELL_EVERY, ImageTable, ImageTableBuilder
from beam_jobs.plan.listing import Listing, Missing
from tfpipe.errors import ConfigError, DataError
from tfpipe.format.file_names import name_split
from tfpipe.format.image_form import ImageForm
from tfpipe.format.schema import MAX_IMAGES
from tfpipe.storage import file_io
from tfpipe.system.progress import Observer, Progress

RUN_IMAGES = 250_000
"""The number of rows that are held as one piece at most, if no process holds all."""

_BOX_COLUMNS = ("xmin", "ymin", "xmax", "ymax")
_KNOWN = ("image", "label", "split", *_BOX_COLUMNS, "box_label", "mask")
_MAX_LABEL = 10_000_000
_LABEL = "label"
_LIKELY_LABELS = frozenset(
    ("class", "classes", "class_id", "class_name", "classname", "labels", "category", "categories", "tag", "tags")
)
_DAMAGED = "row of a damaged row group"
_SIZES_AT_ONCE = 10_000  # local files whose sizes are read in one call
_LISTS_AT_ONCE = 50_000  # lists of images, or masks, whose folders are listed anew for each so many
_NO_ROWS = np.empty(0, np.int64)


def is_table_input(config: ShardConfig, look: Look = list_begin) -> bool:
    """Checks whether the input is a table: by its name, or a folder of Parquet files that hold images.

    Raises:
        DataError: The input is in a store that cannot be reached.
    """
    if is_table(config.input):
        return True
    if config.input_format == "auto":
        with file_io.explain_os_errors(f"read {config.input}"):
            return is_parquet_folder(config.input, look, config.columns)
    return config.input_format == "parquet"


def read_columns(parts: Sequence[TablePart], config: ShardConfig) -> tuple[str, ...]:
    """Returns the names of the further columns in the order of the first row, after a check of all names.

    The column `label` is one of them if it holds lists of classes.

    Raises:
        ConfigError: The manifest has no column named `group_by`, or lacks one that the user names.
        DataError: The table has no rows, or lacks a column.
    """
    for part in parts:
        for _, row in read_rows(part):
            if row is not None:
                return _check_header(row, part.path, config)
    raise DataError(f"{config.input} holds no rows.")


def list_rows(
    part: TablePart,
    columns: Sequence[str],
    config: ShardConfig,
    observer: Observer | None = None,
    num_before: int = 0,
) -> Iterator[tuple[ImageTable, Facts]]:
    """Yields the images of a part of a table with the facts about them, at most `RUN_IMAGES` at a time.

    Their sizes are unknown, and their classes and values are those of the table.

    Raises:
        DataError: The table cannot be read, or a cell does not fit its column.
    """
    rows = read_rows(part)
    from_text = is_text_table(part.path)
    embedded = find_columns(part)
    class_names = frozenset([embedded.class_names] if embedded is not None and embedded.class_names else [])
    tensors = frozenset([embedded.tensors] if embedded is not None else [])
    while True:
        builder, first_row, damaged = ImageTableBuilder(), 0, 0
        for number, row in islice(rows, RUN_IMAGES):
            if row is None:
                damaged += 1
                continue
            first_row = first_row or number
            builder.append(_parse_row(row, number, part, columns, config))
            num_before += 1
            if observer is not None and num_before % TELL_EVERY == 0:
                observer.progress(Progress(num_before))
        if not len(builder) and not damaged:
            return
        images = builder.finish()
        column_facts = [
            ColumnFacts.read(images.get_extras(position), part.file_number, first_row, from_text=from_text)
            for position in range(len(columns))
        ]
        facts = Facts.read_table(images, column_facts, (part.file_number, first_row))
        skipped = Counter({_DAMAGED: damaged} if damaged else {})
        if _LABEL in columns:
            labels = images.get_extras(columns.index(_LABEL))
            classes = Counter[str | None](chain.from_iterable(labels))
            facts = replace(facts, labels=classes)
        yield images, replace(facts, skipped=skipped, class_names=class_names, tensors=tensors)


def resolve_table(config: ShardConfig, facts: Facts, columns: Sequence[str], parts: Sequence[TablePart]) -> Meaning:
    """Returns the meaning of the classes and of the further columns of a table.

    Raises:
        DataError: A column mixes kinds of values, or the labels of rows do not go together.
    """
    path = config.input
    labels, label_names, is_numeric = number_labels(facts, path)
    files = list(dict.fromkeys(part.path for part in parts))
    has_images = facts.check_images(path)
    if has_images:
        check_no_tensors(config)
    elif config.form != ImageForm():
        name = next(name for name, value in vars(config.form).items() if value != getattr(ImageForm(), name))
        raise ConfigError(f"`{name}` changes images, and {path} has none. Leave it out.")
    if config.labels:
        labels, label_names = rename_labels(config.labels, labels, label_names, is_numeric=is_numeric)
    elif is_numeric and facts.class_names:
        if len(facts.class_names) > 1:
            first, second = sorted(facts.class_names)[:2]
            raise DataError(
                f"The files of {path} must name the same classes, but one names {_show(first)} and one "
                f"{_show(second)}. Give the names with `labels`."
            )
        names = next(iter(facts.class_names))
        labels, label_names = name_numbers(f"The metadata of {path}", labels, label_names, names), names
    is_numbered = is_numeric and not (config.labels or facts.class_names)
    labels, label_names = put_known_first(config, labels, label_names, is_numeric=is_numbered)
    classes = Column.make_classes(label_names, labels) if _LABEL in columns else None
    if classes is not None:
        labels, label_names = {}, ()
    root = get_root(path)
    typed = tuple(_infer_columns(config, facts, columns, files, classes))
    tensors = _infer_tensors(config, facts, parts[0])
    listing = Listing(
        make_name(path),
        root,
        label_names=label_names,
        extra=tuple(column.spec for column in typed),
        skipped=facts.skipped or None,
        row_files=tuple(get_location(root, file) for file in files) if facts.is_embedded else (),
        images_shape=facts.infer_images_shape(path),
        tensors=tensors.specs,
        tensor_dtypes=tensors.dtypes,
        has_images=has_images,
        columns=config.columns,
        missing=facts.missing,
    )
    return Meaning(listing, labels, columns=typed)


def _infer_columns(
    config: ShardConfig, facts: Facts, names: Sequence[str], files: Sequence[str], classes: Column | None
) -> Iterator[Column]:
    """Yields the features that the further columns become; `classes` is that of lists of classes."""
    for name, column in zip(names, facts.columns, strict=True):
        if classes is not None and name == _LABEL:
            yield classes
        elif name == TARGET and config.target_column is not None:
            yield column.infer_target(config.target_column, files)
        else:
            is_text = facts.is_embedded or name == CAPTION
            yield column.infer(name, files, from_text=is_text_table(config.input), is_text=is_text)


def _infer_tensors(config: ShardConfig, facts: Facts, first: TablePart) -> TensorColumns:
    columns = find_columns(first) if any(facts.tensors) else None
    if columns is None:
        return TensorColumns()
    if columns.image and len(facts.tensors) > 1:
        one, other = (", ".join(names) or "none" for names in sorted(facts.tensors)[:2])
        raise DataError(f"Every file of {config.input} must hold the same tensors, but one has {one}, one {other}.")
    return infer_tensors(first.path, columns.tensors, config.tensor_types)


def explain_no_labels(config: ShardConfig) -> str | None:
    """Returns why a table gives no classes and which option names a column of them, as a part of a sentence.

    Returns:
        None if the table gives the targets of a regression.
    """
    if config.target_column is not None:
        return None
    column = config.label_column or _LABEL
    rows = chain.from_iterable(map(read_rows, list_parts(config.input, config.columns)))
    names = list(next((row for _, row in rows if row is not None), {}))
    if _LABEL in names:
        return f"column `{column}` is empty"
    found = [name for name in names if name not in (*_KNOWN, CAPTION)]
    likely = next((name for name in found if name.lower() in _LIKELY_LABELS), "COLUMN")
    listed = f" (found: {', '.join(found)})" if found else ""
    return f"no column `{column}`{listed}; use --label-column {shlex.quote(likely)}"


def check_no_table(config: ShardConfig, *, names_files: bool = False) -> None:
    """Checks that no option is for tables, for another input."""
    check_no_tensors(config)
    for name in (*(f"{name}_column" for name in config.columns.named), "label_separator"):
        if getattr(config, name):
            raise ConfigError(f"`{name}` is for tables (CSV, TSV, JSONL or Parquet), got {config.input}.")
    if config.allow_missing and not names_files:
        raise ConfigError(
            f"`allow_missing` is for tables and annotations, which name the files of images, got {config.input}."
        )


def check_no_tensors(config: ShardConfig) -> None:
    """Checks that no option names columns of tensors, for an input with images."""
    if config.tensors:
        raise ConfigError(f"`tensors` needs Parquet files without images, got {config.input}.")


def _show(names: Sequence[str]) -> str:
    return f"{len(names)} ({', '.join(names[:3])}, ...)" if len(names) > 3 else ", ".join(names)


def _check_header(row: Row, path: str, config: ShardConfig) -> tuple[str, ...]:
    """Checks the names of the columns, and returns those of the further columns in the table's order."""
    if "image" not in row:
        advice = " Without images it needs lists of numbers." if get_suffix(path) == ".parquet" else ""
        names = [str(config.columns.named.get(name, name)) for name in row]
        if any((mimetypes.guess_type(name)[0] or "").startswith("image/") for name in names):
            raise DataError(f"{path} must begin with a line that names its columns, got {', '.join(names)}.")
        raise DataError(
            f"{path} must have a column 'image', got {', '.join(names)}. Say which one holds the images "
            f"with `image_column`.{advice}"
        )
    boxes = [name for name in _BOX_COLUMNS if name in row]
    if boxes and len(boxes) < len(_BOX_COLUMNS):
        raise DataError(f"Boxes need the columns xmin, ymin, xmax and ymax; {path} has only {', '.join(boxes)}.")
    if config.group_by and _find_group(config) not in row:
        raise ConfigError(f"`group_by` must name a column of {path}, got {config.group_by!r}.")
    has_lists = config.label_separator is not None or isinstance(row.get(_LABEL), list | tuple)
    return tuple(name for name in row if name not in _KNOWN or (name == _LABEL and has_lists))


def _find_group(config: ShardConfig) -> str:
    """Returns the column `group_by` by its usual name, if another option names it too."""
    names = [name for name, column in config.columns.named.items() if column == config.group_by]
    return names[0] if names else config.group_by or ""


def _locate(row: Row, number: int, part: TablePart, root: str) -> ImageRef:
    """Returns the place of a row's image, without its other facts."""
    image = row.get("image")
    if isinstance(image, EmbeddedImage):
        file = get_location(root, part.path)
        path = f"{file[: -len('.parquet')]}/{number:08}{'-' * bool(image.name)}{image.name}"
        location = ImageLocation(file, image.row, row_group=image.row_group)
        return ImageRef(path, image.size, location, part.split, num_images=image.num_images)
    if isinstance(image, list | tuple):
        if not (1 <= len(image) <= MAX_IMAGES and all(map(_is_path, image))):
            raise DataError(
                f"{part.path}, row {number}: a list of images must have 1 to {MAX_IMAGES:,} paths, got {image!r:.200}."
            )
        paths = [_normalize(path) for path in image]
        return ImageRef(paths[0], images=tuple((path,) for path in paths), num_images=len(paths))
    if not _is_path(image):
        raise DataError(f"{part.path}, row {number}: 'image' must be a path, got {image!r}.")
    return ImageRef(_normalize(image))


def _is_path(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and bool(value) and "\0" not in value


def _normalize(path: str) -> str:
    return path if file_io.is_url(path) else posixpath.normpath(path)


def _parse_row(row: Row, number: int, part: TablePart, extra_columns: Sequence[str], config: ShardConfig) -> ImageRef:
    where = f"{part.path}, row {number}"
    image = _locate(row, number, part, get_root(config.input))
    unknown = [name for name in row if name not in _KNOWN and name not in extra_columns]
    if unknown:
        raise DataError(f"{where}: column {unknown[0]!r} is not in the first row; every row needs the same columns.")
    boxes, box_labels = _parse_boxes(row, where), tuple(_parse_box_labels(row.get("box_label"), where))
    if len(box_labels) not in (0, len(boxes)):
        raise DataError(
            f"{where}: 'box_label' must hold one number for each of the {len(boxes)} boxes, got {len(box_labels)}."
        )
    if boxes and image.num_images != SINGLE:
        raise DataError(f"{where}: boxes belong to a single image, and this row holds a list of images.")
    if row.get("mask") is not None and image.images:
        raise DataError(f"{where}: a mask belongs to a single image, and this row holds a list of images.")
    split, label = row.get("split"), row.get(_LABEL)
    if _LABEL in extra_columns:
        row, label = row | {_LABEL: _parse_labels(label, config.label_separator, where)}, None
    group = "" if config.group_by is None else str(row.get(_find_group(config)))
    return image._replace(
        split=_parse_split(split, where) if split is not None else image.split,
        label=_parse_label(label, where) if label is not None else None,
        group=group,
        boxes=boxes,
        box_labels=box_labels,
        extra=cast(
            tuple[Value, ...], tuple(row.get(name) for name in extra_columns)
        ),  # converted when all rows are known
        mask=_parse_mask(row.get("mask"), image.location.file, where),
    )


def _parse_mask(value: Any, file: str, where: str) -> tuple[str | int, ...]:
    if value is None:
        return ()
    if isinstance(value, EmbeddedImage):
        return tuple(FileRef(value.name, value.size, file, value.row, row_group=value.row_group))
    if not _is_path(value):
        raise DataError(f"{where}: 'mask' must be the path of a PNG, got {value!r}.")
    return tuple(FileRef(_normalize(value)))


def _parse_split(value: Any, where: str) -> str:
    try:
        return name_split(str(value))
    except ConfigError as error:
        raise DataError(f"{where}: {error}") from error


def _parse_labels(value: Any, separator: str | None, where: str) -> list[str]:
    """Returns the classes in a cell: a list, a text with a separator, or one class."""
    if isinstance(value, str) and separator is not None:
        value = list(filter(None, map(str.strip, value.split(separator))))
    if not isinstance(value, list | tuple):
        value = [] if value is None else [value]
    return list(dict.fromkeys(_parse_label(label, where) for label in value))


def _parse_label(value: Any, where: str) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        advice = " Allow several with `label_separator`." if isinstance(value, list | tuple) else ""
        raise DataError(f"{where}: 'label' must be a name or a number from 0, got {value!r}.{advice}")
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
    """Returns the boxes of a row."""
    if row.keys().isdisjoint(_BOX_COLUMNS):
        return ()
    sides = [_parse_list(row.get(name), f"{where}: {name!r}") for name in _BOX_COLUMNS]
    if len({len(side) for side in sides}) > 1:
        raise DataError(f"{where}: xmin, ymin, xmax and ymax must hold equally many numbers.")
    boxes = tuple(zip(*sides, strict=True))
    for box in boxes:
        numbers = all(isinstance(x, (int, float)) for x in box)
        if not numbers or not (0 <= box[0] <= box[2] <= 1 and 0 <= box[1] <= box[3] <= 1):
            raise DataError(
                f"{where}: a box must be fractions of width and height, 0 <= xmin <= xmax <= 1 and "
                f"0 <= ymin <= ymax <= 1, got xmin, ymin, xmax, ymax = {', '.join(map(str, box))}."
            )
    return boxes


def _parse_box_labels(value: Any, where: str) -> Iterable[int]:
    """Returns the class numbers in a cell `box_label`."""
    labels = _parse_list(value, f"{where}: 'box_label'")
    if not all(type(label) is int for label in labels):
        raise DataError(f"{where}: 'box_label' must be whole numbers, got {value!r}.")
    return labels


def read_sizes(images: ImageTable, root: str) -> tuple[ImageTable, Missing]:
    """Returns the images with their sizes in bytes, or 0 if it is unknown, and the files that do not exist."""
    sizes, missing = np.where(images.in_row_groups, images.sizes, 0), Missing()
    for rows, names in _group_files(images, root):
        paths = [file_io.join(root, name) for name in names]
        found = file_io.get_sizes(paths)
        missing += Missing.find(paths, found)
        if len(rows):
            np.add.at(sizes, rows, np.maximum(found, 0))  # a list of images has several files in its row
    return images.replace_sizes(sizes), missing


def _group_files(images: ImageTable, root: str) -> Iterator[tuple[NDArray[np.int64], list[str]]]:
    """Yields the files of images in bounded groups, with their rows, and then the files of masks without rows."""
    if "images" not in images.details:
        for group in _group_rows(images, root):
            rows = np.array(group, np.int64)
            yield rows, images.get_paths(rows)
    for begin in range(0, len(images), _LISTS_AT_ONCE) if images.details & {"images", "mask"} else ():
        owners, names, masks = array("q"), list[str](), list[str]()
        indices = np.arange(begin, min(begin + _LISTS_AT_ONCE, len(images)))
        for row, image in zip(indices.tolist(), images.iterate(indices), strict=True):
            files = list_files(image) if image.images else ()
            owners.extend([row] * len(files))
            names += [file.path for file in files]
            mask = FileRef(*cast(Any, image.mask)) if image.mask else None
            if mask is not None and mask.row_group < 0 and not mask.drawn:
                masks.append(mask.path)
        yield np.frombuffer(owners, np.int64), names
        yield _NO_ROWS, masks


def _group_rows(images: ImageTable, root: str) -> Iterator[list[int]]:
    """Yields row numbers in bounded groups.

    All rows of one remote folder form one group, because a folder is listed once. Rows of local files come in groups of
    `_SIZES_AT_ONCE`.
    """
    remote: dict[str, array[int]] = defaultdict(lambda: array("q"))
    local: list[int] = []
    in_row_groups = images.in_row_groups
    for row, path in enumerate(images.iterate_paths()):
        if in_row_groups[row]:
            continue
        full_path = file_io.join(root, path)
        if file_io.is_url(full_path):
            remote[full_path.rpartition("/")[0]].append(row)
            continue
        local.append(row)
        if len(local) == _SIZES_AT_ONCE:
            yield local
            local = []
    yield local
    yield from (rows.tolist() for rows in remote.values())


def number_labels(facts: Facts, path: str) -> tuple[dict[str | None, str | None], tuple[str, ...], bool]:
    """Returns the class of each label, the class names in the order of their labels, and whether labels are numbers.

    Raises:
        DataError: Only some rows have a label, or a number is too large.
    """
    missing = facts.labels[None]
    if missing == facts.num_images or not +facts.labels:
        return {}, (), False
    if missing:
        raise DataError(
            f"{path}: every row must have a 'label' or none may, but {missing} of {facts.num_images} have none. "
            "Give them one, or take these rows out."
        )
    names = sorted(map(str, facts.labels))
    if not all(name.isdecimal() and name.isascii() for name in names):
        return {name: name for name in names}, tuple(names), False
    highest = max(map(int, names))
    if highest > _MAX_LABEL:
        raise DataError(f"{path}: a label must be at most {_MAX_LABEL}, got {highest}.")
    # "007" and "7" are one class.
    return {name: str(int(name)) for name in names}, tuple(str(i) for i in range(highest + 1)), True
