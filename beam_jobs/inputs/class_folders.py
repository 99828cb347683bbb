"""Says which split and which class the folders above an image name.

A folder, an archive and a folder of archives are walked as one tree: ImageNet ships as one tar per class.
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from beam_jobs.config import ShardConfig
from beam_jobs.inputs.archive import is_archive
from beam_jobs.inputs.folder import list_tree, list_unpacked, name_input
from beam_jobs.inputs.label_file import order_classes, set_classes
from beam_jobs.inputs.table_files import is_text_table
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
    names = [folder.split("/") if folder else [] for folder in folders]
    shared = _count_shared_parents(names)
    parents = shared if from_archive else 0
    inner = [some[parents:] for some in names]
    has_splits = _have_splits(inner, source)
    parsed = {folder: _parse(some, has_splits) for folder, some in zip(folders, inner, strict=True)}
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
    """Returns how to read a table that lies beside the images, such as Hugging Face's, or why they have no class."""
    folders = (config.input, *(file_io.join(config.input, split) for split in SPLITS))
    paths = [file_io.join(folder, f"metadata.{kind}") for folder in folders for kind in ("jsonl", "csv", "parquet")]
    table = next(filter(file_io.exists, paths), None)
    if table is not None:
        return f"the images lie in no class folders; shard the table {table} with --image-column file_name"
    if not file_io.is_url(config.input):  # a bucket may have millions of names
        table = next(filter(is_text_table, file_io.list_names(config.input)), None)
    if table is not None:
        return (
            f"the images lie in no class folders; if {file_io.join(config.input, table)} names them and their classes, "
            "shard that table in place of the folder"
        )
    return (
        "the images lie in no class folders; put those of each class into a folder of its name, such as cat/1.jpg and "
        "dog/2.jpg"
    )


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


def _count_shared_parents(paths: Sequence[Sequence[str]]) -> int:
    """Returns how many leading folders hold all of an archive, such as `flower_photos/` above the class folders."""
    depth = 0
    while True:
        folders = {names[depth] if len(names) > depth + 1 else "" for names in paths}  # a class folder must be left
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


def _have_splits(paths: Sequence[Sequence[str]], source: str) -> bool:
    """Returns whether the first of the folders above an image names its split, by all folders that hold images."""
    depths: dict[str, int] = {}  # for each top folder, the most folders above an image in it
    for top, *below in filter(None, paths):
        depths[top.lower()] = max(depths.get(top.lower(), 0), 1 + len(below))
    splits = depths.keys() & SPLITS.keys()
    splits_hold_folders = any(depths[top] > 1 for top in splits)
    others = sorted(depths.keys() - splits)
    # A class may well be called "train", but not with classes in it.
    if others and "train" in splits and depths["train"] > 1:
        raise DataError(
            f"{source} holds 'train' beside {others[0]!r}: its folders must be all splits (train, validation, "
            f"test) or all classes. Move what belongs to neither out of it."
        )
    return bool(splits) and not others and (splits_hold_folders or "train" in splits)


def _parse(names: Sequence[str], has_splits: bool) -> tuple[str, str | None]:
    """Returns the split (empty if the plan decides) and the class (None without one) of images in these folders."""
    split = SPLITS.get(names[0].lower(), "") if has_splits and names else ""
    below = names[1:] if split else names
    return split, below[0] if below else None
