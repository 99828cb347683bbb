"""The whole job in this process, without Beam: for a few images, for scripts and for tests."""

from beam_jobs.config import ShardConfig
from beam_jobs.list_and_plan import plan_shards
from beam_jobs.shards.finish_dataset import finish_dataset
from beam_jobs.shards.output_dir import open_work_dir
from beam_jobs.shards.write_shard import write_shard
from tfpipe.format.manifest import Manifest


def run_in_process(config: ShardConfig) -> Manifest:
    """Makes the dataset, one shard after another.

    The shards have the same bytes as those of `shard_job.run`, which spreads them over workers.

    Args:
        config: The options of the job.

    Raises:
        ConfigError: An option does not fit the input or the output.
        DataError: The input cannot be used, the output cannot be written, or too many images are bad.
    """
    plan = plan_shards(config)
    with open_work_dir(config, plan) as work:
        header = work.read_header()
        written = [write_shard(work, header, k) for k in range(len(header.shards))]
        max_bad = config.max_bad_images(plan.num_images) + plan.listing.missing.count
        return finish_dataset(work, header, written, max_bad)
