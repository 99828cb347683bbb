"""Writes a clean dataset from a damaged one, as a whole or not at all; the same call completes a killed run.

`repair_shard` is the work of a worker process.
"""

import contextlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, groupby

from tfpipe._version import __version__
from tfpipe.dataset.dataset_files import load_own_manifest, use_columns
from tfpipe.dataset.history import History
from tfpipe.dataset.load import split_address
from tfpipe.engine.record_reader import RecordReader
from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.format import file_names
from tfpipe.format import schema as keys
from tfpipe.format.catalog import Catalog
from tfpipe.format.example import Feature, decode_example, encode_example
from tfpipe.format.manifest import Duplicates, ImageSizes, Manifest, ShardInfo, SplitInfo
from tfpipe.format.recovery.hashed_reader import HashedReader
from tfpipe.format.recovery.scan import Intact, scan
from tfpipe.format.schema import image_schema
from tfpipe.format.shard_stats import ShardStats
from tfpipe.format.tfrecord import FRAME_BYTES
from tfpipe.images.errors import BadImage
from tfpipe.images.seekable import is_seekable
from tfpipe.integrity import check_file
from tfpipe.integrity.check_record import Content, ContentCheck
from tfpipe.integrity.damage_kinds import Damage
from tfpipe.integrity.foreign.infer_schema import infer_schema
from tfpipe.integrity.foreign.scan_file import FileScan, Keys
from tfpipe.integrity.progress import run_on_files
from tfpipe.integrity.verify import WORKERS, dataset_jobs, list_files, measure, shard_files
from tfpipe.storage import file_io
from tfpipe.system.progress import Observer
from tfpipe.writer.count_record import count_record
from tfpipe.writer.shard_folder import ShardFolder
from tfpipe.writer.working_folder import check_output, hash_values
from tfpipe.writer.written_shard import WrittenShard, make_dataset_files, make_split_info, renumber

_MAX_LABELS = 1_000_000
_MAX_LABELS_BYTES = 100 << 20
_KEYS = Keys((), keys.CLASS_LABEL, keys.CLASS_TEXT)
_MAY_BE_HIDDEN = "without the index of the shard nobody knows whether it was deleted"
_LABELS_FILE = f"{keys.CLASS_LABEL.replace('/', '-')}.labels.txt"

_Splits = Mapping[str, Sequence[tuple[str, WrittenShard]]]
"""The shards of each split that have records, each behind its name in the source."""


@dataclass(frozen=True, slots=True)
class RepairResult:
    """The result of a repair."""

    records: int
    shards: int
    lost: list[Damage]  # by file names of the source
    inferred: bool  # whether the manifest was made from the records


class RepairFolder(ShardFolder):
    """The working folder of a repair."""

    ending = ".tfpipe-repair"


def repair(
    source: str, output: str, *, quick: bool = False, workers: int | None = None, observer: Observer | None = None
) -> RepairResult:
    """Writes the undamaged records of a dataset, or of a layer of it, as a new one; `quick` decodes no images."""
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
        identity = _identity(source, history, [*jobs, *files], quick)
        if (done := _finished(staging, identity)) is not None:
            staging.remove()
            return done
    with staging.open(identity, f"repairs into {output}"):
        content = ContentCheck.from_manifest(manifest, decode=not quick)
        sized, shared = measure(jobs, source, listing), (content, manifest, staging)
        written = run_on_files(WORKERS, repair_shard, sized, shared, workers=workers, observer=observer)
        shards: dict[str, list[WrittenShard]] = {}
        for job, shard in zip(jobs, written, strict=True):
            shards.setdefault(job.split, []).append(shard)
        document = {"identity": identity, "source": source, "manifest_inferred": inferred}
        folded = replace(manifest, schema=manifest.full_schema, columns=(), layers=())
        _write_dataset(staging, folded, shards, document, unusable)
        staging.publish()
    result = _finished(staging, identity)
    assert result is not None
    return result


def _manifest(source: str, listing: Mapping[str, int]) -> tuple[Manifest, bool]:
    """Returns the dataset's manifest or one inferred from its records, and whether it was inferred."""
    try:
        manifest = load_own_manifest(source)
    except (FormatError, DataError) as error:
        inferred = _recover_manifest(source, listing)
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
    """Opens the layers up to `layer`, by default all, and checks the newest of these."""
    try:
        base = replace(manifest, directory=source)
        history = History(base, Catalog()) if layer == "1" else History.read(base)
        return (history.cut(int(layer)) if layer else history).check_newest()
    except FormatError as error:
        raise ConfigError(
            f"{str(error).rstrip('.')}. Nobody knows which records it hides, so say which layer to write: tfpipe "
            f"repair {source}@1 OUTPUT"
        ) from None


def _find_columns(history: History) -> tuple[Manifest, list[Damage]]:
    """Returns the manifest of all layers with its usable columns, and a damage for each unusable column."""
    manifest = history.load_state(history.newest, history.newest, with_columns=False)
    columns, unusable = list[Manifest](), []
    for name in history.catalog.list_names("column"):
        try:
            if (column := history.load_column(name, history.newest)) is not None:
                columns = [*columns, column]
                manifest = use_columns(manifest, columns)
        except (FormatError, DataError) as error:
            columns = list(manifest.columns)
            unusable.append(Damage(f"{file_names.COLUMNS_DIR}/{name}", "column", str(error).rstrip(".")))
    return manifest, unusable


def _identity(source: str, history: History, jobs: list[check_file.FileJob], quick: bool) -> str:
    """Returns a hash of everything that shapes the result. After a change of the source a repair begins anew."""
    paths = [file_io.join(source, file_names.MANIFEST), *(job.path for job in jobs), *(job.index or "" for job in jobs)]
    layers = [layer.job for layer in history.catalog.layers]
    return hash_values(__version__, source, quick, layers, *zip(paths, file_io.get_versions(paths), strict=True))


def _finished(staging: RepairFolder, identity: str) -> RepairResult | None:
    """Reads the result of a finished repair; None if there is no result yet."""
    document = staging.find_report(file_names.REPAIR, identity)
    # In a bucket files appear one after the other, so the report alone does not prove a finished repair.
    if document is None or not file_io.exists(file_io.join(staging.output, file_names.MANIFEST)):
        return None
    lost = [Damage(**damage | {"key": damage["key"] or ""}) for damage in document["lost"]]
    return RepairResult(document["records"], document["shards"], lost, document["manifest_inferred"])


def _write_dataset(
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
    staging.move_shards(chain(*splits.values()))
    losses = [damage.to_json() for damage in lost]
    losses += [damage for shard in chain(*shards.values()) for damage in shard.left_out]
    infos = [shard.info for _, shard in chain(*splits.values())]
    counts = {"records": sum(info.records for info in infos), "shards": len(infos)}
    text = json.dumps({"version": 1, "tool_version": __version__, **document, **counts, "lost": losses}, indent=1)
    file_io.write_file(file_io.join(data, file_names.REPAIR), text.encode() + b"\n")
    repaired = replace(  # keeps the counts of changed images, but names no duplicate or quarantined ones
        manifest,
        splits={
            name: make_split_info(name, [shard for _, shard in splits[name]], len(split.class_counts))
            for name, split in manifest.splits.items()
            if name in splits
        },
        duplicates=Duplicates({}, 0, manifest.duplicates.dropped),
        quarantined=0,
        fingerprint=hash_values(manifest.fingerprint, *(info.sha256 for info in infos)),
        tool_version=__version__,
    )
    for name, content in make_dataset_files(repaired).items():
        file_io.write_file(file_io.join(data, name), content)


def _recover_manifest(directory: str, listing: Mapping[str, int]) -> Manifest | None:
    """Makes a manifest from the common properties of all records in a directory's shards.

    The records tell the schema, the form of raw images, and the names of the classes that occur, or that the file for
    TFDS lists. They do not tell how images were changed before they were written, or how records were shuffled.
    """
    names = shard_files(listing)
    found, raw_bytes = FileScan(), 0
    for name in names:
        for features in _examples(file_io.join(directory, name)):
            found.add(_KEYS, name, {key: value for key, value in features.items() if value is not None}, {})
            stored, formats = features.get(keys.IMAGE_ENCODED), features.get(keys.IMAGE_FORMAT)
            if isinstance(stored, list) and isinstance(formats, list) and stored and set(formats) == {b"RAW"}:
                raw_bytes = len(stored[0])
    if keys.IMAGE_ENCODED not in found.features:
        return None
    least, most = found.features[keys.IMAGE_ENCODED].min_values, found.features[keys.IMAGE_ENCODED].max_values
    labels, side = _label_names(directory, found), math.isqrt(raw_bytes // 3)
    try:
        standard = image_schema(
            labeled=keys.CLASS_LABEL in found.features,
            boxes=keys.BBOX_XMIN in found.features,
            box_labels={keys.BBOX_XMIN, keys.BBOX_LABEL} <= found.features.keys(),
            images=() if most <= 1 else (most,) if least == most else None,
        )
        extra = [spec for spec in infer_schema(found, _KEYS, []).features if spec.name not in standard]
        schema = keys.Schema((*standard.features, *extra))  # the format's own features, then all others
    except ConfigError as error:
        raise DataError(f"The manifest cannot be made from the records of {directory}: {error}") from None
    splits: dict[str, SplitInfo] = {}
    for split, named in groupby(names, key=lambda name: file_names.parse_shard_name(name)[0]):
        shards = tuple(ShardInfo(name, listing[name] // FRAME_BYTES, listing[name], "0" * 64) for name in named)
        splits[split] = SplitInfo(split, shards, {}, (0,) * len(labels), ImageSizes(0, 0, 0, 0, 0, 0))
    return Manifest(
        name=file_io.make_absolute(directory).rpartition("/")[2],
        splits=splits,
        label_names=labels,
        schema=schema,
        image={"encoding": "raw", "square": side} if side else {"encoding": "keep"},
        tool_version=__version__,
    )


def _examples(path: str) -> Iterator[dict[str, Feature]]:
    with contextlib.suppress(OSError, FormatError), file_io.open_file(path) as file:
        reader = HashedReader(file)
        for record in scan(reader):
            if isinstance(record, Intact):
                with contextlib.suppress(FormatError):
                    yield decode_example(reader.payload(record.offset, record.size))


def _label_names(directory: str, scan: FileScan) -> tuple[str, ...]:
    """Returns the class names: from the file that lists them if it fits the records, else from the records."""
    labels = [label for label in scan.stats.labels if 0 <= label < _MAX_LABELS]
    if not labels:
        return ()
    texts = {label: min(scan.texts.get(label, {b""})).decode("utf-8", "surrogateescape") for label in labels}
    count = max(texts) + 1
    with contextlib.suppress(OSError, DataError, FormatError, UnicodeDecodeError):
        listed = file_io.read_bytes(file_io.join(directory, _LABELS_FILE), _MAX_LABELS_BYTES).decode().splitlines()
        fits = len(listed) >= count and all(not name or listed[k] == name for k, name in texts.items())
        if fits and len(set(listed)) == len(listed):
            return tuple(listed)
    names = [texts.get(k) or f"class {k}" for k in range(count)]
    return tuple(names) if len(set(names)) == count else tuple(f"class {k}" for k in range(count))


def repair_shard(
    content: ContentCheck,
    manifest: Manifest,
    staging: RepairFolder,
    counters: check_file.Counters,
    job: check_file.FileJob,
) -> WrittenShard:
    """Writes a shard's undamaged records as a new shard, unless an earlier run did; damage raises no error."""
    name = job.name.replace("/", "-")  # the shards of layers go into the same folder
    if (written := staging.find_finished(name)) is not None:
        return written
    columns, progress, report = _ColumnValues(manifest, job), check_file.Tally(counters), check_file.FileReport(job)
    count = partial(_count, replace(content, schema=columns.schema), job.seekable)
    with staging.new_shard(name, count, columns.schema, content.label_names) as writer:
        for payload, record in _good_records(content, columns, progress, report):
            writer.add(record.features, payload)
        writer.left_out = [damage.to_json() for damage in report.damaged if damage.kind != "index"]
    progress.step(report.bytes, report.records, len(report.damaged), at_end=True)
    return writer.describe_shard(name)


def _good_records(
    content: ContentCheck, columns: "_ColumnValues", progress: check_file.Tally, report: check_file.FileReport
) -> Iterator[tuple[bytes, Content]]:
    """Yields the payload and the content of every undamaged record, and adds the damages to `report.damaged`."""
    job, lost = report.job, report.damaged
    try:
        with file_io.open_file(job.path) as file:
            reader, index = HashedReader(file), check_file.load_index(job, lost)
            report.bytes = reader.size
            for item, record in check_file.scan_content(reader, report, content, index):
                assert record is not None
                report.records += 1
                progress.step(item.offset + item.size, report.records, len(lost))
                is_sure = not any(damage.kind in check_file.FRAMING_KINDS for damage in lost)
                if index is not None:
                    is_sure = item.number < len(index) and int(index[item.number, 1]) == item.size
                if columns.hides(item.number, is_sure):
                    if not is_sure:
                        lost.append(Damage(job.name, "layer", _MAY_BE_HIDDEN, item.number, item.offset))
                elif record.faults:
                    kind, text = record.faults[0]
                    lost.append(Damage(job.name, kind, text, item.number, item.offset, record.key))
                else:
                    try:
                        yield columns.join(item.number, reader.payload(item.offset, item.size), record, is_sure)
                    except _NoValue as error:
                        lost.append(Damage(job.name, "column", str(error), item.number, item.offset, record.key))
    except (OSError, FormatError) as error:
        check_file.add_fault(report, error)


class _NoValue(Exception):
    """The error for a record without a usable value in one of the columns."""


class _ColumnValues:
    """The values of the columns for the records of a shard, and which of these records are deleted."""

    def __init__(self, manifest: Manifest, job: check_file.FileJob) -> None:
        assert job.shard is not None
        self.schema, self._records = manifest.full_schema, job.shard.records
        shards, chosen = manifest.splits[job.split].shards, manifest.splits[job.split].chosen
        self._first = sum(shard.records for shard in shards[: [shard.file for shard in shards].index(job.name)])
        rows = range(self._records) if chosen is None else chosen.list_rows(self._first, self._records).tolist()
        self._hidden = frozenset(range(self._records)) - frozenset(rows)
        self._columns = [
            (ContentCheck.from_manifest(column), RecordReader(column.directory, column, job.split))
            for column in manifest.columns
        ]

    def hides(self, number: int, is_sure: bool) -> bool:
        """Returns whether a record was deleted or, unless `is_sure` of its number, whether it may have been."""
        return number in self._hidden if is_sure else bool(self._hidden)

    def join(self, number: int, payload: bytes, record: Content, is_sure: bool) -> tuple[bytes, Content]:
        """Adds the values of all columns to a record's payload and content. Raises `_NoValue` if a value is missing."""
        if not self._columns:
            return payload, record
        if not is_sure or number >= self._records:
            raise _NoValue("without the index of the shard nobody knows which values of the columns belong to it")
        features = dict(record.features)
        for check, reader in self._columns:
            try:
                found = check.check(reader.read_payload(self._first + number))
            except (FormatError, DataError) as error:
                raise _NoValue(str(error).rstrip(".")) from None
            if found.faults:
                raise _NoValue(found.faults[0][1])
            features |= found.features
        return encode_example(features), replace(record, features=features)


def _count(content: ContentCheck, seekable: bool, stats: ShardStats, features: Mapping[str, Feature]) -> None:
    assert content.schema is not None  # a repair has a manifest
    tells = is_seekable if seekable else None
    try:
        count_record(stats, features, schema=content.schema, max_pixels=content.form.max_pixels, is_seekable=tells)
    except BadImage:  # only if the check did not decode images (`quick`)
        masks = {spec.name for spec in content.schema.masks}
        others = {name: value for name, value in features.items() if name not in masks}
        count_record(stats, others, schema=content.schema, is_seekable=tells)
