"""`tfpipe train`: the reference trainer."""

import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import click

from tfpipe.cli.shared.inputs import open_data, quiet_start, read_config
from tfpipe.cli.shared.load_function import load_function
from tfpipe.cli.shared.params import debug_option
from tfpipe.cli.shared.requirements import require_tensorflow
from tfpipe.cli.train_output import Output
from tfpipe.errors import ConfigError
from tfpipe.system.file_io import is_url

if TYPE_CHECKING:
    from tfpipe.format.manifest import Manifest
    from tfpipe.training.config import TrainConfig

TERMINATED = 128 + signal.SIGTERM

_PIPELINE = ("config", "global_batch_size", "per_replica_batch_size", "image_size", "seed")
_RUNNING = ("dataset", "output", "tpu", "as_json")


@click.command(short_help="Train a classifier on a dataset, and export it.")
@click.argument("dataset")
@click.option(
    "--model",
    default="small_cnn",
    show_default=True,
    metavar="NAME",
    help="small_cnn, resnet50, mobilenet_v3_small, or module:function: from the number of classes and (height, "
    "width) to a Keras model of normalized images that returns logits.",
)
@click.option(
    "--epochs", type=int, metavar="N", help="How often every image is seen.  [default: 100 for small_cnn, else 90]"
)
@click.option("--output", metavar="RUN", help="Folder of the run.  [default: runs/ and the DATASET's name]")
@click.option("--split", metavar="NAME", help="What is trained on.  [default: train, or the only one]")
@click.option("--config", metavar="FILE", help="Options of the pipeline, .toml or .json.")
@click.option("--per-replica-batch-size", type=int, metavar="N", help="Images in a batch of one replica.")
@click.option("--global-batch-size", type=int, metavar="N", help="Images in a batch of all replicas together.")
@click.option("--image-size", type=int, metavar="PX", help="Side of the images.  [default: 64 for small_cnn, else 224]")
@click.option("--learning-rate", type=float, metavar="R", help="For a batch of 256; grows with the batch.")
@click.option("--warmup-epochs", type=float, metavar="N", help="In which the rate rises.  [default: 5, or a tenth]")
@click.option("--weight-decay", type=float, metavar="W", help="Of the weights' own gradient.  [default: 0.0001]")
@click.option("--label-smoothing", type=float, metavar="SHARE", help="Spread over all classes.  [default: 0]")
@click.option("--precision", type=click.Choice(["auto", "float32", "bfloat16"]), help="Of the sums.  [default: auto]")
@click.option("--seed", type=int, metavar="N", help="Of weights, order and crops.  [default: 0]")
@click.option("--deterministic", is_flag=True, help="The same bits each time, where the device can; slower.")
@click.option("--steps-per-execution", metavar="N", help="Steps without a return to Python.  [default: auto]")
@click.option("--checkpoint-every-steps", type=int, metavar="N", help="What a kill may cost.  [default: 500]")
@click.option("--keep-checkpoints", type=int, metavar="K", help="Older ones are deleted.  [default: 3]")
@click.option("--tflite", type=click.Choice(["dynamic", "int8"]), help="Export for TFLite too, quantised.")
@click.option("--tpu", metavar="NAME", help="A TPU's name or address, or local.  [default: what there is]")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each epoch, and one at the end.")
@debug_option
def train(**options: Any) -> None:
    """Train a classifier on DATASET, evaluate it after each epoch, and export it.

    The same command goes on with a run that was killed, from its last checkpoint. SIGTERM saves first (exit code 143).
    """
    require_tensorflow("train")
    from tfpipe.pipeline.plan.source import Source

    manifest, split = open_data(options["dataset"], options["split"])
    if isinstance(manifest, Source) or split is None:
        raise ConfigError(
            f"`tfpipe train` needs a dataset, got the files {options['dataset']}. `tfpipe index` makes one of them."
        )
    _check_model(options["model"])
    build = load_function(options["model"], "--model") if ":" in options["model"] else None
    stop = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        with quiet_start():
            from tfpipe.distribution import describe_strategy, resolve_strategy
            from tfpipe.training.train import train as run

            strategy = resolve_strategy(options["tpu"])
        config = _config(options, manifest, split, strategy.num_replicas_in_sync)
        with Output(options["dataset"], config, as_json=options["as_json"]) as output:
            output.begin(describe_strategy(strategy))
            result = run(manifest, config, strategy, build, output, stop.is_set)
            output.end(result)
    finally:
        signal.signal(signal.SIGTERM, before)
    if not result.finished:
        raise SystemExit(TERMINATED)


def _check_model(model: str) -> None:
    from tfpipe.training.config import MODELS

    if model not in MODELS and ":" not in model:
        raise ConfigError(f"--model must be {', '.join(MODELS)} or module:function, got {model!r}.")


def _config(options: dict[str, Any], manifest: "Manifest", split: str, num_replicas: int) -> "TrainConfig":
    """What the command line asks for; what it leaves out has its default in `TrainConfig`."""
    from tfpipe.training.config import TrainConfig, default_batch_size, default_pipeline

    pipeline = read_config(
        options["config"],
        options["global_batch_size"],
        options["per_replica_batch_size"],
        default_batch_size(manifest.splits[split].records, num_replicas),
        given={"image_size": options["image_size"], "seed": options["seed"]},
        defaults=default_pipeline(options["model"]),
    )
    given = {name: value for name, value in options.items() if name not in (*_PIPELINE, *_RUNNING)}
    given["split"] = split
    given["steps_per_execution"] = _steps(options["steps_per_execution"])
    given = {name: value for name, value in given.items() if value is not None}
    return TrainConfig(pipeline=pipeline, output=options["output"] or _default_output(options["dataset"]), **given)


def _default_output(dataset: str) -> str:
    path = dataset if is_url(dataset) else os.path.abspath(dataset)
    return f"runs/{path.rstrip('/').rpartition('/')[2]}"


def _steps(text: str | None) -> int | None:
    if text is None or text == "auto":
        return None
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"--steps-per-execution must be auto or a whole number, got {text!r}.") from None
