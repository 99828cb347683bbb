"""Writes a dataset anew as one layer, without the bytes of hidden records, and exchanges it with the old one.

```
compact("/data/flowers")
```

Shards without a hidden record keep their bytes: they get a second name, and nothing is copied. All is built beside the
dataset, and two folders are exchanged at the end. So a kill leaves the old dataset or the new one.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfpipe._version import __version__
from tfpipe.columns.write import ShardRows, list_parts
from tfpipe.dataset.history import History
from tfpipe.dataset.parts import check_local, list_fingerprints, list_views, load_view
from tfpipe.engine.record_reader import RecordReader
from tfpipe.errors import DataError
from tfpipe.format import file_names
from tfpipe.format.digest_groups import GroupCounts, encode_group
from tfpipe.format.example import decode_example
from tfpipe.format.join_manifests import join_manifests
from tfpipe.format.manifest import Duplicates, Manifest, ShardInfo, SplitInfo
from tfpipe.format.shard_stats import ShardStats
from tfpipe.format.view import VIEWS_DIR, View, ViewSplit, view_file
from tfpipe.images.seekable import is_seekable
from tfpipe.storage import file_io, local
from tfpipe.system.extras import importing
from tfpipe.views.choose import open_facts
from tfpipe.writer import record_facts as facts
from tfpipe.writer.count_record import count_record
from tfpipe.writer.describe import make_dataset_files
from tfpipe.writer.layers import LayerFolder, open_layers
from tfpipe.writer.record_facts import RecordFacts
from tfpipe.writer.shard_writer import CountRecord
from tfpipe.writer.written_shard import WrittenShard, make_split_info

IntArray = NDArray[np.int64]

_ROWS_AT_ONCE = 256

_MADE_ANEW = (
    *(file_names.MANIFEST, file_names.TFDS_FEATURES, file_names.TFDS_INFO, file_names.INDEX_DIR),
    *(VIEWS_DIR, file_names.COLUMNS_DIR, file_names.LAYERS_DIR, file_names.QUARANTINE_DIR, file_names.WORK_DIR),
)


@dataclass(frozen=True)
class Compacted:
    """The result of compacting.

    Attributes:
        records: The number of records of each split.
        removed: The number of hidden records that were removed.
        kept_shards: The number of shards that kept their bytes.
        written_shards: The number of shards that were written anew.
        dropped_views: The names of views of which no record is left.
    """

    records: dict[str, int]
    removed: int
    kept_shards: int
    written_shards: int
    dropped_views: tuple[str, ...]


def compact(dataset: str | os.PathLike[str]) -> Compacted | None:
    """Writes a dataset anew as one layer, without its hidden records. Older layers are gone then.

    Args:
        dataset: The directory of a dataset on this machine.

    Returns:
        The result; None if the dataset has one layer, so that there is nothing to do.

    Raises:
        ConfigError: The dataset lies elsewhere.
        DataError: There is no dataset, no record would be left, or the disk is full.
        FormatError: A shard, a layer or a column is damaged.
        MissingDependencyError: DuckDB or PyArrow is not installed.
    """
    dataset = os.fspath(dataset)
    check_local(dataset)
    with open_layers(dataset, "changes the layers of") as history:
        folder = LayerFolder(history.base.directory)
        folder.clear()  # what a killed process left
        if history.newest == 1:
            return None
        with importing("A search for duplicates", "DuckDB and PyArrow", "tfpipe[views]"):
            result = _Compaction(history, folder).write()
        folder.exchange()
        return result


class _Compaction:
    """The work of compacting a dataset.

    Args:
        history: The layers of the dataset.
        folder: The working folder.
    """

    def __init__(self, history: History, folder: LayerFolder) -> None:
        self._history, self._folder = history, folder
        self._old = history.load_state(history.newest, history.newest)
        self._kept = self._written = 0

    def write(self) -> Compacted:
        """Writes the new dataset into the working folder, the manifest last."""
        old = self._old
        if not any(info.records for info in old.splits.values()):
            raise DataError(f"All records of {old.directory} are hidden, so none would be left.")
        new = self._write_shards(old.keep_columns(()), "")
        for column in old.columns:
            added = self._write_shards(replace(column, splits=self._choose(column)), self._in_column(column.name))
            self._write_manifest(replace(added, stands_on=list_fingerprints(new)), self._in_column(column.name))
        dropped = self._write_views(new)
        new = replace(new, duplicates=self._write_duplicates(), quarantined=self._write_quarantine())
        self._link_others()
        self._write_manifest(new, "")
        for path, _, _ in os.walk(self._folder.path("data")):
            local.sync_folder(path)
        records = {name: info.records for name, info in new.splits.items()}
        removed = sum(info.stored_records - info.records for info in old.splits.values())
        return Compacted(records, removed, self._kept, self._written, dropped)

    def _target(self, *parts: str) -> str:
        return self._folder.path("data", *parts)

    def _in_column(self, name: str) -> str:
        return file_io.join(file_names.COLUMNS_DIR, name)

    def _choose(self, column: Manifest) -> dict[str, SplitInfo]:
        """Returns the splits of a column with the records that the dataset shows."""
        return {name: replace(info, chosen=self._old.splits[name].chosen) for name, info in column.splits.items()}

    # Shards

    def _write_shards(self, old: Manifest, place: str) -> Manifest:
        """Writes or links the shards of the dataset or of a column, and returns its new manifest.

        Args:
            old: The manifest of all layers, with the records to keep.
            place: The folder of the new shards in the new dataset.
        """
        names = {(split, number): name for split, info in old.splits.items() for number, name in _name_shards(info)}
        parts = []
        for part in list_parts(old):
            splits: dict[str, SplitInfo] = {}
            for split, info in part.manifest.splits.items():
                made = self._write_split(old, info, part.list_rows(old, split), names, place)
                splits |= {split: made} if made.shards else {}
            parts.append(replace(part.manifest, splits=splits))
        new = join_manifests(parts, [""] * len(parts))
        identity = [info.fingerprint for info in new.splits.values()]
        fingerprint = hashlib.sha256(json.dumps(identity).encode()).hexdigest()
        return replace(new, fingerprint=fingerprint, tool_version=__version__, columns=(), parts=(), layer=1)

    def _write_split(
        self,
        old: Manifest,
        info: SplitInfo,
        shards: Sequence[ShardRows],
        names: Mapping[tuple[str, int], str],
        place: str,
    ) -> SplitInfo:
        """Writes or links the shards that a layer has of a split. Where nothing is hidden, all counts stay."""
        is_whole = all(len(shard.chosen) == shard.records for shard in shards)
        count = partial(count_record, schema=old.schema, is_seekable=is_seekable if info.seekable_jpegs else None)
        made = []
        with RecordReader(old.directory, old.choose(info.name, None).keep_columns(()), info.name) as reader:
            first = sum(shard.records for shard in old.splits[info.name].shards[: shards[0].number]) if shards else 0
            for shard in shards:
                records = partial(_read_records, reader, first + shard.chosen)
                first += shard.records
                name = names.get((shard.split, shard.number))
                if name is None:
                    continue
                file, stored = file_io.join(place, name), old.splits[info.name].shards[shard.number]
                if len(shard.chosen) == shard.records:
                    self._link(old, stored, file)
                    stats = ShardStats()
                    for features, _ in () if is_whole else records():
                        count(stats, features)
                    written = WrittenShard(stored, stats, [], 0)
                else:
                    written = self._rewrite(old, file, records(), count)
                made.append(replace(written, info=replace(written.info, file=name)))
        if is_whole:
            return replace(info, shards=tuple(shard.info for shard in made))
        return make_split_info(info.name, made, len(info.class_counts))

    def _link(self, old: Manifest, stored: ShardInfo, file: str) -> None:
        self._kept += 1
        local.link_file(file_io.join(old.directory, stored.file), self._target(file))
        for get_name in (file_names.index_name, file_names.facts_name):
            path = file_io.join(old.directory, get_name(stored.file))
            if os.path.exists(path):
                local.link_file(path, self._target(get_name(file)))

    def _rewrite(self, old: Manifest, file: str, records: Iterable[_Record], count: CountRecord) -> WrittenShard:
        self._written += 1
        staged, known = file.replace("/", "-"), RecordFacts.of_new_shard(old.schema, old.label_names)
        with self._folder.new_shard(staged, count, known) as writer:
            for features, payload in records:
                writer.add(features, payload)
        written = writer.describe_shard(staged)
        self._folder.move_shards([(staged, replace(written, info=replace(written.info, file=file)))])
        return written

    # What stands beside them

    def _write_manifest(self, manifest: Manifest, place: str) -> None:
        for name, data in make_dataset_files(manifest).items():
            file_io.write_file(self._target(place, name), data, makes_folders=True)

    def _write_views(self, new: Manifest) -> tuple[str, ...]:
        """Writes the views with the new numbers of their records, and returns those of which nothing is left."""
        dropped = []
        for name in list_views(self._old.directory):
            view = self._renumber(name, new)
            if view is None:
                dropped.append(name)
            else:
                file_io.write_file(self._target(view_file(name)), view.encode(), makes_folders=True)
        return tuple(dropped)

    def _renumber(self, name: str, new: Manifest) -> View | None:
        history, splits = self._history, {}
        shown = history.load(name, with_columns=False)
        appended = history.states[shown.layer - 1].appended
        if appended != history.states[-1].appended[: len(appended)]:
            return None  # made on records that were taken back
        for split, info in new.splits.items():
            chosen = shown.splits[split].chosen if split in shown.splits else None
            numbers = np.empty(0, np.int64) if chosen is None else chosen.numbers
            counts = chosen.class_counts if chosen is not None else ()
            splits[split] = ViewSplit(
                np.searchsorted(_list_visible(self._old.splits[split]), numbers),
                None if chosen is None else chosen.weights,
                info.records,
                0 if chosen is None else chosen.bytes,
                (*counts, *[0] * (len(info.class_counts) - len(counts))),
                info.fingerprint,
            )
        made_from = load_view(history.base, name).made_from
        return View(name, splits, made_from) if any(split.records for split in splits.values()) else None

    def _write_duplicates(self) -> Duplicates:
        """Searches the records that are left for equal images, writes their list, and returns the counts."""
        dropped = self._old.duplicates.dropped
        with open_facts(self._old.keep_columns(())) as table:
            if facts.DIGEST not in table.columns:
                return Duplicates(dropped=dropped)
            name = facts.NAME if facts.NAME in table.columns else "''"
            several = f"SELECT {facts.DIGEST} FROM numbered GROUP BY {facts.DIGEST} HAVING count(*) > 1"
            rows = table.connection.execute(
                f"SELECT {facts.DIGEST}, split, row_number_, {name} FROM numbered WHERE {facts.DIGEST} IN ({several}) "
                "ORDER BY shard_, row_number_"
            ).fetchall()
        visible = {split: _list_visible(info) for split, info in self._old.splits.items()}
        groups: dict[str, list[tuple[str, int, str]]] = {}
        for digest, split, number, path in rows:
            groups.setdefault(digest, []).append((split, int(np.searchsorted(visible[split], number)), path))
        counts = GroupCounts()
        for group in groups.values():
            counts.add(split for split, _, _ in group)
        self._write_list(
            file_names.DUPLICATES, [encode_group(bytes.fromhex(digest), group) for digest, group in groups.items()]
        )
        return counts.describe(dropped)

    def _write_quarantine(self) -> int:
        """Joins the lists of quarantined images and their bytes, and returns the number of lines."""
        lines: list[bytes] = []
        base = os.path.basename(file_names.QUARANTINE)
        for part in self._old.parts or (self._old,):
            folder = file_io.join(part.directory, file_names.QUARANTINE_DIR)
            names = (name for name in file_io.list_names(folder) if file_names.parse_list_part(base, name) is not None)
            for name in sorted(names, key=lambda name: file_names.parse_list_part(base, name) or 0):
                lines += file_io.read_whole(file_io.join(folder, name)).splitlines(keepends=True)
            for name in file_io.list_names(file_io.join(part.directory, file_names.QUARANTINED_BYTES_DIR)):
                target = self._target(file_names.QUARANTINED_BYTES_DIR, name)
                if not os.path.exists(target):
                    local.link_file(file_io.join(part.directory, file_names.QUARANTINED_BYTES_DIR, name), target)
        self._write_list(file_names.QUARANTINE, lines)
        return len(lines)

    def _write_list(self, name: str, lines: Iterable[bytes]) -> None:
        for number, part in enumerate(file_names.cut_list(lines)):
            path = self._target(file_names.list_part_name(name, number))
            file_io.write_file(path, b"".join(part), makes_folders=True)

    def _link_others(self) -> None:
        """Copies what else lies in the folder, such as a note of the user; large files get a second name."""
        for name in os.listdir(self._old.directory):
            path = os.path.join(self._old.directory, name)
            is_list = file_names.parse_list_part(file_names.DUPLICATES, name) is not None
            if name in _MADE_ANEW or is_list or name.endswith(".labels.txt") or file_names.is_shard_name(name):
                continue
            if os.path.isdir(path) and not os.path.islink(path):
                local.link_tree(path, self._target(name))
            else:
                shutil.copy2(path, self._target(name), follow_symlinks=False)


_Record = tuple[Mapping[str, Any], bytes]


def _read_records(reader: RecordReader, numbers: IntArray) -> Iterator[_Record]:
    """Yields the features and the payload of some records."""
    for begin in range(0, len(numbers), _ROWS_AT_ONCE):
        for payload in reader.read_payloads(numbers[begin : begin + _ROWS_AT_ONCE]):
            yield decode_example(payload), payload


def _name_shards(info: SplitInfo) -> list[tuple[int, str]]:
    """Returns the number and the new name of each shard that keeps a record."""
    kept = [number for number, records in enumerate(info.records_per_shard) if records]
    return [(number, file_names.shard_name(info.name, place, len(kept))) for place, number in enumerate(kept)]


def _list_visible(info: SplitInfo) -> IntArray:
    return np.arange(info.records) if info.chosen is None else info.chosen.numbers
