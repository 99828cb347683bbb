"""Writes a clean dataset from a damaged one: every undamaged record, and no other.

The source is only read. Everything is written to a folder beside the output, which is renamed at the end. So the final
name holds the whole result or nothing. In a bucket, where no folder can be renamed, the manifest is written last. The
same call completes a run that was killed.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tfpipe._version import __version__
from tfpipe.dataset.history import History, cut_layers
from tfpipe.dataset.load import split_address
from tfpipe.dataset.parts import list_added, load_own_manifest, use_columns
from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.format import file_names
from tfpipe.format.layer import layer_file
from tfpipe.format.manifest import Manifest
from tfpipe.integrity.check_file import FileJob
from tfpipe.integrity.check_record import ContentCheck
from tfpipe.integrity.damage_kinds import Damage
from tfpipe.integrity.progress import run_on_files
from tfpipe.integrity.recover_manifest import recover_manifest
from tfpipe.integrity.repair_shard import RepairFolder, get_staged_name, repair_shard
from tfpipe.integrity.verify import WORKERS, dataset_jobs, list_files, measure
from tfpipe.integrity.write_repaired import write_repaired
from tfpipe.storage import file_io
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
        source: The directory of the dataset, or its URL in a bucket. Behind an `@` may stand the number of a layer.
        output: A directory or URL that does not exist yet, or is empty.
        quick: Whether to skip decoding the images. A record then counts as undamaged if its checksums hold and it fits
            the schema.
        workers: The number of worker processes. None: one for each core. 0: this process does all the work.
        observer: The observer of the job's progress.

    Raises:
        ConfigError: The output lies in the dataset, or holds something else.
        DataError: There is no dataset or no undamaged record, or the output cannot be written.
    """
    file_io.check_stores([source, output])
    source, layer = split_address(source)
    listing = list_files(source)
    if listing is None:
        raise DataError(f"{source} must be the directory of a dataset.")
    if layer and not layer.isdecimal():
        raise ConfigError(f"A repair writes all records that can be seen, got the view {layer!r}. Leave the @ out.")
    source = file_io.resolve_links(source)
    staging = RepairFolder(check_output(output, [source], {file_names.REPAIR, RepairFolder.ending}.__contains__))
    output = staging.output
    with file_io.explain_os_errors(f"write to {output}"):
        manifest, inferred = _manifest(source, listing)
        history = _open_layers(source, manifest, layer)
        manifest, unusable = _find_columns(history)
        jobs = dataset_jobs(source, manifest)
        files = [job for column in manifest.columns for job in dataset_jobs(column.directory, column)]
        layers = [file_io.join(source, layer_file(layer.number)) for layer in history.layers]
        identity = _identity(source, layers, [*jobs, *files], quick)
        if (done := _finished(output, identity)) is not None:
            file_io.remove_tree(staging.base)
            return done
    with staging.open(identity, f"repairs into {output}"):
        content = ContentCheck.from_manifest(manifest, decode=not quick)
        sized, shared = measure(jobs, source, listing), (content, manifest, staging)
        run_on_files(WORKERS, repair_shard, sized, shared, workers=workers, observer=observer)
        shards = _read_rows(staging, jobs)
        document = {"identity": identity, "source": source, "manifest_inferred": inferred}
        quarantined = history.base.quarantined  # whose list is copied
        folded = replace(manifest, schema=manifest.full_schema, columns=(), parts=(), quarantined=quarantined)
        write_repaired(staging, folded, shards, document, unusable)
        staging.publish()
    result = _finished(output, identity)
    assert result is not None
    return result


def _manifest(source: str, listing: Mapping[str, int]) -> tuple[Manifest, bool]:
    """Returns the dataset's manifest or one inferred from its records, and whether it was inferred."""
    try:
        manifest = load_own_manifest(source)
    except (FormatError, DataError) as error:
        inferred = recover_manifest(source, listing)
        if inferred is None:
            raise DataError(f"{source} cannot be repaired: {error}") from error
        return inferred, True
    if manifest.foreign is not None:
        raise ConfigError(
            f"{source} describes files that another program wrote, and a repair writes records as they are. "
            f"`tfpipe reshard {source} OUTPUT` writes the undamaged ones as a dataset of tfpipe and lists the others."
        )
    return manifest, False


def _open_layers(source: str, manifest: Manifest, layer: str) -> History:
    """Opens the layers up to the one asked for.

    Raises:
        ConfigError: A layer cannot be used, so that nobody knows which records are hidden.
        DataError: There is no such layer.
    """
    columns, numbers = list_added(source)
    numbers = list(cut_layers(source, numbers, int(layer))) if layer else numbers
    try:
        return History.open(replace(manifest, directory=source), columns, numbers)
    except FormatError as error:
        raise ConfigError(
            f"{str(error).rstrip('.')}. Nobody knows which records it hides, so say which layer to write: tfpipe "
            f"repair {source}@1 OUTPUT"
        ) from None


def _find_columns(history: History) -> tuple[Manifest, list[Damage]]:
    """Returns the manifest of all layers with the columns that can be used, and a damage for each other one."""
    manifest = history.load_state(history.newest, history.newest, with_columns=False)
    columns, unusable = list[Manifest](), []
    for name in history.columns:
        try:
            if (column := history.load_column(name, history.newest)) is not None:
                columns = [*columns, column]
                manifest = use_columns(manifest, columns)
        except (FormatError, DataError) as error:
            columns = list(manifest.columns)
            unusable.append(Damage(f"{file_names.COLUMNS_DIR}/{name}", "column", str(error).rstrip(".")))
    return manifest, unusable


def _identity(source: str, layers: list[str], jobs: list[FileJob], quick: bool) -> str:
    """Returns a hash of everything that shapes the result. After a change of the source a repair begins anew."""
    paths = [file_io.join(source, file_names.MANIFEST), *(job.path for job in jobs), *(job.index or "" for job in jobs)]
    paths += layers
    facts = [__version__, source, quick, *zip(paths, file_io.get_versions(paths), strict=True)]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _finished(output: str, identity: str) -> RepairResult | None:
    """Reads the result of a finished repair; None if there is no result yet.

    Raises:
        ConfigError: The output is the result of another repair.
    """
    try:
        document = json.loads(file_io.read_whole(file_io.join(output, file_names.REPAIR)))
    except FileNotFoundError:
        return None
    except ValueError:
        document = {}
    if not isinstance(document, dict) or document.get("identity") != identity:
        raise ConfigError(f"{output} holds the result of another repair; choose another name.")
    if not file_io.exists(file_io.join(output, file_names.MANIFEST)):  # a bucket gets one file after another
        return None
    lost = [Damage.from_json(damage) for damage in document["lost"]]
    return RepairResult(document["records"], document["shards"], lost, document["manifest_inferred"])


def _read_rows(staging: RepairFolder, jobs: list[FileJob]) -> dict[str, list[WrittenShard]]:
    """Returns the clean shards of each split, in the order of the jobs."""
    shards: dict[str, list[WrittenShard]] = {}
    for job in jobs:
        written = staging.find_written(get_staged_name(job))
        if written is None:
            raise DataError(
                f"{staging.row_path(get_staged_name(job))} was just written, and cannot be read. Run the same again."
            )
        shards.setdefault(job.split, []).append(written)
    return shards
