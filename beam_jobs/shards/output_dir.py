"""Before the work: whether the output may be written, what an earlier run left there, and the plan on disk."""

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, replace

from filelock import FileLock, Timeout

from beam_jobs.config import ShardConfig
from beam_jobs.inputs.archive import open_unpacked, unpack_tar
from beam_jobs.plan.image_ref import encode_line
from beam_jobs.plan.split_and_shard import Listing, Plan
from beam_jobs.shards.finish_dataset import complete_manifest
from beam_jobs.shards.record_source import open_source
from beam_jobs.shards.work_dir import PlanHeader, PlannedShard, WorkDir, WrittenShard
from beam_jobs.storage import filesystem
from tfpipe._version import __version__
from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.format import file_names
from tfpipe.format.manifest import FORMAT_VERSION, Manifest
from tfpipe.format.schema import Schema, image_schema
from tfpipe.format.shard_stats import ShardStats
from tfpipe.images.normalize import codec_versions

_NEW, _OLD = ".tfpipe-new", ".tfpipe-old"


def check_output(config: ShardConfig) -> None:
    """Refuses an output that must not be written to, before anything costs time.

    Raises:
        ConfigError: It lies in the input, is a file, or holds files that tfpipe did not write.
    """
    output = filesystem.resolved(config.output)
    for path in config.inputs:
        source = filesystem.resolved(path)
        if output == source or output.startswith(source + "/"):
            raise ConfigError(f"The output must not lie inside the input, got {config.output} in {path}.")
    if not filesystem.is_remote(output) and os.path.exists(output) and not os.path.isdir(output):
        raise ConfigError(f"The output must be a directory, but {config.output} is a file.")
    _recover_swap(output)
    found = filesystem.names(output)
    strange = [name for name in found if not _is_ours(name)]
    # A note beside a dataset does not keep a run from going on, but --overwrite would take it away.
    if strange and (config.overwrite or len(strange) == len(found)):
        raise ConfigError(
            f"{config.output} holds files that tfpipe did not write, such as {strange[0]}; choose an empty directory."
        )


def _is_ours(name: str) -> bool:
    known = {
        file_names.MANIFEST,
        file_names.TFDS_FEATURES,
        file_names.TFDS_INFO,
        file_names.DUPLICATES,
        file_names.REPAIR,
    }
    if name in known | {file_names.INDEX_DIR, file_names.QUARANTINE_DIR, file_names.WORK_DIR} or name.endswith(
        ".labels.txt"
    ):
        return True
    try:
        file_names.parse_shard_name(name)
    except FormatError:
        return False
    return True


@contextlib.contextmanager
def open_work(config: ShardConfig, plan: Plan) -> Iterator[WorkDir]:
    """The dataset directory to write to, with the plan in it, locked; completes the exchange for --overwrite.

    Raises:
        ConfigError: The output holds something else and may not be overwritten.
        DataError: It cannot be written, or another process writes to it.
    """
    with _lock(config.output):
        with filesystem.explain_os_errors(f"write to {config.output}"):
            work, header, staged = _choose(config, plan)
            with _leaving_nothing(work):
                _prepare(work, header, plan)
        yield work
        with filesystem.explain_os_errors(f"write to {config.output}"):
            filesystem.remove_tree(work.base)
            if staged:
                _swap(filesystem.resolved(config.output))


@contextlib.contextmanager
def _leaving_nothing(work: WorkDir) -> Iterator[None]:
    """Removes what was prepared when the block fails or is interrupted, unless an earlier run's plan is there."""
    try:
        yield
    except BaseException:
        if not work.has_plan():
            for name in filesystem.names(work.base):
                if name != "lock":
                    filesystem.remove_tree(work.path(name))
                    filesystem.remove(work.path(name))
        raise


def _choose(config: ShardConfig, plan: Plan) -> tuple[WorkDir, PlanHeader, bool]:
    """Where to write, the plan's header, and whether that place is to be exchanged with the output at the end."""
    header = plan_header(config, plan)
    work = WorkDir(filesystem.resolved(config.output))
    if _is_free_for(work, header):
        return work, header, False
    if not config.overwrite:
        raise ConfigError(
            f"{config.output} holds a dataset made from other images, with other options or by another version of "
            f"tfpipe. Choose an empty directory, or replace it with --overwrite."
        )
    staged = WorkDir(work.output + _NEW)
    if not _is_free_for(staged, header):
        filesystem.remove_tree(staged.output)
    return staged, header, True


def _is_free_for(work: WorkDir, header: PlanHeader) -> bool:
    """Whether the directory is empty, or belongs to the same plan."""
    if filesystem.exists(work.target(file_names.MANIFEST)):
        with contextlib.suppress(FormatError):
            return complete_manifest(work, header) is not None
        return False
    if work.has_plan():
        with contextlib.suppress(FormatError):
            return work.header().fingerprint == header.fingerprint
        return False
    # A run that ended before its plan was whole left a working folder; shards without either are not to be trusted.
    return not any(_is_ours(name) and name != file_names.WORK_DIR for name in filesystem.names(work.output))


def plan_header(config: ShardConfig, plan: Plan) -> PlanHeader:
    """What all workers share, with the fingerprint of the plan, whose lines are made for it one by one."""
    listing = plan.listing
    slots, at, digest = [], 0, hashlib.sha256()
    for shard in plan.shards:
        begin = at
        for line in map(encode_line, plan.lines(shard)):
            digest.update(line)
            at += len(line)
        slots.append(PlannedShard(shard.split, shard.shard_index, shard.num_shards, len(shard.images), begin, at))
    header = PlanHeader(
        name=listing.name,
        root=filesystem.absolute(listing.root),
        fingerprint="",
        seed=config.seed,
        form=listing.united.form if listing.united else config.form,
        schema=listing.united.schema if listing.united else _schema(listing),
        label_names=listing.label_names,
        skipped=dict(listing.skipped or {}),
        dropped=listing.dropped,
        keep_quarantined=config.keep_quarantined,
        unpacked={},
        shards=tuple(slots),
        records=listing.united.records if listing.united else None,
    )
    return replace(header, fingerprint=_fingerprint(header, digest.hexdigest()))


def _schema(listing: Listing) -> Schema:
    return image_schema(
        labelled=bool(listing.label_names),
        boxes=listing.has_boxes,
        box_labels=listing.has_box_labels,
        extra=listing.extra,
    )


def _fingerprint(header: PlanHeader, lines: str) -> str:
    """Everything that shapes the result; not where the input lies, nor how many workers there are."""
    shaping = json.dumps(
        {
            "format_version": FORMAT_VERSION,
            "tool_version": __version__,
            "codecs": codec_versions(),
            "lines": lines,
            "name": header.name,
            "seed": header.seed,
            "form": asdict(header.form),
            "schema": header.schema.to_json(),
            "label_names": header.label_names,
            "skipped": header.skipped,
            "dropped": header.dropped,
            "keep_quarantined": header.keep_quarantined,
            "shards": [asdict(slot) for slot in header.shards],
            **open_source(header).get_fingerprint_facts(),
        },
        sort_keys=True,
    )
    return hashlib.sha256(shaping.encode()).hexdigest()


def _prepare(work: WorkDir, header: PlanHeader, plan: Plan) -> None:
    """Writes the plan, its header last, and what else the workers need; leaves finished shards alone."""
    filesystem.remove_tree(work.path("tmp"))
    unpacked = {location: work.path("unpacked", _unpacked_name(location)) for location in plan.listing.unpack}
    for location, tar in unpacked.items():
        if not filesystem.exists(tar):
            with filesystem.create(tar) as out:
                unpack_tar(filesystem.join(header.root, location), out)
    known = complete_manifest(work, header)
    if known is not None and not _has_lists(work, known):
        filesystem.remove(
            work.target(file_names.MANIFEST)
        )  # made again from the images, like anything else that is missing
        known = None
    for shard in (one for split in known.splits.values() for one in split.shards) if known else ():
        if work.row(shard.file) is None:
            work.write_row(WrittenShard(shard.file, shard.records, shard.bytes, shard.sha256, ShardStats(), []))
    write_plan(work, replace(header, unpacked=unpacked), plan)


def write_plan(work: WorkDir, header: PlanHeader, plan: Plan) -> None:
    """Writes the lines, then the header, which says that they are whole."""
    with filesystem.create(work.path("plan.jsonl")) as out:
        for planned in plan.shards:
            out.writelines(map(encode_line, plan.lines(planned)))
    filesystem.write_bytes(work.path("plan.json"), header.dumps())


def unpack_sample(header: PlanHeader, plan: Plan, folder: str) -> tuple[dict[str, str], float]:
    """Takes the planned images out of compressed tar files, and nothing else.

    Returns:
        `PlanHeader.unpacked`, files in `folder` with holes, in which the images have their places; and the seconds
        that unpacking these archives whole would take, without the writing.
    """
    unpacked: dict[str, str] = {}
    seconds = 0.0
    places: dict[str, set[tuple[int, int]]] = {location: set() for location in plan.listing.unpack}
    for image in (image for shard in plan.shards for image in plan.lines(shard)):
        if image.location in places:
            places[image.location].add((image.offset, image.size))
    os.makedirs(folder, exist_ok=True)
    for location in filter(places.__getitem__, places):
        started = time.monotonic()
        unpacked[location] = filesystem.join(folder, _unpacked_name(location))
        with open_unpacked(filesystem.join(header.root, location)) as tar, open(unpacked[location], "wb") as out:
            for offset, size in sorted(places[location]):
                tar.seek(offset)
                out.seek(offset)
                out.write(tar.read(size))
            whole = plan.listing.refs.end_in(location)
            seconds += (time.monotonic() - started) * whole / max(1, tar.tell())
    return unpacked, seconds * len(places) / max(1, len(unpacked))


def _unpacked_name(location: str) -> str:
    return hashlib.sha256(location.encode("utf-8", "surrogateescape")).hexdigest()[:16] + ".tar"


def _has_lists(work: WorkDir, manifest: Manifest) -> bool:
    """Whether the lists that the manifest promises are there; unlike the TFDS files they cannot be had from it."""
    duplicates = bool(manifest.duplicates.within or manifest.duplicates.across)
    promised = {file_names.QUARANTINE: manifest.quarantined > 0, file_names.DUPLICATES: duplicates}
    return all(filesystem.exists(work.target(name)) for name, is_promised in promised.items() if is_promised)


@contextlib.contextmanager
def _lock(output: str) -> Iterator[None]:
    """Keeps a second process off the same output; an object store has no locks."""
    if filesystem.is_remote(output):
        yield
        return
    folder = filesystem.join(output, file_names.WORK_DIR)
    is_new = not os.path.exists(output)
    with filesystem.explain_os_errors(f"write to {output}"):
        os.makedirs(folder, exist_ok=True)
        lock = FileLock(filesystem.join(folder, "lock"), timeout=0)
        try:
            lock.acquire()
        except Timeout as error:
            raise DataError(f"Another process writes to {output}; wait for it or choose another directory.") from error
    try:
        yield
    finally:
        if filesystem.names(folder) == ["lock"]:  # refused or interrupted before all was prepared
            filesystem.remove_tree(folder)
            if is_new and not os.listdir(output):
                os.rmdir(output)
        lock.release()


def _swap(output: str) -> None:
    """Puts the new dataset in the old one's place. Both are whole at every moment; `_recover_swap` ends a cut swap."""
    if filesystem.is_remote(output):
        _move_objects(output)
        return
    os.rename(output, output + _OLD)
    os.rename(output + _NEW, output)
    filesystem.remove_tree(output + _OLD)


def _recover_swap(output: str) -> None:
    """Ends what a run that was killed during `_swap` began."""
    if filesystem.is_remote(output) or not os.path.exists(output + _OLD):
        return
    if not os.path.exists(output):
        whole = os.path.exists(filesystem.join(output + _NEW, file_names.MANIFEST))
        os.rename(output + _NEW if whole else output + _OLD, output)
    filesystem.remove_tree(output + _OLD)


def _move_objects(output: str) -> None:
    """The same on an object store, object by object: the old manifest goes first, the new one comes last."""
    filesystem.remove(filesystem.join(output, file_names.MANIFEST))
    new = [name for name, _ in filesystem.list_tree(output + _NEW)]
    for name, _ in list(filesystem.list_tree(output)):
        filesystem.remove(filesystem.join(output, name))
    for name in sorted(new, key=lambda name: name == file_names.MANIFEST):
        filesystem.rename(filesystem.join(output + _NEW, name), filesystem.join(output, name))
