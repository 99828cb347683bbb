"""The plan on disk: its lines, its header, and the fingerprint that says whether an earlier run had the same plan."""

import hashlib
import json
import shutil
from dataclasses import asdict, replace
from functools import partial

from beam_jobs.config import ShardConfig
from beam_jobs.inputs.parquet_images import copy_rows
from beam_jobs.inputs.unpack import unpack
from beam_jobs.plan.plan import Plan
from beam_jobs.process_pool import map_unordered
from beam_jobs.shards.job import get_versions
from beam_jobs.shards.record import MAX_SOURCE_BYTES
from beam_jobs.shards.record_source import open_source
from beam_jobs.shards.work_dir import PlanHeader, WorkDir
from beam_jobs.storage import job_stores
from tfpipe._version import __version__
from tfpipe.format import file_names
from tfpipe.format.manifest import FORMAT_VERSION, Manifest
from tfpipe.format.shard_stats import sort_counts
from tfpipe.images.normalize import get_codec_versions
from tfpipe.storage import file_io
from tfpipe.system.host_limits import usable_cpus
from tfpipe.writer.written_shard import WrittenShard

_COPY_ROWS_FROM_SHARDS = 4
_FREE_FOR_COPIES = 3  # times the size of the files: the copies, the dataset, and some more


def make_plan_header(config: ShardConfig, plan: Plan) -> PlanHeader:
    """Returns the header of a plan."""
    listing = plan.listing
    header = PlanHeader(
        name=listing.name,
        root=file_io.make_absolute(listing.root),
        fingerprint="",
        seed=config.seed,
        form=listing.choose_form(config.form),
        schema=listing.make_schema(),
        label_names=listing.label_names,
        skipped=sort_counts(listing.skipped or {}),
        dropped=listing.dropped,
        keep_quarantined=config.keep_quarantined,
        unpacked={},
        shards=plan.shards,
        records=listing.datasets,
        box_names=listing.box_names,
        tensor_dtypes=listing.tensor_dtypes,
        refuse_nan=config.refuse_nan,
        columns=config.columns,
        inputs=tuple(map(file_io.make_absolute, config.inputs)),
        max_bad=config.max_bad_images(plan.num_images) + listing.missing.count,
        versions=get_versions(),
    )
    return replace(header, fingerprint=_make_fingerprint(header, plan.digest))


def _make_fingerprint(header: PlanHeader, lines_sha256: str) -> str:
    """Returns a digest of the facts that shape the dataset. The place of the input and the runner do not."""
    facts = json.dumps(
        {
            "format_version": FORMAT_VERSION,
            "tool_version": __version__,
            "codecs": get_codec_versions(),
            "lines": lines_sha256,
            "name": header.name,
            "seed": header.seed,
            "form": header.form.to_json(),
            "schema": header.schema.to_json(),
            "label_names": header.label_names,
            "skipped": header.skipped,
            "dropped": header.dropped,
            "keep_quarantined": header.keep_quarantined,
            "shards": [{**asdict(shard), "part": 0} for shard in header.shards],  # lines were in several files once
            **({"box_names": header.box_names} if header.box_names else {}),
            **({"columns": header.columns.named} if header.columns.named else {}),
            **({"tensor_dtypes": header.tensor_dtypes} if header.tensor_dtypes else {}),
            **open_source(header).get_fingerprint_facts(),
        },
        sort_keys=True,
    )
    return hashlib.sha256(facts.encode()).hexdigest()


def write_plan(work: WorkDir, header: PlanHeader, plan: Plan) -> None:
    """Writes the lines of the plan, and then its header, which says that they are complete."""
    with file_io.create(work.lines_path, makes_folders=True) as out:
        for lines in plan.encode():
            out.write(lines)
    file_io.write_file(work.path("plan.json"), header.dumps(), makes_folders=True)


def prepare_work(work: WorkDir, header: PlanHeader, plan: Plan, config: ShardConfig) -> None:
    """Writes the files that workers need, the plan last. Leaves finished shards alone."""
    file_io.remove_tree(work.path("tmp"))
    unpacked = {location: work.path("unpacked", _name_unpacked(location)) for location in plan.listing.unpack}
    for location, tar in unpacked.items():
        if not file_io.exists(tar):
            with file_io.create(tar, makes_folders=True) as out:
                unpack(plan.listing, location, out)
    manifest = work.find_manifest(header.fingerprint)
    if manifest is not None and not all(file_io.exists(work.target(name)) for name in manifest.promised_lists):
        # Only the images can restore the lists, so the dataset is finished again.
        file_io.remove(work.target(file_names.MANIFEST))
        manifest = None
    if manifest is not None:
        _trust_manifest(work, manifest)
    copies = _copy_row_files(work, header, plan, config)
    write_plan(work, replace(header, unpacked=unpacked | copies), plan)


def _copy_row_files(work: WorkDir, header: PlanHeader, plan: Plan, config: ShardConfig) -> dict[str, str]:
    """Copies the images of Parquet files that many shards would read again; returns the copies by their locations."""
    files = plan.listing.row_files
    num_missing = len(header.shards) - len(work.list_written())
    if not files or not config.shuffle or num_missing < _COPY_ROWS_FROM_SHARDS or file_io.is_url(work.output):
        return {}
    num_bytes = sum(file_io.get_sizes([file_io.join(header.root, file) for file in files]))
    if shutil.disk_usage(work.output).free < _FREE_FOR_COPIES * num_bytes:
        return {}
    copies = {file: work.path("unpacked", _name_unpacked(file, ".rows")) for file in files}
    shared = header.root, header.columns, MAX_SOURCE_BYTES
    workers = min(config.workers or usable_cpus(), len(files))
    if workers == 1:
        for file in copies.items():
            copy_rows(*shared, file)
    else:
        set_up = partial(job_stores.configure, job_stores.get_options())
        for _ in map_unordered(copy_rows, copies.items(), workers, shared=shared, set_up=set_up):
            pass
    return copies


def _name_unpacked(location: str, ending: str = ".tar") -> str:
    return hashlib.sha256(location.encode("utf-8", "surrogateescape")).hexdigest()[:16] + ending


def _trust_manifest(work: WorkDir, manifest: Manifest) -> None:
    """Saves the shards of a complete dataset as written, so that only missing or damaged ones are written again."""
    for split in manifest.splits.values():
        for shard in split.shards:
            if work.find_written(shard.file) is None:
                work.save_written(WrittenShard(shard))
