"""From the rows of all shards to a complete dataset: quarantine, duplicates, metadata, and the manifest last."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace

from beam_jobs.shards.duplicates import find_duplicates
from beam_jobs.shards.record_source import open_source
from beam_jobs.shards.work_dir import PlanHeader, WorkDir, WrittenShard
from beam_jobs.storage import filesystem
from tfpipe._version import __version__
from tfpipe.errors import DataError
from tfpipe.format import file_names, manifest_json, tfds_metadata
from tfpipe.format.manifest import Duplicates, Manifest, ShardInfo
from tfpipe.format.shard_stats import merge_stats, sort_counts


def check_bad(work: WorkDir, header: PlanHeader, rows: Sequence[WrittenShard], max_bad: int) -> None:
    """Ends the job once more images are bad than allowed, leaving the list of them.

    Raises:
        DataError: They are more.
    """
    num_bad = sum(len(row.quarantined) for row in rows)
    if num_bad <= max_bad:
        return
    _write_quarantine(work, rows)
    num_images = sum(slot.images for slot in header.shards)
    first = next(line for row in rows for line in row.quarantined)
    raise DataError(
        f"At most {max_bad} of {num_images} images may be bad, got {num_bad}, the first {first['path']}: "
        f"{first['reason']}. They are listed in {work.target(file_names.QUARANTINE)}; {open_source(header).advice}, or "
        "allow more with `max_bad`."
    )


def check_present(work: WorkDir, header: PlanHeader, rows: Sequence[WrittenShard]) -> None:
    """Sees that every planned shard was made, and lies where the dataset is finished.

    Raises:
        DataError: One is missing.
    """
    here = {row.file for row in rows}.intersection(filesystem.names(work.output))
    missing = [slot.file for slot in header.shards if slot.file not in here]
    if missing:
        raise DataError(
            f"All {len(header.shards)} shards must be in {work.output}, but {len(missing)} are not, the first "
            f"{missing[0]}. Do all workers write to the same place? Run the same command again to make the others."
        )


def finish_dataset(work: WorkDir, header: PlanHeader, rows: Iterable[WrittenShard], max_bad: int) -> Manifest:
    """Writes what stands beside the shards.

    Args:
        work: The dataset directory under construction.
        header: Its plan.
        rows: One for every planned shard, in any order.
        max_bad: How many images may be quarantined.

    Raises:
        DataError: More images are bad than allowed, or a split has no good one.
    """
    by_file = {row.file: row for row in rows}
    ordered = [by_file[slot.file] for slot in header.shards]
    check_bad(work, header, ordered, max_bad)
    known = work.find_manifest(header)
    if known is not None:  # a complete dataset was checked, and what was missing made again
        _check_unchanged(work, known, [row for _, row in _without_empty(work, header, ordered)])
        _write_tfds_files(work, known)
        return known
    _write_quarantine(work, ordered)
    _remove_stale_quarantine(work, ordered)
    duplicates, lines = find_duplicates(work, header, ordered)
    if lines:
        work.write(file_names.DUPLICATES, lines)
    else:
        filesystem.remove(work.target(file_names.DUPLICATES))
    bad = sum(len(row.quarantined) for row in ordered)
    manifest = _manifest(header, _without_empty(work, header, ordered), bad, duplicates)
    _write_tfds_files(work, manifest)
    work.write(file_names.MANIFEST, manifest_json.dumps(manifest).encode())
    return manifest


def _check_unchanged(work: WorkDir, manifest: Manifest, rows: Sequence[WrittenShard]) -> None:
    """Sees that shards made again are the ones that the manifest describes."""
    known = {shard.file: shard.sha256 for split in manifest.splits.values() for shard in split.shards}
    other = [row.file for row in rows if known.get(row.file) != row.sha256]
    if other:
        # Rows taken from the manifest know no counts, so nothing of this can be gone on with.
        filesystem.remove(work.target(file_names.MANIFEST))
        filesystem.remove_tree(work.path("rows"))
        raise DataError(
            f"{other[0]} was missing or damaged and came out different when made again: images have changed since. "
            f"{work.output} is no longer complete; run the same command again to make all of it anew."
        )


def _write_tfds_files(work: WorkDir, manifest: Manifest) -> None:
    """Those that are not there as they must be: a complete dataset stays untouched."""
    texts = {
        file_names.TFDS_FEATURES: tfds_metadata.features_json(manifest),
        file_names.TFDS_INFO: tfds_metadata.dataset_info_json(manifest),
    }
    for name, text in (texts | tfds_metadata.label_files(manifest)).items():
        path = work.target(name)
        if not filesystem.exists(path) or filesystem.read_bytes(path) != text.encode():
            work.write(name, text.encode())


def _write_quarantine(work: WorkDir, rows: Sequence[WrittenShard]) -> None:
    lines = [json.dumps(line) + "\n" for row in rows for line in row.quarantined]
    if lines:
        work.write(file_names.QUARANTINE, "".join(lines).encode())


def _remove_stale_quarantine(work: WorkDir, rows: Sequence[WrittenShard]) -> None:
    """What an earlier run set aside and this one could read."""
    lines = [line for row in rows for line in row.quarantined]
    if not lines:
        filesystem.remove_tree(work.target(file_names.QUARANTINE_DIR))
    kept = {line["bytes"] for line in lines if "bytes" in line}
    for name in filesystem.names(work.target(file_names.QUARANTINED_BYTES_DIR)):
        if f"bytes/{name}" not in kept:
            filesystem.remove(work.target(file_names.QUARANTINED_BYTES_DIR, name))


def _without_empty(work: WorkDir, header: PlanHeader, rows: Sequence[WrittenShard]) -> list[tuple[str, WrittenShard]]:
    """Split and row of every shard that has records, renumbered where some have none.

    A shard is empty only when all of its images are bad, which takes very few images to a shard. Should a crash
    come between two renames, the next run makes the missing shards again.
    """
    kept: list[tuple[str, WrittenShard]] = []
    for split in dict.fromkeys(slot.split for slot in header.shards):
        of_split = [row for slot, row in zip(header.shards, rows, strict=True) if slot.split == split]
        full = [row for row in of_split if row.records]
        if not full:
            raise DataError(f"Split {split!r} has no image that can be read; see {work.target(file_names.QUARANTINE)}.")
        for k, row in enumerate(full):
            name = file_names.shard_name(split, k, len(full))
            if name != row.file:
                filesystem.rename(work.target(row.file), work.target(name))
                filesystem.rename(
                    work.target(file_names.index_name(row.file)), work.target(file_names.index_name(name))
                )
            kept.append((split, replace(row, file=name)))
        for row in of_split:
            if not row.records:
                filesystem.remove(work.target(row.file))
                filesystem.remove(work.target(file_names.index_name(row.file)))
    return kept


def _manifest(
    header: PlanHeader, rows: Sequence[tuple[str, WrittenShard]], quarantined: int, duplicates: Duplicates
) -> Manifest:
    splits = {}
    source = open_source(header)
    for split in dict.fromkeys(split for split, _ in rows):
        mine = [row for of, row in rows if of == split]
        splits[split] = merge_stats(row.stats for row in mine).to_split_info(
            split,
            [ShardInfo(row.file, row.records, row.bytes, row.sha256) for row in mine],
            num_classes=len(header.label_names),
        )
    stats = merge_stats(row.stats for _, row in rows)
    stats.changed.update(source.changed)
    stats.noticed.update(source.noticed)
    return Manifest(
        name=header.name,
        splits=splits,
        label_names=header.label_names,
        schema=header.schema,
        seed=header.seed,
        changed=sort_counts(stats.changed),
        noticed=sort_counts(stats.noticed),
        skipped=dict(sorted(header.skipped.items())),
        quarantined=quarantined,
        duplicates=duplicates,
        image=source.image_form,
        fingerprint=header.fingerprint,
        tool_version=__version__,
    )
