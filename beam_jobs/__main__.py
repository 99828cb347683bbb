"""`python -m beam_jobs`: `shard`, `reshard` and `merge` as a module, for schedulers and other launchers.

Worker processes load no Beam: `multiprocessing` imports the main module of a program, but not one called `__main__`.
"""

import click

from tfpipe.cli.main import CONTEXT_SETTINGS, SECTIONS, Commands, main
from tfpipe.cli.shared.command import debug_option

_JOBS = [entry for entries in SECTIONS.values() for entry in entries if entry[0] in ("shard", "reshard", "merge")]


@click.group(cls=Commands, sections={"Commands": _JOBS}, context_settings=CONTEXT_SETTINGS)
@debug_option
def jobs() -> None:
    """Run the commands of tfpipe that are jobs for Apache Beam."""


if __name__ == "__main__":
    main(jobs, "python -m beam_jobs")
