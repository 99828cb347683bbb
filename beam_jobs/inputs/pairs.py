"""Lists pairs of images and captions in tar files, as WebDataset and img2dataset write them.

Files belong together if their names are equal up to the first dot. Images are read in place; the other files are read
when the tar is listed.
"""

import json
import posixpath
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import islice
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from beam_jobs.config import ShardConfig
from beam_jobs.inputs import archive, folder
from beam_jobs.inputs.column_types import CAPTION, CellKinds, TableColumn, convert_extras, read_kinds
from beam_jobs.inputs.label_file import number_labels, order_classes, set_classes
from beam_jobs.inputs.table import infer_images_shape, name_group
from beam_jobs.plan.image_ref import SINGLE, ImageRef, Value
from beam_jobs.plan.image_table import ImageTable, ImageTableBuilder
from beam_jobs.plan.listing import Listing
from tfpipe.errors import ConfigError, DataError
from tfpipe.format import schema as keys
from tfpipe.format.file_names import SPLITS
from tfpipe.format.schema import FeatureSpec, check_names
from tfpipe.images.skip_by_name import get_skip_reason
from tfpipe.images.sniff import IMAGE_ENDINGS
from tfpipe.storage import file_io
from tfpipe.system.budget import BESIDE
from tfpipe.system.progress import Observer

_BESIDE = frozenset(("txt", "json", "cls"))
_FURTHER = "further file of a pair"
_WITHOUT_IMAGE = "pair without an image KEY.jpg (KEY ends at the first dot)"
_MASK = "mask.png"
_MASK_REASON = "mask of a pair (a table or tfpipe.write stores masks)"
_MEMBERS_LOOKED_AT = 64
_OPEN_PAIRS = 10_000  # the files of a pair may lie so many other pairs apart in the tar
_MAX_COLUMNS = 1000
_NUMBER = re.compile("[0-9]+")


class _BadPairError(Exception):
    """An error whose text is the reason why a pair is left out, for the counts of skipped files."""


_Pairs = tuple[ImageTable, tuple[str, ...], Counter[str]]
"""The pairs of a tar file, whose `extra` is in the order of the columns and may lack the last ones; the columns; and
the counts of skipped files by reason."""


@dataclass(slots=True)
class _Files:
    """The files of one pair."""

    image: archive.ListedFile | None
    beside: dict[str, bytes | None]  # the other files by their ending; None: not read
    several: dict[str, archive.ListedFile] = field(default_factory=dict)  # images by the name before their ending


def has_pairs(source: str, look: folder.Look) -> bool:
    """Tests whether an input is a tar file of pairs, or a folder of such files, by a tar in it or in its splits."""
    if archive.is_archive(source):
        return archive.is_tar(source) and _looks_paired(source)
    folder.check_folder(source)
    # Only the first entries of each folder are listed: to list all images twice would take twice as long.
    splits = sorted(name[:-1] for name in look(source) if name.endswith("/") and name[:-1].lower() in SPLITS)
    for path in (source, *(file_io.join(source, name) for name in splits)):
        tars = [name for name in look(path) if folder.is_listed_archive(name) and archive.is_tar(name)]
        if tars:
            return _looks_paired(file_io.join(path, min(tars)))
    return False


def _looks_paired(path: str) -> bool:
    """Checks whether at least half of the first images in a tar file have a file beside them."""
    endings: dict[str, set[str]] = {}
    for file in islice(archive.list_archive(path, ""), _MEMBERS_LOOKED_AT):
        key, ending = _split_name(file.path)
        endings.setdefault(key, set()).add(ending)
    with_image = [found for found in endings.values() if any(map(_is_image, found))]
    return bool(with_image) and 2 * sum(any(map(_is_beside, found)) for found in with_image) >= len(with_image)


def _split_name(path: str) -> tuple[str, str]:
    """Returns the name up to its first dot, with its folders, and the ending after this dot."""
    folder, slash, name = path.rpartition("/")
    key, _, ending = name.partition(".")
    return f"{folder}{slash}{key}", ending.lower()


def _is_beside(ending: str) -> bool:
    """Tests whether an ending, also one after another name as in `00.txt`, is that of a text beside an image."""
    return ending.rpartition(".")[2] in _BESIDE


def _is_image(ending: str) -> bool:
    """Tests whether an ending, also one after another name as in `left.jpg`, is that of an image."""
    return ending != _MASK and ending.rpartition(".")[2] in IMAGE_ENDINGS


def _pad_numbers(name: str) -> str:
    """Returns the key by which a name is sorted: 10 comes after 9."""
    return _NUMBER.sub(lambda number: number[0].lstrip("0").zfill(255), name)


def list_pairs(config: ShardConfig, observer: Observer | None = None) -> Listing:
    """Lists the pairs of a tar file, or of all tar files in a folder."""
    source, is_file = config.input, archive.is_archive(config.input)
    tars, num_bytes, skipped = _find_tars(source)
    located = [(source if is_file else file_io.join(source, path), path) for path in tars]
    list_one = partial(_list_one, group_by=config.group_by, is_input=is_file)
    builder, columns = ImageTableBuilder(observer), dict[str, None]()
    columns_of_tars: list[tuple[int, tuple[str, ...]]] = []
    splits = [""] if is_file else folder.find_splits(tars)
    results = folder.list_side_by_side(located, num_bytes, config.workers, list_one)
    for split, (images, of_tar, skipped_of_tar) in zip(splits, results, strict=True):
        builder.extend(images.replace_texts("split", np.zeros(len(images), np.int64), [split]))
        columns |= dict.fromkeys(of_tar)
        _check_count(columns)
        columns_of_tars.append((len(images), of_tar))
        skipped += skipped_of_tar
    if config.group_by and len(builder) and config.group_by not in columns:
        raise ConfigError(f"`group_by` must name a column of {source}, got {config.group_by!r}.")
    images, typed = _type_columns(builder.finish(), list(columns), columns_of_tars, tars)
    # If some pairs have a single image, those that have only named images are left out.
    images = _keep(images, images.get_numbers("num_images") == SINGLE, _WITHOUT_IMAGE, skipped)
    images = folder.drop_equal_paths(images, source)
    codes, texts = images.get_codes("label")
    has_class = np.array([text is not None for text in texts], bool)[codes]
    images = _keep(images, has_class, "pair without a class", skipped)
    labels, label_names = order_classes(config, *number_labels(images.count_values("label"), config))
    images = set_classes(images, labels)
    return Listing(
        *folder.name_input(source),
        convert_extras(images, typed),
        label_names=label_names,
        extra=tuple(column.spec for column in typed if column is not None),
        skipped=skipped,
        unpack=folder.list_unpacked(images),
        images_shape=infer_images_shape(images, source),
    )


def _find_tars(source: str) -> tuple[list[str], int, Counter[str]]:
    """Returns the locations of the tar files, their bytes in all, and the counts of other files by reason."""
    skipped = Counter[str]()
    if archive.is_archive(source):
        return [posixpath.basename(source)], 0, skipped
    tars, num_bytes = [], 0
    for file in folder.list_folder(source):
        if not file.skip and folder.is_listed_archive(file.path) and archive.is_tar(file.path):
            tars.append(file.path)
            num_bytes += file.size
        else:
            skipped[file.skip or get_skip_reason(file.path) or "not in a tar file of pairs"] += 1
    return sorted(tars), num_bytes, skipped


def _list_one(tar: folder.Archive, group_by: str | None, *, is_input: bool) -> _Pairs:
    """Returns the pairs of a tar file; their paths begin with the tar's name unless it is the whole input."""
    path, location = tar
    prefix = "" if is_input else archive.strip_archive_suffix(location) + "/"
    builder, columns, skipped = ImageTableBuilder(), dict[str, None](), Counter[str]()
    for files in _iterate_pairs(path, location, skipped):
        if files.image is not None and files.several:
            skipped[_FURTHER] += len(files.several)
        try:
            image, values = _read_pair(files)
        except _BadPairError as error:
            skipped[str(error)] += 1
            continue
        columns |= dict.fromkeys(values)
        _check_count(columns)
        extra = cast(tuple[Value, ...], tuple(values.get(name) for name in columns))  # converted at the end
        group = "" if group_by is None else name_group(values.get(group_by))
        several = tuple((prefix + str(file[0]), *file[1:]) for file in image.images)
        builder.append(image._replace(path=prefix + image.path, group=group, extra=extra, images=several))
    return builder.finish(), tuple(columns), skipped


def _iterate_pairs(path: str, location: str, skipped: Counter[str]) -> Iterator[_Files]:
    """Yields the files of each pair of a tar file, and counts files that belong to none."""
    pairs: dict[str, _Files] = {}
    with file_io.explain_os_errors(f"read {path}"):
        for file in archive.list_archive(path, location, _wants):
            key, ending = _split_name(file.path)
            reason = file.skip or get_skip_reason(file.path)
            is_beside = ending in _BESIDE and (not reason or reason.startswith("*"))
            if not is_beside and _is_beside(ending):
                reason = "text behind a further dot (KEY ends at the first dot)"
            if not is_beside and (reason or ending == _MASK):
                skipped[reason or _MASK_REASON] += 1
                continue
            files = pairs.get(key) or pairs.setdefault(key, _Files(None, {}))
            if is_beside:
                files.beside[ending] = file.content
            elif ending not in IMAGE_ENDINGS:
                files.several[ending] = file
            elif files.image is None or files.image.path == file.path:
                files.image = file
            else:
                skipped["further image of a pair"] += 1
            if len(pairs) > _OPEN_PAIRS:
                yield pairs.pop(next(iter(pairs)))
    yield from pairs.values()


def _wants(name: str, size: int) -> bool:
    return size <= BESIDE.bytes and _split_name(name)[1] in _BESIDE


def _check_count(columns: Mapping[str, None]) -> None:
    if len(columns) > _MAX_COLUMNS:
        raise DataError(
            f"The .json files of pairs must have at most {_MAX_COLUMNS:,} different names, but {list(columns)[-1]!r} "
            "is one more. Leave these files out of the tars, or use `input_format` tree."
        )


def _type_columns(
    images: ImageTable, names: Sequence[str], columns_of_tars: Sequence[tuple[int, Sequence[str]]], tars: Sequence[str]
) -> tuple[ImageTable, list[TableColumn | None]]:
    """Returns the pairs, all with the same columns, captions first, and the columns' types; None for an empty one."""
    names = sorted(names, key=lambda name: name != CAPTION)
    images = images.replace_tuples("extra", _order_values(images.iterate_extras(), columns_of_tars, names))
    rows = ((tar, row) for tar, (num_pairs, _) in enumerate(columns_of_tars) for row in range(1, num_pairs + 1))
    kinds = [CellKinds(from_text=False) for _ in names]
    read_kinds(kinds, images.iterate_extras(), rows)
    # A column that mixes numbers and texts becomes texts, so that one odd file does not end the job.
    # A missing caption is an empty text.
    typed = [
        replace(kind.infer(name, tars, is_text=True, mixes=True), missing="" if name == CAPTION else None)
        if kind.firsts
        else None
        for name, kind in zip(names, kinds, strict=True)
    ]
    check_names([column.spec for column in typed if column is not None])
    return images, typed


def _order_values(
    rows: Iterator[tuple[Any, ...]], columns_of_tars: Sequence[tuple[int, Sequence[str]]], names: Sequence[str]
) -> Iterator[tuple[Any, ...]]:
    """Yields the values of each pair in the order of `names`; in `rows` each tar file has its own columns."""
    for num_pairs, of_tar in columns_of_tars:
        indices = [of_tar.index(name) if name in of_tar else len(of_tar) for name in names]
        for row in islice(rows, num_pairs):
            yield tuple(row[index] if index < len(row) else None for index in indices)


def _keep(images: ImageTable, chosen: NDArray[np.bool_], reason: str, skipped: Counter[str]) -> ImageTable:
    """Keeps the chosen images, and counts the others in `skipped`; if none is chosen, all stay."""
    num_others = int((~chosen).sum())
    if num_others in (0, len(chosen)):
        return images
    skipped[reason] += num_others
    return images.take(np.flatnonzero(chosen))


def _read_pair(files: _Files) -> tuple[ImageRef, dict[str, Any]]:
    """Returns the image or the several images of a pair, and the pair's values by column."""
    several = [files.several[name] for name in sorted(files.several, key=_pad_numbers)]
    images = [files.image] if files.image is not None else several
    if not images:
        raise _BadPairError(_WITHOUT_IMAGE)
    row = _parse_object(_decode(files, "json")) if "json" in files.beside else {}
    label = _decode(files, "cls").strip() if "cls" in files.beside else None
    if label is None and isinstance(row.get("label"), str | int) and not isinstance(row["label"], bool):
        label = str(row.pop("label"))
    values = {}
    if "txt" in files.beside:
        caption = _decode(files, "txt").rstrip("\r\n")
        if CAPTION not in row or not _says_same(row[CAPTION], caption):
            values[CAPTION] = caption
            row.pop(CAPTION, None)
    for name, value in row.items():
        if name not in keys.DERIVED and value is not None:
            items = value if isinstance(value, list) else [value]
            if not all(isinstance(item, str | int | float) for item in items):
                value = json.dumps(value, ensure_ascii=False)  # other objects and lists
            is_caption = name == CAPTION and isinstance(value, int | float)
            values[_name_column(name)] = str(value) if is_caption else value
    image = ImageRef(
        images[0].path,
        sum(file.size for file in images),
        images[0].location,
        label=None if label in ("", "-1") else label,
    )
    if files.image is None:
        image = image._replace(
            images=tuple((file.path, file.size, *file.location[:4]) for file in images), num_images=len(images)
        )
    return image, values


def _says_same(value: Any, caption: str) -> bool:
    """Tests whether the caption in a .json equals the text of the .txt beside it, as in the tars of `tfpipe export`.

    The .txt has the first of several captions. A null means that the .txt is a copy of another text in the .json.
    """
    first = value[0] if isinstance(value, list) and value else value
    is_same = isinstance(first, str) and first.removeprefix("\ufeff").rstrip("\r\n") == caption
    return value is None or is_same


def _decode(files: _Files, ending: str) -> str:
    data = files.beside[ending]
    if data is None:
        raise _BadPairError(f"pair whose .{ending} is a link or larger than 1 MiB")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _BadPairError(f"pair whose .{ending} is not UTF-8") from None


def _parse_object(text: str) -> dict[str, Any]:
    try:
        row = json.loads(text)
        if "\\u" in text:  # half a surrogate pair is valid JSON, but cannot be stored as UTF-8
            json.dumps(row, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise _BadPairError("pair whose .json cannot be parsed") from None
    if not isinstance(row, dict):
        raise _BadPairError("pair whose .json is not an object")
    return row


@lru_cache(maxsize=2 * _MAX_COLUMNS)
def _name_column(name: str) -> str:
    """Returns the feature name for a name in a .json. Features of the user must not begin with `image/`."""
    feature = "image_" if name == "image" else name.removeprefix("image/")
    try:
        check_names([FeatureSpec(feature, "bytes", ())])
    except ConfigError:
        raise _BadPairError("pair whose .json has a name that no feature can have") from None
    return feature
