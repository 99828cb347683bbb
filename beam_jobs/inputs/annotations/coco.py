"""Lists the images of a folder with the boxes, captions and segmentations of COCO's annotation files.

The files are read once, object by object. Names, boxes, captions and segmentations are kept until all are read: a
million boxes in 100,000 images take 360 MB and 13 s of a core.
"""

import fnmatch
import io
import json
import posixpath
import re
import unicodedata
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from operator import itemgetter
from typing import Any

import numpy as np

from beam_jobs.config import ShardConfig
from beam_jobs.inputs.annotations.boxes import make_listing, scale_boxes
from beam_jobs.inputs.annotations.segmentation import Shape, pack_shapes
from beam_jobs.inputs.column_types import CAPTION
from beam_jobs.inputs.folder import check_folder, find_split, find_splits, list_begin
from beam_jobs.inputs.label_file import order_names
from beam_jobs.plan.image_ref import FileRef, ImageRef
from beam_jobs.plan.image_table import ImageTableBuilder
from beam_jobs.plan.listing import Listing
from tfpipe.errors import DataError
from tfpipe.format.file_names import SPLITS
from tfpipe.format.schema import FeatureSpec
from tfpipe.storage import file_io
from tfpipe.system.progress import Observer, Progress

_READ_CHARS = 1 << 20
_MAX_CHARS = 16 << 20
_SPACE = re.compile(r"[ \t\r\n]+")
_AFTER_VALUE = frozenset(" \t\r\n,:]}")
_HALF_PAIR = re.compile("[\ud800-\udfff]")  # half a surrogate pair is valid JSON, but cannot be stored as UTF-8
_NO_PATH = re.compile("[\0\ud800-\udfff]")


def iterate_objects(path: str, names: Set[str]) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Yields the objects in the arrays `names` of a JSON file, in its order: the array, the number from 1, the values.

    An object has at most 16 MiB.
    """
    with file_io.explain_os_errors(f"read {path}"), file_io.open_read(path) as file:
        try:
            with io.TextIOWrapper(file, "utf-8-sig") as text:
                for name, number, values in _JsonReader(text).iterate_members():
                    if name in names and not isinstance(values, dict):
                        raise DataError(f"{path}: {name!r} must hold objects, but number {number} is {values!r:.100}.")
                    if name in names:
                        yield name, number, values
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path} is not a valid JSON object in UTF-8 ({error}).") from error


class _JsonReader:
    """A streaming reader of JSON, which keeps only a part of the text in memory."""

    def __init__(self, text: io.TextIOBase) -> None:
        self._text, self._buffer, self._position, self._is_at_end = text, "", 0, False
        self._num_before = 0  # characters before the buffer
        self._decode = json.JSONDecoder().raw_decode

    def iterate_members(self) -> Iterator[tuple[Any, int, Any]]:
        """Yields each member of the arrays in the outermost object: the array's name, its number from 1, its value."""
        for _ in self._take_all("{", "}"):
            name = self._read_value()
            self._take(":")
            if self._peek() != "[":
                self._read_value()
                continue
            for number, _ in enumerate(self._take_all("[", "]"), start=1):
                yield name, number, self._read_value()

    def _peek(self) -> str:
        """Returns the next character that is not white space, without moving past it; empty at the end."""
        while True:
            rest = _SPACE.match(self._buffer, self._position)
            self._position = rest.end() if rest else self._position
            if self._position < len(self._buffer) or self._is_at_end:
                return self._buffer[self._position : self._position + 1]
            self._fill()

    def _take(self, sign: str) -> None:
        """Moves past the next character, which must be `sign`."""
        found = self._peek()
        if found != sign:
            raise ValueError(f"{sign!r} must stand where {repr(found) if found else 'the end'} does")
        self._position += 1

    def _take_all(self, begin: str, end: str) -> Iterator[None]:
        """Yields once before each member of an object or an array; the caller then reads the member."""
        self._take(begin)
        if self._peek() != end:
            yield
            while self._peek() == ",":
                self._position += 1
                yield
        self._take(end)

    def _read_value(self) -> Any:
        """Parses the next JSON value."""
        self._peek()
        while True:
            try:
                value, end = self._decode(self._buffer, self._position)
            except json.JSONDecodeError as error:
                if self._is_at_end:
                    raise ValueError(f"{error.msg} at character {self._num_before + error.pos + 1:,}") from error
            else:
                # A number may continue beyond the buffer: of "1." or "1e" only the 1 can be parsed so far.
                if self._is_at_end or self._buffer[end : end + 1] in _AFTER_VALUE:
                    self._position = end
                    return value
            if len(self._buffer) - self._position > _MAX_CHARS:
                raise ValueError("a value is longer than 16 MiB, or damaged")
            self._fill()

    def _fill(self) -> None:
        """Reads at least as many more characters as are left in the buffer."""
        rest = self._buffer[self._position :]
        self._num_before += self._position
        more = self._text.read(max(_READ_CHARS, len(rest)))
        self._buffer, self._position, self._is_at_end = rest + more, 0, not more


_FOLDER = "annotations"
_EXPORT = "_annotations.coco.json"
_PATTERNS = ("instances_*.json", "captions_*.json")
_ARRAYS = frozenset(("images", "annotations", "categories"))
_TELL_EVERY = 1000
_NAMES_TRIED = 8  # names in an annotation file that are looked up to find the folder of its images
_MAX_IMAGES = 10_000_000
_MAX_ANNOTATIONS = 20_000_000
_INT64 = range(-(2**63), 2**63)
_NO_IMAGE = "annotation of an image that is not listed"


@dataclass(slots=True)
class _Image:
    """All that annotation files say about an image."""

    name: str = ""  # of its file; empty if no list of images names it
    size: tuple[int, int] = (0, 0)  # width and height in pixels; zeros: unknown
    # Five numbers per box: the category id, later the class number; and left, top, width and height in pixels.
    boxes: "array[float]" = field(default_factory=lambda: array("d"))
    captions: list[str] = field(default_factory=list)
    shapes: list[Shape] = field(default_factory=list)  # with a category id, later the class number

    def add(self, other: "_Image") -> None:
        """Adds what another file says about the image."""
        self.size = self.size if any(self.size) else other.size
        self.boxes.extend(other.boxes)
        self.captions += other.captions
        self.shapes += other.shapes


@dataclass(slots=True)
class _File:
    """The content of an annotation file. In another file its ids may stand for other images or categories."""

    path: str
    group: str  # the end of its name, as in `train2017`, or the folder of an export
    images: dict[int, _Image] = field(default_factory=lambda: defaultdict(_Image))
    categories: dict[int, str] = field(default_factory=dict)


def find_annotations(source: str, begin: Sequence[str]) -> list[str]:
    """Finds the annotation files in a folder, whose first entries are `begin`; none in a layout other than COCO's."""
    folder = file_io.join(source, _FOLDER)
    names = file_io.list_names(folder) if f"{_FOLDER}/" in begin else []
    found = [file_io.join(folder, name) for name in names if any(fnmatch.fnmatchcase(name, form) for form in _PATTERNS)]
    if found:
        return found
    folders = sorted(name for name in begin if name.endswith("/") and name[:-1].lower() in SPLITS)
    exports = [file_io.join(source, name + _EXPORT) for name in folders]
    own = [file_io.join(source, _EXPORT)] if _EXPORT in begin else []
    return own or [path for path in exports if file_io.get_size(path) >= 0]


def list_coco(config: ShardConfig, observer: Observer | None = None) -> Listing:
    """Lists the images that COCO's annotation files name."""
    source = config.input
    check_folder(source)
    files = list(config.annotations) or find_annotations(source, list_begin(source))
    if not files:
        raise DataError(f"{source} must have {_FOLDER}/instances_*.json or captions_*.json, or name `annotations`.")
    reader = _Reader(observer, has_masks=config.segmentation_masks)
    for path in files:
        reader.read(path)
    if not any(image.name for file in reader.files for image in file.images.values()):
        raise DataError(f"{', '.join(files)} must list images, but there are none.")
    return reader.finish(config)


class _Reader:
    """The reader of annotation files, which joins what they say about one image."""

    def __init__(self, observer: Observer | None, *, has_masks: bool) -> None:
        self.files: list[_File] = []
        self._has_masks = has_masks
        self._observer = observer or Observer()
        self._skipped = Counter[str]()
        self._num_images = self._num_annotations = 0
        self._has_captions = False

    def read(self, path: str) -> None:
        """Reads an annotation file, and appends its content to `files`."""
        stem = posixpath.basename(path).removesuffix(".json")
        before, _, after = stem.partition("_")
        group = after if before in ("instances", "captions") else stem if find_split(stem) else ""
        if posixpath.basename(path) == _EXPORT:
            group = posixpath.basename(posixpath.dirname(file_io.make_absolute(path)))
        file = _File(path, group)
        self.files.append(file)
        for array_name, number, values in iterate_objects(path, _ARRAYS):
            where = f"{path}, {array_name[:-1] if array_name != 'categories' else 'category'} {number}"
            if array_name == "images":
                self._add_image(file.images, values, where)
            elif array_name == "categories":
                category, name = _read_int(values, "id", where), values.get("name")
                if not isinstance(name, str) or not name or not name.isprintable():
                    raise DataError(f"{where}: 'name' must be a text, got {name!r:.100}.")
                if (known := file.categories.setdefault(category, name)) != name:
                    raise DataError(f"{where}: id {category} must be one class, but is {known!r} and {name!r}.")
            else:
                self._add_annotation(file.images, number, values, where)

    def _add_image(self, images: dict[int, _Image], values: dict[str, Any], where: str) -> None:
        number, name = _read_int(values, "id", where), _read_name(values, where)
        image = images[number]
        if image.name:
            if image.name != name:
                raise DataError(f"{where}: id {number} must be one image, but is {image.name} and {name}.")
            return
        sides = [0 if side in (None, -1) else side for side in map(values.get, ("width", "height"))]  # VIA writes -1
        if not all(type(side) in (int, float) and 0 <= side < 2**31 and side == int(side) for side in sides):
            got = " and ".join(f"{side!r:.100}" for side in sides)
            raise DataError(f"{where}: 'width' and 'height' must be whole numbers from 0, got {got}.")
        image.name, image.size = name, (int(sides[0]), int(sides[1])) if all(sides) else (0, 0)
        self._num_images += 1
        if self._num_images > _MAX_IMAGES:
            raise DataError(f"{where}: at most {_MAX_IMAGES:,} images can be listed at once; divide the files.")
        if self._num_images % _TELL_EVERY == 0:
            self._observer.progress(Progress(self._num_images))

    def _add_annotation(self, images: dict[int, _Image], number: int, values: dict[str, Any], where: str) -> None:
        image = images[_read_int(values, "image_id", where)]
        self._num_annotations += 1
        if self._num_annotations > _MAX_ANNOTATIONS:
            raise DataError(f"{where}: at most {_MAX_ANNOTATIONS:,} annotations can be read at once; divide the files.")
        if "caption" in values:
            caption = values["caption"]
            if not isinstance(caption, str) or _HALF_PAIR.search(caption):
                raise DataError(f"{where}: 'caption' must be a text, got {caption!r:.100}.")
            image.captions.append(caption)
            self._has_captions = True
            return
        if self._has_masks and not values.get("segmentation"):
            self._skipped["annotation without a segmentation"] += 1
        elif self._has_masks:
            category = _read_int(values, "category_id", where)
            try:
                text = json.dumps(values["segmentation"], separators=(",", ":"))
            except RecursionError as error:
                raise DataError(f"{where}: 'segmentation' must be polygons or runs, but is nested too deep.") from error
            image.shapes.append(Shape(number, category, bool(values.get("iscrowd")), text))
        if values.get("iscrowd"):
            self._skipped["box of a crowd annotation" if self._has_masks else "crowd annotation"] += 1
        elif values.get("bbox") is None or values["bbox"] == []:
            self._skipped["annotation without a box"] += 1
        else:
            category, box = _read_int(values, "category_id", where), values["bbox"]
            is_box = isinstance(box, list) and len(box) == 4
            if not is_box or not all(type(x) in (int, float) and abs(x) < 1e9 for x in box):
                raise DataError(f"{where}: 'bbox' must be left, top, width and height in pixels, got {box!r:.100}.")
            image.boxes.extend((category, *box))

    def finish(self, config: ShardConfig) -> Listing:
        """Returns the listing of all images."""
        categories = sorted({category for file in self.files for category in file.categories.items()})
        class_names = order_names(config, list(dict.fromkeys(name for _, name in categories)))  # masks need numbers
        numbers = {name: k for k, name in enumerate(class_names)}
        groups = list(dict.fromkeys(file.group for file in self.files))
        splits = find_splits([f"{group}.json" for group in groups])
        builder = ImageTableBuilder()
        for group, split in zip(groups, splits, strict=True):
            images = self._join(config.input, [file for file in self.files if file.group == group], numbers)
            if self._has_masks and not any(image.shapes for image in images):
                raise DataError(
                    f"`segmentation_masks` needs a 'segmentation' in the annotations of {group or 'the images'}, but "
                    "none has one."
                )
            for image in images:
                builder.append(self._make_ref(image)._replace(split=split))
        extra = [FeatureSpec(CAPTION, "bytes", None, kind="text")] if self._has_captions else []
        return make_listing(config, builder.finish(), class_names, extra, self._skipped)

    def _join(self, source: str, files: Sequence[_File], numbers: dict[str, int]) -> list[_Image]:
        """Joins the images of several annotation files by path, with class numbers in place of category ids."""
        joined: dict[str, _Image] = {}
        paths: dict[int, set[str]] = defaultdict(set)  # by the id
        for file in files:
            find_path = _find_root(source, file)
            for number, image in file.images.items():
                if image.name:
                    self._number_classes(image, file, numbers)
                    image.name = find_path(image.name)
                    paths[number].add(image.name)
                    if joined.setdefault(image.name, image) is not image:
                        joined[image.name].add(image)
        for file in files:
            lists_images = any(image.name for image in file.images.values())
            for number, image in file.images.items():
                if image.name:
                    continue
                if not lists_images and len(paths[number]) == 1:  # another file lists the image
                    self._number_classes(image, file, numbers)
                    joined[min(paths[number])].add(image)
                else:
                    self._skipped[_NO_IMAGE] += len(image.boxes) // 5 + len(image.captions)
        return list(joined.values())

    def _number_classes(self, image: _Image, file: _File, numbers: dict[str, int]) -> None:
        """Replaces the category ids of an image's boxes and shapes by class numbers."""

        def number(category: float) -> int:
            for other in [file] if file.categories else self.files:
                if category in other.categories:
                    return numbers[other.categories[int(category)]]
            raise DataError(
                f"{image.name} has an annotation of category {category:.0f}, which must be one of the 'categories'."
            )

        image.boxes[::5] = array("d", map(number, image.boxes[::5]))
        # In a mask class 0 is the background, so its classes count from 1.
        image.shapes = [shape._replace(mask_class=number(shape.mask_class) + 1) for shape in image.shapes]

    def _make_ref(self, image: _Image) -> ImageRef:
        """Returns an image with its boxes, captions and mask."""
        if self._has_masks and not any(image.size):
            raise DataError(f"{image.name} gets a mask, so its 'width' and 'height' must be numbers above 0.")
        ref = ImageRef(image.name, extra=(image.captions,) if self._has_captions else ())
        if image.boxes:
            values = np.array(image.boxes).reshape(-1, 5)
            values[:, 3:] += values[:, 1:3]
            boxes, has_area = scale_boxes(values[:, 1:], image.size, self._skipped)
            ref = ref._replace(boxes=boxes, box_labels=tuple(values[has_area, 0].astype(np.int64).tolist()))
        if self._has_masks:
            width, height = image.size
            ref = ref._replace(mask=tuple(FileRef("", drawn=pack_shapes(height, width, image.shapes))))
        return ref._replace(frame=image.size) if image.boxes or self._has_masks else ref


def _find_root(source: str, file: _File) -> Callable[[str], str]:
    """Finds the function that turns an image's name in an annotation file into its path, relative to the input."""
    names = [image.name for image in file.images.values() if image.name]
    tried = names[:: -(-len(names) // _NAMES_TRIED) or 1]
    counts: dict[tuple[str, ...], int] = {}
    best: tuple[int, Callable[[str], str]] = -1, str
    depth = max((name.count("/") + name.count("\\") for name in tried), default=0)
    for find_path in _list_roots(source, file, depth):
        paths = tuple(map(find_path, tried))
        if paths not in counts:
            counts[paths] = sum(file_io.get_size(file_io.join(source, path)) >= 0 for path in paths)
            best = max(best, (counts[paths], find_path), key=itemgetter(0))
        if best[0] == len(tried):
            break
    return best[1]


def _list_roots(source: str, file: _File, depth: int) -> Iterator[Callable[[str], str]]:
    """Yields candidates for the function that turns names in an annotation file into paths, the usual ones first.

    A name is relative to the folder of its group, to the input, to the folder of the file, or to a folder above these;
    with slashes or with the backslashes of Windows; in the Unicode form NFC, or in NFD as macOS writes it.
    """
    base = file_io.make_absolute(source).rstrip("/") + "/"
    own = file_io.make_absolute(file.path).rpartition("/")[0] + "/"
    usual = [f"{file.group}/", f"images/{file.group}/", "images/"] if file.group else ["images/"]
    usual = [folder for folder in usual if file_io.is_folder(file_io.join(source, folder))]
    folders = dict.fromkeys((*usual, "", own.removeprefix(base) if own.startswith(base) else ""))
    spellings = (str, _take_slashes, *(partial(unicodedata.normalize, form) for form in ("NFC", "NFD")))
    for num_above, spell, folder in product(range(depth + 1), spellings, folders):
        yield partial(_put_below, folder, spell, num_above)


def _put_below(folder: str, spell: Callable[[str], str], num_above: int, name: str) -> str:
    names = spell(name).split("/")
    return folder + "/".join(names[min(num_above, len(names) - 1) :])


def _take_slashes(name: str) -> str:
    return posixpath.normpath(name.replace("\\", "/"))


def _read_int(values: dict[str, Any], name: str, where: str) -> int:
    number = values.get(name)
    if isinstance(number, float) and number.is_integer():  # pandas may write whole numbers as floats
        number = int(number)
    if type(number) is not int or number not in _INT64:
        raise DataError(f"{where}: {name!r} must be a whole number, got {number!r:.100}.")
    return number


def _read_name(values: dict[str, Any], where: str) -> str:
    name = values.get("file_name")
    is_path = isinstance(name, str) and name and not _NO_PATH.search(name) and not file_io.is_url(name)
    path = posixpath.normpath(name) if is_path and isinstance(name, str) else ".."
    if any(form.startswith(("/", "../")) or form in (".", "..") for form in (path, _take_slashes(path))):
        raise DataError(f"{where}: 'file_name' must be a path inside the folder of images, got {name!r:.100}.")
    return path
