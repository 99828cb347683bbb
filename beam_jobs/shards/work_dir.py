"""The working folder of an unfinished dataset, with the plan and the finished shards.

```
OUTPUT/.tfpipe/
  plan.json            PlanHeader: the options that shape the dataset, and where the lines of each shard lie
  plan.jsonl           one line per image, shard after shard
  rows/NAME.json       a `WrittenShard`, one per finished shard, written after the shard itself
  digests/NAME         32 bytes per record, the SHA-256 of its original, to find duplicates between shards; then
                       the records' names as a JSON list
  kept.json            the names of the shards that the workers found finished
  begun/NAME           of a job in parts: which part writes the shard; `begun/manifest.json`: which part finishes
  tmp/                 files being written
  unpacked/            compressed tar files and foreign shards, unpacked so that workers can read at an offset, and
                       the images of Parquet files
  lock                 held by the process that writes (local only)
```

The folder is removed once `manifest.json` is written. A worker process needs nothing but its path, so the Beam graph
carries shard numbers and nothing else.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, NamedTuple
from uuid import uuid4

from beam_jobs.config import USUAL_COLUMNS, TableColumns
from beam_jobs.plan.image_ref import PlannedImage, decode_line
from beam_jobs.plan.merge_manifests import InputDatasets
from tfpipe.errors import FormatError
from tfpipe.format import file_names, manifest_json
from tfpipe.format.image_form import ImageForm
from tfpipe.format.json_reader import read, whole
from tfpipe.format.manifest import Manifest
from tfpipe.format.schema import Schema
from tfpipe.storage import file_io
from tfpipe.writer.shard_folder import ShardFolder


class PlannedShard(NamedTuple):
    """A shard in the plan."""

    split: str
    shard_index: int
    num_shards: int
    images: int  # their number
    begin: int  # of its lines in the plan, in bytes
    end: int

    @property
    def file(self) -> str:
        """The file name. If a shard of the split turns out empty, the finished dataset renumbers the others."""
        return file_names.shard_name(self.split, self.shard_index, self.num_shards)


@dataclass(frozen=True)
class PlanHeader:
    """The part of the plan that all workers share."""

    name: str
    root: str  # where relative locations start
    fingerprint: str  # a hash of all that decides the dataset's bytes, and of nothing else
    seed: Annotated[int, whole(-(2**63))]
    form: ImageForm
    schema: Schema
    label_names: tuple[str, ...]
    skipped: dict[str, int]  # files, by reason
    dropped: int  # copies of other images
    keep_quarantined: bool
    unpacked: dict[str, str]  # the copy's path, by the location of a compressed file or of a Parquet file
    shards: tuple[PlannedShard, ...]
    records: InputDatasets | None = None  # None: of image files
    box_names: tuple[str, ...] = ()
    tensor_dtypes: Mapping[str, str] = field(default_factory=dict)  # in the table, of tensors that may be converted
    refuse_nan: bool = False
    columns: TableColumns = USUAL_COLUMNS
    inputs: tuple[str, ...] = ()  # paths or URLs
    max_bad: int = 0  # the most bad images
    versions: Mapping[str, str] = field(default_factory=dict)  # of packages that decide the bytes of a shard

    @property
    def files(self) -> tuple[str, ...]:
        """The names of all shards."""
        return tuple(shard.file for shard in self.shards)

    def to_json(self) -> dict[str, Any]:
        """Returns the header as JSON values."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        fields |= {"form": asdict(self.form), "schema": self.schema.to_json(), "columns": asdict(self.columns)}
        records = self.records and asdict(self.records)
        return fields | {"shards": [shard._asdict() for shard in self.shards], "records": records}


@dataclass(frozen=True)
class WorkDir(ShardFolder):
    """A dataset directory under construction: its paths, and the small files of its working folder."""

    progress: str | None = None  # the folder for the progress of workers on this machine, if anybody reads it
    ending = f"/{file_names.WORK_DIR}"

    def result(self, *names: str) -> str:
        """Returns a path in the dataset directory."""
        return file_io.join(self.output, *names)

    def shard_path(self, name: str) -> str:
        """Returns the path of a shard, or of its index or record info."""
        return self.result(name)

    def temporary(self, name: str) -> str:
        """Returns a new path for a file of the dataset while it is being written.

        No two calls return the same path, because a runner may let two machines or two threads write one shard.
        """
        return self.path("tmp", f"{name.replace('/', '-')}.{uuid4().hex}")

    def write(self, name: str, data: bytes) -> None:
        """Writes a whole file of the dataset."""
        file_io.write_file(self.result(name), data, self.temporary(name), makes_folders=True)

    def remove_shard(self, name: str) -> None:
        """Removes a shard, after the files beside it."""
        for each in (file_names.index_name(name), file_names.info_name(name), name):
            file_io.remove(self.result(each))

    @property
    def lines_path(self) -> str:
        """The path of the plan's lines."""
        return self.path("plan.jsonl")

    def has_plan(self) -> bool:
        """Returns whether a run wrote a whole plan. Its header is written last."""
        return file_io.exists(self.path("plan.json"))

    def read_header(self) -> PlanHeader:
        """Returns the header of the plan."""
        data = file_io.read_whole(self.path("plan.json"))
        try:
            header: PlanHeader = read(json.loads(data), PlanHeader)
        except ValueError as error:
            raise FormatError(f"The plan of an earlier run cannot be read ({error}).") from error
        return header

    def read_images(self, shard: PlannedShard) -> Iterator[PlannedImage]:
        """Yields the planned images of one shard, in order."""
        data = file_io.read_range(self.lines_path, shard.begin, shard.end - shard.begin)
        return map(decode_line, data.splitlines())

    def read_left_out(self, file: str) -> list[dict[str, Any]]:
        """Returns the line about each bad image of a finished shard, in the order of the plan."""
        lines: list[dict[str, Any]] = json.loads(file_io.read_whole(self.row_path(file)))["left_out"]
        return lines

    def list_written(self) -> set[str]:
        """Returns the file names of the shards that some run finished."""
        return {name.removesuffix(".json") for name in file_io.list_names(self.path("rows")) if name.endswith(".json")}

    def begin(self, name: str, part: tuple[int, int]) -> bool:
        """Saves that a part of the job makes a shard or the manifest; returns False if another part has begun it."""
        path, mark = self.path("begun", name), b"%d/%d" % part
        with contextlib.suppress(FileNotFoundError):  # another part has just completed the dataset
            return file_io.write_new(path, mark) or file_io.read_whole(path) == mark
        return False

    def list_begun(self) -> set[str]:
        """Returns the names of the shards that parts of the job have begun, and of the manifest if one has begun it."""
        return set(file_io.list_names(self.path("begun")))

    def find_manifest(self, fingerprint: str) -> Manifest | None:
        """Returns the manifest of a complete dataset that was made from the plan of this fingerprint, or None."""
        path = self.result(file_names.MANIFEST)
        if not file_io.exists(path):
            return None
        manifest = manifest_json.loads(file_io.read_whole(path).decode())
        return manifest if manifest.fingerprint == fingerprint else None
