"""`tfpipe bench`: a pipeline's rate as a figure for CI."""

import json
from typing import TYPE_CHECKING

import click

from tfpipe.cli.shared.inputs import (
    hide_gpus,
    need_tensorflow,
    open_data,
    pipeline_config,
    quiet_start,
)
from tfpipe.cli.shared.outputs import check_target, write_file
from tfpipe.cli.shared.params import (
    PER_REPLICA_BATCH_SIZE,
    batch_option,
    config_option,
    debug_option,
    json_option,
    split_option,
)
from tfpipe.cli.shared.status import status_line
from tfpipe.errors import ConfigError

if TYPE_CHECKING:
    from tfpipe.tuning.bench import Bench, Comparison


@click.command(short_help="Measure a pipeline, and compare it with itself of another day.")
@click.argument("dataset")
@split_option
@config_option
@batch_option
@click.option(
    "--runs",
    type=int,
    metavar="N",
    default=5,
    show_default=True,
    help="How often to start the pipeline: about 13 s each.",
)
@click.option("--save", metavar="FILE", help="Write the result there, as JSON.")
@click.option("--compare", metavar="FILE", help="Compare with a result that --save wrote.")
@click.option(
    "--fail-below",
    type=float,
    metavar="RATIO",
    help="With --compare: exit code 1 if it is certainly slower than this, as 0.9.",
)
@json_option
@debug_option
def bench(
    dataset: str,
    split: str | None,
    config: str | None,
    global_batch_size: int | None,
    runs: int,
    save: str | None,
    compare: str | None,
    fail_below: float | None,
    as_json: bool,
) -> None:
    """Measure how fast the pipeline of DATASET is, for itself and by a yardstick that runs in turns with it.

    What is compared is the rate by the yardstick's, which decodes one JPEG over and over: a machine that is busy, or
    another one, is so for both. --fail-below looks at the upper bound of the 95 % interval: noise fails no build. A
    pipeline that waits for its storage is no slower on a busy machine, and the yardstick is: measure it on a quiet one.
    """
    if fail_below is not None and compare is None:
        raise ConfigError("--fail-below needs a result to compare with. Give --compare FILE.")
    if fail_below is not None and not 0 < fail_below < float("inf"):
        raise ConfigError(f"--fail-below must be above 0, got {fail_below:g}.")
    options = pipeline_config(config, global_batch_size, None)
    need_tensorflow("bench")
    data, split = open_data(dataset, split)
    hide_gpus()  # here and in the processes that are started from here
    with quiet_start():
        from tfpipe.profiler.measure.simulated_accelerator import NO_TIME_S, Accelerator
        from tfpipe.tuning import bench as benches
        from tfpipe.tuning.trials import Job

    if save is not None:
        check_target(save)
    base = None if compare is None else benches.load(compare)
    batch = options.global_batch_size or options.per_replica_batch_size or PER_REPLICA_BATCH_SIZE
    try:
        with status_line("Starting") as watch:
            now = benches.measure(Job(data, split, Accelerator(NO_TIME_S, batch)), options, runs, watch)
    except KeyboardInterrupt:
        click.echo("Interrupted: nothing was written.", err=True)
        raise
    if save is not None:
        write_file(save, (json.dumps(benches.to_json(now), indent=2) + "\n").encode())
    compared = None if base is None else benches.compare(now, base)
    if as_json:
        click.echo(json.dumps(benches.to_json(now, compared), allow_nan=False))
    else:
        click.echo("\n".join(_lines(now, compared)))
    if compared is not None and fail_below is not None and compared.is_below(fail_below):
        click.echo(f"It is certainly below {fail_below:g} of what it was.", err=True)
        raise SystemExit(1)


def _lines(now: "Bench", compared: "Comparison | None") -> list[str]:
    rate = now.images_per_second
    lines = [
        f"{rate.ratio:,.0f} images/s ({rate.low:,.0f} to {rate.high:,.0f} in 95 of 100), "
        f"{now.images_per_cpu_second:,.0f} for each second of a core",
        f"{now.score.ratio:.3f} of the yardstick ({now.score.low:.3f} to {now.score.high:.3f}), which gave "
        f"{now.yardstick_images_per_second:,.0f} images/s beside it",
    ]
    if compared is None:
        return lines
    ratio = compared.ratio
    lines.append(f"{ratio.ratio:.3f} of what it was ({ratio.low:.3f} to {ratio.high:.3f}), by the yardstick")
    if not compared.same_host:
        lines.append("The other result is of another machine: only the yardstick makes the two comparable.")
    if not compared.same_data:
        lines.append("The other result is of other data.")
    if compared.changed:
        changes = (f"{name}: {then!r} -> {now_!r}" for name, (then, now_) in compared.changed.items())
        lines.append(f"Options that differ: {'; '.join(changes)}")
    return lines
