"""Lists the images of a folder in the layout of Pascal VOC, with the boxes of their XML files.

    Annotations/000005.xml          the boxes of an image
    JPEGImages/000005.jpg           the image
    ImageSets/Main/train.txt        optional: the images of a split, one name on each line
    SegmentationClass/000005.png    optional: the mask of an image; masks are stored if all images have one

A document type in an XML file is refused, so no file can define entities.
"""

import posixpath
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from xml.parsers import expat

import numpy as np

from beam_jobs.config import ShardConfig
from beam_jobs.inputs.annotations.boxes import BoxScaler, make_listing
from beam_jobs.inputs.archive import is_archive
from beam_jobs.inputs.folder import Look, check_folder, list_begin
from beam_jobs.inputs.table_files import is_table
from beam_jobs.plan.image_ref import ImageRef, MaskRef
from beam_jobs.plan.image_table import TELL_EVERY, ImageTableBuilder
from beam_jobs.plan.listing import Listing
from beam_jobs.storage import filesystem
from tfpipe.errors import DataError
from tfpipe.format.file_names import SPLITS
from tfpipe.format.schema import FeatureSpec
from tfpipe.system.progress import Observer, Progress

_ANNOTATIONS, _IMAGES, _SETS, _MASKS = "Annotations", "JPEGImages", "ImageSets/Main", "SegmentationClass"
_MAX_BYTES = 1 << 20
_MAX_DEPTH = 20
_FILES_AT_ONCE = 1000
_READERS = 16
_SIDES = ("xmin", "ymin", "xmax", "ymax")
_UNLISTED = "image in no list of ImageSets"
_LONE_MASK = "mask, since other images have none"
_UNDESCRIBED = "image without a file in Annotations"


@dataclass
class _Annotation:
    """The content of an XML file.

    Attributes:
        size: The width and the height of the image in pixels.
        names: The class of each object.
        sides: Left, top, right and bottom of each object's box, in pixels counted from 1.
        difficult: Whether each object is hard to recognize: 0 or 1.
    """

    size: tuple[float, float] = (0.0, 0.0)
    names: list[str] = field(default_factory=list)
    sides: list[list[float]] = field(default_factory=list)
    difficult: list[int] = field(default_factory=list)


def is_voc(config: ShardConfig, look: Look = list_begin) -> bool:
    """Checks whether the input is a folder in the layout of Pascal VOC.

    Args:
        config: The configuration that names the input.
        look: The function that lists the begin of a folder.

    Raises:
        DataError: The input is in a store that cannot be reached.
    """
    if config.input_format != "auto" or is_table(config.input) or is_archive(config.input):
        return config.input_format == "voc"
    with filesystem.explain_os_errors(f"read {config.input}"):
        return {f"{_ANNOTATIONS}/", f"{_IMAGES}/"} <= {*look(config.input)}


def list_voc(config: ShardConfig, observer: Observer | None = None) -> Listing:
    """Lists the images of a folder in the layout of Pascal VOC.

    Args:
        config: The configuration that names the folder.
        observer: The observer of the listing, which gets the number of listed images now and then.

    Raises:
        DataError: A file is missing or damaged. The message names it.
    """
    source = config.input
    check_folder(source)
    files = {posixpath.splitext(name)[0]: name for name in filesystem.list_names(filesystem.join(source, _IMAGES))}
    described = {
        name.removesuffix(".xml")
        for name in filesystem.list_names(filesystem.join(source, _ANNOTATIONS))
        if name.endswith(".xml")
    }
    if not described:
        raise DataError(f"{source} must have an .xml file for each image in {_ANNOTATIONS}, but there is none.")
    splits = _read_splits(source)
    skipped = Counter[str]()
    if splits:
        skipped[_UNLISTED] = len(files.keys() - splits.keys())
    else:
        splits = dict.fromkeys(sorted(files.keys() | described), "")
    keys = [key for key in splits if key in described]
    skipped[_UNDESCRIBED] = len(splits) - len(keys)
    paths = [filesystem.join(source, f"{_ANNOTATIONS}/{key}.xml") for key in keys]
    masks = {f"{key}.png" for key in keys}.intersection(filesystem.list_names(filesystem.join(source, _MASKS)))
    has_masks = len(masks) == len(keys)
    skipped[_LONE_MASK] = 0 if has_masks else len(masks)
    scaler, refs, names = BoxScaler(), list[ImageRef](), list[list[str]]()
    for key, annotation in zip(keys, _read_all(paths), strict=True):
        ref, classes = _make_ref(annotation, scaler)
        path = f"{_IMAGES}/{files.get(key, f'{key}.jpg')}"
        mask: Sequence[str | int] = MaskRef(f"{_MASKS}/{key}.png") if has_masks else ()
        refs.append(ref._replace(path=path, split=splits[key], mask=tuple(mask)))
        names.append(classes)
        if observer is not None and len(refs) % TELL_EVERY == 0:
            observer.progress(Progress(len(refs)))
    class_names = sorted({name for classes in names for name in classes})
    numbers = {name: number for number, name in enumerate(class_names)}
    builder = ImageTableBuilder()
    for ref, classes in zip(refs, names, strict=True):
        builder.append(ref._replace(box_labels=tuple(numbers[name] for name in classes)))
    extra = [FeatureSpec("difficult", "int64", None, "1 for each box of an object that is hard to recognize, else 0")]
    return make_listing(config, builder, class_names, extra, skipped + scaler.skipped)


def _read_splits(source: str) -> dict[str, str]:
    """Returns the split of each image by its name, in the order of the lists; none if there are no lists."""
    folder = filesystem.join(source, _SETS)
    stems = [name.removesuffix(".txt") for name in filesystem.list_names(folder) if name.endswith(".txt")]
    stems = [stem for stem in stems if stem in SPLITS] or [stem for stem in stems if stem == "trainval"]
    splits: dict[str, str] = {}
    for stem in stems:
        path = filesystem.join(folder, f"{stem}.txt")
        split = SPLITS.get(stem, "")
        for number, line in enumerate(_read_lines(path), start=1):
            words = line.split()
            if not words:
                continue
            if "/" in words[0] or words[0] in (".", "..") or "\0" in words[0]:
                raise DataError(
                    f"{path}, line {number}: must be the name of an image without its ending, got {line!r}."
                )
            if splits.setdefault(words[0], split) != split:
                raise DataError(
                    f"{path}, line {number}: {words[0]} is in another split too. Remove it from one of them."
                )
    return splits


def _read_lines(path: str) -> Sequence[str]:
    try:
        with filesystem.explain_os_errors(f"read {path}"):
            return filesystem.read_bytes(path).decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not a text in UTF-8 ({error}).") from error


def _read_all(paths: Sequence[str]) -> Iterator[_Annotation]:
    """Yields the content of each file; several are read at once, since a store answers in tens of milliseconds."""
    with ThreadPoolExecutor(_READERS if paths and filesystem.is_url(paths[0]) else 1) as pool:
        for begin in range(0, len(paths), _FILES_AT_ONCE):
            yield from pool.map(_read_annotation, paths[begin : begin + _FILES_AT_ONCE])


def _read_annotation(path: str) -> _Annotation:
    with filesystem.explain_os_errors(f"read {path}"):
        data = filesystem.read_range(path, 0, _MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise DataError(f"{path} must have at most 1 MiB.")
    try:
        return _AnnotationParser().parse(data)
    except (expat.ExpatError, ValueError) as error:
        raise DataError(f"{path} is not a valid annotation of Pascal VOC ({error}).") from error


class _AnnotationParser:
    """The parser of one XML file. It reads the size, and of each object the class and the box."""

    def __init__(self) -> None:
        self._found = _Annotation()
        self._tags: list[str] = []
        self._text: list[str] = []
        self._values: dict[str, str] = {}  # of the size or the object that is being read

    def parse(self, data: bytes) -> _Annotation:
        """Returns the content of the file.

        Raises:
            ValueError: The file is not of this form.
        """
        parser = expat.ParserCreate()
        parser.StartDoctypeDeclHandler = self._refuse_document_type
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text.append
        parser.Parse(data, True)
        if self._found.names and min(self._found.size) <= 0:
            raise ValueError("'size' must hold a width and a height above 0")
        return self._found

    def _refuse_document_type(self, *_: object) -> None:
        raise ValueError("it must not declare a document type")

    def _start(self, tag: str, attributes: object) -> None:
        if not self._tags and tag != "annotation":
            raise ValueError(f"its outermost element must be 'annotation', got {tag!r:.100}")
        self._tags.append(tag)
        self._text.clear()
        if len(self._tags) > _MAX_DEPTH:
            raise ValueError(f"its elements are more than {_MAX_DEPTH} deep")

    def _end(self, tag: str) -> None:
        path = "/".join(self._tags[1:])
        if path == "size":
            self._found.size = _read_number(self._values, "size/width"), _read_number(self._values, "size/height")
        elif path == "object":
            self._add_object()
        else:
            self._values[path] = "".join(self._text).strip()
        self._text.clear()
        self._tags.pop()
        if len(self._tags) == 1:
            self._values = {}

    def _add_object(self) -> None:
        name = self._values.get("object/name", "")
        if not name or not name.isprintable():
            raise ValueError(f"object {len(self._found.names) + 1} must have a 'name', got {name!r:.100}")
        self._found.names.append(name)
        self._found.sides.append([_read_number(self._values, f"object/bndbox/{side}") for side in _SIDES])
        self._found.difficult.append(int(self._values.get("object/difficult") == "1"))


def _read_number(values: dict[str, str], path: str) -> float:
    name, text = path.rpartition("/")[2], values.get(path, "")
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not abs(number) < 1e9:
        raise ValueError(f"{name!r} must be a number, got {text!r:.100}")
    return number


def _make_ref(annotation: _Annotation, scaler: BoxScaler) -> tuple[ImageRef, list[str]]:
    """Returns an image without its path and its classes, and the names of its classes."""
    if not annotation.names:
        return ImageRef("", extra=([],)), []
    sides = np.array(annotation.sides)
    sides[:, :2] -= 1  # the first pixel is 1, and a box ends behind its last pixel
    boxes, has_area = scaler.scale(sides, np.broadcast_to(np.array(annotation.size), (len(sides), 2)))
    kept = np.flatnonzero(has_area).tolist()
    ref = ImageRef("", boxes=tuple(map(tuple, boxes[kept].tolist())), extra=([annotation.difficult[k] for k in kept],))
    return ref, [annotation.names[k] for k in kept]
