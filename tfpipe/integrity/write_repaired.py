"""Turns repaired shards into a dataset: names without gaps, the files beside the shards, and the manifest last."""

import contextlib
import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np

from tfpipe._version import __version__
from tfpipe.errors import DataError, FormatError
from tfpipe.format import file_names
from tfpipe.format import schema as keys
from tfpipe.format.digest_groups import DIGEST_BYTES, list_duplicates
from tfpipe.format.example import decode_example
from tfpipe.format.manifest import Manifest
from tfpipe.format.record_index import decode_index
from tfpipe.format.tfrecord import read_record
from tfpipe.integrity.damage_kinds import Damage
from tfpipe.integrity.repair_shard import RepairFolder
from tfpipe.storage import file_io
from tfpipe.writer.written_shard import WrittenShard, make_dataset_files, make_split_info, renumber

_MAX_QUARANTINE_BYTES = 1 << 30
_Splits = Mapping[str, Sequence[tuple[str, WrittenShard]]]
"""The shards of each split that have records, each behind its name in the source."""


def write_repaired(
    staging: RepairFolder,
    manifest: Manifest,
    shards: Mapping[str, Sequence[WrittenShard]],
    document: Mapping[str, object],
    lost: Sequence[Damage] = (),
) -> None:
    """Puts the dataset together in `staging/data` from the repaired shards, which stand in the manifest's order."""
    source = str(document["source"])
    splits = {split: named for split in shards if (named := renumber(split, shards[split]))}
    if not splits:
        raise DataError(f"{source} has no undamaged record.")
    data = staging.result()
    new, lines = _describe(staging, manifest, splits)
    quarantined = _copy_quarantine(source, data) if manifest.quarantined else False
    new = replace(new, quarantined=manifest.quarantined if quarantined else 0)
    staging.move_shards(chain(*splits.values()))
    if duplicates := b"".join(lines):
        file_io.write_file(file_io.join(data, file_names.DUPLICATES), duplicates)
    losses = [damage.to_json() for damage in lost]
    losses += [damage for shard in chain(*shards.values()) for damage in shard.left_out]
    infos = [shard.info for _, shard in chain(*splits.values())]
    counts = {"records": sum(info.records for info in infos), "shards": len(infos)}
    text = json.dumps({"version": 1, "tool_version": __version__, **document, **counts, "lost": losses}, indent=1)
    file_io.write_file(file_io.join(data, file_names.REPAIR), text.encode() + b"\n")
    for name, content in make_dataset_files(new).items():
        file_io.write_file(file_io.join(data, name), content)


def _describe(staging: RepairFolder, manifest: Manifest, splits: _Splits) -> tuple[Manifest, Iterator[bytes]]:
    """Returns the new manifest, which keeps the counts of changed images, and the lines of the duplicates."""
    infos = {
        name: make_split_info(name, [shard for _, shard in splits[name]], len(split.class_counts))
        for name, split in manifest.splits.items()
        if name in splits
    }
    shards = list(chain(*splits.values()))
    facts = [manifest.fingerprint, *(shard.info.sha256 for _, shard in shards)]
    digests = b"".join(file_io.read_whole(staging.digests_path(name)) for name, _ in shards)
    duplicates, lines = list_duplicates(
        np.frombuffer(digests, np.uint8).reshape(-1, DIGEST_BYTES),
        [(split, shard.info.records) for split in splits for _, shard in splits[split]],
        lambda shard, records: _read_image_paths(staging, *shards[shard], records),
        manifest.duplicates.dropped,
    )
    new = replace(
        manifest,
        splits=infos,
        duplicates=duplicates,
        fingerprint=hashlib.sha256(json.dumps(facts).encode()).hexdigest(),
        tool_version=__version__,
    )
    return new, lines


def _read_image_paths(staging: RepairFolder, name: str, shard: WrittenShard, records: Sequence[int]) -> Iterator[str]:
    """Reads the paths of images from their records."""
    places = decode_index(file_io.read_whole(staging.index_path(name)), shard.info.bytes, shard.info.records)
    with file_io.open_file(staging.shard_path(name)) as file:
        for record in records:
            value = decode_example(read_record(file, *places[record].tolist())).get(keys.IMAGE_FILENAME)
            yield value[0].decode("utf-8", "surrogateescape") if isinstance(value, list) and value else ""


def _copy_quarantine(source: str, data: str) -> bool:
    """Copies the list of quarantined images, and their bytes as far as they can be read."""
    try:
        lines = file_io.read_bytes(file_io.join(source, file_names.QUARANTINE), _MAX_QUARANTINE_BYTES)
    except (OSError, DataError, FormatError):
        return False
    file_io.make_folder(file_io.join(data, file_names.QUARANTINED_BYTES_DIR))
    file_io.write_file(file_io.join(data, file_names.QUARANTINE), lines)
    folder = file_io.join(source, file_names.QUARANTINED_BYTES_DIR)
    for name in file_io.list_names(folder):
        with contextlib.suppress(OSError, FormatError):
            target = file_io.join(data, file_names.QUARANTINED_BYTES_DIR, name)
            with file_io.open_file(file_io.join(folder, name)) as file, file_io.create(target) as out:
                shutil.copyfileobj(file, out)
    return True
