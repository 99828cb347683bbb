"""`tfpipe train`: the reference trainer."""

import os
import signal
from typing import TYPE_CHECKING, Any

import click

from tfpipe.cli.shared.config_option import config_option, drop_missing
from tfpipe.cli.shared.inputs import load_stages, open_data, quiet_start, read_config
from tfpipe.cli.shared.load_function import load_function
from tfpipe.cli.shared.params import budget_option, debug_option, stages_option
from tfpipe.cli.shared.requirements import require_tensorflow
from tfpipe.cli.train_output import Output
from tfpipe.errors import ConfigError
from tfpipe.pipeline.config.pipeline_config import PipelineConfig
from tfpipe.system.file_io import is_url
from tfpipe.training.config import MODELS, TrainConfig, default_batch_size, default_pipeline

if TYPE_CHECKING:
    from tfpipe.format.manifest import Manifest

TERMINATED = 128 + signal.SIGTERM

_PIPELINE = ("config", "global_batch_size", "per_replica_batch_size", "image_size", "seed", "cpu_budget")
_RUNNING = ("dataset", "output", "stages", "tpu", "as_json")


@click.command(short_help="Train a classifier on a dataset, and export it.")
@click.argument("dataset")
@click.option(
    "--model",
    default=TrainConfig.model,
    show_default=True,
    metavar="NAME",
    help="small_cnn, resnet50, mobilenet_v3_small, or a function of yours as module:function. It gets the number of "
    "classes and (height, width), and returns a Keras model from normalized images to logits.",
)
@config_option(TrainConfig, "epochs", "Passes over all images.", metavar="N", default="100 for small_cnn, else 90")
@click.option(
    "--output",
    metavar="RUN",
    help="Folder for the run: checkpoints, logs, model.  [default: runs/ and the name of DATASET]",
)
@click.option("--split", metavar="NAME", help="Split to train on.  [default: train, or the only one]")
@click.option("--config", metavar="FILE", help="File with the pipeline's options, .toml or .json.")
@stages_option
@budget_option
@config_option(PipelineConfig, "per_replica_batch_size", "Images in a batch of one replica.", metavar="N")
@config_option(PipelineConfig, "global_batch_size", "Images in a batch, over all replicas.", metavar="N")
@click.option(
    "--image-size",
    type=int,
    metavar="PX",
    help="Side of the square images that the model gets, in pixels.  [default: 64 for small_cnn, else 224]",
)
@config_option(
    TrainConfig, "learning_rate", "Learning rate for a batch of 256; it is scaled with the batch size.", metavar="R"
)
@config_option(
    TrainConfig,
    "warmup_epochs",
    "Epochs in which the learning rate rises to its value.",
    metavar="N",
    default="5, at most a tenth of --epochs",
)
@config_option(
    TrainConfig,
    "weight_decay",
    "Weight decay (L2): the factor of the weights that is added to their gradient.",
    metavar="W",
)
@config_option(
    TrainConfig, "label_smoothing", "Share of each label that is spread evenly over all classes.", metavar="SHARE"
)
@config_option(TrainConfig, "precision", "Number type of the model's computation.")
@config_option(PipelineConfig, "seed", "Seed of the weights, the order of the images and the crops.", metavar="N")
@config_option(
    TrainConfig, "deterministic", "Make runs repeatable to the bit, if the device allows it. This is slower."
)
@click.option(
    "--steps-per-execution", metavar="N", help="Number of steps that run without a return to Python.  [default: auto]"
)
@config_option(
    TrainConfig,
    "checkpoint_every_steps",
    "Steps between checkpoints. A killed run loses no more than these.",
    metavar="N",
)
@config_option(TrainConfig, "keep_checkpoints", "Number of checkpoints to keep; older ones are deleted.", metavar="K")
@config_option(TrainConfig, "tflite", "Also export a quantized TFLite model.")
@click.option(
    "--tpu", metavar="NAME", help="Name or address of a TPU, or local.  [default: the devices of this machine]"
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each epoch, and one at the end.")
@debug_option
def train(**options: Any) -> None:
    """Train a classifier on DATASET, evaluate it after each epoch, and export it.

    To go on with a run that was killed, run the same command again: it starts from the last checkpoint. On SIGTERM, a
    checkpoint is saved first (exit code 143).
    """
    require_tensorflow("train")
    from tfpipe.pipeline.plan.source import Source

    manifest, split = open_data(options["dataset"], options["split"])
    if isinstance(manifest, Source) or split is None:
        raise ConfigError(
            f"`tfpipe train` needs a dataset, got the files {options['dataset']}. Make one with `tfpipe index`."
        )
    _check_model(options["model"])
    build = load_function(options["model"], "--model") if ":" in options["model"] else None
    customize = load_stages(options["stages"])
    signals: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))
    try:
        with quiet_start():
            from tfpipe.distribution import describe_strategy, resolve_strategy
            from tfpipe.training.train import train as run

            strategy = resolve_strategy(options["tpu"])
        config = _build_config(options, manifest, split, strategy.num_replicas_in_sync)
        with Output(options["dataset"], config, as_json=options["as_json"]) as output:
            output.begin(describe_strategy(strategy))
            result = run(manifest, config, strategy, build, output, lambda: bool(signals), customize)
            output.end(result)
    finally:
        signal.signal(signal.SIGTERM, before)
    if not result.finished:
        raise SystemExit(TERMINATED)


def _check_model(model: str) -> None:
    if model not in MODELS and ":" not in model:
        raise ConfigError(f"--model must be {', '.join(MODELS)} or module:function, got {model!r}.")


def _build_config(options: dict[str, Any], manifest: "Manifest", split: str, num_replicas: int) -> TrainConfig:
    """Builds the config from the command line; `TrainConfig` has the defaults of the other options."""
    pipeline = read_config(
        options["config"],
        options["global_batch_size"],
        options["per_replica_batch_size"],
        default_batch_size(manifest.splits[split].records, num_replicas),
        given={name: options[name] for name in ("image_size", "seed", "cpu_budget")},
        defaults=default_pipeline(options["model"]),
    )
    given = {name: value for name, value in options.items() if name not in (*_PIPELINE, *_RUNNING)}
    given["split"] = split
    given["steps_per_execution"] = _parse_steps(options["steps_per_execution"])
    output = options["output"] or _get_default_output(options["dataset"])
    return TrainConfig(pipeline=pipeline, output=output, **drop_missing(given))


def _get_default_output(dataset: str) -> str:
    path = dataset if is_url(dataset) else os.path.abspath(dataset)
    return f"runs/{path.rstrip('/').rpartition('/')[2]}"


def _parse_steps(text: str | None) -> int | None:
    if text is None or text == "auto":
        return None
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"--steps-per-execution must be auto or a whole number, got {text!r}.") from None
