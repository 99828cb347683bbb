"""The output directory: whether the job may write there, its lock, and how a new dataset replaces an old one."""

import contextlib
import hashlib
import json
import logging
import os
import shlex
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace

from beam_jobs.config import ShardConfig
from beam_jobs.inputs.dataset import unpack
from beam_jobs.inputs.parquet_images import copy_rows
from beam_jobs.plan.plan import Plan
from beam_jobs.process_pool import map_unordered
from beam_jobs.shards.job import get_versions
from beam_jobs.shards.work_dir import PlanHeader, WorkDir
from tfpipe.dataset.history import has_layers
from tfpipe.errors import ConfigError, FormatError
from tfpipe.format import file_names
from tfpipe.format.manifest import FORMAT_VERSION
from tfpipe.format.shard_stats import sort_counts
from tfpipe.format.view import VIEWS_DIR
from tfpipe.storage import file_io
from tfpipe.system.host_limits import usable_cpus
from tfpipe.writer.working_folder import check_output
from tfpipe.writer.written_shard import WrittenShard

_logger = logging.getLogger("tfpipe.beam_jobs.output_dir")  # whose warnings the command shows
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
        form=config.form if listing.merged is None else listing.merged.form,
        schema=listing.make_schema(),
        label_names=listing.label_names,
        skipped=sort_counts(listing.skipped),
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
    values = header.to_json() | {"format_version": FORMAT_VERSION, "lines": plan.digest, "form": header.form.to_json()}
    # The fingerprint is a hash of all that decides the dataset's bytes. The input's location and the runner do not.
    for name in ("root", "fingerprint", "unpacked", "inputs", "max_bad", "refuse_nan"):
        del values[name]
    if header.records is not None:
        del values["records"]["dropped"]  # the schema tells
        for source in values["records"]["sources"].values():
            del source["directory"], source["columns"]
    fingerprint = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
    return replace(header, fingerprint=fingerprint)


def write_plan(work: WorkDir, header: PlanHeader, plan: Plan) -> None:
    """Writes the lines of the plan, and then its header, which says that they are complete."""
    with file_io.create(work.lines_path, makes_folders=True) as out:
        for lines in plan.encode():
            out.write(lines)
    file_io.write_file(work.path("plan.json"), json.dumps(header.to_json()).encode(), makes_folders=True)


def prepare_work(work: WorkDir, header: PlanHeader, plan: Plan, config: ShardConfig) -> None:
    """Writes the files that workers need, the plan last. Leaves finished shards alone."""
    file_io.remove_tree(work.path("tmp"))
    unpacked = {location: work.path("unpacked", _name_unpacked(location)) for location in plan.listing.unpack}
    for location, tar in unpacked.items():
        if not file_io.exists(tar):
            with file_io.create(tar, makes_folders=True) as out:
                unpack(plan.listing, location, out)
    manifest = work.find_manifest(header.fingerprint)
    if manifest is not None and not all(file_io.exists(work.result(name)) for name in manifest.promised_lists):
        # Lists such as the quarantine's can be made from the images only, so the dataset is finished again.
        file_io.remove(work.result(file_names.MANIFEST))
        manifest = None
    # The shards of a complete dataset count as written, so that only missing or damaged ones are written again.
    for split in manifest.splits.values() if manifest is not None else ():
        for shard in split.shards:
            if work.find_written(shard.file) is None:
                work.save_written(WrittenShard(shard))
    copies = _copy_row_files(work, header, plan, config)
    write_plan(work, replace(header, unpacked=unpacked | copies), plan)


def _copy_row_files(work: WorkDir, header: PlanHeader, plan: Plan, config: ShardConfig) -> dict[str, str]:
    """Copies the images of Parquet files that each of many shards would read; returns the copies by Parquet file."""
    files = sorted(map(str, plan.images.count_values("file"))) if plan.images.in_row_groups.any() else ()
    num_missing = len(header.shards) - len(work.list_written())
    if not files or not config.shuffle or num_missing < _COPY_ROWS_FROM_SHARDS or file_io.is_url(work.output):
        return {}
    num_bytes = sum(file_io.get_sizes([file_io.join(header.root, file) for file in files]))
    if shutil.disk_usage(work.output).free < _FREE_FOR_COPIES * num_bytes:
        return {}
    copies = {file: work.path("unpacked", _name_unpacked(file, ".rows")) for file in files}
    workers = min(config.workers or usable_cpus(), len(files))
    for _ in map_unordered(
        copy_rows, copies.items(), workers if workers > 1 else 0, shared=(header.root, header.columns)
    ):
        pass
    return copies


def _name_unpacked(location: str, ending: str = ".tar") -> str:
    return hashlib.sha256(location.encode("utf-8", "surrogateescape")).hexdigest()[:16] + ending


_NEW, _OLD = ".tfpipe-new", ".tfpipe-old"
_OUR_FILES = {file_names.MANIFEST, file_names.CATALOG, file_names.DUPLICATES, file_names.REPAIR}
_TFDS_FILES = {file_names.TFDS_FEATURES, file_names.TFDS_INFO}
_CHANGES = {VIEWS_DIR, file_names.COLUMNS_DIR, file_names.LAYERS_DIR}
_OTHER_FOLDERS = {file_names.INDEX_DIR, file_names.QUARANTINE_DIR, file_names.WORK_DIR}
_OUR_NAMES = _OUR_FILES | _TFDS_FILES | _CHANGES | _OTHER_FOLDERS


def check_dataset_output(config: ShardConfig, sources: Iterable[str]) -> None:
    """Checks that the output may be written, before anything costs time.

    A user's note beside a dataset does not stop a run, unless `overwrite` would remove it.
    """
    _finish_swap(file_io.resolve_links(config.output))
    check_output(config.output, sources, _is_ours, alone=config.overwrite)


def _is_ours(name: str) -> bool:
    """Returns whether tfpipe gives this name to a file or folder of a dataset."""
    return name in _OUR_NAMES or name.endswith(".labels.txt") or file_names.is_shard_name(name)


@contextlib.contextmanager
def open_work_dir(config: ShardConfig, plan: Plan, *, keep: bool = False) -> Iterator[WorkDir]:
    """Yields the dataset directory, locked and with the plan in it. `keep` leaves the plan there for parts of a job."""
    with WorkDir(file_io.resolve_links(config.output)).lock(f"writes to {config.output}"):
        with file_io.explain_os_errors(f"write to {config.output}"):
            work, header, is_staged = _choose_directory(config, plan)
            try:
                prepare_work(work, header, plan, config)
            except BaseException:  # a user's interruption too; the plan of an earlier run stays
                for name in () if work.has_plan() else {*file_io.list_names(work.base)} - {"lock"}:
                    file_io.remove_tree(work.path(name))
                    file_io.remove(work.path(name))
                raise
            plan.forget_images()
        yield work
        if keep:
            return
        with file_io.explain_os_errors(f"write to {config.output}"):
            file_io.remove_tree(work.base)
            if is_staged:
                _swap(file_io.resolve_links(config.output))


def _choose_directory(config: ShardConfig, plan: Plan) -> tuple[WorkDir, PlanHeader, bool]:
    """Returns the directory to write to, the plan's header, and whether it is to replace the output at the end."""
    header = make_plan_header(config, plan)
    work = WorkDir(file_io.resolve_links(config.output))
    is_free = _is_free_for(work, header)
    if is_free and has_layers(work.output):
        is_free = not config.overwrite
        if is_free:
            _logger.warning("%s has layers, which stay; `overwrite` writes it anew without them.", config.output)
    if is_free:
        return work, header, False
    if not config.overwrite:
        advice = ""
        if file_io.exists(work.result(file_names.MANIFEST)) and not config.datasets:
            advice = f" To add new images to it: {shlex.join(['tfpipe', 'append', config.output, 'NEW'])}"
        raise ConfigError(
            f"{config.output} holds a dataset made from other images, with other options or by another version of "
            f"tfpipe. Choose an empty directory, or replace it with `overwrite`.{advice}"
        )
    staged = WorkDir(work.output + _NEW)
    file_io.refuse_links(os.path.dirname(staged.output), [os.path.basename(staged.output)])
    if not _is_free_for(staged, header):
        file_io.remove_tree(staged.output)
    return staged, header, True


def _is_free_for(work: WorkDir, header: PlanHeader) -> bool:
    """Returns whether the directory has no dataset, or one of the same plan, finished or not."""
    with contextlib.suppress(FormatError):
        if file_io.exists(work.result(file_names.MANIFEST)):
            return work.find_manifest(header.fingerprint) is not None
        if work.has_plan():
            return work.read_header().fingerprint == header.fingerprint
        # A run that ended before its plan was complete left a working folder. Shards without a plan and without a
        # manifest are not to be trusted.
        return not any(_is_ours(name) and name != file_names.WORK_DIR for name in file_io.list_names(work.output))
    return False


def _swap(output: str) -> None:
    """Puts the new dataset in the place of the old one. `_finish_swap` completes the swap of a killed process."""
    if not file_io.is_url(output):
        os.rename(output, output + _OLD)
        os.rename(output + _NEW, output)
        file_io.remove_tree(output + _OLD)
        return
    # An object store renames single objects: the old manifest goes first, the new one comes last.
    file_io.remove(file_io.join(output, file_names.MANIFEST))
    new_names = [name for name, _ in file_io.list_tree(output + _NEW)]
    for name, _ in list(file_io.list_tree(output)):
        file_io.remove(file_io.join(output, name))
    for name in sorted(new_names, key=lambda name: name == file_names.MANIFEST):
        file_io.rename(file_io.join(output + _NEW, name), file_io.join(output, name))


def _finish_swap(output: str) -> None:
    """Completes the swap that a killed run began, or undoes it if the new dataset is not complete."""
    if file_io.is_url(output) or not os.path.exists(output + _OLD):
        return
    if not os.path.exists(output):
        is_complete = os.path.exists(file_io.join(output + _NEW, file_names.MANIFEST))
        os.rename(output + _NEW if is_complete else output + _OLD, output)
    file_io.remove_tree(output + _OLD)
