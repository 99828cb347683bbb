"""Datasets that grow in this process."""

import re
from pathlib import Path
from typing import Any

from beam_jobs.append_job import Appended, open_append
from beam_jobs.config import ShardConfig
from beam_jobs.shard_job import ShardResult, plan_shards
from tests.beam_jobs.datasets import read_tree, write_plan
from tests.beam_jobs.images import make_jpeg, write_files
from tfpipe.dataset.history import load_history
from tfpipe.dataset.load import load_manifest
from tfpipe.format.catalog import Kind
from tfpipe.readers.data_source import Record, data_source
from tfpipe.views.choose import make_view, write_view
from tfpipe.views.config import ViewConfig


def draw_more(folder: Path, first: int = 500) -> Path:
    """Draws three more images of `owl`, two of a new class `ant`, and one of `cat` for `validation`."""
    names = [
        *(f"train/owl/{k}.jpg" for k in (7, 8, 9)),
        *(f"train/ant/{k}.jpg" for k in (0, 1)),
        "validation/cat/7.jpg",
    ]
    return write_files(folder, {name: make_jpeg(first + k, (30 + k, 20 + k)) for k, name in enumerate(names)})


def append(dataset: Path | str, images: Path | str, **options: Any) -> Appended:
    config = ShardConfig(str(images), str(dataset), **{"num_shards": 2, **options})
    with open_append(str(dataset), config) as job:
        plan = plan_shards(job.config)
        job.check(plan)
        return job.finish(ShardResult(write_plan(job.config, plan), 0, 1.0))


def add_view(dataset: Path | str, name: str, where: str = "", **options: Any) -> None:
    manifest = load_manifest(str(dataset))
    write_view(manifest, make_view(manifest, ViewConfig(name, where, **options)), overwrite=True)


def list_records(dataset: Path | str) -> list[Record]:
    """Returns the records of all splits."""
    return [record for split in load_manifest(str(dataset)).splits for record in data_source(str(dataset), split)]


def list_names(dataset: Path | str, split: str = "train") -> list[str]:
    with data_source(str(dataset), split) as records:
        return [record.name for record in records]


def find_part(dataset: Path | str, kind: Kind, name: str = "") -> str:
    """Returns the folder or file of the newest change of a kind, relative to the dataset."""
    entries = load_history(str(dataset)).catalog.entries
    return [entry.path for entry in entries if entry.kind == kind and name in ("", entry.name)][-1]


def read_parts(dataset: Path | str) -> dict[str, bytes]:
    """Returns the files of a dataset, without the catalog and without the jobs in the names of folders and views."""
    files = read_tree(Path(dataset))
    return {re.sub(r"-[0-9a-f]{12}(?=/|\.view)", "", path): data for path, data in files.items() if path != "catalog"}
