"""Lists the images of a manifest: a CSV, TSV, JSONL or Parquet table with one row for each image.

Every column that has no meaning of its own becomes a feature of the same name. A CSV cell holds a list as JSON.
"""

import mimetypes
import posixpath
import shlex
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import chain, pairwise
from typing import Any, TypeGuard, cast

import numpy as np
from numpy.typing import NDArray

from beam_jobs.config import ShardConfig
from beam_jobs.inputs.column_types import CAPTION, TARGET, Column, ColumnFacts
from beam_jobs.inputs.facts import Facts, find_nums_images, give_meaning
from beam_jobs.inputs.faults import NO_ROWS, Faults, RowFaults, Rows, add_faults, list_faults
from beam_jobs.inputs.folder import Look, list_begin
from beam_jobs.inputs.label_file import (
    OF_PANDAS,
    check_label,
    name_numbers,
    put_known_first,
    read_known_names,
    rename_labels,
)
from beam_jobs.inputs.parquet_rows import EmbeddedImage
from beam_jobs.inputs.parquet_tensors import Tensors, infer_tensors
from beam_jobs.inputs.table_files import (
    ReadRow,
    Row,
    TableFile,
    find_columns,
    get_location,
    get_root,
    get_suffix,
    is_parquet_folder,
    is_table,
    is_text_table,
    list_table_files,
    make_name,
    read_rows,
)
from beam_jobs.plan.image_ref import SINGLE, Box, FileRef, ImageLocation, ImageRef, Value, list_files
from beam_jobs.plan.image_table import TELL_EVERY, ImageTable, ImageTableBuilder
from beam_jobs.plan.listing import Listing, Missing
from tfpipe.errors import ConfigError, DataError, hide_secrets
from tfpipe.format.file_names import name_split
from tfpipe.format.image_form import ImageForm
from tfpipe.format.schema import MAX_IMAGES
from tfpipe.storage import file_io
from tfpipe.system.budget import COLUMNS, ROW
from tfpipe.system.progress import Observer, Progress

_BOX_COLUMNS = ("xmin", "ymin", "xmax", "ymax")
_KNOWN = ("image", "label", "split", *_BOX_COLUMNS, "box_label", "mask")
_MAX_PLACES = 100_000
_MAX_DIGITS = 1000
_SHOWN = 200  # characters of a cell in a message
LABEL = "label"
SIZE_COLUMNS = ("width", "height")
"""The columns of the size of an image, for boxes in pixels."""

_LIKELY_LABELS = frozenset(
    ("class", "classes", "class_id", "class_name", "classname", "labels", "category", "categories", "tag", "tags")
)
_DAMAGED = "row of a damaged row group"
_SIZES_AT_ONCE = 10_000  # local files whose sizes are read in one call
_LISTS_AT_ONCE = 50_000  # lists of images, or masks, whose folders are listed anew for each so many
_NO_ROWS = np.empty(0, np.int64)


def is_table_input(config: ShardConfig, look: Look = list_begin) -> bool:
    """Checks whether the input is a table: by its name, or a folder of Parquet files that hold images."""
    if is_table(config.input):
        return True
    if config.input_format == "auto":
        with file_io.explain_os_errors(f"read {config.input}"):
            return is_parquet_folder(config.input, look, config.columns)
    return config.input_format == "parquet"


def find_root(config: ShardConfig) -> str:
    """Returns the folder that the paths in a table start from."""
    return get_root(config.input) if config.image_root is None else config.image_root


def read_columns(sources: Sequence[TableFile], config: ShardConfig) -> tuple[tuple[str, ...], bool]:
    """Returns the names of the further columns in the order of the first row, and whether there are columns of boxes.

    The column `label` is one of them if it holds lists of classes.
    """
    found: dict[str, Rows] = {}
    for source in sources:
        faults = RowFaults(source.number)
        for number, row in read_rows(source):
            if isinstance(row, dict):
                return _check_header(row, source.path, config), not row.keys().isdisjoint(_BOX_COLUMNS)
            faults.begin(number)
            with faults:
                raise row or DataError("the row is damaged.")
        found = add_faults(found, faults.found)
    Faults(config.input, list_faults(found, [source.path for source in sources])).check()
    raise DataError(f"{config.input} holds no rows.")


def list_rows(
    sources: Sequence[TableFile], columns: Sequence[str], config: ShardConfig, observer: Observer | None = None
) -> tuple[ImageTable, Facts]:
    """Returns the images of a table with the facts about them."""
    builder, known = ImageTableBuilder(), read_known_names(config)
    numbers: list[tuple[int, NDArray[np.int64]]] = []  # of each file those of its rows that are images
    column_facts, faults = [ColumnFacts()] * len(columns), dict[str, Rows]()
    damaged, classes = 0, Counter[str | None]()
    class_names, tensors = set[tuple[str, ...]](), set[tuple[str, ...]]()
    for source in sources:
        images, rows, num_damaged, found = _list_file(source, columns, config, known, observer, len(builder))
        if not len(images) and not num_damaged and not found:
            continue
        begin, from_text = 0, is_text_table(source.path)
        for block in images.iterate_extra_blocks():
            some = rows[begin : begin + len(block)]
            for position, cells in enumerate(zip(*block, strict=True)):
                column_facts[position] += ColumnFacts.read(cells, source.number, some, from_text=from_text)
                if columns[position] == LABEL:
                    classes.update(chain.from_iterable(cells))
            begin += len(block)
        embedded = find_columns(source)
        if embedded is not None:
            class_names.update([embedded.class_names] if embedded.class_names else [])
            tensors.add(embedded.tensors)
        numbers.append((source.number, np.array(rows, np.int64)))
        faults, damaged = add_faults(faults, found), damaged + num_damaged
        builder.extend(images)
    images = builder.finish()
    return images, Facts(
        num_images=len(images),
        labels=classes if LABEL in columns else Counter(images.count_values("label")),
        unsplit=_find_rows(images, "split", numbers),
        unlabeled=_find_rows(images, "label", numbers),
        faults=faults,
        skipped=Counter({_DAMAGED: damaged} if damaged else {}),
        columns=tuple(column_facts),
        is_embedded=bool(images.in_row_groups.any()),
        class_names=frozenset(class_names),
        nums_images=find_nums_images(images),
        tensors=frozenset(tensors),
    )


def _list_file(
    source: TableFile,
    columns: Sequence[str],
    config: ShardConfig,
    known: Set[str],
    observer: Observer | None,
    num_before: int,
) -> "tuple[ImageTable, array[int], int, Mapping[str, Rows]]":
    """Returns the images of a file of a table, the row of each, the number of damaged rows, and the faulty ones."""
    builder, numbers, damaged, faults = ImageTableBuilder(), array("q"), 0, RowFaults(source.number)
    names = {*_KNOWN, *columns}
    for number, row in read_rows(source):
        if row is None:
            damaged += 1
            continue
        faults.begin(number)
        with faults:
            image = _parse_row(row, number, source, columns, names, config, known, faults)
        if faults.is_faulty:
            continue
        builder.append(image)
        numbers.append(number)
        if observer is not None and (num_before + len(numbers)) % TELL_EVERY == 0:
            observer.progress(Progress(num_before + len(numbers)))
    return builder.finish(), numbers, damaged, faults.found


def _find_rows(images: ImageTable, column: str, numbers: Sequence[tuple[int, NDArray[np.int64]]]) -> Rows:
    """Returns the rows without a text in a column; `numbers` are the number of each file and its rows."""
    is_empty = np.zeros(len(images), bool)
    is_empty[images.find_empty(column)] = True
    found, begin = NO_ROWS, 0
    for number, rows in numbers:
        found += Rows.of(number, rows[is_empty[begin : begin + len(rows)]])
        begin += len(rows)
    return found


def resolve_table(
    config: ShardConfig, images: ImageTable, facts: Facts, columns: Sequence[str], sources: Sequence[TableFile]
) -> Listing:
    """Returns the images of a table with their classes and with the values of further columns."""
    path, files = config.input, [source.path for source in sources]
    faults = Faults(path, list_faults(facts.faults, files))
    labels, classes = dict[str | None, str | None](), None
    label_names: tuple[str, ...] = ()
    with faults:
        labels, label_names = _name_labels(config, facts, files)
        if LABEL in columns:
            classes = Column.make_classes(label_names, labels)
            labels, label_names = {}, ()
    typed = tuple(_infer_columns(config, facts, columns, files, classes, faults))
    faults.check()
    has_images = facts.check_images(path)
    if has_images:
        check_no_tensors(config)
    elif config.form != ImageForm():
        name = next(name for name, value in vars(config.form).items() if value != getattr(ImageForm(), name))
        raise ConfigError(f"`{name}` changes images, and {path} has none. Leave it out.")
    if facts.is_embedded and config.image_root is not None:
        raise ConfigError(f"`image_root` is for tables that name files, and {path} holds the images. Leave it out.")
    root = find_root(config)
    tensors, dtypes = _infer_tensors(config, facts, sources[0])
    listing = Listing(
        make_name(path),
        root,
        label_names=label_names,
        extra=tuple(column.spec for column in typed),
        skipped=facts.skipped or None,
        row_files=tuple(get_location(root, file) for file in files) if facts.is_embedded else (),
        images_shape=facts.infer_images_shape(path),
        tensors=tensors,
        tensor_dtypes=dtypes,
        box_names=facts.box_names,
        has_images=has_images,
        columns=config.columns,
        missing=facts.missing,
    )
    return give_meaning(listing, images, labels, columns=typed)


def _name_labels(
    config: ShardConfig, facts: Facts, files: Sequence[str]
) -> tuple[dict[str | None, str | None], tuple[str, ...]]:
    """Returns the class of each label, and the names of the classes."""
    path = config.input
    labels, label_names, is_numeric = number_labels(facts, config, files)
    if config.labels:
        by_place = bool(facts.class_names)
        labels, label_names = rename_labels(
            config.labels, labels, label_names, is_numeric=is_numeric, by_place=by_place
        )
    elif is_numeric and facts.class_names:
        if len(facts.class_names) > 1:
            first, second = sorted(facts.class_names)[:2]
            raise DataError(
                f"The files of {path} must name the same classes, but one names {_show(first)} and one "
                f"{_show(second)}. Give the names with `labels`."
            )
        names = next(iter(facts.class_names))
        labels, label_names = name_numbers(f"The metadata of {path}", labels, names), names
    is_numbered = is_numeric and not (config.labels or facts.class_names)
    return put_known_first(config, labels, label_names, is_numeric=is_numbered)


def _infer_columns(
    config: ShardConfig,
    facts: Facts,
    names: Sequence[str],
    files: Sequence[str],
    classes: Column | None,
    faults: Faults,
) -> Iterator[Column]:
    """Yields the features that the further columns become; `classes` is that of lists of classes."""
    for name, column in zip(names, facts.columns, strict=bool(facts.columns)):
        with faults:
            if classes is not None and name == LABEL:
                yield classes
            elif name == TARGET and config.columns.target_column is not None:
                yield column.infer_target(config.columns.target_column, files)
            elif name != LABEL:
                is_text = facts.is_embedded or name == CAPTION
                yield column.infer(name, files, from_text=is_text_table(config.input), is_text=is_text)


def _infer_tensors(config: ShardConfig, facts: Facts, first: TableFile) -> Tensors:
    columns = find_columns(first) if any(facts.tensors) else None
    if columns is None:
        return (), {}
    if columns.image and len(facts.tensors) > 1:
        one, other = (", ".join(names) or "none" for names in sorted(facts.tensors)[:2])
        raise DataError(f"Every file of {config.input} must hold the same tensors, but one has {one}, one {other}.")
    return infer_tensors(first.path, columns.tensors, config.tensor_types)


def explain_no_labels(config: ShardConfig) -> str | None:
    """Returns why a table gives no classes and which option names them; None if it has the targets of a regression."""
    if config.columns.target_column is not None:
        return None
    column = config.columns.label_column or LABEL
    rows = chain.from_iterable(map(read_rows, list_table_files(config.input, config.columns)))
    names = list(next((row for _, row in rows if isinstance(row, dict)), {}))
    if LABEL in names:
        return f"column `{column}` is empty"
    found = [name for name in names if name not in (*_KNOWN, CAPTION)]
    likely = next((name for name in found if name.lower() in _LIKELY_LABELS), "COLUMN")
    listed = f" (found: {', '.join(found)})" if found else ""
    return f"no column `{column}`{listed}; use --label-column {shlex.quote(likely)}"


def check_no_table(config: ShardConfig, *, names_files: bool = False) -> None:
    """Checks that no option is for tables, for another input."""
    check_no_tensors(config)
    named = [f"{name}_column" for name in config.columns.named]
    for name in (*named, *(name for name in ("label_separator", "image_root") if getattr(config, name))):
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
    if len(row) > COLUMNS.items:
        raise DataError(f"{path} must have at most {COLUMNS.items:,} columns, got {len(row):,}.")
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
    has_lists = config.label_separator is not None or isinstance(row.get(LABEL), list | tuple)
    return tuple(name for name in row if name not in _KNOWN or (name == LABEL and has_lists))


def _find_group(config: ShardConfig) -> str:
    """Returns the column `group_by` by its usual name, if another option names it too."""
    names = [name for name, column in config.columns.named.items() if column == config.group_by]
    return names[0] if names else config.group_by or ""


def _locate(row: Row, number: int, source: TableFile, root: str) -> ImageRef:
    """Returns the place of a row's image, without its other facts."""
    image = row.get("image")
    if isinstance(image, EmbeddedImage):
        file = get_location(root, source.path)
        path = f"{file[: -len('.parquet')]}/{number:08}{'-' * bool(image.name)}{image.name}"
        location = ImageLocation(file, image.row, row_group=image.row_group)
        return ImageRef(path, image.size, location, source.split, num_images=image.num_images)
    if isinstance(image, list | tuple):
        if not (1 <= len(image) <= MAX_IMAGES and all(map(_is_path, image))):
            raise DataError(f"a list of images must have 1 to {MAX_IMAGES:,} paths, got {image!r:.200}.")
        paths = [_place(path, root) for path in image]
        return ImageRef(paths[0], images=tuple((path,) for path in paths), num_images=len(paths))
    if not _is_path(image):
        raise DataError(f"'image' must be a path, got {_show_cell(image)}.")
    return ImageRef(_place(image, root))


def _show_cell(value: Any) -> str:
    """Returns a cell as Python writes it, without most of a long text or of an image."""
    is_long = isinstance(value, str | bytes) and len(value) > _SHOWN
    return f"{value[:_SHOWN]!r}..." if is_long else f"{value!r}"


def _is_path(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and bool(value) and "\0" not in value


def _place(path: str, root: str) -> str:
    """Returns the path of a file in its shortest form. A table may come from elsewhere, so it may not name any file."""
    if path.startswith(("http://", "https://")):
        return path  # opening it says what to do
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


def _parse_row(
    row: ReadRow,
    number: int,
    source: TableFile,
    extra_columns: Sequence[str],
    names: Set[str],
    config: ShardConfig,
    known: Set[str],
    faults: RowFaults,
) -> ImageRef:
    """Returns the image of a row. What is wrong with it goes into `faults`, and the rest is parsed still.

    `names` are those of all columns, `extra_columns` those of the further ones in their order.
    """
    if not isinstance(row, dict):
        raise row or DataError("the row is damaged.")
    root, image, split, label = find_root(config), ImageRef(""), "", row.get(LABEL)
    boxes, box_labels, mask = tuple[Box, ...](), tuple[int, ...](), tuple[str | int, ...]()
    with faults:
        image = _locate(row, number, source, root)
    with faults:
        unknown = next((name for name in row if name not in names), None)
        if unknown is not None:
            raise DataError(f"column {unknown!r} is not in the first row; every row needs the same columns.")
    with faults:
        boxes, box_labels = _parse_boxes(row, image)
    with faults:
        mask = _parse_mask(row.get("mask"), image, root)
    with faults:
        split = _parse_split(row["split"]) if row.get("split") is not None else image.split
    with faults:
        if LABEL in extra_columns:
            row, label = row | {LABEL: _parse_labels(label, config.label_separator, known)}, None
        elif label is not None:
            label = _parse_label(label, known)
    return image._replace(
        split=split,
        label=label,
        group="" if config.group_by is None else str(row.get(_find_group(config))),
        boxes=boxes,
        box_labels=box_labels,
        extra=cast(
            tuple[Value, ...], tuple(row.get(name) for name in extra_columns)
        ),  # converted when all rows are known
        mask=mask,
    )


def _parse_split(value: Any) -> str:
    try:
        return name_split(str(value))
    except ConfigError as error:
        raise DataError(str(error)) from error


def _parse_mask(value: Any, image: ImageRef, root: str) -> tuple[str | int, ...]:
    if value is None:
        return ()
    if image.images:
        raise DataError("a mask belongs to a single image, and this row holds a list of images.")
    if isinstance(value, EmbeddedImage):
        return tuple(FileRef(value.name, value.size, image.location.file, value.row, row_group=value.row_group))
    if not _is_path(value):
        raise DataError(f"'mask' must be the path of a PNG, got {_show_cell(value)}.")
    return tuple(FileRef(_place(value, root)))


def _parse_labels(value: Any, separator: str | None, known: Set[str]) -> list[str]:
    """Returns the classes in a cell: a list, a text with a separator, or one class."""
    if isinstance(value, str) and separator is not None:
        value = list(filter(None, map(str.strip, value.split(separator))))
    if not isinstance(value, list | tuple):
        value = [] if value is None else [value]
    return list(dict.fromkeys(_parse_label(label, known) for label in value))


def _parse_label(value: Any, known: Set[str]) -> str:
    """Returns the class in a cell. `known` are names that the user has given, which may look like anything."""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        advice = " Allow several with `label_separator`." if isinstance(value, list | tuple) else ""
        advice = f" {OF_PANDAS}" if isinstance(value, float) and not value % 1 > 0 else advice
        raise DataError(f"'label' must be a name or a number from 0, got {_show_cell(value)}.{advice}")
    label = str(value)
    if label not in known:
        check_label(label)
    return label


def _parse_list(row: Row, name: str) -> list[Any]:
    """Returns a cell as a list. The cell may be empty, one value, a list, or a JSON list as text."""
    value = row.get(name)
    if isinstance(value, str):
        try:
            value = ROW.parse_json(value)
        except ValueError as error:
            raise DataError(f"{name!r}: must be a number or a list of numbers, got {_show_cell(value)}.") from error
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _parse_box_labels(value: Any) -> tuple[Any, ...]:
    """Returns the classes in a cell `box_label`: numbers, or names that get numbers once all are known."""
    try:
        labels = _parse_list({"box_label": value}, "box_label")
    except DataError:
        labels = [value]
    if not (all(type(label) is int for label in labels) or all(isinstance(label, str) and label for label in labels)):
        raise DataError(f"'box_label' must be whole numbers or names, got {_show_cell(value)}.")
    return tuple(labels)


def _parse_boxes(row: Row, image: ImageRef) -> tuple[tuple[Box, ...], tuple[Any, ...]]:
    """Returns the boxes of a row, and the classes of them."""
    labels = _parse_box_labels(row.get("box_label"))
    sides = [_parse_list(row, name) for name in _BOX_COLUMNS]
    if len({len(side) for side in sides}) > 1:
        raise DataError("xmin, ymin, xmax and ymax must hold equally many numbers.")
    boxes = tuple(zip(*sides, strict=True))
    width, height = _parse_size(row) if boxes else (1, 1)
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
    return boxes, labels


def _parse_size(row: Row) -> tuple[float, float]:
    """Returns the width and the height of an image as the row says them, else 1 and 1, as for fractions."""
    try:
        width, height = (float(row[name]) for name in SIZE_COLUMNS)
    except (KeyError, TypeError, ValueError):
        return 1, 1
    return max(1, width), max(1, height)


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
    """Yields row numbers in bounded groups."""
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


def number_labels(
    facts: Facts, config: ShardConfig, files: Sequence[str] = ()
) -> tuple[dict[str | None, str | None], tuple[str, ...], bool]:
    """Returns the class of each label, the class names in the order of their labels, and whether labels are numbers.

    Numbers below `_MAX_PLACES` are places: each number up to the highest is a class. Larger ones are mere names.
    """
    missing = facts.labels[None]
    if missing == facts.num_images or not +facts.labels:
        return {}, (), False
    if missing:
        which = f": {facts.unlabeled.show(files)}" if facts.unlabeled.count else ""
        raise DataError(
            f"{config.input}: every row must have a 'label' or none may, but {missing} of {facts.num_images} have "
            f"none{which}. Give them one, or take these rows out."
        )
    names = sorted(map(str, facts.labels))
    for name in () if files else sorted({*names} - read_known_names(config)):  # the rows of tables were checked before
        check_label(name, f"{config.input}: ")
    if not all(name.isdecimal() and name.isascii() and len(name) < _MAX_DIGITS for name in names):
        return {name: name for name in names}, tuple(names), False
    highest = max(map(int, names))
    if highest < _MAX_PLACES:
        # "007" and "7" are one class.
        return {name: str(int(name)) for name in names}, tuple(str(i) for i in range(highest + 1)), True
    names.sort(key=int)
    one, other = next((pair for pair in pairwise(names) if int(pair[0]) == int(pair[1])), ("", ""))
    if other:
        raise DataError(
            f"{config.input}: labels must be different numbers or the same text, got {one!r} and {other!r}."
        )
    return {name: name for name in names}, tuple(names), True
