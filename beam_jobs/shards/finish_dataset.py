"""Makes a dataset complete once its shards are written: quarantine, duplicates, TFDS files, and the manifest last."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from beam_jobs.shards.work_dir import PlanHeader, WorkDir
from tfpipe._version import __version__
from tfpipe.errors import DataError
from tfpipe.format import file_names
from tfpipe.format.digest_groups import DIGEST_BYTES, list_duplicates
from tfpipe.format.manifest import Duplicates, Manifest
from tfpipe.format.schema import IMAGE_ENCODED
from tfpipe.format.shard_stats import merge_stats, sort_counts
from tfpipe.storage import file_io
from tfpipe.writer.written_shard import WrittenShard, make_dataset_files, make_split_info, renumber

_READS_AT_ONCE, _SHARDS_AT_ONCE = 16, 256


def check_bad(work: WorkDir, header: PlanHeader, shards: Sequence[WrittenShard]) -> None:
    """Raises an error if these shards have more bad images than allowed, after writing the list of these images."""
    num_bad = sum(shard.num_left_out for shard in shards)
    if num_bad <= header.max_bad:
        return
    _write_list(work, file_names.QUARANTINE, _encode_quarantine(work, shards))
    num_images = sum(shard.images for shard in header.shards)
    advice = "mend them and run again with `overwrite`"
    if header.records is not None:
        is_foreign = any(source.foreign is not None for source in header.records.sources.values())
        repair = "save the undamaged records with `tfpipe repair`"
        advice = "bring the files back as they were" if is_foreign else repair
    first = next(line for shard in shards if shard.num_left_out for line in work.read_left_out(shard.info.file))
    raise DataError(
        f"At most {header.max_bad} of {num_images} images may be bad, got {num_bad}, the first {first['path']}: "
        f"{first['reason']}. They are listed in {work.result(file_names.QUARANTINE)}; "
        f"{advice}, or allow more with `max_bad`.",
        page="damaged-data#images-that-are-broken",
    )


def check_present(work: WorkDir, files: Sequence[str], shards: Iterable[WrittenShard]) -> None:
    """Checks that every planned shard was written, and that this process finds it in the output."""
    present = {shard.info.file for shard in shards}.intersection(file_io.list_names(work.output))
    missing = [file for file in files if file not in present]
    if missing:
        raise DataError(
            f"All {len(files)} shards must be in {work.output}, but {len(missing)} are not, the first "
            f"{missing[0]}. Do all workers write to the same place? Run the same command again to make the others."
        )


def finish_dataset(work: WorkDir, header: PlanHeader, shards: Iterable[WrittenShard]) -> Manifest:
    """Writes the files of a dataset besides its shards, the manifest last."""
    by_file = {shard.info.file: shard for shard in shards}
    ordered = [by_file[shard.file] for shard in header.shards]
    check_bad(work, header, ordered)
    manifest = work.find_manifest(header.fingerprint)
    if manifest is not None:  # a complete dataset was checked, and its missing shards were made again
        _check_unchanged(work, manifest, _leave_out_empty(work, header, ordered))
    else:
        _write_list(work, file_names.QUARANTINE, _encode_quarantine(work, ordered))
        duplicates = _write_duplicates(work, header, ordered)
        _remove_stale_quarantine(work, ordered)
        num_bad = sum(shard.num_left_out for shard in ordered)
        manifest = _make_manifest(header, _leave_out_empty(work, header, ordered), num_bad, duplicates)
    for name, data in make_dataset_files(manifest).items():
        path = work.result(name)
        if not file_io.exists(path) or file_io.read_whole(path) != data:  # a complete dataset stays untouched
            work.write(name, data)
    return manifest


def _write_duplicates(work: WorkDir, header: PlanHeader, shards: Sequence[WrittenShard]) -> Duplicates:
    """Writes the list of the images that occur more than once, and returns their counts."""
    table = np.empty((sum(shard.info.records for shard in shards), DIGEST_BYTES), np.uint8)
    begin = 0
    for shard in shards:
        digests = file_io.read_range(work.digests_path(shard.info.file), 0, DIGEST_BYTES * shard.info.records)
        table[begin : begin + shard.info.records] = np.frombuffer(digests, np.uint8).reshape(-1, DIGEST_BYTES)
        begin += shard.info.records

    def read_paths(shard: int, records: list[int]) -> list[str]:
        info = shards[shard].info
        names = json.loads(file_io.read_whole(work.digests_path(info.file))[DIGEST_BYTES * info.records :])
        return [names[record] for record in records]

    sizes = [(planned.split, shard.info.records) for planned, shard in zip(header.shards, shards, strict=True)]
    duplicates, lines = list_duplicates(table, sizes, read_paths, header.dropped)
    _write_list(work, file_names.DUPLICATES, lines)
    return duplicates


def _check_unchanged(work: WorkDir, manifest: Manifest, splits: Mapping[str, Sequence[WrittenShard]]) -> None:
    """Checks that shards that were made again have the checksums in the manifest."""
    expected_sha256 = {shard.file: shard.sha256 for split in manifest.splits.values() for shard in split.shards}
    infos = [shard.info for shards in splits.values() for shard in shards]
    changed = [info.file for info in infos if expected_sha256.get(info.file) != info.sha256]
    if changed:
        # Shards taken from the manifest have no counts, so the next run cannot use them.
        file_io.remove(work.result(file_names.MANIFEST))
        file_io.remove_tree(work.path("rows"))
        raise DataError(
            f"{changed[0]} was missing or damaged and came out different when made again: images have changed since. "
            f"{work.output} is no longer complete; run the same command again to make all of it anew."
        )


def _remove_stale_quarantine(work: WorkDir, shards: Sequence[WrittenShard]) -> None:
    """Removes the images that an earlier run quarantined and this one could read."""
    if not any(shard.num_left_out for shard in shards):
        file_io.remove_tree(work.result(file_names.QUARANTINE_DIR))
    names = file_io.list_names(work.result(file_names.QUARANTINED_BYTES_DIR))
    if not names:
        return
    bad_shards = (shard for shard in shards if shard.num_left_out)
    kept = {line.get("bytes") for shard in bad_shards for line in work.read_left_out(shard.info.file)}
    for name in names:
        if f"bytes/{name}" not in kept:
            file_io.remove(work.result(file_names.QUARANTINED_BYTES_DIR, name))


def _leave_out_empty(
    work: WorkDir, header: PlanHeader, shards: Sequence[WrittenShard]
) -> dict[str, list[WrittenShard]]:
    """Removes the shards without a record and renumbers the others; returns these by split.

    A shard is empty only if all of its images are bad, so only if it has very few. If a crash comes between two
    renames, the next run makes the missing shards again.
    """
    splits: dict[str, list[WrittenShard]] = {}
    for split in dict.fromkeys(shard.split for shard in header.shards):
        split_shards = [shard for planned, shard in zip(header.shards, shards, strict=True) if planned.split == split]
        renumbered = renumber(split, split_shards)
        if not renumbered:
            raise DataError(f"Split {split!r} has no image that can be read; see {work.result(file_names.QUARANTINE)}.")
        work.move_shards((name, shard) for name, shard in renumbered if shard.info.file != name)
        splits[split] = [shard for _, shard in renumbered]
        for shard in split_shards:
            if not shard.info.records:
                work.remove_shard(shard.info.file)
    return splits


def _make_manifest(
    header: PlanHeader, splits: Mapping[str, Sequence[WrittenShard]], quarantined: int, duplicates: Duplicates
) -> Manifest:
    records, num_classes = header.records, len(header.label_names)
    image = header.form.to_json() if IMAGE_ENCODED in header.schema else {}
    stats = merge_stats(shard.stats for shards in splits.values() for shard in shards)
    if records is not None:
        image = records.image
        stats.changed.update(records.changed)
        stats.noticed.update(records.noticed)
    return Manifest(
        name=header.name,
        splits={split: make_split_info(split, shards, num_classes) for split, shards in splits.items()},
        label_names=header.label_names,
        schema=header.schema,
        seed=header.seed,
        changed=sort_counts(stats.changed),
        noticed=sort_counts(stats.noticed),
        skipped=sort_counts(header.skipped),
        quarantined=quarantined,
        duplicates=duplicates,
        image=image,
        fingerprint=header.fingerprint,
        tool_version=__version__,
    )


def _encode_quarantine(work: WorkDir, shards: Iterable[WrittenShard]) -> Iterator[bytes]:
    """Yields the line about each bad image of some shards. Several files are read at once: stores have high latency."""
    files = [shard.info.file for shard in shards if shard.num_left_out]
    with ThreadPoolExecutor(_READS_AT_ONCE) as threads:
        for begin in range(0, len(files), _SHARDS_AT_ONCE):
            for lines in threads.map(work.read_left_out, files[begin : begin + _SHARDS_AT_ONCE]):
                yield from (json.dumps(line).encode() + b"\n" for line in lines)


def _write_list(work: WorkDir, name: str, lines: Iterable[bytes]) -> None:
    """Writes lines to a file of the dataset; if there are none, removes the file that an earlier run wrote."""
    lines = iter(lines)
    first = next(lines, None)
    if first is None:
        file_io.remove(work.result(name))
        return
    with file_io.create(work.result(name), work.temporary(name), makes_folders=True) as out:
        out.write(first)
        out.writelines(lines)
