"""Lists the images of a CSV, TSV, JSONL or Parquet table with one row for each image.

Every extra column, which tfpipe itself does not use, becomes a feature of its name. A CSV cell holds a list as JSON.
"""

import contextlib
import mimetypes
import posixpath
import re
import shlex
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from itertools import chain
from typing import Any, TypeGuard, cast

import numpy as np

from beam_jobs.config import ShardConfig
from beam_jobs.inputs import label_file, table_files
from beam_jobs.inputs.annotations.boxes import SIZE_COLUMNS, join_box_rows
from beam_jobs.inputs.column_types import (
    CAPTION,
    LABELS,
    TARGET,
    CellKinds,
    TableColumn,
    convert_extras,
    read_kinds,
    to_list,
)
from beam_jobs.inputs.parquet_rows import EmbeddedImage, ImageColumns
from beam_jobs.inputs.parquet_tensors import Tensors, infer_tensors
from beam_jobs.plan.image_ref import NO_IMAGE, SINGLE, UNKNOWN_NUMBER, Box, FileRef, ImageLocation, ImageRef, Value
from beam_jobs.plan.image_table import ImageTable, ImageTableBuilder
from beam_jobs.plan.listing import Listing, read_sizes
from tfpipe.errors import ConfigError, DataError, hide_secrets
from tfpipe.format.file_names import name_split
from tfpipe.format.image_form import ImageForm
from tfpipe.format.schema import MAX_IMAGES, FeatureSpec
from tfpipe.storage import file_io
from tfpipe.system.budget import COLUMNS
from tfpipe.system.progress import Observer
from tfpipe.system.units import human_count

_BOX_COLUMNS = ("xmin", "ymin", "xmax", "ymax")
_OF_BOXES = (*_BOX_COLUMNS, "box_label")
_KNOWN = ("image", "label", "split", *_OF_BOXES, "mask")
_SHORT_PATH = re.compile("([^/.][^/:]*/)*[^/.][^/:]*")  # a path that is normalized already, as nearly all are
_SHOWN = 200  # characters of a cell in a message
_ROWS_SHOWN = 5
_DETAILS = re.compile(r", got | \(|[0-9]+")  # what differs between faults of one kind
LABEL = "label"

_LIKELY_LABELS = frozenset(
    ("class", "classes", "class_id", "class_name", "classname", "labels", "category", "categories", "tag", "tags")
)


def list_table(config: ShardConfig, observer: Observer | None = None) -> Listing:
    """Lists the images of a table, with their classes and the values of extra columns."""
    table = _Table(config)
    images = table.read_images(observer)
    kinds, numbers = [CellKinds(table.from_text) for _ in table.columns], iter(table.rows)
    read_kinds(kinds, images.iterate_extras(), zip(numbers, numbers, strict=True))
    images, box_names = join_box_rows(images, kinds, table.columns, config) if table.has_boxes else (images, ())
    images, missing = read_sizes(images, table.root)
    return replace(table.make_listing(images, kinds), box_names=box_names, missing=missing)


class _RowFaults:
    """The first fault of each faulty row, by its kind."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[str, list[tuple[int, int]]]] = {}  # first error and first rows, by kind
        self._counts = Counter[str]()  # of all rows, by kind

    def add(self, error: DataError | ConfigError, file_number: int, row: int) -> None:
        """Adds the fault of a row, whose number counts from 1."""
        kind = _DETAILS.split(str(error))[0]
        self._counts[kind] += 1
        rows = self._found.setdefault(kind, (str(error), []))[1]
        if len(rows) < _ROWS_SHOWN:
            rows.append((file_number, row))

    def raise_all(self, source: str, files: Sequence[str]) -> None:
        """Raises one error about all faults, in the order of the rows, if there are any."""
        sentences: list[str] = []
        found = sorted((rows, what, kind) for kind, (what, rows) in self._found.items())
        for ((file_number, row), *others), what, kind in found:
            sentence, count = f"{files[file_number]}, row {row}: {what}", self._counts[kind] - 1
            if count:  # as in "So do rows 2, 7 and 30 more."
                shown = [f"{other:,} of {files[file]}" if len(files) > 1 else f"{other:,}" for file, other in others]
                *most, last = shown + [f"{count - len(others):,} more"] * (count > len(others))
                listed = f"{', '.join(most)}{' and ' * bool(most)}{last}"
                sentence += f" So {'do rows' if count > 1 else 'does row'} {listed}."
            sentences.append(sentence)
        if len(sentences) > 1:
            sentences = [f"{source} has {human_count(len(sentences), 'fault')}:", *sentences]
        if sentences:
            raise DataError("\n- ".join(sentences))


class _Table:
    """A reader of a table, with what the files and the rows tell about the columns."""

    def __init__(self, config: ShardConfig) -> None:
        self.config, self.path = config, config.input
        self.root = table_files.get_root(config.input) if config.image_root is None else config.image_root
        self.from_text, self.num_damaged = table_files.is_text_table(config.input), 0
        self.sources = table_files.list_table_files(config.input, config.columns)
        self.files = [source.path for source in self.sources]
        self.columns, self.has_boxes = self._read_header()
        self._names, self._known = {*_KNOWN, *self.columns}, label_file.read_known_names(config)
        self._labels = set[str]()  # labels that were checked
        self.rows = array("q")  # two numbers per image: its file number, and its row in the file
        self._embedded = list[tuple[str, ImageColumns]]()  # the files that hold images or tensors, and their columns

    def _read_header(self) -> tuple[tuple[str, ...], bool]:
        """Returns the extra columns in the order of the first row, and whether there are columns of boxes.

        The column `label` is one of them if it holds lists of classes.
        """
        faults = _RowFaults()
        for source in self.sources:
            for number, row in table_files.read_rows(source):
                if isinstance(row, dict):
                    return _check_header(row, source.path, self.config), not row.keys().isdisjoint(_BOX_COLUMNS)
                faults.add(row or DataError("the row is damaged."), source.number, number)
        faults.raise_all(self.path, self.files)
        raise DataError(f"{self.path} holds no rows.")

    def read_images(self, observer: Observer | None) -> ImageTable:
        """Returns the images of all rows; raises an error about all faulty ones."""
        builder, faults = ImageTableBuilder(observer), _RowFaults()
        for source in self.sources:
            num_before = len(builder)
            for number, row in table_files.read_rows(source):
                if row is None:
                    self.num_damaged += 1
                    continue
                try:
                    builder.append(self._parse_row(row, number, source))
                except (DataError, ConfigError) as error:
                    faults.add(error, source.number, number)
                    continue
                self.rows.extend((source.number, number))
            columns = table_files.find_columns(source) if len(builder) > num_before else None
            self._embedded += [(source.path, columns)] if columns is not None else []
        faults.raise_all(self.path, self.files)
        return builder.finish()

    def make_listing(self, images: ImageTable, kinds: Sequence[CellKinds]) -> Listing:
        """Returns the images with their classes, and with the values of extra columns converted to features."""
        config, path = self.config, self.path
        (labels, label_names), classes = self._name_labels(images), None
        if LABEL in self.columns:
            positions = {name: number for number, name in enumerate(label_names)}
            numbers = {str(label): positions[str(name)] for label, name in labels.items()}
            spec = FeatureSpec(LABELS, "int64", None, "classes, counted from 0", names=label_names)
            classes, labels, label_names = TableColumn(spec, numbers), {}, ()
        typed = tuple(self._infer_columns(images, kinds, classes))
        nums_images = set(np.unique(images.get_numbers("num_images")).tolist())
        if nums_images > {NO_IMAGE}:
            raise DataError(f"Every file of {path} must hold images, or none may.")
        has_images, is_embedded = NO_IMAGE not in nums_images, bool(images.in_row_groups.any())
        if has_images:
            check_no_tensors(config)
        elif config.form != ImageForm():
            name = next(name for name, value in vars(config.form).items() if value != getattr(ImageForm(), name))
            raise ConfigError(f"`{name}` changes images, and {path} has none. Leave it out.")
        if is_embedded and config.image_root is not None:
            raise ConfigError(f"`image_root` is for tables that name files, and {path} holds the images. Leave it out.")
        tensors, dtypes = self._infer_tensors()
        return Listing(
            table_files.make_name(path),
            self.root,
            convert_extras(label_file.set_classes(images, labels), typed),
            label_names=label_names,
            extra=tuple(column.spec for column in typed),
            skipped=+Counter({"row of a damaged row group": self.num_damaged}),
            images_shape=infer_images_shape(images, path),
            tensors=tensors,
            tensor_dtypes=dtypes,
            has_images=has_images,
        )

    def _name_labels(self, images: ImageTable) -> tuple[label_file.Labels, tuple[str, ...]]:
        """Returns the class of each label, and the names of the classes."""
        config, path = self.config, self.path
        counts: Mapping[str | None, int] = images.count_values(LABEL)
        if LABEL in self.columns:
            cells = (row[self.columns.index(LABEL)] for row in images.iterate_extras())
            counts = Counter(chain.from_iterable(cells))
        unlabeled = images.get_paths(images.find_empty(LABEL)[:1])
        labels, label_names, is_numeric = label_file.number_labels(counts, config, *unlabeled)
        class_names = sorted({columns.class_names for _, columns in self._embedded if columns.class_names})
        by_number = bool(class_names)
        if is_numeric and by_number and not config.labels:
            if len(class_names) > 1:
                first, second = class_names[:2]
                raise DataError(
                    f"The files of {path} must name the same classes, but one names {_show(first)} and one "
                    f"{_show(second)}. Give the names with `labels`."
                )
            (label_names,), is_numeric = class_names, False
            labels = label_file.name_numbers(f"The metadata of {path}", labels, label_names)
        return label_file.order_classes(config, labels, label_names, is_numeric, by_number=by_number)

    def _infer_columns(
        self, images: ImageTable, kinds: Sequence[CellKinds], classes: TableColumn | None
    ) -> Iterator[TableColumn]:
        """Yields the features that the extra columns become; `classes` is the feature of lists of classes."""
        is_embedded = bool(images.in_row_groups.any())
        for name, column in zip(self.columns, kinds, strict=True):
            if classes is not None and name == LABEL:
                yield classes
            elif name == TARGET and self.config.columns.target_column is not None:
                yield column.infer_target(self.config.columns.target_column, self.files)
            elif name != LABEL:
                yield column.infer(name, self.files, is_text=is_embedded or name == CAPTION)

    def _infer_tensors(self) -> Tensors:
        tensors = sorted({columns.tensors for _, columns in self._embedded})
        if not any(tensors):
            return (), {}
        path, columns = self._embedded[0]
        if columns.image and len(tensors) > 1:
            one, other = (", ".join(names) or "none" for names in tensors[:2])
            raise DataError(f"Every file of {self.path} must hold the same tensors, but one has {one}, one {other}.")
        return infer_tensors(path, columns.tensors, self.config.tensor_types)

    def _parse_row(self, row: table_files.Row | DataError, number: int, source: table_files.TableFile) -> ImageRef:
        """Returns the image of a row; raises an error about a faulty one."""
        if not isinstance(row, dict):
            raise row
        config, label = self.config, row.get(LABEL)
        image = _locate(row, number, source, self.root)
        if not row.keys() <= self._names:
            unknown = next(name for name in row if name not in self._names)
            raise DataError(f"column {unknown!r} is not in the first row; every row needs the same columns.")
        boxes, box_labels = ((), ()) if row.keys().isdisjoint(_OF_BOXES) else _parse_boxes(row, image)
        label = None if label == "" else label
        if LABEL in self.columns:
            row, label = row | {LABEL: _parse_labels(label, config.label_separator, self._known)}, None
        elif label is not None and not (isinstance(label, str) and label in self._labels):
            label = _parse_label(label, self._known)
            self._labels.add(label)
        return image._replace(
            split=image.split if row.get("split") is None else name_split(str(row["split"])),
            label=label,
            group="" if config.group_by is None else name_group(row.get(_find_group(config))),
            boxes=boxes,
            box_labels=box_labels,
            extra=cast(tuple[Value, ...], tuple(row.get(name) for name in self.columns)),  # converted later
            mask=() if row.get("mask") is None else _parse_mask(row["mask"], image, self.root),
        )


def name_group(value: Any) -> str:
    """Returns the group that a cell names; an empty text, which is none, for a cell without a value."""
    return "" if value is None or value != value else str(value)


def infer_images_shape(images: ImageTable, source: str) -> tuple[int, ...] | None:
    """Returns the shape of a record's images: () for one image, (n,) for a list of n, None for lists of any length."""
    nums_images = set(np.unique(images.get_numbers("num_images")).tolist())
    if nums_images <= {SINGLE, NO_IMAGE}:
        return ()
    if SINGLE in nums_images:
        raise DataError(f"Every row of {source} must hold one image, or every row a list of images.")
    known = nums_images - {0, UNKNOWN_NUMBER}
    return tuple(known) if len(known) == 1 and UNKNOWN_NUMBER not in nums_images else None


def explain_no_labels(config: ShardConfig) -> str | None:
    """Returns why a table gives no classes and which option names them; None if it has the targets of a regression."""
    if config.columns.target_column is not None:
        return None
    column = config.columns.label_column or LABEL
    rows = chain.from_iterable(map(table_files.read_rows, table_files.list_table_files(config.input, config.columns)))
    names = list(next((row for _, row in rows if isinstance(row, dict)), {}))
    if LABEL in names:
        return f"column `{column}` is empty"
    found = [name for name in names if name not in (*_KNOWN, CAPTION)]
    likely = next((name for name in found if name.lower() in _LIKELY_LABELS), "COLUMN")
    listed = f" (found: {', '.join(found)})" if found else ""
    return f"no column `{column}`{listed}; use --label-column {shlex.quote(likely)}"


def check_no_tensors(config: ShardConfig) -> None:
    """Checks that no option names columns of tensors, for an input with images."""
    if config.tensors:
        raise ConfigError(f"`tensors` needs Parquet files without images, got {config.input}.")


def _show(names: Sequence[str]) -> str:
    return f"{len(names)} ({', '.join(names[:3])}, ...)" if len(names) > 3 else ", ".join(names)


def _check_header(row: table_files.Row, path: str, config: ShardConfig) -> tuple[str, ...]:
    """Checks the names of the columns, and returns those of the extra columns in the table's order."""
    if len(row) > COLUMNS.items:
        raise DataError(f"{path} must have at most {COLUMNS.items:,} columns, got {len(row):,}.")
    if "image" not in row:
        advice = " Without images it needs lists of numbers." if table_files.get_suffix(path) == ".parquet" else ""
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
    has_lists = config.label_separator is not None or isinstance(row.get(LABEL), list | tuple)
    return tuple(name for name in row if name not in _KNOWN or (name == LABEL and has_lists))


def _find_group(config: ShardConfig) -> str:
    """Returns the column that `group_by` names, by its usual name if another option names the column too."""
    names = (name for name, column in config.columns.named.items() if column == config.group_by)
    return next(names, config.group_by or "")


def _locate(row: table_files.Row, number: int, source: table_files.TableFile, root: str) -> ImageRef:
    """Returns a row's image with only its path or position, split, and number of images."""
    image = row.get("image")
    if isinstance(image, EmbeddedImage):
        file = table_files.get_location(root, source.path)
        path = f"{file[: -len('.parquet')]}/{number:08}{'-' * bool(image.name)}{image.name}"
        location = ImageLocation(file, image.row, row_group=image.row_group)
        return ImageRef(path, image.size, location, source.split, num_images=image.num_images)
    if isinstance(image, list | tuple):
        if not (1 <= len(image) <= MAX_IMAGES and all(map(_is_path, image))):
            raise DataError(f"a list of images must have 1 to {MAX_IMAGES:,} paths, got {image!r:.200}.")
        paths = [_shorten_path(path, root) for path in image]
        return ImageRef(paths[0], images=tuple((path,) for path in paths), num_images=len(paths))
    if not _is_path(image):
        raise DataError(f"'image' must be a path, got {_show_cell(image)}.")
    return ImageRef(_shorten_path(image, root))


def _show_cell(value: Any) -> str:
    """Returns the `repr` of a cell, shortened if it is a long text or an image."""
    is_long = isinstance(value, str | bytes) and len(value) > _SHOWN
    return f"{value[:_SHOWN]!r}..." if is_long else f"{value!r}"


def _is_path(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and bool(value) and "\0" not in value


def _shorten_path(path: str, root: str) -> str:
    """Returns the normalized path of a file; refuses one that is not below `root`, since a table may be untrusted."""
    if _SHORT_PATH.fullmatch(path) or path.startswith(("http://", "https://")):  # the error on opening it gives advice
        return path
    if file_io.is_url(path):
        if hide_secrets(path) != path:
            raise DataError(
                f"the address of a file must have no password and no query, which are secrets, got "
                f"{path.partition('?')[0]}. Name the object alone, as in s3://BUCKET/NAME."
            )
    else:
        path = posixpath.normpath(path)
    if not file_io.lies_below(path, root):
        raise DataError(
            f"a path must lead below {file_io.make_absolute(root or '.')}, got {path}. Name the folder of all images "
            "and masks with `image_root`."
        )
    return path


def _parse_mask(value: Any, image: ImageRef, root: str) -> tuple[str | int, ...]:
    if image.images:
        raise DataError("a mask belongs to a single image, and this row holds a list of images.")
    if isinstance(value, EmbeddedImage):
        return tuple(FileRef(value.name, value.size, image.location.file, value.row, row_group=value.row_group))
    if not _is_path(value):
        raise DataError(f"'mask' must be the path of a PNG, got {_show_cell(value)}.")
    return tuple(FileRef(_shorten_path(value, root)))


def _parse_labels(value: Any, separator: str | None, known: Set[str]) -> list[str]:
    """Returns the classes in a cell: a list, a text with a separator, or one class."""
    if isinstance(value, str) and separator is not None:
        value = list(filter(None, map(str.strip, value.split(separator))))
    if not isinstance(value, list | tuple):
        value = [] if value is None else [value]
    return list(dict.fromkeys(_parse_label(label, known) for label in value))


def _parse_label(value: Any, known: Set[str]) -> str:
    """Returns the class in a cell; one of `known`, the names that the user has given, is not checked."""
    if isinstance(value, bool) or not isinstance(value, (str, int)) or value == "":
        advice = " Allow several with `label_separator`." if isinstance(value, list | tuple) else ""
        advice = f" {label_file.OF_PANDAS}" if isinstance(value, float) and not value % 1 > 0 else advice
        raise DataError(f"'label' must be a name or a number from 0, got {_show_cell(value)}.{advice}")
    label = str(value)
    if label not in known:
        label_file.check_label(label)
    return label


def _parse_boxes(row: table_files.Row, image: ImageRef) -> tuple[tuple[Box, ...], tuple[Any, ...]]:
    """Returns the boxes of a row, and their classes: numbers, or names that get numbers once all are known."""
    # Each cell may be empty, one value, a list, or a JSON list as text.
    labels, *sides = (to_list(table_files.parse_cell(row.get(name))) for name in ("box_label", *_BOX_COLUMNS))
    if not (all(type(label) is int for label in labels) or all(isinstance(label, str) and label for label in labels)):
        raise DataError(f"'box_label' must be whole numbers or names, got {_show_cell(row['box_label'])}.")
    for name, side in zip(_BOX_COLUMNS, sides, strict=True):
        if any(isinstance(x, str) for x in side):
            raise DataError(f"{name!r}: must be a number or a list of numbers, got {_show_cell(row[name])}.")
    if len({len(side) for side in sides}) > 1:
        raise DataError("xmin, ymin, xmax and ymax must hold equally many numbers.")
    boxes = tuple(zip(*sides, strict=True))
    width = height = 1.0  # as for fractions, unless the row says more
    if boxes:
        with contextlib.suppress(KeyError, TypeError, ValueError):
            width, height = (max(1, float(row[name])) for name in SIZE_COLUMNS)
    for box in boxes:
        numbers = all(isinstance(x, (int, float)) for x in box)
        if not numbers or not (0 <= box[0] <= box[2] <= width and 0 <= box[1] <= box[3] <= height):
            what = "fractions of width and height, 0 <= xmin <= xmax <= 1 and 0 <= ymin <= ymax <= 1"
            advice = " Pixels need the columns `width` and `height`." if numbers and max(box) >= 2 else ""
            if (width, height) != (1, 1):
                what, advice = f"fractions, or lie in the {width:g} x {height:g} pixels of its image", ""
            raise DataError(f"a box must be {what}, got xmin, ymin, xmax, ymax = {', '.join(map(str, box))}.{advice}")
    if len(labels) not in (0, len(boxes)):
        raise DataError(f"'box_label' must hold one number for each of the {len(boxes)} boxes, got {len(labels)}.")
    if boxes and image.num_images != SINGLE:
        raise DataError("boxes belong to a single image, and this row holds a list of images.")
    return boxes, tuple(labels)
