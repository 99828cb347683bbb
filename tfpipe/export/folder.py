"""Writes the images as files in folders by split and class, and a table with everything else.

```
train/cat/12.jpg    the image file
train/cat/12.mask.png   its mask, if it has one
train/cat/000000017.0.jpg, train/cat/000000017.1.jpg    several images of record 17
images.jsonl        a row for each record, as `tfpipe shard` reads it
```

A worker gives the files of a shard the numbers of their records. When all shards are there, each file gets the name
that its record gives, made safe: one part of a path, without what a file system or a shell takes in another way. Of
two files with one name in a folder the later one gets its number too.
"""

import json
import os
from collections.abc import Iterable, Sequence
from typing import Any

from tfpipe.errors import DataError
from tfpipe.export.samples import Sample, ShardJob, list_columns
from tfpipe.export.values import make_table_row, name_table_columns
from tfpipe.format.manifest import Manifest
from tfpipe.images.sniff import name_differs
from tfpipe.storage.file_io import create, write_file

TABLE = "images.jsonl"
ROWS = "rows.jsonl"
_MAX_NAME_BYTES = 180  # file systems take 255, and a number and an ending may follow
_MASK = ".mask.png"
_UNSAFE = frozenset('/\\:*?"<>|')


def write_files(folder: str, samples: Iterable[Sample], manifest: Manifest) -> int:
    """Writes the images of a shard under their numbers, then their rows, and returns the bytes of the images."""
    columns = name_table_columns(list_columns(manifest), _name_column(manifest))
    lines, num_bytes = [], 0
    os.makedirs(folder, exist_ok=True)
    for sample in samples:
        number = f"{sample.number:09d}"
        names = _name_several(sample) if manifest.has_several_images else [_name_file(sample)]
        for position, image in enumerate(sample.files):
            with open(os.path.join(folder, _name_part(number, position)), "wb") as file:
                file.write(image.data)
            num_bytes += len(image.data)
        for mask in sample.masks:
            with open(os.path.join(folder, f"{number}{_MASK}"), "wb") as file:
                file.write(mask)
            num_bytes += len(mask)
        row = make_table_row(columns, manifest.label_names, sample)
        lines.append(json.dumps([number, sample.label, names, row]))
    os.sync()  # one for all files of the shard: one for each takes longer than to write them
    write_file(os.path.join(folder, ROWS), "\n".join([*lines, ""]).encode())
    return num_bytes


def gather_files(parts: str, jobs: Sequence[ShardJob], data: str, manifest: Manifest) -> None:
    """Moves the files of all shards to their names, and writes the table. A run that was killed goes on here too."""
    class_folders = name_folders(manifest.label_names)
    taken: set[str] = set()
    with create(os.path.join(data, TABLE), os.path.join(parts, f"{TABLE}.tmp")) as table:
        for job in jobs:
            part, split = os.path.join(parts, job.name), job.file.split
            with open(os.path.join(part, ROWS), encoding="utf-8") as rows:
                for line in rows:
                    number, label, names, row = json.loads(line)
                    folder = split if label is None else f"{split}/{class_folders.get(label, f'class-{label}')}"
                    paths = [_choose_free(f"{folder}/{name}", number, taken) for name in names]
                    for position, path in enumerate(paths):
                        _move(os.path.join(part, _name_part(number, position)), os.path.join(data, path))
                    if manifest.schema.masks:
                        mask = _choose_free(f"{os.path.splitext(paths[0])[0]}{_MASK}", number, taken)
                        _move(os.path.join(part, f"{number}{_MASK}"), os.path.join(data, mask))
                        row = {"mask": mask, **row}
                    images = paths if manifest.has_several_images else paths[0]
                    table.write(_make_line({_name_column(manifest): images, "split": split, **row}))


def _name_column(manifest: Manifest) -> str:
    return "images" if manifest.has_several_images else "image"


def _name_part(number: str, position: int) -> str:
    """Returns the name of an image file of a shard that is not finished."""
    return f"{number}.{position}" if position else number


def name_folders(names: Sequence[str]) -> dict[int, str]:
    """Returns the folder of each class: its name made safe, with its number if another class has the same folder."""
    folders: dict[int, str] = {}
    taken: set[str] = set()
    for label, name in enumerate(names):
        folder = make_safe(name) or f"class-{label}"
        while folder.casefold() in taken:
            folder += f"-{label}"
        taken.add(folder.casefold())
        folders[label] = folder
    return folders


def make_safe(name: str) -> str:
    """Returns a text as one part of a path that leads nowhere else; empty if nothing is left of it."""
    text = "".join(c if c.isprintable() and c not in _UNSAFE else "_" for c in name).strip(" .")
    return text.encode()[:_MAX_NAME_BYTES].decode(errors="ignore").strip(" .")


def _name_file(sample: Sample) -> str:
    """Returns the safe name of an image file, with an ending that fits the format of the image."""
    name = make_safe(sample.name.rpartition("/")[2])
    stem, dot, ending = name.rpartition(".")
    file = sample.files[0]
    if not dot or not ending.isalnum():
        stem = name
    elif ending.lower() == file.ending or (is_image(ending) and not name_differs(name, file.kind)):
        return name
    elif not is_image(ending):
        stem = name
    return f"{stem or f'{sample.number:09d}'}.{file.ending}"


def _name_several(sample: Sample) -> list[str]:
    """Returns the names of several image files, which are those of a tar of WebDataset."""
    return [f"{sample.number:09d}.{position}.{file.ending}" for position, file in enumerate(sample.files)]


def is_image(ending: str) -> bool:
    """Returns whether an ending belongs to a format of images."""
    return name_differs(f"x.{ending}", "")


def _choose_free(path: str, number: str, taken: set[str]) -> str:
    """Returns a path that no earlier file has, also where a file system does not tell upper case from lower case."""
    while path.casefold() in taken:
        stem, dot, ending = path.rpartition(".")
        path = f"{stem}-{number}{dot}{ending}"
    taken.add(path.casefold())
    return path


def _move(source: str, target: str) -> None:
    try:
        os.rename(source, target)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.exists(source):
            os.rename(source, target)
        elif not os.path.exists(target):  # an earlier run moved it
            raise DataError(f"{source} is missing: another program removed it. Begin the export anew.") from None


def _make_line(row: dict[str, Any]) -> bytes:
    return json.dumps(row).encode() + b"\n"
