"""`tfpipe train`: the reference trainer."""

import json
import os
import signal
import sys
from typing import Any

import click

from tfpipe.cli.shared.command import command, require_tensorflow
from tfpipe.cli.shared.config_option import config_file_option, config_option, config_options, take
from tfpipe.cli.shared.console import Display
from tfpipe.cli.shared.inputs import load_function, open_data, quiet_start, read_config
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.errors import ConfigError
from tfpipe.storage.file_io import is_url
from tfpipe.system.interrupts import restore_interrupts
from tfpipe.system.units import human_rate, human_share
from tfpipe.training.config import TrainConfig, default_pipeline


@command(
    example="tfpipe train flowers --model resnet50 --epochs 90",
    json_help="Print a JSON object for each epoch, and one at the end.",
)
@click.argument("dataset")
@config_options(TrainConfig, "Data", default="train, or the only one")
@config_file_option
@config_option(PipelineConfig, "batch_size", default="from the number of records, at most 128 for each replica")
@config_option(PipelineConfig, "image_size", default="64 for small_cnn, else 224")
@config_option(PipelineConfig, "seed")
@config_options(TrainConfig, "Training")
@config_option(TrainConfig, "output", default="runs/ and the name of DATASET")
@config_options(TrainConfig, "Output", without=("output",))
@click.option(
    "--tpu", metavar="NAME", help="The name or address of a TPU, or local.  [default: the devices of this machine]"
)
def train(dataset: str, as_json: bool, split: str | None = None, tpu: str | None = None, **options: Any) -> None:
    """Train a classifier on DATASET, evaluate it after each epoch, and export it.

    To go on with a run that was killed, run the same command again: it starts from the last checkpoint. On SIGTERM, a
    checkpoint is saved first (exit code 143).
    """
    require_tensorflow("train")
    from tfpipe.engine.source import Source

    manifest, split = open_data(dataset, split)
    if isinstance(manifest, Source) or split is None:
        raise ConfigError(f"`tfpipe train` needs a dataset, got {dataset}. Make one with `tfpipe index`.")
    signals: list[int] = []
    lines: list[dict[str, Any]] = [{}]
    before = signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))
    # The status line redirects standard output to the terminal; output for a file or a pipe must bypass it.
    out = None if sys.stdout.isatty() else sys.stdout
    try:
        build = load_function(options["model"], "--model") if ":" in options.get("model", "") else None
        with quiet_start():
            from tfpipe.distribution.strategy import describe_strategy, resolve_strategy
            from tfpipe.training.train import train as run

            strategy = resolve_strategy(tpu)
        config = _build_config(dataset, {**options, "split": split}, manifest, strategy.num_replicas_in_sync)
        with restore_interrupts(), Display("Starting") as status:
            status.note(f"{config.model} on {describe_strategy(strategy)}. The run is in {config.output}.")
            for line in run(manifest, config, strategy, build, status, lambda: bool(signals)):
                lines.append(line)
                if as_json or "kind" in line:
                    text = json.dumps(line) if as_json else _format_epoch(line, config.num_epochs)
                    click.echo(text, file=out)
    except KeyboardInterrupt:
        click.echo("Interrupted. The same command goes on from the last checkpoint, if there is one.", err=True)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
    click.echo(_describe_end(lines[-2], lines[-1]), err=True)
    if not lines[-1]["finished"]:
        raise SystemExit(128 + signal.SIGTERM)


def _build_config(dataset: str, options: dict[str, Any], manifest: Any, num_replicas: int) -> TrainConfig:
    from tfpipe.training.run_dir import RunDir

    path = dataset if is_url(dataset) else os.path.abspath(dataset)
    output = options.get("output") or f"runs/{path.rstrip('/').rpartition('/')[2]}"
    saved = RunDir(output).read_options() or {}
    begun = {"batch_size": saved["batch_size"]} if saved else {}  # it stays the same even if the dataset has grown
    records = manifest.splits[options["split"]].records
    defaults = {**default_pipeline(options.get("model"), records, num_replicas), **begun}
    pipeline = read_config(options.pop("config", None), take(PipelineConfig, options), defaults)
    return TrainConfig(pipeline=pipeline, **{**options, "output": output})


def _format_epoch(line: dict[str, Any], num_epochs: int) -> str:
    rows = {"": line, "evaluation: ": line.get("evaluation")}
    texts = [f"{name}loss {row['loss']:.3f}, accuracy {row['accuracy']:.1%}" for name, row in rows.items() if row]
    if "images_per_second" in line:
        texts.append(f"{human_rate(line['images_per_second'])} images/s")
    return f"Epoch {line['epoch'] + 1}/{num_epochs}: {'; '.join(texts)}"


def _describe_end(epoch: dict[str, Any], result: dict[str, Any]) -> str:
    output, text = result["output"], ""
    if not result["finished"]:
        where = f"epoch {result['epoch'] + 1}, step {result['step']}"
        return f"Stopped and saved at {where}. Run the same command again to go on."
    if "images_per_second" in epoch:
        idle, wait = human_share(epoch["idle_fraction_estimate"]), human_share(epoch["input_wait_fraction"])
        text = f"The device was idle for {idle} of the time; input wait {wait}.\n"
    return f"{text}The model is in {output}/model; `tfpipe predict {output} IMAGE` classifies images with it."
