"""Makes the plan of a job, in this process."""

from collections.abc import Sequence

from beam_jobs.config import ShardConfig
from beam_jobs.inputs.recognize import recognize
from beam_jobs.plan.list_step import Planning
from beam_jobs.plan.plan import Plan
from beam_jobs.plan.plan_steps import list_plan_steps
from beam_jobs.plan.scratch import LocalScratch
from beam_jobs.plan.step import run_here
from beam_jobs.shards.output_dir import check_dataset_output
from beam_jobs.storage import job_stores
from tfpipe.native import library
from tfpipe.storage import file_io
from tfpipe.system.host_limits import usable_cpus
from tfpipe.system.progress import Observer


def plan_shards(config: ShardConfig, beam_args: Sequence[str] = (), observer: Observer | None = None) -> Plan:
    """Returns the plan. It writes nothing that stays.

    Args:
        config: The options of the job.
        beam_args: Arguments for Beam; its file systems read some of them.
        observer: The observer of the job's progress. It gets what the listing notes.

    Raises:
        ConfigError: An option does not fit the input, the output or the runner.
        DataError: The input is missing, damaged, ambiguous or empty; or a store cannot be reached.
        MissingDependencyError: A package is not installed that an option needs, or the native library is not there.
    """
    library.load()
    job_stores.configure(beam_args)
    file_io.check_stores((*config.inputs, config.output, config.image_root or ""))
    check_dataset_output(config, config.inputs)
    scratch = LocalScratch()
    scratch.save("input", recognize(config))
    readers = config.workers or usable_cpus()
    run_here(list_plan_steps(config), Planning(config, scratch, readers, observer))
    plan: Plan = scratch.load("cut")
    if observer is not None and plan.listing.note:
        observer.note(plan.listing.note)
    return plan
