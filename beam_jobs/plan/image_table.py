"""RefList: the images of an input, in columns. Ten million of them take about 1 GB; as tuples they would take 4."""

import copy
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from beam_jobs.plan.columnar import CodedColumn, NumberColumn, TextColumn
from beam_jobs.plan.image_ref import Box, ImageRef, PlannedImage, Value

TELL_EVERY = 1000


class RefList(Sequence[ImageRef]):
    """A list of `ImageRef` that makes each one when it is asked for.

    What most inputs have none of (places in archives, groups, boxes, further columns) takes no memory until the
    first one comes.

    Attributes:
        paths: As of `ImageRef`; so are `sizes`, `splits` and `labels`.
        has_boxes: Whether any image has boxes.
        has_box_labels: Whether any box has a class.
    """

    def __init__(self, refs: Iterable[ImageRef] = ()) -> None:
        self.paths, self.sizes = TextColumn(), NumberColumn(0)
        self.splits, self.labels = CodedColumn(), CodedColumn()
        self.has_boxes = self.has_box_labels = False
        self._locations, self._offsets = CodedColumn(), NumberColumn(-1)
        self._packed, self._crcs = NumberColumn(-1), NumberColumn(-1)
        self._groups: TextColumn | None = None
        self._more: TextColumn | None = None  # boxes, their classes and further columns, pickled
        for ref in refs:
            self.append(ref)

    def __len__(self) -> int:
        return len(self.paths)

    def __iter__(self) -> Iterator[ImageRef]:
        return (self._at(i) for i in range(len(self)))

    @overload
    def __getitem__(self, index: int) -> ImageRef: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[ImageRef]: ...
    def __getitem__(self, index: int | slice) -> ImageRef | Sequence[ImageRef]:
        places = range(len(self))[index]
        return self._at(places) if isinstance(places, int) else [self._at(i) for i in places]

    def _at(self, i: int) -> ImageRef:
        place = self._place(i)
        group = self._groups[i] if self._groups is not None else ""
        return ImageRef(self.paths[i], self.sizes[i], *place, self.splits[i], self.labels[i], group, *self._more_of(i))

    def _more_of(self, i: int) -> tuple[tuple[Box, ...], tuple[int, ...], tuple[Value, ...]]:
        packed = self._more.encoded(i) if self._more is not None else b""
        return pickle.loads(packed) if packed else ((), (), ())

    def append(self, ref: ImageRef) -> None:
        """Adds one."""
        path, size, location, offset, packed, crc, split, label, group, boxes, box_labels, extra = ref
        if group and self._groups is None:
            self._groups = TextColumn()
            self._groups.append_empty(len(self))
        if self._groups is not None:
            self._groups.append(group)
        self._append_more(boxes, box_labels, extra)
        self.paths.append(path)
        self.sizes.append(size)
        self._locations.append(location)
        self._offsets.append(offset)
        self._packed.append(packed)
        self._crcs.append(crc)
        self.splits.append(split)
        self.labels.append(label)

    def _append_more(self, boxes: Sequence[Box], box_labels: Sequence[int], extra: Sequence[Value]) -> None:
        if self._more is None:
            if not (boxes or box_labels or extra):
                return
            self._more = TextColumn()
            self._more.append_empty(len(self))
        self._more.append_encoded(_pack(boxes, box_labels, extra))
        self.has_boxes |= bool(boxes)
        self.has_box_labels |= bool(box_labels)

    def extend(self, other: "RefList") -> None:
        """Adds all of a list of images that have neither groups nor boxes nor further columns, as trees have none."""
        for mine, theirs in zip(self._columns(), other._columns(), strict=True):
            mine.extend(theirs)

    def _columns(self) -> tuple[Any, ...]:
        place = self._locations, self._offsets, self._packed, self._crcs
        return self.paths, self.sizes, *place, self.splits, self.labels

    def take(self, indices: NDArray[np.int64]) -> "RefList":
        """Those at `indices`, in their order."""
        taken = RefList()
        columns = [column.take(indices) for column in self._columns()]
        taken.paths, taken.sizes, taken._locations, taken._offsets, taken._packed, taken._crcs = columns[:6]
        taken.splits, taken.labels = columns[6:]
        taken._groups = self._groups.take(indices) if self._groups is not None else None
        taken._more = self._more.take(indices) if self._more is not None else None
        kept = map(taken._more_of, range(len(indices))) if taken._more is not None else ()
        for boxes, box_labels, _ in kept:
            taken.has_boxes |= bool(boxes)
            taken.has_box_labels |= bool(box_labels)
        return taken

    def replaced(
        self,
        *,
        sizes: NumberColumn | None = None,
        splits: CodedColumn | None = None,
        labels: CodedColumn | None = None,
    ) -> "RefList":
        """The same images with other columns; the rest is shared, not copied."""
        other = copy.copy(self)
        other.sizes = self.sizes if sizes is None else sizes
        other.splits = self.splits if splits is None else splits
        other.labels = self.labels if labels is None else labels
        return other

    def extras(self, column: int) -> Iterator[Any]:
        """The values of one further column."""
        return (self._more_of(i)[2][column] for i in range(len(self)))

    def replace_extras(self, convert: Sequence[Callable[[Any], Any]]) -> None:
        """Puts every value of the further columns through its column's function, in place."""
        replaced = TextColumn()
        for i in range(len(self)):
            boxes, box_labels, extra = self._more_of(i)
            extra = tuple(one(value) for one, value in zip(convert, extra, strict=True))
            replaced.append_encoded(_pack(boxes, box_labels, extra))
        self._more = replaced

    def locations(self) -> list[str]:
        """The different files that hold images, in sorted order; empty for an image that is a file itself."""
        return sorted(str(location) for location in self._locations.counts())

    def end_in(self, location: str) -> int:
        """Where the last image in an archive ends."""
        mine = np.flatnonzero(self._locations.codes() == self._locations.texts.index(location))
        return int((self._offsets.values()[mine] + self.sizes.values()[mine]).max(initial=0))

    def split_hashes(self) -> NDArray[np.uint64]:
        """What decides the split: the hash of the group, or of the path of an image in none."""
        hashes = self.paths.hashes(b"split")
        if self._groups is None:
            return hashes
        return np.where(self._groups.lengths() > 0, self._groups.hashes(b"split"), hashes)

    def planned(self, images: NDArray[np.int64], label_names: Sequence[str]) -> Iterator[PlannedImage]:
        """Lines of the plan for the images at these indices, in their order."""
        positions: dict[str | None, int] = {name: label for label, name in enumerate(label_names)}
        label_of = {text: positions.get(text, -1) for text in self.labels.texts}
        known = self.paths.at(images), self.sizes.at(images), [label_of[text] for text in self.labels.at(images)]
        numbers = self._offsets, self._packed, self._crcs
        plain = self._locations.texts in ([], [""]) and all(column.is_default() for column in numbers)
        if plain and self._more is None:  # files, as most inputs are: a third of the time
            yield from map(PlannedImage, *known)
            return
        places = self._locations.at(images), *(column.at(images) for column in numbers)
        for i, *fields in zip(images.tolist(), *known, *places, strict=True):
            yield PlannedImage._make((*fields, *self._more_of(i)))

    def _place(self, i: int) -> tuple[str, int, int, int]:
        return self._locations[i], self._offsets[i], self._packed[i], self._crcs[i]


def _pack(boxes: Sequence[Box], box_labels: Sequence[int], extra: Sequence[Value]) -> bytes:
    # Pickled, so that 1 stays 1 and does not become 1.0: the plan's lines say it as the table did.
    return pickle.dumps((boxes, box_labels, extra), pickle.HIGHEST_PROTOCOL) if boxes or box_labels or extra else b""
