"""Reads the rows of a table: one CSV, TSV, JSONL or Parquet file, or many of them in the order of their names.

A CSV may have semicolons or tabs in place of commas: its header decides which.
"""

import contextlib
import csv
import fnmatch
import io
import json
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, count, repeat, zip_longest
from typing import Any, NamedTuple

from beam_jobs.config import USUAL_COLUMNS, TableColumns
from beam_jobs.inputs import parquet_rows
from beam_jobs.inputs.archive import is_archive
from beam_jobs.inputs.folder import Look, find_splits, list_begin
from tfpipe.errors import DataError
from tfpipe.format.file_names import SPLITS
from tfpipe.storage import file_io
from tfpipe.system.budget import DECODED, GROWTH, ROW, Budget, OverBudget

_DELIMITERS = ",;\t"
_WILDCARD = re.compile(r"[*?[]")
_BESIDE_TABLES = ("/", ".parquet", ".json", ".md", ".txt")
_DATA_FOLDER = "data"  # the folder in which Hugging Face's hub keeps Parquet files

Row = dict[str, Any]
ReadRow = Row | DataError | None
"""A row, or the error about it; None for a damaged row of a Parquet file that holds images or tensors."""


class TableFile(NamedTuple):
    """A file of a table."""

    path: str
    number: int = 0  # the index of the file in the table
    split: str = ""  # the split that the file's name gives to the images that the file itself holds
    columns: TableColumns = USUAL_COLUMNS


def is_table(path: str) -> bool:
    """Tests whether a name has the ending of a table."""
    return path.lower().endswith(tuple(_READERS))


def get_suffix(path: str) -> str:
    """Returns the ending of a table's name, which tells its format; `.parquet` for a folder of Parquet files."""
    return next((suffix for suffix in _READERS if path.lower().endswith(suffix)), ".parquet")


def is_text_table(path: str) -> bool:
    """Tests whether all cells of a table are texts, which may spell numbers: whether it is a CSV or TSV."""
    return get_suffix(path) in (".csv", ".tsv")


def get_root(path: str) -> str:
    """Returns the folder to which the locations of images are relative."""
    return posixpath.dirname(path) if is_table(path) else path


def make_name(path: str) -> str:
    """Returns the name of a table up to its ending or its first wildcard; if that is empty, the name of its folder."""
    if not is_table(path):
        return posixpath.basename(file_io.make_absolute(path)) or "images"
    stem = posixpath.basename(path)[: -len(get_suffix(path))]
    begin, *rest = _WILDCARD.split(stem, maxsplit=1)
    return (begin.rstrip("-_. ") or posixpath.basename(posixpath.dirname(path)) or "images") if rest else stem


def list_table_files(path: str, columns: TableColumns = USUAL_COLUMNS) -> list[TableFile]:
    """Returns the files of a table in their order."""
    paths, root = _find_files(path), get_root(path)
    splits = find_splits([get_location(root, file) for file in paths])
    return list(map(TableFile, paths, count(), splits, repeat(columns)))


def get_location(root: str, path: str) -> str:
    """Returns the path of a file relative to `root`, if it begins with `root`."""
    return path[len(root) :].lstrip("/") if root and path.startswith(root) else path


def is_parquet_folder(path: str, look: Look = list_begin, columns: TableColumns = USUAL_COLUMNS) -> bool:
    """Checks whether a folder holds Parquet files with images or tensors and nothing else that could be an input."""
    if is_archive(path):
        return False
    names = look(path)
    folders = {name[:-1].lower() for name in names if name.endswith("/") and name[0] not in "._"}
    if not folders <= {*SPLITS, _DATA_FOLDER} or any(map(is_archive, names)):
        return False
    files = _list_parquet_folder(path, look)
    if not files:
        return False
    try:
        found = find_columns(TableFile(min(files), columns=columns))
        # A file of numbers beside images is about these images.
        has_images = found is not None and bool(found.image)
        are_alone = all(name[0] in "._" or name.lower().endswith(_BESIDE_TABLES) for name in names)
        return has_images or (bool(found or columns.image_column) and are_alone)
    except (DataError, OSError):
        return False  # whatever else the folder is, its Parquet files do not make it a table


def _list_parquet_folder(path: str, list_names: Look = file_io.list_names) -> list[str]:
    """Returns the Parquet files in a folder, and in its folders that are named `data` or like splits."""
    names = list_names(path)
    inner = [name for name in names if name.rstrip("/").lower() in (*SPLITS, _DATA_FOLDER)]
    files = []
    for folder in (path, *(file_io.join(path, name) for name in inner)):
        inside = names if folder == path else list_names(folder)
        files += [file_io.join(folder, x) for x in inside if x.lower().endswith(".parquet") and x[0] not in "._"]
    return files


def _find_files(path: str) -> list[str]:
    """Returns the paths of a table's files."""
    if not is_table(path):
        files = _list_parquet_folder(path)
        if not files:
            raise DataError(f"{path} must be a folder with .parquet files, but has none.")
        return files
    folder, pattern = posixpath.split(path)
    if file_io.get_size(path) >= 0:
        return [path]
    if not _WILDCARD.search(pattern):
        folder, pattern = path, f"*{get_suffix(path)}"
    names = file_io.list_names(folder or ".")
    # Spark and Hadoop put files such as _SUCCESS and .crc beside the table's own.
    names = [name for name in names if fnmatch.fnmatchcase(name, pattern) and name[0] not in "._"]
    if not names and folder != path:
        raise DataError(f"At least one table must fit the pattern {path}, but no file of {folder or '.'} does.")
    if not names:
        return [path]  # opening it says why it cannot be read
    return [file_io.join(folder, name) for name in names]


@contextlib.contextmanager
def _open_parquet(file: Any, source: TableFile) -> Iterator[Any]:
    """Opens a Parquet file, and turns errors of Arrow in the block into a DataError that names the file."""
    import pyarrow.parquet  # slow to import, and most tables are CSV

    try:
        yield pyarrow.parquet.ParquetFile(file)
    except OverBudget:
        raise DataError(
            f"{source.path} decodes to more than {GROWTH} times its bytes, as if it were made to fill the memory. "
            "Write it anew without repeated values, if it is meant so."
        ) from None
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise DataError(f"{source.path} is damaged or is not a Parquet file ({error}).") from error


def find_columns(source: TableFile) -> parquet_rows.ImageColumns | None:
    """Returns the columns of a Parquet file that holds images or tensors itself; None for another file."""
    if get_suffix(source.path) != ".parquet":
        return None
    with (
        file_io.explain_os_errors(f"read {source.path}"),
        file_io.open_read(source.path) as file,
        _open_parquet(file, source) as table,
    ):
        return parquet_rows.find_image_columns(table, source.columns)


def read_rows(source: TableFile) -> Iterator[tuple[int, ReadRow]]:
    """Yields the rows of a file, each with its number in the file, from 1. The header and empty rows do not count."""
    with file_io.explain_os_errors(f"read {source.path}"), file_io.open_read(source.path) as file:
        usual, is_checked = {column: name for name, column in source.columns.named.items()}, False
        for number, row in _READERS[get_suffix(source.path)](file, source):
            if isinstance(row, dict) and usual and not isinstance(row.get("image"), parquet_rows.EmbeddedImage):
                if not is_checked:
                    source.columns.check(source.path, row)
                is_checked, names = True, usual.values()
                # The columns that options name get their usual names, and another one of such a name gets a `_`.
                row = {usual.get(name) or (f"{name}_" if name in names else name): value for name, value in row.items()}
                row |= {name: None for name in names if name not in row}  # a row of JSONL may lack some
            if isinstance(row, dict) and "image" not in row and "images" in row:
                images = parse_cell(row.pop("images"))
                row |= {"image": images}
                if not isinstance(images, list | tuple):
                    row = DataError(f"'images' must be a list of paths, got {images!r:.200}.")
            yield number, row


def parse_cell(cell: Any) -> Any:
    """Returns the value of a cell, which a CSV holds as JSON if it is a list."""
    with contextlib.suppress(ValueError):
        return ROW.parse_json(cell) if isinstance(cell, str) else cell
    return cell


def _read_csv(file: Any, source: TableFile) -> Iterator[tuple[int, ReadRow]]:
    csv.field_size_limit(ROW.bytes)
    number, budget = 0, ROW.renew()
    try:
        with io.TextIOWrapper(file, "utf-8-sig", newline="") as text:
            lines = _read_lines(text, budget)
            line = next((line for line in lines if line.strip()), "")  # empty lines are skipped, as pandas does
            delimiters = "\t" if source.path.lower().endswith(".tsv") else _DELIMITERS
            headers = {sign: next(csv.reader([line], delimiter=sign), []) for sign in delimiters}
            delimiter = max(delimiters, key=lambda sign: len(headers[sign]))
            is_spaced = any(name.startswith(" ") for name in headers[delimiter])
            reader = csv.reader(chain([line], lines), delimiter=delimiter, skipinitialspace=is_spaced)
            header = next(reader, [])
            names: list[str] = []
            for cells in reader:
                budget.bytes = ROW.bytes  # of the next row
                if not any(cells) and len(cells) != 1:  # spreadsheets leave such rows behind the table
                    continue
                names = names or _name_columns(header, cells, source)
                number += 1
                if any(cells[len(names) :]) or len(cells) > len(header):
                    alone = f", which names {names[0]!r} alone" if len(header) == 1 else ""  # it may be a comment
                    yield number, DataError(f"the row has more cells than the header names{alone}.")
                    continue
                yield number, {name: cell or None for name, cell in zip_longest(names, cells[: len(names)])}
    except OverBudget as error:
        raise DataError(f"{source.path}, row {number + 1}: {error}; a row has at most {ROW.bytes >> 20} MiB.") from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{source.path} is not a CSV file in UTF-8 ({error}). Save it in UTF-8.") from error


def _name_columns(header: Sequence[str], first: Sequence[str], source: TableFile) -> list[str]:
    """Returns the names of a CSV's columns. One without a name, such as the index of pandas, is named by its number.

    Columns at the end that have neither a name nor a value in the first row are dropped: spreadsheets leave them.
    """
    names = [name.strip() or f"column_{number}" for number, name in enumerate(header, start=1)]
    while names and not header[len(names) - 1].strip() and not any(first[len(names) - 1 :]):
        names.pop()
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise DataError(f"{source.path} must name each column once, got {twice!r} twice.")
    return names


def _read_lines(text: io.TextIOWrapper, budget: Budget) -> Iterator[str]:
    while line := text.readline(ROW.bytes + 1):
        budget.take(bytes=len(line))
        yield line


def _read_jsonl(file: Any, source: TableFile) -> Iterator[tuple[int, ReadRow]]:
    number = 0
    for line_number, line in enumerate(iter(partial(file.readline, ROW.bytes + 1), b""), start=1):
        if len(line) > ROW.bytes:
            raise DataError(
                f"{source.path}, line {line_number}: it is too long; a row has at most {ROW.bytes >> 20} MiB."
            )
        if not line.strip():
            continue
        number += 1
        try:
            row = ROW.parse_json(line.decode("utf-8-sig"))
            if b"\\u" in line:  # half a surrogate pair is valid JSON, but cannot be stored as UTF-8
                json.dumps(row, ensure_ascii=False).encode()
        except OverBudget as error:
            yield number, DataError(f"the row cannot be read: {error}.")
        except ValueError as error:
            yield number, DataError(f"not valid JSON ({error}).")
        else:
            is_object = isinstance(row, dict)
            yield number, row if is_object else DataError(f"must be a JSON object, got {type(row).__name__}.")


def _read_parquet(file: Any, source: TableFile) -> Iterator[tuple[int, ReadRow]]:
    with _open_parquet(file, source) as table:
        budget = DECODED.renew(GROWTH * file.seek(0, io.SEEK_END))
        columns = parquet_rows.find_image_columns(table, source.columns)
        if columns is not None:
            rows = parquet_rows.read_embedded_rows(table, file, source.path, columns, source.columns, budget)
        else:
            names = table.schema_arrow.names
            for field in table.schema_arrow if {source.columns.image_column or "image", "images"} & {*names} else ():
                parquet_rows.check_type(field, source.path)
            rows = (
                dict(zip(names, cells, strict=True))
                for batch in parquet_rows.read_batches(table, file, range(table.num_row_groups), None, budget)
                for cells in zip(*map(parquet_rows.list_cells, batch.columns), strict=True)
            )
        yield from enumerate(rows, start=1)


_READERS: Mapping[str, Callable[[Any, TableFile], Iterator[tuple[int, ReadRow]]]] = {
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".jsonl": _read_jsonl,
    ".ndjson": _read_jsonl,
    ".parquet": _read_parquet,
}
