"""Lists the images of a folder in the layout of Pascal VOC, with the boxes of their XML files and their masks.

A document type in an XML file is refused, so no file can define entities.
"""

import posixpath
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from xml.etree import ElementTree

import numpy as np

from beam_jobs.config import ShardConfig
from beam_jobs.inputs.annotations.boxes import make_listing, scale_boxes
from beam_jobs.inputs.folder import check_folder
from beam_jobs.inputs.label_file import order_names, read_lines
from beam_jobs.plan.image_ref import FileRef, ImageRef
from beam_jobs.plan.image_table import ImageTable, ImageTableBuilder
from beam_jobs.plan.listing import Listing
from tfpipe.errors import DataError
from tfpipe.format.file_names import SPLITS
from tfpipe.format.schema import FeatureSpec
from tfpipe.images.skip_by_name import get_skip_reason
from tfpipe.images.sniff import has_image_name
from tfpipe.storage import file_io
from tfpipe.system.budget import BESIDE
from tfpipe.system.progress import Observer

_ANNOTATIONS, _IMAGES, _SETS, _MASKS = "Annotations", "JPEGImages", "ImageSets/Main", "SegmentationClass"
LAYOUT = frozenset((f"{_ANNOTATIONS}/", f"{_IMAGES}/"))
"""The folders by which the layout is recognized."""

_FILES_AT_ONCE = 1000
_READERS = 16
_SIDES = ("xmin", "ymin", "xmax", "ymax")


_Object = tuple[str, list[float], int]
"""An object: its class, its left, top, right and bottom in pixels counted from 1, and 1 if it is difficult, else 0."""

_Annotation = tuple[tuple[float, float], list[_Object]]
"""The content of an XML file: width and height in pixels, zeros if they are unknown, and the objects."""


def list_voc(config: ShardConfig, observer: Observer | None = None) -> Listing:
    """Lists the images of a folder in the layout of Pascal VOC."""
    source = config.input
    check_folder(source)
    skipped = Counter[str]()
    files = _find_images(source, skipped)
    xml_files = [name for name in file_io.list_names(file_io.join(source, _ANNOTATIONS)) if name.endswith(".xml")]
    described = {name.removesuffix(".xml") for name in xml_files if not name.startswith(".")}
    skipped["hidden"] += len(xml_files) - len(described)
    if not described:
        raise DataError(f"{source} must have an .xml file for each image in {_ANNOTATIONS}, but there is none.")
    splits = _read_splits(source, files.keys() | described)
    if splits:
        skipped["image in no list of ImageSets"] = len(files.keys() - splits.keys())
    else:
        splits = dict.fromkeys(sorted(files.keys() | described), "")
    keys = [key for key in splits if key in described]
    skipped["image without a file in Annotations"] = len(splits) - len(keys)
    paths = [file_io.join(source, f"{_ANNOTATIONS}/{key}.xml") for key in keys]
    masks = {f"{key}.png" for key in keys}.intersection(file_io.list_names(file_io.join(source, _MASKS)))
    has_masks = len(masks) == len(keys)
    skipped["mask, since other images have none"] = 0 if has_masks else len(masks)
    builder, class_names = ImageTableBuilder(observer), set[str]()
    for key, (size, objects) in zip(keys, _read_all(paths), strict=True):
        boxes, names, difficult = _scale_objects(objects, size, skipped)
        path = f"{_IMAGES}/{files.get(key, f'{key}.jpg')}"
        mask: tuple[str | int, ...] = tuple(FileRef(f"{_MASKS}/{key}.png")) if has_masks else ()
        frame = size if objects else ()
        ref = ImageRef(path, split=splits[key], boxes=boxes, box_labels=names, extra=(difficult,))
        builder.append(ref._replace(mask=mask, frame=frame))
        class_names.update(names)
    numbers: dict[Any, int] = {name: number for number, name in enumerate(order_names(config, sorted(class_names)))}
    images = ImageTable.from_refs(
        ref._replace(box_labels=tuple(numbers[name] for name in ref.box_labels)) for ref in builder.finish()
    )
    extra = [FeatureSpec("difficult", "int64", None, "1 for each box of an object that is hard to recognize, else 0")]
    return make_listing(config, images, numbers, extra, skipped)


def _find_images(source: str, skipped: Counter[str]) -> dict[str, str]:
    """Returns the file names of images by their names without the ending; counts other files in `skipped`."""
    files: dict[str, str] = {}
    for name in sorted(file_io.list_names(file_io.join(source, _IMAGES)), key=has_image_name):  # images override others
        stem, reason = posixpath.splitext(name)[0], get_skip_reason(name)
        if reason or stem in files:
            skipped[reason or "further file of an image"] += 1
        if not reason:
            files[stem] = name
    return files


def _read_splits(source: str, names: Set[str]) -> dict[str, str]:
    """Returns the split of each image by its name, in the order of the lists in ImageSets; empty without lists.

    A line that is none of `names` may have a number behind a name, as in lists of one class.
    """
    folder = file_io.join(source, _SETS)
    stems = [name.removesuffix(".txt") for name in file_io.list_names(folder) if name.endswith(".txt")]
    stems = [stem for stem in stems if stem in SPLITS] or [stem for stem in stems if stem == "trainval"]
    splits: dict[str, str] = {}
    for stem in stems:
        path = file_io.join(folder, f"{stem}.txt")
        split = SPLITS.get(stem, "")
        for number, line in enumerate(read_lines(path), start=1):
            name, words = line.strip(), line.rsplit(maxsplit=1)
            if name not in names and len(words) == 2 and words[1].lstrip("-").isdecimal():
                name = words[0].strip()
            if not name:
                continue
            if "/" in name or name in (".", ".."):
                raise DataError(
                    f"{path}, line {number}: must be the name of an image without its ending, got {line!r}."
                )
            if splits.setdefault(name, split) != split:
                raise DataError(f"{path}, line {number}: {name} is in another split too. Remove it from one of them.")
    return splits


def _read_all(paths: Sequence[str]) -> Iterator[_Annotation]:
    """Yields the parsed content of each file; of a store, which answers in tens of ms, several are read at once."""
    with ThreadPoolExecutor(_READERS if paths and file_io.is_url(paths[0]) else 1) as pool:
        for begin in range(0, len(paths), _FILES_AT_ONCE):
            yield from pool.map(_read_annotation, paths[begin : begin + _FILES_AT_ONCE])


def _read_annotation(path: str) -> _Annotation:
    with file_io.explain_os_errors(f"read {path}"):
        data = file_io.read_range(path, 0, BESIDE.bytes + 1)
    if len(data) > BESIDE.bytes:
        raise DataError(f"{path} must have at most 1 MiB.")
    try:
        return _parse(data)
    except (ElementTree.ParseError, ValueError) as error:
        raise DataError(f"{path} is not a valid annotation of Pascal VOC ({error}).") from error


class _Builder(ElementTree.TreeBuilder):
    """A builder of XML elements that refuses document types."""

    def doctype(self, *_: object) -> None:
        raise ValueError("it must not declare a document type")


def _parse(data: bytes) -> _Annotation:
    """Parses an XML file into the size of its image and its objects."""
    parser = ElementTree.XMLParser(target=_Builder())
    parser.feed(data)
    root, objects = parser.close(), list[_Object]()
    if root.tag != "annotation":
        raise ValueError(f"its outermost element must be 'annotation', got {root.tag!r:.100}")
    paths = "size/width", "size/height"
    width, height = (_read_number(root, path) if _read_text(root, path) else 0.0 for path in paths)
    if min(width, height) < 0:
        raise ValueError("'size' must hold a width and a height from 0")
    for number, element in enumerate(root.iterfind("object"), start=1):
        name = _read_text(element, "name")
        if not name or not name.isprintable():
            raise ValueError(f"object {number} must have a 'name', got {name!r:.100}")
        sides = [_read_number(element, f"bndbox/{side}") for side in _SIDES]
        objects.append((name, sides, int(_read_text(element, "difficult") == "1")))
    return (width, height) if width and height else (0.0, 0.0), objects


def _read_text(element: ElementTree.Element, path: str) -> str:
    return (element.findtext(path) or "").strip()


def _read_number(element: ElementTree.Element, path: str) -> float:
    text = _read_text(element, path)
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not abs(number) < 1e9:
        raise ValueError(f"{path.rpartition('/')[2]!r} must be a number, got {text!r:.100}")
    return number


def _scale_objects(
    objects: Sequence[_Object], size: tuple[float, float], skipped: Counter[str]
) -> tuple[tuple[Any, ...], tuple[Any, ...], list[int]]:
    """Returns the objects' boxes that have an area, as fractions, with their classes and whether they are difficult."""
    sides = np.array([sides for _, sides, _ in objects]).reshape(-1, 4)
    sides[:, :2] -= 1  # VOC counts pixels from 1, and the last pixel belongs to the box
    boxes, has_area = scale_boxes(sides, size, skipped)
    kept = np.flatnonzero(has_area).tolist()
    return boxes, tuple(objects[k][0] for k in kept), [objects[k][2] for k in kept]
