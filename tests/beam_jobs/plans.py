"""Inputs of every kind, and their plans as files."""

from collections.abc import Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow
import pyarrow.parquet

from beam_jobs.config import ShardConfig, TableColumns
from beam_jobs.plan.image_ref import PlannedImage, decode_line
from beam_jobs.plan.plan import Plan
from beam_jobs.shard_job import plan_shards
from beam_jobs.shards.job import Job
from beam_jobs.shards.output_dir import open_work_dir
from beam_jobs.shards.work_dir import WorkDir
from tests.beam_jobs.images import write_files, write_tar, write_zip
from tests.beam_jobs.inputs.parquet_files import damage, describe_classes, write_parquet, write_table

SPLITS = {"train": 0.6, "test": 0.4}


def make_contents(count: int) -> dict[str, bytes]:
    """Returns files by name, in two classes. Some are equal, and some only have equal sizes."""
    return {f"{'ab'[i % 2]}/{i}.jpg": bytes([i % 10]) * (1 + i % 7) for i in range(count)}


def write_tables(folder: Path, count: int = 120, **fields: Any) -> Path:
    """Writes a table in three files, whose images exist, and returns its pattern."""
    write_files(folder, make_contents(count))
    rows = [
        {"image": name, "label": f"c{i % 5}", "patient": f"p{i % 9}", "n": i if i % 3 else None} | fields
        for i, name in enumerate([*make_contents(count), *list(make_contents(count))[:5]])
    ]
    for k in range(3):
        write_table(folder / f"t-{k}.csv", rows[k::3])
    return folder / "t-*.csv"


def write_boxes(folder: Path) -> Path:
    """Writes a table with named splits, boxes and lists, and returns it. No image exists."""
    rows = []
    for i in range(40):
        low, sides = [0.0] * (i % 3), {"xmax": [0.5] * (i % 3), "ymax": [1] * (i % 3)}
        row = {"image": f"gs{i}.jpg", "split": "ab"[i % 2], "xmin": low, "ymin": low, **sides}
        rows.append({**row, "box_label": [i] * (i % 3), "tags": ["x"] * (i % 4)})
    return write_table(folder / "boxes.jsonl", rows)


def write_embedded(folder: Path) -> Path:
    contents = list(make_contents(40).values())
    for k, name in enumerate(("train-0", "train-1", "test-0")):
        numbers = range(k, 40, 3)
        columns: dict[str, Any] = {"label": [i % 4 for i in numbers], "text": [f"t{i}" for i in numbers]}
        images, classes = [contents[i % 30] for i in numbers], describe_classes(*"dcba")
        write_parquet(folder / f"{name}.parquet", images, group_rows=4, metadata=classes, **columns)
    damage(folder / "train-1.parquet", "text", 2)
    return folder


def write_lists(folder: Path) -> Path:
    """Writes a table whose rows name two images each, some of them equal, and returns it."""
    names = list(make_contents(80))
    write_files(folder, make_contents(80))
    rows = [{"image": names[k : k + 2], "caption": f"c{k}"} for k in range(0, 80, 2)]
    return write_table(folder / "t.jsonl", rows)


def write_tensors(folder: Path) -> Path:
    """Writes a folder of Parquet files without images, with lists of numbers, some of them equal."""
    for number in range(3):
        values = [[float(k % 8), float(number)] for k in range(20)]
        table = pyarrow.table({"id": range(20), "latents": pyarrow.array(values, pyarrow.list_(pyarrow.float32()))})
        folder.mkdir(exist_ok=True)
        pyarrow.parquet.write_table(table, folder / f"{number}.parquet", row_group_size=4)
    return folder


def write_folder(folder: Path) -> Path:
    """Writes a folder with splits, classes, an archive inside a class and skipped files."""
    splits = ["val", "train", "train", "train"]
    named = enumerate(make_contents(100).items())
    write_files(folder, {f"{splits[i % 4]}/{name}": data for i, (name, data) in named})
    write_files(folder, {"train/a/notes.txt": b"x", "val/.hidden.jpg": b"x"})
    write_tar(folder / "train/a/more.tar", {"x.jpg": b"1", "y.jpg": b"22", "x.jpg ": b"3"})
    return folder


def write_archives(folder: Path, ending: str = ".gz") -> Path:
    for k in range(3):
        files = {f"{i}.jpg": bytes([i % 4]) * (k + i % 3) for i in range(20)}
        if k == 2:
            write_zip(folder / f"class{k}.zip", files)
        else:
            write_tar(folder / f"class{k}.tar{ending if k else ''}", files, "w:gz" if k and ending else "w")
    return folder


def make_job(output: str = "out", name: str = "pets", num_shards: int = 4) -> Job:
    """Makes a planned job without images, for what a runner does before and after its work."""
    job = Job(WorkDir(output), "", {})
    vars(job)["header"] = SimpleNamespace(name=name, shards=[SimpleNamespace(images=1)] * num_shards)
    return job


def read_lines(plan: Plan) -> list[list[PlannedImage]]:
    """Returns the images of each shard, in order."""
    lines = iter(b"".join(plan.encode()).splitlines())
    return [[decode_line(line) for line in islice(lines, shard.images)] for shard in plan.shards]


def read_plan(config: ShardConfig, plan: Plan) -> dict[str, Any]:
    """Returns all files of a plan by name, and what the launcher tells about it."""
    with open_work_dir(config, plan) as work:
        files = {
            str(path.relative_to(work.base)): path.read_bytes()
            for path in Path(work.base).rglob("*")
            if path.is_file() and path.name != "lock"
        }
    return {**files, **{"counts": plan.class_counts, "dropped": plan.listing.dropped, "bytes": plan.shard_bytes}}


def make_plan(source: Path, output: Path, **options: Any) -> dict[str, Any]:
    config = ShardConfig(str(source), str(output), **options)
    return read_plan(config, plan_shards(config))


BOXES = {"num_shards": 3, "allow_missing": True}
PATIENTS = TableColumns(label_column="patient", caption_column="label")
CASES: Mapping[str, tuple[Any, dict[str, Any]]] = {
    "table": (write_tables, {"num_shards": 4}),
    "table with splits": (write_tables, {"splits": SPLITS, "shard_size_bytes": 50}),
    "table with groups": (write_tables, {"splits": SPLITS, "group_by": "patient", "seed": 3}),
    "table without copies": (write_tables, {"splits": SPLITS, "drop_duplicates": True}),
    "table with boxes": (write_boxes, BOXES),
    "table with several classes": (write_boxes, {**BOXES, "columns": TableColumns(label_column="tags")}),
    "table with other columns": (write_tables, {"num_shards": 4, "columns": PATIENTS, "label_separator": ","}),
    "images in Parquet": (write_embedded, {"num_shards": 2}),
    "images in Parquet without copies": (write_embedded, {"num_shards": 2, "drop_duplicates": True}),
    "lists of images without copies": (write_lists, {"num_shards": 2, "drop_duplicates": True}),
    "tensors in Parquet without copies": (write_tensors, {"num_shards": 2, "drop_duplicates": True}),
    "folder": (write_folder, {"num_shards": 3}),
    "folder without copies": (write_folder, {"num_shards": 3, "drop_duplicates": True}),
    "archives": (write_archives, {"num_shards": 3, "seed": -1}),
    "archives without copies": (partial(write_archives, ending=""), {"splits": SPLITS, "drop_duplicates": True}),
}
"""Inputs with options, by name."""
