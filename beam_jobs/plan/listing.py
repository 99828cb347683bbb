"""The listing of a job's input: every kind of input is read into one, and the plan is made from it."""

import contextlib
import os
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from beam_jobs.config import ShardConfig
from beam_jobs.plan.image_ref import get_mask, list_files
from beam_jobs.plan.image_table import ImageTable
from beam_jobs.plan.merge_manifests import InputDatasets, MergedDatasets
from tfpipe.errors import DataError
from tfpipe.format.schema import FeatureSpec, Schema, check_names, class_schema, image_schema
from tfpipe.native import names as names_of_files
from tfpipe.storage import file_io
from tfpipe.system.units import human_count

_SIZES_AT_ONCE = 10_000  # local files whose sizes are read in one call
_FOLDERS_LOOKED_AT = 100  # for files that are not where a table says
_LISTS_AT_ONCE = 50_000  # records with several images or masks, whose files' sizes are read together


@dataclass(frozen=True)
class Missing:
    """The files that a table or annotations name and that do not exist."""

    count: int = 0
    paths: tuple[str, ...] = ()  # the first three

    def check(self, config: ShardConfig, num_images: int) -> None:
        """Checks that all files exist, unless the configuration allows that some do not."""
        if not self.count or config.allow_missing:
            return
        raise DataError(
            f"{config.input} names {human_count(num_images, 'image')}, and {self.count:,} of their files "
            f"{'does' if self.count == 1 else 'do'} not exist{', such as' if self.count > len(self.paths) else ':'} "
            f"{', '.join(self.paths)}. {_find_fault(*self.paths)}Correct the paths, or leave these images out with "
            "`allow_missing`."
        )


def _find_fault(path: str, *others: str) -> str:
    """Returns a sentence on how the missing paths differ from existing files, such as by an ending; empty: unknown."""
    if file_io.is_url(path):
        return ""
    if os.path.exists(path.replace("\\", "/")):
        return "They exist with / in place of \\. "
    form = next((form for form in ("NFC", "NFD") if os.path.exists(unicodedata.normalize(form, path))), None)
    if form is not None:
        return f"They exist with letters such as é in Unicode's form {form}. "
    folder, name = os.path.split(path)
    with contextlib.suppress(OSError):
        inner = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
        for where in (folder, *(os.path.join(folder, each) for each in inner[:_FOLDERS_LOOKED_AT])):
            file = next((file for file in os.listdir(where) if name in (file, os.path.splitext(file)[0])), None)
            if file is None:
                continue
            ending = file.removeprefix(name)
            said = "They exist" + f" with the ending {ending}" * bool(ending)
            if where == folder:
                return f"{said}. "
            if all(os.path.exists(os.path.join(where, os.path.basename(other) + ending)) for other in others):
                return f"{said} in {where}, which `image_root` can name. "
    return ""


def read_sizes(images: ImageTable, root: str) -> tuple[ImageTable, Missing]:
    """Returns the table with each image's size in bytes, 0 if unknown, and the files that do not exist."""
    sizes, num_missing, missing = np.where(images.in_row_groups, images.get_numbers("size"), 0), 0, list[str]()
    for rows, names in _group_files(images, root):
        found = _find_sizes(root, names)
        lacking = [file_io.join(root, names[k]) for k in np.flatnonzero(found < 0)]
        num_missing, missing = num_missing + len(lacking), sorted(missing + lacking)[:3]
        if len(rows):
            np.add.at(sizes, rows, np.maximum(found, 0))  # a list of images has several files in its row
    return images.replace_sizes(sizes), Missing(num_missing, tuple(missing))


def _find_sizes(root: str, names: Sequence[str]) -> NDArray[np.int64]:
    """Returns the size of each file, a negative number for one that is not there."""
    if not file_io.is_url(root) and not any(map(file_io.is_url, names)):
        with contextlib.suppress(OSError):
            folder = os.open(root or ".", os.O_RDONLY)
            try:
                return names_of_files.read_sizes(folder, names)
            finally:
                os.close(folder)
    return np.array(file_io.get_sizes([file_io.join(root, name) for name in names]), np.int64)


def _group_files(images: ImageTable, root: str) -> Iterator[tuple[NDArray[np.int64], list[str]]]:
    """Yields batches of rows and the paths of their images: first local files, then the files of each remote folder.

    Paths of masks come with an empty array of rows.
    """
    single = np.zeros(0, np.int64) if "images" in images.details else np.flatnonzero(~images.in_row_groups)
    remote = defaultdict[str, list[int]](list)
    for begin in range(0, len(single), _SIZES_AT_ONCE):
        rows = single[begin : begin + _SIZES_AT_ONCE]
        names = images.get_paths(rows)
        is_remote = np.array([file_io.is_url(name) for name in names], bool) | file_io.is_url(root)
        for index in np.flatnonzero(is_remote).tolist():
            remote[file_io.join(root, names[index]).rpartition("/")[0]].append(int(rows[index]))
        yield rows[~is_remote], [names[index] for index in np.flatnonzero(~is_remote).tolist()]
    for some in remote.values():  # one folder at a time, since a store lists all of its files
        yield np.array(some, np.int64), images.get_paths(np.array(some, np.int64))
    for begin in range(0, len(images), _LISTS_AT_ONCE) if images.details & {"images", "mask"} else ():
        owners, names, masks = list[int](), list[str](), list[str]()
        indices = np.arange(begin, min(begin + _LISTS_AT_ONCE, len(images)))
        for row, image in zip(indices.tolist(), images.iterate(indices), strict=True):
            files = list_files(image) if image.images else ()
            owners += [row] * len(files)
            names += [file.path for file in files]
            mask = get_mask(image)
            if mask is not None and mask.row_group < 0 and not mask.drawn:
                masks.append(mask.path)
        yield np.array(owners, np.int64), names
        yield np.empty(0, np.int64), masks


@dataclass(frozen=True, slots=True)
class Listing:
    """The images that were listed in the input."""

    name: str
    root: str  # where relative locations start
    images: ImageTable = field(default_factory=ImageTable.make_empty)  # in any order
    label_names: tuple[str, ...] = ()  # empty: unlabeled
    extra: tuple[FeatureSpec, ...] = ()  # features of the table's other columns
    skipped: Counter[str] = field(default_factory=Counter)  # files, by reason
    dropped: int = 0  # copies of other images
    unpack: tuple[str, ...] = ()  # compressed files that are unpacked before a worker can read at an offset
    box_names: tuple[str, ...] = ()
    images_shape: tuple[int, ...] | None = ()  # as `image_schema` takes it: `()` for one image, None for any number
    tensors: tuple[FeatureSpec, ...] = ()
    tensor_dtypes: Mapping[str, str] = field(default_factory=dict)  # in the table, of tensors that may be converted
    has_images: bool = True
    missing: Missing = Missing()
    note: str = ""  # a sentence for the user

    merged: MergedDatasets | None = None  # the source of records, whose paths are such as `flowers/train:17`

    @property
    def datasets(self) -> InputDatasets | None:
        """The finished datasets that the records come from; None for image files."""
        return self.merged.datasets if self.merged is not None else None

    def make_schema(self) -> Schema:
        """Returns the features of each record."""
        if self.merged is not None:
            return self.merged.schema
        extra, details = (*self.tensors, *self.extra), self.images.details
        if not self.has_images:
            check_names(extra)
            return Schema((*(class_schema().features if self.label_names else ()), *extra))
        return image_schema(
            labeled=bool(self.label_names),
            boxes="boxes" in details,
            box_labels="box_labels" in details,
            box_names=bool(self.box_names) and "box_labels" in details,
            masks="mask" in details,
            images=self.images_shape,
            extra=extra,
        )
