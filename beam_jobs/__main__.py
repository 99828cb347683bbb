"""`python -m beam_jobs`: `shard`, `reshard` and `merge` as a module, for schedulers and other launchers.

Worker processes load no Beam: `multiprocessing` imports the main module of a program, but not one called `__main__`.
"""

import click

from tfpipe.cli.main import CONTEXT_SETTINGS, Commands, main
from tfpipe.cli.shard import merge, reshard, shard
from tfpipe.cli.shared.config_option import debug_option


@click.group(cls=Commands, context_settings=CONTEXT_SETTINGS)
@debug_option
def jobs() -> None:
    """Run the commands of tfpipe that are jobs for Apache Beam."""


jobs.add_command(shard)
jobs.add_command(reshard)
jobs.add_command(merge)

if __name__ == "__main__":
    main(jobs, "python -m beam_jobs")
