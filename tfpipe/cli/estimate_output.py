"""The estimate of a dry run, for a person and as JSON, and the options for its cost."""

from typing import TYPE_CHECKING, Any

import click

from beam_jobs.prices import PriceConfig, Range
from tfpipe.cli.shared.config_option import config_option
from tfpipe.cli.shared.params import all_options
from tfpipe.cli.shared.progress import format_duration
from tfpipe.system.units import human_bytes, human_count

if TYPE_CHECKING:
    from beam_jobs.estimate import ConfidenceInterval, Estimate

price_options = all_options(
    config_option(
        PriceConfig,
        "price_per_vcpu_hour",
        "For costs: the price of one core for an hour, memory included.",
        metavar="X",
    ),
    config_option(
        PriceConfig, "price_per_gib_month", "For costs: the price of storing 1 GiB for a month.", metavar="X"
    ),
)


def print_estimate(estimate: "Estimate", prices: PriceConfig) -> None:
    """Prints a few lines, each with its 95 % interval."""
    bad = f", {estimate.bad:,} of them bad" if estimate.bad else ""
    click.echo(
        f"estimate from {human_count(estimate.sampled, 'image')} of {estimate.images:,}{bad}, with 95 % intervals:"
    )
    size, cpu, wall = estimate.output_bytes, estimate.cpu_s, estimate.wall_s
    click.echo(f"  output     {human_bytes(size.value)} ({human_bytes(size.low)} to {human_bytes(size.high)})")
    click.echo(f"  CPU-hours  {_hours(cpu.value)} ({_hours(cpu.low)} to {_hours(cpu.high)}), on cores like those here")
    who = f"{estimate.processes:,} worker process{'es' * (estimate.processes > 1)}"
    serial = f"{format_duration(estimate.serial_s)} of it before and after the images"
    expected, low, high = (format_duration(seconds) for seconds in (wall.value, wall.low, wall.high))
    click.echo(f"  wall time  {expected} ({low} to {high}), {who}, {serial}")
    job, storage = _costs(estimate, prices)
    if job is not None:
        click.echo(f"  job        {job[0]:,.2f} to {job[1]:,.2f}")
    if storage is not None:
        click.echo(f"  storage    {storage[0]:,.2f} to {storage[1]:,.2f} a month")


def _hours(seconds: float) -> str:
    hours = seconds / 3600
    return f"{hours:,.1f}" if hours >= 10 else f"{hours:.3f}"


def estimate_json(estimate: "Estimate", prices: PriceConfig) -> dict[str, Any]:
    """Returns the estimate as a JSON object; a cost that was not asked for is null."""
    job, storage = _costs(estimate, prices)
    return {
        "sampled": estimate.sampled,
        "bad": estimate.bad,
        "output_bytes": _guess(estimate.output_bytes),
        "cpu_hours": _guess(estimate.cpu_s.scale(1 / 3600)),
        "wall_s": _guess(estimate.wall_s),
        "serial_s": round(estimate.serial_s, 3),
        "worker_processes": estimate.processes,
        "job_cost": job,
        "storage_cost_per_month": storage,
    }


def _costs(estimate: "Estimate", prices: PriceConfig) -> tuple[Range | None, Range | None]:
    cpu, wall, size = estimate.cpu_s, estimate.wall_s, estimate.output_bytes
    held = wall.scale(estimate.processes)
    job_cost = prices.estimate_job_cost((cpu.low, cpu.high), (held.low, held.high))
    return job_cost, prices.estimate_storage_cost((size.low, size.high))


def _guess(guess: "ConfidenceInterval") -> dict[str, float]:
    return {"value": guess.value, "low": guess.low, "high": guess.high}
