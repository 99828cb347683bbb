"""`tfpipe serve-check`: do the workers of `tfpipe serve` answer, and do they make the batches of this machine."""

import click

from tfpipe.cli.shared.checks import show_checks
from tfpipe.cli.shared.command import command
from tfpipe.cli.shared.inputs import open_data
from tfpipe.system.options import Addresses


@command("Check running workers from the trainer's machine.", name="serve-check")
@click.argument("workers", nargs=-1, required=True, metavar="HOST:PORT...")
@click.option("--dataset", metavar="DATASET", help="A dataset that the workers must read, by its directory or URL.")
def serve_check(workers: tuple[str, ...], dataset: str | None, as_json: bool) -> None:
    """Check whether the workers at each HOST:PORT answer, and have this release of tfpipe.

    With --dataset each worker makes two batches, which must be equal to those of this machine. Exit code 1 if a check
    fails; warnings do not count.
    """
    Addresses().check("HOST:PORT", workers)
    from tfpipe.doctor.service_checks import check_service

    data, split = (None, None) if dataset is None else open_data(dataset, None)
    show_checks(check_service(workers, data, split), as_json)
