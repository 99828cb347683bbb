"""The working folder of an unfinished dataset: what was planned and which shards are finished.

```
OUTPUT/.tfpipe/
  plan.json            PlanHeader: the options that shape the result, and where each shard's lines lie
  plan.jsonl           one line per image, shard after shard
  rows/NAME.json       one per finished shard: counts, checksum, bad images; written after the shard itself
  digests/NAME.sha256  32 bytes per record, to find duplicates between shards
  names/NAME.json      what the records call their images, where they come from finished datasets
  kept.json            names of the shards that the workers found finished
  tmp/                 files being written
  unpacked/            compressed tar files, unpacked so that workers can read at an offset
  lock                 held by the process that writes (local only)
```

It is removed once `manifest.json` is written. Every process finds what it needs here by the folder's path
alone, so the Beam graph carries shard numbers and nothing else.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any
from uuid import uuid4

from beam_jobs.plan.image_ref import PlannedImage, decode_line
from beam_jobs.plan.merge_manifests import RecordInput
from beam_jobs.storage import filesystem
from tfpipe.errors import FormatError
from tfpipe.format import file_names
from tfpipe.format.image_form import ImageForm
from tfpipe.format.schema import Schema
from tfpipe.format.shard_stats import ShardStats


@dataclass(frozen=True, slots=True)
class PlannedShard:
    """One shard in the plan: its name's parts, its images, and its lines' place in `plan.jsonl`, in bytes."""

    split: str
    shard_index: int
    num_shards: int
    images: int
    begin: int
    end: int

    @property
    def file(self) -> str:
        """The shard's planned file name."""
        return file_names.shard_name(self.split, self.shard_index, self.num_shards)


@dataclass(frozen=True)
class PlanHeader:
    """What all workers share. `fingerprint` covers everything that shapes the result, and nothing else."""

    name: str
    root: str
    fingerprint: str
    seed: int
    form: ImageForm
    schema: Schema
    label_names: tuple[str, ...]
    skipped: dict[str, int]
    dropped: int
    keep_quarantined: bool
    unpacked: dict[str, str]
    shards: tuple[PlannedShard, ...]
    records: RecordInput | None = None

    def dumps(self) -> bytes:
        """As JSON."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        fields |= {"form": asdict(self.form), "schema": self.schema.to_json()}
        fields["shards"] = [asdict(slot) for slot in self.shards]
        fields["records"] = self.records and asdict(self.records)
        return json.dumps(fields).encode()

    @classmethod
    def loads(cls, data: bytes) -> "PlanHeader":
        """The inverse; raises `FormatError` for what `dumps` did not write."""
        try:
            fields = json.loads(data)
            fields["form"] = ImageForm(**fields["form"])
            fields["schema"] = Schema.from_json(fields["schema"])
            fields["label_names"] = tuple(fields["label_names"])
            fields["shards"] = tuple(PlannedShard(**slot) for slot in fields["shards"])
            fields["records"] = fields["records"] and RecordInput.from_json(fields["records"])
            return cls(**fields)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise FormatError(f"The plan of an earlier run cannot be read ({error}).") from error


@dataclass(frozen=True)
class WrittenShard:
    """One shard as it was written: its size and checksum, the counts of its images, and a line about each bad one."""

    file: str
    records: int
    bytes: int
    sha256: str
    stats: ShardStats
    quarantined: list[dict[str, Any]]
    kept: bool = False

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON values, the counts of `stats` among them."""
        fields = {name: getattr(self, name) for name in ("file", "records", "bytes", "sha256")}
        return fields | self.stats.to_json() | {"quarantined": self.quarantined, "kept": self.kept}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "WrittenShard":
        """Returns what `to_json` gave; raises KeyError, TypeError, ValueError or AttributeError for anything else."""
        names = ("file", "records", "bytes", "sha256", "quarantined", "kept")
        return cls(**{name: fields[name] for name in names}, stats=ShardStats.from_json(fields, fields["records"]))


@dataclass(frozen=True)
class WorkDir:
    """Paths in a dataset directory under construction, and the small files there.

    Attributes:
        output: The dataset directory.
        progress: Folder where workers of this machine say how far they are; None: nobody asks.
    """

    output: str
    progress: str | None = None

    @property
    def base(self) -> str:
        """The working folder."""
        return filesystem.join(self.output, file_names.WORK_DIR)

    def path(self, *parts: str) -> str:
        """A path in the working folder."""
        return filesystem.join(self.base, *parts)

    def target(self, *parts: str) -> str:
        """A path in the dataset directory."""
        return filesystem.join(self.output, *parts)

    def temporary(self, name: str) -> str:
        """Where one writer has a file of the dataset until it is whole; never beside the others.

        No two calls give the same: an engine may have two machines, or two threads, make one shard.
        """
        return self.path("tmp", f"{name.replace('/', '-')}.{uuid4().hex}")

    def write(self, name: str, data: bytes) -> None:
        """Writes a whole file of the dataset, by its name in the dataset directory."""
        filesystem.write_bytes(self.target(name), data, self.temporary(name))

    def header(self) -> PlanHeader:
        """The plan's header."""
        return PlanHeader.loads(filesystem.read_bytes(self.path("plan.json")))

    def has_plan(self) -> bool:
        """Whether a run got as far as a whole plan; the header is written last."""
        return filesystem.exists(self.path("plan.json"))

    def images(self, slot: PlannedShard) -> Iterator[PlannedImage]:
        """The lines of one shard, in order."""
        for line in filesystem.read_range(self.path("plan.jsonl"), slot.begin, slot.end - slot.begin).splitlines():
            yield decode_line(line)

    def row(self, file: str) -> WrittenShard | None:
        """The row of a shard that some run finished; None where there is none to rely on."""
        try:
            return WrittenShard.from_json(json.loads(filesystem.read_bytes(self.path("rows", f"{file}.json"))))
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None  # not there, or cut off by a crash: the shard is made again

    def write_row(self, row: WrittenShard) -> None:
        """Says that a shard is finished."""
        data = json.dumps({**row.to_json(), "kept": False}).encode()
        filesystem.write_bytes(self.path("rows", f"{row.file}.json"), data)

    def finished(self) -> set[str]:
        """The shards that have a row."""
        return {name.removesuffix(".json") for name in filesystem.names(self.path("rows")) if name.endswith(".json")}

    def write_kept(self, names: Iterable[str]) -> None:
        """Notes which shards the workers found finished."""
        filesystem.write_bytes(self.path("kept.json"), json.dumps(sorted(names)).encode())

    def kept(self) -> set[str]:
        """What `write_kept` noted."""
        return set(json.loads(filesystem.read_bytes(self.path("kept.json"))))

    def digests_path(self, file: str) -> str:
        """The SHA-256 of every source image of a shard, 32 bytes each, in record order."""
        return self.path("digests", f"{file}.sha256")

    def names_path(self, file: str) -> str:
        """The file name of every image of a shard, as its record says it: a JSON list, in record order."""
        return self.path("names", f"{file}.json")
