"""The job: list, plan, write shards, finish. `run` is what `tfpipe shard`, `reshard` and `merge` call."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from beam_jobs import job_stores
from beam_jobs.config import ShardConfig
from beam_jobs.inputs.recognize import list_input
from beam_jobs.plan.listing import Listing
from beam_jobs.plan.plan import LeftOut, Plan, give_splits, shard_images
from beam_jobs.runners.base import LocalRunner, Runner, ShardObserver
from beam_jobs.shards.copies import find_copies
from beam_jobs.shards.job import GatheredShards, Job, finish, write_shards
from beam_jobs.shards.output_dir import check_dataset_output, open_work_dir
from beam_jobs.shards.progress import progress_folder
from tfpipe.errors import ConfigError, DataError
from tfpipe.format import file_names, manifest_json
from tfpipe.format.json_reader import MAX_ITEMS
from tfpipe.format.manifest import Manifest
from tfpipe.native import library
from tfpipe.storage import file_io
from tfpipe.system.host_limits import usable_cpus
from tfpipe.system.progress import Observer
from tfpipe.system.units import human_count


def plan_shards(config: ShardConfig, beam_args: Sequence[str] = (), observer: Observer | None = None) -> Plan:
    """Lists the input and plans the shards; nothing is written. The observer gets the listing's note for the user."""
    library.load()
    job_stores.configure(beam_args)
    file_io.check_stores((*config.inputs, config.output, config.image_root or ""))
    check_dataset_output(config, config.inputs)
    plan = plan_listing(list_input(config, observer), config, config.workers or usable_cpus())
    if observer is not None and plan.listing.note:
        observer.note(plan.listing.note)
    return plan


def plan_listing(listing: Listing, config: ShardConfig, readers: int = 0) -> Plan:
    """Returns the plan for the images of a listing. `readers` processes look for copies; 0: this process does."""
    listing.missing.check(config, len(listing.images))
    listing, splits = give_splits(listing, config)
    count = len(listing.label_names) + sum(len(spec.names) for spec in listing.extra)
    most = MAX_ITEMS // 2 // (1 + len(splits))  # a manifest has each class's name, and its count in each split
    if count > most:
        raise DataError(
            f"A dataset with {human_count(len(splits), 'split')} must have at most {most:,} classes, got {count:,}. "
            "Labels that say something else of each image can be a column of another name."
        )
    if listing.datasets is not None:  # the shards of foreign data may lie away from its manifest
        check_dataset_output(config, [origin.directory for origin in listing.datasets.sources.values()])
    if config.drop_duplicates and listing.unpack:
        raise ConfigError(
            f"`drop_duplicates` reads some images alone, and {listing.unpack[0]} is compressed as a whole. Uncompress "
            "it first; TFRecords with `tfpipe reshard`."
        )
    copies, left_out = np.zeros(len(listing.images), bool), LeftOut()
    if config.drop_duplicates:
        copies, left_out = find_copies(listing, config, readers)
    return shard_images(listing, splits, config, copies, left_out)


@dataclass(frozen=True, slots=True)
class ShardResult:
    """The result of a run.

    Attributes:
        manifest: The manifest of the complete dataset.
        kept_shards: The number of shards that an earlier run had finished.
        seconds: The time of this run, start-up and planning included.
    """

    manifest: Manifest
    kept_shards: int
    seconds: float

    @property
    def images_per_second(self) -> float:
        """The rate of the whole run, start-up and planning included."""
        images = sum(split.records for split in self.manifest.splits.values()) + self.manifest.quarantined
        return images / self.seconds


def run(
    config: ShardConfig,
    beam_args: Sequence[str] = (),
    observer: ShardObserver | None = None,
    check: Callable[[Plan], None] = lambda plan: None,
) -> ShardResult:
    """Makes the dataset, or the rest of it if an earlier run of the same job was cut off.

    Args:
        config: The options of the job.
        beam_args: Arguments for Beam, such as `--runner=DataflowRunner`.
        observer: The observer of the job's progress.
        check: A function that gets the plan before anything is written, and may refuse it by raising an error.

    Raises:
        ConfigError: An option does not fit the input, the output or the runner.
        DataError: The input cannot be used, the output cannot be written, too many images are bad, or a worker died.
    """
    observer, started = observer or ShardObserver(), time.monotonic()
    runner = make_runner(beam_args)
    runner.check(config)  # a wrong option should be reported before the listing, which may take minutes
    plan = plan_shards(config, beam_args, observer)
    observer.plan(plan)
    check(plan)
    in_threads = plan.fits_threads(config, beam_args)  # before the working folder takes the images out of the plan
    with open_work_dir(config, plan) as work, progress_folder(work) as folder:
        finished_before = work.list_written()
        header = work.read_header()
        job = Job(
            replace(work, progress=folder),
            header.fingerprint,
            header.versions if runner.has_same_codecs else {"tfpipe": header.versions["tfpipe"]},
            runner.get_pool_workers(config.workers),
            job_stores.get_options(),
            in_threads=in_threads,
        )
        _write(job, runner, beam_args, observer)
        try:
            # Beam may try a bundle again, which then finds shards that this very run has finished.
            kept_shards = len(finished_before.intersection(json.loads(file_io.read_whole(work.path("kept.json")))))
            manifest = manifest_json.loads(file_io.read_whole(work.result(file_names.MANIFEST)).decode())
        except FileNotFoundError as error:
            raise DataError(
                f"A job must end with {file_names.MANIFEST}, but Beam's runner ended it without. Run the same "
                "command again with another runner."
            ) from error
    return ShardResult(manifest, kept_shards, time.monotonic() - started)


def make_runner(beam_args: Sequence[str]) -> Runner:
    """Returns the runner that Beam's arguments name; without any, this machine without Beam."""
    if not beam_args:
        return LocalRunner()
    from beam_jobs import graph

    return graph.choose_runner(beam_args)


def _write(job: Job, runner: Runner, beam_args: Sequence[str], observer: ShardObserver) -> None:
    """Writes the shards and completes the dataset, by Beam's graph if there are arguments for Beam."""
    if beam_args:
        from beam_jobs import graph

        graph.run(job, runner, observer)
        return
    with runner.watch(job, observer), file_io.explain_os_errors(f"write to {job.work.output}"):
        gathered = GatheredShards()
        for shard in write_shards(job, range(len(job.header.shards))):
            gathered += shard
        finish(job, gathered)
