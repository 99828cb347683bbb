"""Writes a clean dataset from a damaged one: every undamaged record, and no other.

The source is only read. Everything is written to a folder beside the output, which is renamed at the end. So the final
name holds the whole result or nothing. The same call completes a run that was killed.
"""

import hashlib
import json
import os
import shutil
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
from tfpipe.integrity.repair_shard import RepairFolder, repair_shard
from tfpipe.integrity.verify import dataset_jobs, run_jobs, total_bytes
from tfpipe.integrity.write_repaired import write_repaired
from tfpipe.open_dataset import check_local, load_manifest
from tfpipe.system.file_io import explain_os_errors
from tfpipe.system.progress import Observer
from tfpipe.writer.working_folder import check_output
from tfpipe.writer.written_shard import WrittenShard


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
    with explain_os_errors(f"write to {output}"):
        manifest, inferred = _manifest(source)
        jobs = dataset_jobs(source, manifest)
        identity = _identity(source, jobs, quick)
        staging = RepairFolder(output)
        if (done := _finished(output, identity)) is not None:
            shutil.rmtree(staging.base, ignore_errors=True)
            return done
    with staging.open(identity, f"repairs into {output}"):
        content = ContentCheck.from_manifest(manifest, decode=not quick)
        with shared_counters(total_bytes(jobs), observer or Observer()) as counters:
            for _ in run_jobs(repair_shard, jobs, (content, staging, counters), workers):
                pass
        shards = _read_rows(staging, jobs)
        document = {"identity": identity, "source": source, "manifest_inferred": inferred}
        write_repaired(staging, manifest, shards, source, document)
        staging.publish()
    result = _finished(output, identity)
    assert result is not None
    return result


def _check(source: str, output: str) -> tuple[str, str]:
    """Returns both paths as absolute paths without links."""
    for path in (source, output):
        check_local(path)
    if not os.path.isdir(source):
        raise DataError(f"{source} must be the directory of a dataset.")
    return os.path.realpath(source), check_output(output, [source], lambda name: name == file_names.REPAIR)


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


def _read_rows(staging: RepairFolder, jobs: list[FileJob]) -> dict[str, list[WrittenShard]]:
    """Returns the clean shards of each split, in the order of the jobs."""
    shards: dict[str, list[WrittenShard]] = {}
    for job in jobs:
        written = staging.find_written(job.name)
        if written is None:
            raise DataError(f"{staging.row_path(job.name)} was just written, and cannot be read. Run the same again.")
        shards.setdefault(job.split, []).append(written)
    return shards
