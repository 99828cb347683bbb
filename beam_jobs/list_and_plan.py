"""Makes the plan from the input, without Beam: lists images, assigns splits, drops duplicates, cuts shards."""

from collections.abc import Sequence

from beam_jobs.config import ShardConfig
from beam_jobs.inputs.list_inputs import list_images
from beam_jobs.plan.split_and_shard import Plan, assign_splits, make_plan
from beam_jobs.shards.duplicates import drop_duplicates
from beam_jobs.shards.output_dir import check_dataset_output
from beam_jobs.storage import filesystem
from tfpipe.native import library
from tfpipe.system.host_limits import usable_cpus
from tfpipe.system.progress import Observer


def plan_shards(config: ShardConfig, beam_args: Sequence[str] = (), observer: Observer | None = None) -> Plan:
    """Lists the input and decides which image goes where. It writes nothing.

    Args:
        config: The configuration of the job.
        beam_args: The arguments for Beam; its file systems read some of them.
        observer: The observer of the listing, which gets the number of listed images now and then.

    Raises:
        ConfigError: An option does not go with the input or the output.
        DataError: The input is missing, damaged, ambiguous or empty.
        TfpipeError: As for `check_places`.
    """
    check_places(config, beam_args)
    return plan_in_process(config, observer)


def plan_in_process(config: ShardConfig, observer: Observer | None = None) -> Plan:
    """Lists the input and makes the plan, once `check_places` was called.

    Args:
        config: The configuration of the job.
        observer: The observer of the listing.

    Raises:
        ConfigError: An option does not go with the input.
        DataError: The input is missing, damaged, ambiguous or empty.
    """
    listing = list_images(config, observer)
    listing.missing.check(config, len(listing.images))
    listing = assign_splits(listing, config)
    if listing.datasets is not None:  # the shards of foreign data may lie away from its manifest
        check_dataset_output(config, [source.directory for source in listing.datasets.sources.values()])
    if config.drop_duplicates:
        listing = drop_duplicates(listing, config.workers or usable_cpus())
    return make_plan(listing, config)


def check_places(config: ShardConfig, beam_args: Sequence[str] = ()) -> None:
    """Checks the stores and the output before anything costs time, and configures the file systems of this process.

    Args:
        config: The configuration of the job.
        beam_args: The arguments for Beam; its file systems read some of them.

    Raises:
        ConfigError: An option does not go with the output.
        MissingDependencyError: An option needs a package that is not installed.
        DataError: A store cannot be reached.
    """
    if config.form.seekable or config.form_changes.get("seekable"):
        library.check("`seekable`")
    filesystem.configure((*beam_args, *config.store_args))
    filesystem.check_stores((*config.inputs, config.output))
    check_dataset_output(config, config.inputs)
