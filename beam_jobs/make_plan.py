"""Makes the plan of a job, in this process: the images are listed into a table, which is then sorted and cut."""

from collections.abc import Sequence

from beam_jobs.config import ShardConfig
from beam_jobs.inputs.faults import Faults
from beam_jobs.inputs.recognize import Input, recognize
from beam_jobs.plan.listing import Listing
from beam_jobs.plan.plan import Plan
from beam_jobs.plan.split_and_shard import (
    are_splits_named,
    check_no_split_empty,
    give_splits,
    list_splits,
    shard_images,
)
from beam_jobs.shards.copies import find_copies
from beam_jobs.shards.output_dir import check_dataset_output
from beam_jobs.storage import job_stores
from tfpipe.errors import DataError
from tfpipe.format.json_reader import MAX_PARTS
from tfpipe.native import library
from tfpipe.storage import file_io
from tfpipe.system.host_limits import usable_cpus
from tfpipe.system.progress import Observer
from tfpipe.system.units import human_count


def plan_shards(config: ShardConfig, beam_args: Sequence[str] = (), observer: Observer | None = None) -> Plan:
    """Returns the plan. It writes nothing that stays; the observer gets what the listing notes."""
    library.load()
    job_stores.configure(beam_args)
    file_io.check_stores((*config.inputs, config.output, config.image_root or ""))
    check_dataset_output(config, config.inputs)
    plan = plan_input(recognize(config), config.workers or usable_cpus(), observer)
    if observer is not None and plan.listing.note:
        observer.note(plan.listing.note)
    return plan


def plan_input(source: Input, readers: int = 0, observer: Observer | None = None) -> Plan:
    """Returns the plan of a recognized input. `readers` processes look for copies; 0: this one does."""
    config = source.config
    listing = source.list(observer)
    if not _check_listing(listing, config):
        listing = give_splits(listing, config)
    counts = listing.images.count_values("split")
    splits = list_splits(config, counts)
    _check_classes(listing, len(splits))
    if listing.datasets is not None:  # the shards of foreign data may lie away from its manifest
        check_dataset_output(config, [origin.directory for origin in listing.datasets.sources.values()])
    check_no_split_empty(counts, config)
    copies = find_copies(listing, config.known_images, readers) if config.drop_duplicates else (None, None)
    return shard_images(listing, splits, config, *copies)


def _check_listing(listing: Listing, config: ShardConfig) -> bool:
    """Raises all that is wrong with a listing at once; returns whether the input names the splits of its images."""
    faults, has_splits = Faults(config.input, listing.faults), False
    with faults:
        listing.missing.check(config, len(listing.images))
    if len(listing.images) or not faults.found:
        with faults:
            has_splits = are_splits_named(listing, config)
    faults.check()
    return has_splits


def _check_classes(listing: Listing, num_splits: int) -> None:
    """Checks that a manifest can hold the names of the classes, and the counts of each split."""
    count = len(listing.label_names) + sum(len(spec.names) for spec in listing.extra)
    most = MAX_PARTS // 2 // (1 + num_splits)
    if count > most:
        raise DataError(
            f"A dataset with {human_count(num_splits, 'split')} must have at most {most:,} classes, got {count:,}. "
            "Labels that say something else of each image can be a column of another name."
        )
