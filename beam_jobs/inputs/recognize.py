"""Recognizes the kind of an input, which decides how the input is listed and read."""

import functools
import os

from beam_jobs.config import ShardConfig
from beam_jobs.inputs.annotations.coco import find_annotations, list_coco
from beam_jobs.inputs.annotations.voc import LAYOUT, list_voc
from beam_jobs.inputs.archive import is_archive, is_tar
from beam_jobs.inputs.dataset import list_datasets
from beam_jobs.inputs.folder import list_begin, list_class_folders
from beam_jobs.inputs.pairs import has_pairs, list_pairs
from beam_jobs.inputs.table import check_no_tensors, explain_no_labels, list_table
from beam_jobs.inputs.table_files import is_parquet_folder, is_table, is_text_table
from beam_jobs.plan.listing import Listing
from tfpipe.errors import ConfigError
from tfpipe.format.file_names import SPLITS
from tfpipe.storage import file_io
from tfpipe.system.progress import Observer

_LISTERS = {
    "datasets": list_datasets,
    "coco": list_coco,
    "voc": list_voc,
    "pairs": list_pairs,
    "tree": list_class_folders,
    **dict.fromkeys(("table", "parquet"), list_table),
}


def list_input(config: ShardConfig, observer: Observer | None = None) -> Listing:
    """Lists the images of an input, with the splits, classes and values from folders, columns and annotations."""
    kind = find_kind(config)
    _check_options(config, kind)
    with file_io.explain_os_errors(f"read {config.input}"):
        return _LISTERS[kind](config, observer)


def find_kind(config: ShardConfig) -> str:
    """Returns the kind of the input: "table", "datasets", or a value of `input_format` other than "auto"."""
    source, kind = config.input, config.input_format
    if config.datasets:
        return "datasets"
    if config.annotations:
        if is_table(source) or is_archive(source) or kind not in ("auto", "coco"):
            raise ConfigError("`annotations` needs a folder of images as input, and `input_format` auto or coco.")
        return "coco"
    if is_table(source) and kind != "coco":
        return "table"
    if kind == "pairs" and is_archive(source) and not is_tar(source):
        raise ConfigError(f"`input_format` pairs needs a tar file or a folder of tar files, got {source}.")
    if kind != "auto":
        return kind
    look = functools.cache(list_begin)  # in a store each look is a request
    with file_io.explain_os_errors(f"read {source}"):
        if not is_archive(source):
            if find_annotations(source, look(source)):
                return "coco"
            if is_parquet_folder(source, look, config.columns):
                return "parquet"
            if {*look(source)} >= LAYOUT:
                return "voc"
        return "pairs" if has_pairs(source, look) else "tree"


def _check_options(config: ShardConfig, kind: str) -> None:
    """Checks that no option is for another kind of input."""
    if config.segmentation_masks and kind not in ("coco", "datasets"):
        raise ConfigError("`segmentation_masks` needs a folder in COCO's layout, or `annotations` in COCO's form.")
    if kind in ("table", "parquet", "datasets"):
        return
    check_no_tensors(config)
    named = [f"{name}_column" for name in config.columns.named]
    for name in (*named, *(name for name in ("label_separator", "image_root") if getattr(config, name))):
        raise ConfigError(f"`{name}` is for tables (CSV, TSV, JSONL or Parquet), got {config.input}.")
    if config.allow_missing and kind not in ("coco", "voc"):
        raise ConfigError(
            f"`allow_missing` is for tables and annotations, which name the files of images, got {config.input}."
        )
    if config.group_by and kind != "pairs":
        raise ConfigError(
            "`group_by` names a column; it needs a CSV, JSONL or Parquet manifest, or tars of pairs, as input."
        )


def explain_no_classes(config: ShardConfig) -> str | None:
    """Returns why the images have no classes, as a part of a sentence; None if they have boxes, captions or targets."""
    kind = find_kind(config)
    if kind in ("table", "parquet"):
        return explain_no_labels(config)
    if kind == "pairs":
        return "no pair has a .cls file or a `label` in its .json; write the class into KEY.cls beside KEY.jpg"
    return _explain_no_folders(config) if kind == "tree" else None


def _explain_no_folders(config: ShardConfig) -> str:
    """Returns why images in folders have no classes, and how to read a table beside them, such as Hugging Face's."""
    why, folder, is_remote = "the images lie in no class folders", config.input, file_io.is_url(config.input)
    # A store gets as few requests as possible, and its folder may have millions of names.
    folders = [folder] if is_remote else [folder, *(file_io.join(folder, split) for split in SPLITS)]
    paths = (file_io.join(each, f"metadata.{kind}") for each in folders for kind in ("jsonl", "csv", "parquet"))
    if (table := next(filter(file_io.exists, paths), None)) is not None:
        return f"{why}; shard the table {table} with --image-column file_name"
    if not is_remote and os.path.isdir(folder):
        with os.scandir(folder) as entries:
            table = min((entry.name for entry in entries if is_text_table(entry.name)), default=None)
    if table is not None:
        table = file_io.join(folder, table)
        return f"{why}; if {table} names them and their classes, shard that table in place of the folder"
    return f"{why}; put those of each class into a folder of its name, such as cat/1.jpg and dog/2.jpg"
