"""Writes a clean dataset from a damaged one: every undamaged record, and no other.

The source is only read. Everything is written to a folder beside the output, which is renamed at the end. So the final
name holds the whole result or nothing. The same call completes a run that was killed.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass

from tfpipe._version import __version__
from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.format import file_names
from tfpipe.format.manifest import Manifest
from tfpipe.integrity.check_file import FileJob
from tfpipe.integrity.check_record import ContentCheck
from tfpipe.integrity.damage_kinds import Damage
from tfpipe.integrity.progress import shared_counters
from tfpipe.integrity.recover_manifest import recover_manifest
from tfpipe.integrity.repair_shard import RepairedShard, Staging, repair_shard
from tfpipe.integrity.verify import dataset_jobs, run_jobs, total_bytes
from tfpipe.integrity.write_repaired import write_repaired
from tfpipe.open_dataset import check_local, load_manifest
from tfpipe.system import file_io
from tfpipe.system.progress import Observer

STAGING = ".tfpipe-repair"
_FOLDERS = ("shards", "rows", "digests")


@dataclass(frozen=True, slots=True)
class RepairResult:
    """The result of a repair.

    Attributes:
        records: The number of records that were written.
        shards: The number of shards that were written.
        lost: The damages of the source, by its file names.
        inferred: Whether the manifest was made from the records, because the source's manifest cannot be used.
    """

    records: int
    shards: int
    lost: list[Damage]
    inferred: bool


def repair(
    source: str,
    output: str,
    *,
    quick: bool = False,
    workers: int | None = None,
    observer: Observer | None = None,
) -> RepairResult:
    """Writes the undamaged records of a dataset as a new one.

    Args:
        source: The directory of the dataset.
        output: A directory that does not exist yet, or is empty.
        quick: Whether to skip decoding the images. A record then counts as undamaged if its checksums hold and it fits
            the schema.
        workers: The number of worker processes. None: one for each core. 0: this process does all the work.
        observer: The observer of the job's progress.

    Raises:
        ConfigError: The output is not a directory that can be written to.
        DataError: There is no dataset or no undamaged record, or the output cannot be written.
    """
    source, output = _check(source, output)
    try:
        manifest, inferred = _manifest(source)
        jobs = dataset_jobs(source, manifest)
        identity = _identity(source, jobs, quick)
        if (done := _finished(output, identity)) is not None:
            shutil.rmtree(output + STAGING, ignore_errors=True)
            return done
        with _staging(output, identity) as staging:
            content = ContentCheck.from_manifest(manifest, decode=not quick)
            with shared_counters(total_bytes(jobs), observer or Observer()) as counters:
                for _ in run_jobs(repair_shard, jobs, (content, staging, counters), workers):
                    pass
            rows = [_row(staging, job) for job in jobs]
            document = {"identity": identity, "source": source, "manifest_inferred": inferred}
            write_repaired(staging, manifest, rows, source, document)
            _publish(staging.path("data"), output)
    except OSError as error:
        raise DataError(f"{output} cannot be written: {error.strerror or error}.") from error
    result = _finished(output, identity)
    assert result is not None
    return result


def _check(source: str, output: str) -> tuple[str, str]:
    """Returns both paths as absolute paths without links."""
    for path in (source, output):
        check_local(path)
    if not os.path.isdir(source):
        raise DataError(f"{source} must be the directory of a dataset.")
    real, target = os.path.realpath(source), os.path.realpath(output)
    if target == real or target.startswith(real + os.sep) or real.startswith(target + os.sep):
        raise ConfigError(f"The output must lie outside of the dataset, got {output} for {source}.")
    is_in_use = os.path.lexists(target) and (not os.path.isdir(target) or bool(os.listdir(target)))
    if is_in_use and not os.path.isfile(os.path.join(target, file_names.REPAIR)):
        raise ConfigError(f"{output} must not exist yet; choose another name.")
    return real, target


def _manifest(source: str) -> tuple[Manifest, bool]:
    """Returns the dataset's manifest or one inferred from its records, and whether it was inferred."""
    try:
        manifest = load_manifest(source)
    except (FormatError, DataError) as error:
        inferred = recover_manifest(source)
        if inferred is None:
            raise DataError(f"{source} cannot be repaired: {error}") from error
        return inferred, True
    if manifest.foreign is not None:
        raise ConfigError(
            f"{source} describes files that another program wrote, and a repair writes records as they are. "
            f"`tfpipe reshard {source} OUTPUT` writes the undamaged ones as a dataset of tfpipe and lists the others."
        )
    return manifest, False


def _identity(source: str, jobs: list[FileJob], quick: bool) -> str:
    """Returns a hash of everything that shapes the result. After a change of the source a repair begins anew."""
    paths = [os.path.join(source, file_names.MANIFEST), *(job.path for job in jobs), *(job.index or "" for job in jobs)]
    facts: list[object] = [__version__, source, quick]
    for path in paths:
        try:
            status = os.stat(path)
            facts.append((path, status.st_size, status.st_mtime_ns))
        except OSError:
            facts.append((path, None))
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _finished(output: str, identity: str) -> RepairResult | None:
    """Reads the result of a finished repair; None if there is no result yet.

    Raises:
        ConfigError: The output is the result of another repair.
    """
    try:
        with open(os.path.join(output, file_names.REPAIR), "rb") as file:
            document = json.load(file)
    except FileNotFoundError:
        return None
    except ValueError:
        document = {}
    if not isinstance(document, dict) or document.get("identity") != identity:
        raise ConfigError(f"{output} holds the result of another repair; choose another name.")
    lost = [Damage.from_json(damage) for damage in document["lost"]]
    return RepairResult(document["records"], document["shards"], lost, document["manifest_inferred"])


@contextlib.contextmanager
def _staging(output: str, identity: str) -> Iterator[Staging]:
    """Opens and locks the working folder. It is removed if the block ends without an error."""
    staging = Staging(output + STAGING)
    os.makedirs(staging.base, exist_ok=True)
    with open(staging.path("lock"), "wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(f"Another process repairs into {output}; wait for it or choose another name.") from None
        _prepare(staging, identity)
        yield staging
        shutil.rmtree(staging.base)


def _prepare(staging: Staging, identity: str) -> None:
    """Removes everything from the working folder that does not belong to this repair."""
    plan = staging.path("plan.json")
    old_identity = ""
    with contextlib.suppress(OSError, UnicodeDecodeError), open(plan, encoding="utf-8") as file:
        old_identity = file.read(1000)
    for name in os.listdir(staging.base):
        is_kept = name == "lock" or (old_identity == identity and name in (*_FOLDERS, "plan.json"))
        if not is_kept:
            path = staging.path(name)
            shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.remove(path)
    for folder in _FOLDERS:
        os.makedirs(staging.path(folder), exist_ok=True)
    file_io.write_file(plan, identity.encode())


def _row(staging: Staging, job: FileJob) -> RepairedShard:
    with open(staging.path("rows", f"{job.name}.json"), "rb") as file:
        return RepairedShard.from_json(json.load(file))


def _publish(data: str, output: str) -> None:
    """Gives the whole result its final name, and makes sure that the name is on disk."""
    sync_folders(data)
    os.rename(data, output)
    _sync(os.path.dirname(output))


def sync_folders(top: str) -> None:
    """Puts the names of a tree's files on disk. The files themselves are there since they were written."""
    for folder, _, _ in os.walk(top):
        _sync(folder)


def _sync(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
