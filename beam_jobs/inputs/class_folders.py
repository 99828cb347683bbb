"""Says which split and which class the folders above an image name.

A folder, an archive and a folder of archives are walked as one tree: ImageNet ships as one tar per class.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from beam_jobs.config import ShardConfig
from beam_jobs.inputs.archive import is_archive
from beam_jobs.inputs.folder import list_tree, list_unpacked, name_input
from beam_jobs.inputs.label_file import order_classes, set_classes
from beam_jobs.plan.image_table import ImageTable
from beam_jobs.plan.listing import Listing
from tfpipe.errors import DataError
from tfpipe.format.file_names import SPLITS
from tfpipe.storage import file_io
from tfpipe.system.progress import Observer


def list_class_folders(config: ShardConfig, observer: Observer | None = None) -> Listing:
    """Lists the images of a folder or an archive, with the splits and the classes that their folders name."""
    source, from_archive = config.input, is_archive(config.input)
    images, skipped, _ = list_tree(source, config.workers, observer)
    # The folders above an image say all about it, so the folders are looked at and not the images. Common parents
    # are passed over in archives only: the user of a folder can name the folder inside it.
    counts = images.count_values("label")
    folders = sorted(map(str, counts))
    shared = _count_shared_parents([_make_path_in(folder) for folder in folders])
    parents = shared if from_archive else 0
    layout = _Layout.infer(folders, source, parents)
    parsed = {folder: layout.parse(_make_path_in(folder)) for folder in folders}
    _check_loose(images, counts, {folder for folder, (_, label) in parsed.items() if label is None}, source)
    labels: dict[str | None, str | None] = {folder: label for folder, (_, label) in parsed.items()}
    label_names = tuple(sorted({label for label in labels.values() if label is not None}))
    if label_names == ("images",) and "*.txt" in skipped:
        raise DataError(
            f"{source} holds its images in folders `images` and *.txt files beside them, as YOLO's datasets do. Boxes "
            "are read from COCO's and Pascal VOC's files: export the dataset as one of these, or name the folder "
            "`images` as the input for the images without boxes."
        )
    labels, label_names = order_classes(config, labels, label_names, is_numeric=False)
    return Listing(
        *name_input(source),
        set_classes(images, labels, {folder: split for folder, (split, _) in parsed.items()}),
        label_names=label_names,
        skipped=skipped,
        unpack=list_unpacked(images),
        note=_explain_parents(folders, source, shared - parents),
    )


def explain_no_folders(config: ShardConfig) -> str:
    """Returns how to read the table of Hugging Face's `imagefolder` beside the images, or why they have no class."""
    paths = (file_io.join(config.input, f"metadata.{ending}") for ending in ("jsonl", "csv", "parquet"))
    table = next(filter(file_io.exists, paths), None)
    if table is not None:
        return f"the images lie in no class folders; shard the table {table} with --image-column file_name"
    return (
        "the images lie in no class folders; put those of each class into a folder of its name, such as cat/1.jpg and "
        "dog/2.jpg"
    )


def _make_path_in(folder: str) -> str:
    """Returns the path that some image in a folder could have."""
    return f"{folder}/x" if folder else "x"


def _check_loose(images: ImageTable, counts: Mapping[str | None, int], loose: Collection[str], source: str) -> None:
    """Checks that either all images lie in class folders or none of them; `counts` are those of each folder."""
    num_loose = sum(counts[folder] for folder in loose)
    if num_loose and num_loose < len(images):
        codes, folders = images.get_codes("label")
        is_loose = np.array([folder in loose for folder in folders], bool)
        first = min(images.get_paths(np.flatnonzero(is_loose[codes])))
        raise DataError(
            f"{num_loose} of {len(images)} images in {source} lie in no class folder, such as {first}. Put every "
            "image into a class folder, or none."
        )


def _count_shared_parents(paths: Collection[str]) -> int:
    """Returns how many leading folders hold all of an archive, such as `flower_photos/` above the class folders."""
    depth = 0
    while True:
        # Two levels must be left below: the class folder and the image.
        folders = {path.split("/")[depth] if path.count("/") > depth + 1 else "" for path in paths}
        if len(folders) != 1 or "" in folders or next(iter(folders)).lower() in SPLITS:
            return depth
        depth += 1


def _explain_parents(folders: Sequence[str], source: str, num_parents: int) -> str:
    """Returns a sentence about folders above those that may be the classes of a folder; empty without them."""
    below = sorted({folder.split("/")[num_parents] for folder in folders}) if num_parents else []
    if len(below) < 2:
        return ""
    above = "/".join(folders[0].split("/")[:num_parents])
    names = ", ".join(below[:3]) + ", ..." * (len(below) > 3)
    path = file_io.join(source, above)
    return (
        f"All images lie in {above}, so they have one class. If the {len(below)} folders in it ({names}) are the "
        f"classes, name {path if file_io.is_folder(path) else 'the archive that holds them'} as the input."
    )


class _Layout(NamedTuple):
    """The meaning of the folders above an image."""

    parents: int  # the number of leading folders that mean nothing
    has_splits: bool  # whether the next folder names a split

    @classmethod
    def infer(cls, folders: Iterable[str], source: str, parents: int) -> "_Layout":
        """Infers the layout from all folders that hold images."""
        depths: dict[str, int] = {}  # for each top folder, the most folders above an image in it
        for folder in folders:
            top, *below = _make_path_in(folder).split("/")[parents:]
            if below:
                depths[top.lower()] = max(depths.get(top.lower(), 0), len(below))
        splits = depths.keys() & SPLITS.keys()
        splits_hold_folders = any(depths[top] > 1 for top in splits)
        others = sorted(depths.keys() - splits)
        # A class may well be called "train", but not with classes in it.
        if others and "train" in splits and depths["train"] > 1:
            raise DataError(
                f"{source} holds 'train' beside {others[0]!r}: its folders must be all splits (train, validation, "
                f"test) or all classes. Move what belongs to neither out of it."
            )
        return cls(parents, bool(splits) and not others and (splits_hold_folders or "train" in splits))

    def parse(self, path: str) -> tuple[str, str | None]:
        """Returns an image's split (empty if the plan decides) and its class (None if it has none)."""
        parts = path.split("/")[self.parents :]
        split = SPLITS.get(parts[0].lower(), "") if self.has_splits and len(parts) > 1 else ""
        below = parts[1:] if split else parts
        return split, below[0] if len(below) > 1 else None
