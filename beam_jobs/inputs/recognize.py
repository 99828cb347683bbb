"""Recognizes what an input is. It is looked at once; what it is decides how it is listed and read."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

from beam_jobs.config import ShardConfig
from beam_jobs.inputs.annotations.coco import is_coco, list_coco
from beam_jobs.inputs.annotations.voc import is_voc, list_voc
from beam_jobs.inputs.class_folders import explain_no_folders, list_class_folders
from beam_jobs.inputs.dataset import list_datasets
from beam_jobs.inputs.folder import list_begin
from beam_jobs.inputs.pairs import is_pairs, list_pairs
from beam_jobs.inputs.table import check_no_table, explain_no_labels, is_table_input, list_table
from beam_jobs.plan.listing import Listing
from tfpipe.errors import ConfigError
from tfpipe.storage import file_io
from tfpipe.system.progress import Observer


@dataclass(frozen=True)
class Input:
    """An input that was recognized."""

    config: ShardConfig
    list_all: Callable[[ShardConfig, Observer | None], Listing]
    explain_no_classes: Callable[[ShardConfig], str | None] = lambda _: None  # None if they have boxes or captions

    def list(self, observer: Observer | None = None) -> Listing:
        """Returns the images with the splits, classes and values that folders, columns and annotations give them."""
        with file_io.explain_os_errors(f"read {self.config.input}"):
            return self.list_all(self.config, observer)


def recognize(config: ShardConfig) -> Input:
    """Returns what the input is."""
    if config.datasets:
        return Input(config, list_datasets)
    look = functools.cache(list_begin)  # in a store each look is a request
    if is_coco(config, look):
        _check_no_column(config, names_files=True)
        return Input(config, list_coco)
    if config.segmentation_masks:
        raise ConfigError("`segmentation_masks` needs a folder in COCO's layout, or `annotations` in COCO's form.")
    if is_table_input(config, look):
        return Input(config, list_table, explain_no_labels)
    if is_voc(config, look):
        _check_no_column(config, names_files=True)
        return Input(config, list_voc)
    if is_pairs(config, look):
        check_no_table(config)
        why = "no pair has a .cls file or a `label` in its .json; write the class into KEY.cls beside KEY.jpg"
        return Input(config, list_pairs, lambda _: why)
    _check_no_column(config)
    return Input(config, list_class_folders, explain_no_folders)


def _check_no_column(config: ShardConfig, *, names_files: bool = False) -> None:
    """Checks that no option names a column, for an input without columns."""
    check_no_table(config, names_files=names_files)
    if config.group_by:
        raise ConfigError(
            "`group_by` names a column; it needs a CSV, JSONL or Parquet manifest, or tars of pairs, as input."
        )
