"""`tfpipe train`: the reference trainer."""

import os
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from tfpipe.cli.shared.command import command
from tfpipe.cli.shared.config_option import config_option, take
from tfpipe.cli.shared.inputs import load_stages, open_data, quiet_start, read_config
from tfpipe.cli.shared.load_function import load_function
from tfpipe.cli.shared.params import budget_option, config_file_option, stages_option
from tfpipe.cli.shared.requirements import require_tensorflow
from tfpipe.cli.shared.status import status_line
from tfpipe.cli.train_output import Output
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.errors import ConfigError
from tfpipe.storage.file_io import is_url
from tfpipe.system.interrupts import restore_interrupts
from tfpipe.training.config import MODELS, TrainConfig, default_batch_size, default_pipeline

if TYPE_CHECKING:
    from tfpipe.format.manifest import Manifest

TERMINATED = 128 + signal.SIGTERM


@command(
    "Train a classifier on a dataset, and export it.",
    json_help="Print a JSON object for each epoch, and one at the end.",
)
@click.argument("dataset")
@config_option(
    TrainConfig,
    "model",
    "small_cnn, resnet50, mobilenet_v3_small, or a function of yours as module:function. It gets the number of classes "
    "and (height, width), and returns a Keras model from normalized images to logits.",
    metavar="NAME",
)
@config_option(TrainConfig, "epochs", metavar="N", default="100 for small_cnn, else 90")
@config_option(
    TrainConfig,
    "output",
    "The folder for the run: checkpoints, logs, model.",
    metavar="RUN",
    default="runs/ and the name of DATASET",
)
@config_option(TrainConfig, "split", "The split to train on.", metavar="NAME", default="train, or the only one")
@config_file_option
@stages_option
@budget_option
@config_option(
    PipelineConfig,
    "batch_size",
    "The images in a batch, over all replicas.",
    metavar="N",
    default="from the number of records, at most 128 for each replica",
)
@config_option(
    PipelineConfig,
    "image_size",
    "The side of the square images that the model gets, in pixels.",
    kind=click.INT,
    metavar="PX",
    default="64 for small_cnn, else 224",
)
@config_option(
    TrainConfig, "learning_rate", "The learning rate for a batch of 256; it grows with the batch.", metavar="R"
)
@config_option(
    TrainConfig,
    "warmup_epochs",
    "The number of epochs in which the learning rate rises to its value.",
    metavar="N",
    default="5, at most a tenth of --epochs",
)
@config_option(TrainConfig, "weight_decay", metavar="W")
@config_option(TrainConfig, "label_smoothing", metavar="SHARE")
@config_option(TrainConfig, "precision", "The type of the numbers with which the model computes.")
@config_option(PipelineConfig, "seed", "The seed of the weights, the order of the images and the crops.", metavar="N")
@config_option(TrainConfig, "deterministic", "Make runs repeatable to the bit, if the device allows it; slower.")
@config_option(TrainConfig, "steps_per_execution", metavar="N", default="50 on a TPU, else 1")
@config_option(TrainConfig, "checkpoint_every_steps", metavar="N")
@config_option(TrainConfig, "keep_checkpoints", metavar="N")
@config_option(TrainConfig, "tflite", "Also export a quantized TFLite model.")
@click.option(
    "--tpu", metavar="NAME", help="The name or address of a TPU, or local.  [default: the devices of this machine]"
)
def train(**options: Any) -> None:
    """Train a classifier on DATASET, evaluate it after each epoch, and export it.

    To go on with a run that was killed, run the same command again: it starts from the last checkpoint. On SIGTERM, a
    checkpoint is saved first (exit code 143).
    """
    require_tensorflow("train")
    from tfpipe.engine.source import Source

    manifest, split = open_data(options["dataset"], options["split"])
    if isinstance(manifest, Source) or split is None:
        raise ConfigError(
            f"`tfpipe train` needs a dataset, got the files {options['dataset']}. Make one with `tfpipe index`."
        )
    signals: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))
    model = options["model"]
    if model is not None and model not in MODELS and ":" not in model:
        raise ConfigError(f"--model must be {', '.join(MODELS)} or module:function, got {model!r}.")
    build, customize = _load_model(model), load_stages(options["stages"])
    with quiet_start():
        from tfpipe.distribution import describe_strategy, resolve_strategy
        from tfpipe.training.tensorflow.train import train as run

        strategy = resolve_strategy(options["tpu"])
    config = _build_config(options, manifest, split, strategy.num_replicas_in_sync)
    out = sys.stdout  # the live line takes it over
    try:
        with restore_interrupts(), status_line("Starting") as line:
            output = Output(options["dataset"], config, line, out, as_json=options["as_json"])
            output.begin(describe_strategy(strategy))
            result = run(manifest, config, strategy, build, output, lambda: bool(signals), customize)
            output.end(result)
    except KeyboardInterrupt:
        click.echo("Interrupted. The same command goes on from the last checkpoint, if there is one.", err=True)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
    if not result.finished:
        raise SystemExit(TERMINATED)


def _load_model(model: str | None) -> Callable[..., Any] | None:
    return load_function(model, "--model") if model is not None and ":" in model else None


def _build_config(options: dict[str, Any], manifest: "Manifest", split: str, num_replicas: int) -> TrainConfig:
    """Builds the config from the command line; `TrainConfig` has the defaults of the other options."""
    from tfpipe.training.run import hold_layer

    output = options["output"] or _get_default_output(options["dataset"])
    held = hold_layer(manifest, output, split)
    begun = manifest if held is None else held.begun  # a run that goes on keeps its batch
    pipeline = read_config(
        options["config"],
        options["batch_size"],
        default_batch_size(begun.splits[split].records, num_replicas),
        given={name: options[name] for name in ("image_size", "seed", "cpu_budget")},
        defaults=default_pipeline(options["model"] or TrainConfig.model),
    )
    given = {**options, "split": split, "output": output}
    return TrainConfig(pipeline=pipeline, **take(TrainConfig, given))


def _get_default_output(dataset: str) -> str:
    path = dataset if is_url(dataset) else os.path.abspath(dataset)
    return f"runs/{path.rstrip('/').rpartition('/')[2]}"
