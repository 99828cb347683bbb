"""The output directory: whether the job may write there, its lock, and how a new dataset replaces an old one."""

import contextlib
import os
import shlex
from collections.abc import Iterable, Iterator

from beam_jobs.config import ShardConfig
from beam_jobs.plan.plan import Plan
from beam_jobs.shards.plan_file import make_plan_header, prepare_work
from beam_jobs.shards.work_dir import PlanHeader, WorkDir
from tfpipe.errors import ConfigError, FormatError
from tfpipe.format import file_names
from tfpipe.format.view import VIEWS_DIR
from tfpipe.storage import file_io
from tfpipe.writer.working_folder import check_output

_NEW, _OLD = ".tfpipe-new", ".tfpipe-old"
_OUR_NAMES = {
    file_names.MANIFEST,
    file_names.CATALOG,
    file_names.TFDS_FEATURES,
    file_names.TFDS_INFO,
    file_names.DUPLICATES,
    file_names.REPAIR,
    file_names.INDEX_DIR,
    VIEWS_DIR,
    file_names.COLUMNS_DIR,
    file_names.LAYERS_DIR,
    file_names.QUARANTINE_DIR,
    file_names.WORK_DIR,
}


def check_dataset_output(config: ShardConfig, sources: Iterable[str]) -> None:
    """Checks that the output may be written, before anything costs time.

    A user's note beside a dataset does not stop a run, unless `overwrite` would remove it.
    """
    _finish_swap(file_io.resolve_links(config.output))
    check_output(config.output, sources, _is_ours, alone=config.overwrite)


def _is_ours(name: str) -> bool:
    """Returns whether tfpipe gives this name to a file or folder of a dataset."""
    if name in _OUR_NAMES or name.endswith(".labels.txt"):
        return True
    try:
        file_names.parse_shard_name(name)
    except FormatError:
        return False
    return True


@contextlib.contextmanager
def open_work_dir(config: ShardConfig, plan: Plan, *, keep: bool = False) -> Iterator[WorkDir]:
    """Yields the dataset directory to write to, locked and with the plan in it. `keep` is for parts of the job."""
    with _find_work_dir(config).lock(f"writes to {config.output}"):
        with file_io.explain_os_errors(f"write to {config.output}"):
            work, header, is_staged = _choose_directory(config, plan)
            with _leave_nothing_on_failure(work):
                prepare_work(work, header, plan, config)
            plan.forget_images()
        yield work
        if keep:
            return
        with file_io.explain_os_errors(f"write to {config.output}"):
            file_io.remove_tree(work.base)
            if is_staged:
                _swap(file_io.resolve_links(config.output))


def _find_work_dir(config: ShardConfig) -> WorkDir:
    return WorkDir(file_io.resolve_links(config.output))


@contextlib.contextmanager
def _leave_nothing_on_failure(work: WorkDir) -> Iterator[None]:
    """Removes what the block prepared if it fails or is interrupted, unless the plan of an earlier run is there."""
    try:
        yield
    except BaseException:
        if not work.has_plan():
            for name in file_io.list_names(work.base):
                if name != "lock":
                    file_io.remove_tree(work.path(name))
                    file_io.remove(work.path(name))
        raise


def _choose_directory(config: ShardConfig, plan: Plan) -> tuple[WorkDir, PlanHeader, bool]:
    """Returns the directory to write to, the plan's header, and whether it is to replace the output at the end."""
    header = make_plan_header(config, plan)
    work = _find_work_dir(config)
    if _is_free_for(work, header):
        return work, header, False
    if not config.overwrite:
        advice = ""
        if file_io.exists(work.target(file_names.MANIFEST)) and not config.datasets:
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
    """Returns whether the directory is empty, or belongs to the same plan."""
    if file_io.exists(work.target(file_names.MANIFEST)):
        with contextlib.suppress(FormatError):
            return work.find_manifest(header.fingerprint) is not None
        return False
    if work.has_plan():
        with contextlib.suppress(FormatError):
            return work.read_header().fingerprint == header.fingerprint
        return False
    # A run that ended before its plan was complete left a working folder. Shards without a plan and without a
    # manifest are not to be trusted.
    return not any(_is_ours(name) and name != file_names.WORK_DIR for name in file_io.list_names(work.output))


def _swap(output: str) -> None:
    """Puts the new dataset in the place of the old one. `_finish_swap` completes the swap of a killed process."""
    if file_io.is_url(output):
        _move_objects(output)
        return
    os.rename(output, output + _OLD)
    os.rename(output + _NEW, output)
    file_io.remove_tree(output + _OLD)


def _finish_swap(output: str) -> None:
    """Completes the swap that a killed run began, or undoes it if the new dataset is not complete."""
    if file_io.is_url(output) or not os.path.exists(output + _OLD):
        return
    if not os.path.exists(output):
        is_complete = os.path.exists(file_io.join(output + _NEW, file_names.MANIFEST))
        os.rename(output + _NEW if is_complete else output + _OLD, output)
    file_io.remove_tree(output + _OLD)


def _move_objects(output: str) -> None:
    """Swaps datasets on an object store, object by object: the old manifest goes first, the new one comes last."""
    file_io.remove(file_io.join(output, file_names.MANIFEST))
    new_names = [name for name, _ in file_io.list_tree(output + _NEW)]
    for name, _ in list(file_io.list_tree(output)):
        file_io.remove(file_io.join(output, name))
    for name in sorted(new_names, key=lambda name: name == file_names.MANIFEST):
        file_io.rename(file_io.join(output + _NEW, name), file_io.join(output, name))
