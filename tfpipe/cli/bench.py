"""`tfpipe bench`: a pipeline's rate as a figure for CI."""

import json
from typing import TYPE_CHECKING, Any

import click

from tfpipe.cli.shared.help_groups import GroupedCommand
from tfpipe.cli.shared.inputs import open_job, quiet_start, read_config
from tfpipe.cli.shared.outputs import check_target, write_file
from tfpipe.cli.shared.params import (
    batch_option,
    config_file_option,
    debug_option,
    json_option,
    size_option,
    split_option,
    stages_option,
)
from tfpipe.cli.shared.status import status_line
from tfpipe.errors import ConfigError
from tfpipe.system.interrupts import restore_interrupts

if TYPE_CHECKING:
    from tfpipe.tuning.bench import Bench, Comparison


@click.command(cls=GroupedCommand, short_help="Measure a pipeline's rate, and compare it with an earlier result.")
@click.argument("dataset")
@split_option
@config_file_option
@batch_option
@size_option
@stages_option
@click.option(
    "--runs",
    type=int,
    metavar="N",
    default=5,
    show_default=True,
    help="Number of runs to measure; each takes about 13 s.",
)
@click.option("--output", metavar="FILE", help="Write the result to this file, as JSON.")
@click.option("--compare", metavar="FILE", help="Compare with a result that --output wrote.")
@click.option(
    "--fail-below",
    type=float,
    metavar="RATIO",
    help="With --compare: exit code 1 if the rate is surely below this ratio of the earlier one, such as 0.9.",
)
@json_option
@debug_option
def bench(dataset: str, split: str | None, config: str | None, stages: str | None, **options: Any) -> None:
    """Measure the images or records per second of DATASET's pipeline, alone and relative to a yardstick.

    The yardstick decodes one JPEG over and over, in turns with the pipeline. A slower or busy machine slows both, so
    --compare compares the ratio of the two rates. --fail-below looks at the upper bound of the 95 % interval, so noise
    does not fail a build. A busy machine slows the yardstick more than a pipeline that waits for its storage: measure
    such a pipeline on a quiet machine.
    """
    compare, fail_below, output = options["compare"], options["fail_below"], options["output"]
    if fail_below is not None and compare is None:
        raise ConfigError("--fail-below needs a result to compare with. Give --compare FILE.")
    if fail_below is not None and not 0 < fail_below < float("inf"):
        raise ConfigError(f"--fail-below must be above 0, got {fail_below:g}.")
    pipeline = read_config(config, options["batch_size"], given={"image_size": options["image_size"]})
    job = open_job("bench", dataset, split, pipeline, stages)
    with quiet_start():
        from tfpipe.engine.source import get_source
        from tfpipe.tuning import bench as benches

    if output is not None:
        check_target(output)
    base = None if compare is None else benches.load(compare)
    with quiet_start():
        job.check(pipeline)  # the yardstick takes a minute to start, and would find nothing wrong
    try:
        with restore_interrupts(), status_line("Starting", in_log=True) as status:
            result = benches.measure(job, pipeline, options["runs"], status)
    except KeyboardInterrupt:
        click.echo("Interrupted. Nothing was written.", err=True)
        raise
    if output is not None:
        write_file(output, (json.dumps(benches.to_json(result), indent=2) + "\n").encode())
    comparison = None if base is None else benches.compare(result, base)
    if options["as_json"]:
        click.echo(json.dumps(benches.to_json(result, comparison), allow_nan=False))
    else:
        click.echo("\n".join(_format(result, comparison, get_source(job.data, job.split).unit)))
    if comparison is not None and fail_below is not None and comparison.is_below(fail_below):
        click.echo(
            f"The rate is below {fail_below:g} times the earlier one, even at the upper bound of the interval.",
            err=True,
        )
        raise SystemExit(1)


def _format(result: "Bench", comparison: "Comparison | None", unit: str) -> list[str]:
    rate = result.images_per_second
    lines = [
        f"{rate.ratio:,.0f} {unit}/s ({rate.low:,.0f} to {rate.high:,.0f} with 95 % confidence), "
        f"{result.images_per_cpu_second:,.0f} {unit} per CPU-second",
        f"{result.score.ratio:.3f} times the yardstick ({result.score.low:.3f} to {result.score.high:.3f}), which "
        f"decoded {result.yardstick_images_per_second:,.0f} images/s in turns with it",
    ]
    if comparison is None:
        return lines
    ratio = comparison.ratio
    lines.append(
        f"{ratio.ratio:.3f} times the earlier result ({ratio.low:.3f} to {ratio.high:.3f}), relative to the yardstick"
    )
    if not comparison.same_host:
        lines.append("The earlier result is from another machine: compare only the rates relative to the yardstick.")
    if not comparison.same_data:
        lines.append("The earlier result is from other data.")
    if comparison.changed:
        changes = (f"{name}: {before!r} -> {after!r}" for name, (before, after) in comparison.changed.items())
        lines.append(f"Options that differ: {'; '.join(changes)}")
    return lines
