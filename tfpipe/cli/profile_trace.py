"""`tfpipe profile --trace`: what TensorFlow's own profiler saw of a training."""

import json
from pathlib import Path

import click

from tfpipe.cli.shared.inputs import quiet_start
from tfpipe.profiler.diagnose.diagnosis import compute_idle_price_per_day
from tfpipe.profiler.live.xprof_trace import Trace, read_trace
from tfpipe.profiler.report.text_json import VERSION, step_to_json
from tfpipe.profiler.types import Spread
from tfpipe.system.units import human_share


def show_trace(log_dir: str, price_per_hour: float | None, as_json: bool) -> float:
    """Reads a trace and prints its figures.

    Returns:
        The share of idle time.
    """
    with quiet_start():  # xprof's C++ logs what its exceptions do not say
        trace = read_trace(Path(log_dir))
    idle = trace.step.idle_fraction.median
    price = None if price_per_hour is None else compute_idle_price_per_day(price_per_hour, idle)
    click.echo(json.dumps(to_json(trace, price), allow_nan=False) if as_json else to_text(trace, price))
    return idle


def to_json(trace: Trace, price_per_day: float | None) -> dict[str, object]:
    """Returns one object; the fields that a measured pipeline has too have the same names."""
    return {
        "version": VERSION,
        **step_to_json(trace.step),
        "price_per_day": price_per_day,
        "trace": {
            "run": str(trace.run),
            "other_runs": trace.other_runs,
            "hosts": list(trace.hosts),
            "hardware": trace.hardware,
        },
    }


def to_text(trace: Trace, price_per_day: float | None) -> str:
    """Returns a few lines that say which figure is which."""
    step = trace.step
    lines = [
        f"Input wait: {_format_spread(step.input_wait_fraction)} of the step time, in which the trainer waited for a "
        f"batch; {1e3 * step.wall_s / step.steps:.1f} ms a step."
    ]
    if trace.has_device:
        idle = human_share(step.idle_fraction.median)
        lines.append(f"Device idle: {idle} of the time, as the {trace.hardware} reports it, for any reason.")
    else:
        lines.append(
            f"Idle: {_format_spread(step.idle_fraction)} of the step time, in which the CPU did not compute the step: "
            "input wait, handing over, Python. No other device was traced."
        )
    if price_per_day is not None:
        lines.append(f"The idle time costs {price_per_day:,.2f} a day.")
    source = f"{step.steps:,} steps in {step.wall_s:.1f} s, of {_name_hosts(trace.hosts)}, from {trace.run}."
    older_runs = {0: "", 1: " An older run beside it was not read."}
    lines.append(source + older_runs.get(trace.other_runs, f" {trace.other_runs} older runs beside it were not read."))
    return "\n".join(lines)


def _format_spread(share: Spread) -> str:
    return f"{human_share(share.median)} ({human_share(share.low)} to {human_share(share.high)})"


def _name_hosts(hosts: tuple[str, ...]) -> str:
    return f"host {hosts[0]}" if len(hosts) == 1 else f"{len(hosts)} hosts, taken together"
