"""Chooses who makes the plan: this process, or the tasks of the engine on the runner of the job."""

import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from beam_jobs.config import ShardConfig
from beam_jobs.inputs.annotations.coco import is_coco
from beam_jobs.inputs.annotations.voc import is_voc
from beam_jobs.inputs.archive import is_archive
from beam_jobs.inputs.folder import Look, list_begin
from beam_jobs.inputs.pairs import is_pairs
from beam_jobs.inputs.table import is_table_input
from beam_jobs.inputs.table_files import TablePart, count_rows, list_parts
from beam_jobs.storage import filesystem
from tfpipe.errors import ConfigError

_ARCHIVED_IMAGE_BYTES = 100_000  # an image of ImageNet has 110,000
_COUNTED_FILES = 8


class Choice(NamedTuple):
    """The choice of a planner.

    Attributes:
        is_engine: Whether tasks on the runner make the plan.
        reason: The reason, as a part of a sentence.
    """

    is_engine: bool
    reason: str

    def __str__(self) -> str:
        return f"The {'engine' if self.is_engine else 'launcher'} makes the plan: {self.reason}."


def choose_planner(config: ShardConfig) -> Choice:
    """Returns who makes the plan. Reads the sizes of files, and of a table a few rows.

    Raises:
        ConfigError: The engine is requested, but it cannot make this plan.
        DataError: The input is missing or empty.
    """
    if config.plan == "launcher":
        return Choice(False, "`plan` says so")
    obstacle, look = _find_obstacle(config), functools.cache(list_begin)
    if config.plan == "auto" and not obstacle:
        count, what = _estimate_images(config, look)
        if count is None:
            return Choice(False, what)
        limit = f"`plan_engine_from` {config.plan_engine_from:,}"
        if count < config.plan_engine_from:
            return Choice(False, f"{what}, fewer than {limit}")
        reason = f"{what}, not less than {limit}"
    else:
        reason = "`plan` says so"
    obstacle = obstacle or _find_late_facts(config, look)  # last, since it opens files
    if not obstacle:
        return Choice(True, reason)
    if config.plan == "engine":
        raise ConfigError(f"`plan` engine cannot be used: {obstacle}. Leave it out.")
    return Choice(False, obstacle)


def _find_obstacle(config: ShardConfig) -> str:
    if config.datasets:
        return "the records of finished datasets are planned by their indexes"
    return "" if config.shuffle else "only shuffled images can be sorted in pieces"


def _find_late_facts(config: ShardConfig, look: Look) -> str:
    if is_coco(config, look) or is_voc(config, look):
        return "boxes are known once all annotations are read"
    is_paired = not is_table_input(config, look) and is_pairs(config, look)
    return "the columns of pairs are known once all are read" if is_paired else ""


def _estimate_images(config: ShardConfig, look: Look) -> tuple[int | None, str]:
    """Returns roughly how many images the input has, None if only listing them says it, and the same in words."""
    source = config.input
    if is_table_input(config, look):
        parts = list_parts(source, config.columns)
        count = _estimate_rows(parts)
        return count, f"the table has about {count:,} rows"
    sizes = list(_list_archive_sizes(source, look))
    if not sizes:
        return None, "the images of a folder are counted only by listing them"
    count = sum(sizes) // _ARCHIVED_IMAGE_BYTES
    return count, f"archives of {sum(sizes):,} bytes hold about {count:,} images"


def _estimate_rows(parts: Sequence[TablePart]) -> int:
    """Returns the rows of a table, from some of its files."""
    files = [part for part in parts if part.part == 0]
    looked_at = files[:: -(-len(files) // _COUNTED_FILES)]
    counts = [count_rows(part) for part in looked_at]
    counted_bytes = sum(num_bytes for _, num_bytes in counts)
    num_bytes = sum(part.size * part.num_parts for part in files)
    return round(sum(rows for rows, _ in counts) * num_bytes / max(1, counted_bytes))


def _list_archive_sizes(source: str, look: Look) -> Iterator[int]:
    if is_archive(source):
        yield max(0, filesystem.get_size(source))
        return
    archives = [name for name in look(source) if is_archive(name)]
    yield from filesystem.get_sizes([filesystem.join(source, name) for name in archives])
