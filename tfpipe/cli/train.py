"""`tfpipe train`: the reference trainer."""

import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from tfpipe.cli.shared.config_option import config_option, drop_missing
from tfpipe.cli.shared.help_groups import GroupedCommand
from tfpipe.cli.shared.inputs import load_stages, open_data, quiet_start, read_config
from tfpipe.cli.shared.load_function import load_function
from tfpipe.cli.shared.params import budget_option, debug_option, stages_option
from tfpipe.cli.shared.requirements import require_jax, require_tensorflow, require_torch
from tfpipe.cli.train_output import Output
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.errors import ConfigError
from tfpipe.storage.file_io import is_url
from tfpipe.system.interrupts import restore_interrupts
from tfpipe.training.config import MODELS, TrainConfig, default_batch_size, default_pipeline

if TYPE_CHECKING:
    from tfpipe.format.manifest import Manifest
    from tfpipe.training.results import TrainResult

TERMINATED = 128 + signal.SIGTERM

_PIPELINE = ("config", "batch_size", "image_size", "seed", "cpu_budget")
_RUNNING = ("dataset", "output", "stages", "tpu", "as_json")


@click.command(cls=GroupedCommand, short_help="Train a classifier on a dataset, and export it.")
@click.argument("dataset")
@config_option(TrainConfig, "framework", "Library that trains; pytorch means torch.")
@click.option(
    "--model",
    default=TrainConfig.model,
    show_default=True,
    metavar="NAME",
    help="small_cnn, resnet50, mobilenet_v3_small, or a function of yours as module:function. It gets the number of "
    "classes and (height, width), and returns a Keras model or a torch.nn.Module from normalized images to logits. "
    "PyTorch has small_cnn, resnet50 and yours, JAX has small_cnn.",
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
@config_option(PipelineConfig, "batch_size", "Images in a batch, over all replicas.", metavar="N")
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
@config_option(TrainConfig, "compile", "Compile the model by torch.compile (PyTorch).")
@config_option(
    TrainConfig,
    "workers",
    "Processes (PyTorch) or threads (JAX) that read and decode.",
    metavar="N",
    default="one for each core",
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
    checkpoint is saved first (exit code 143). For several GPUs with PyTorch, start one process for each by torchrun
    --nproc-per-node N -m tfpipe train ...
    """
    framework = options["framework"] or TrainConfig.framework
    _REQUIRE[framework]("train")
    from tfpipe.engine.source import Source

    manifest, split = open_data(options["dataset"], options["split"])
    if isinstance(manifest, Source) or split is None:
        raise ConfigError(
            f"`tfpipe train` needs a dataset, got the files {options['dataset']}. Make one with `tfpipe index`."
        )
    _check_model(options["model"])
    _check_outside_tensorflow(framework, options)
    signals: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))
    try:
        with restore_interrupts():
            result = _TRAIN[framework](options, manifest, split, lambda: bool(signals))
    except KeyboardInterrupt:
        click.echo("Interrupted. The same command goes on from the last checkpoint, if there is one.", err=True)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
    if not result.finished:
        raise SystemExit(TERMINATED)


def _train_with_tensorflow(
    options: dict[str, Any], manifest: "Manifest", split: str, stop: Callable[[], bool]
) -> "TrainResult":
    build = _load_model(options["model"])
    customize = load_stages(options["stages"])
    with quiet_start():
        from tfpipe.distribution import describe_strategy, resolve_strategy
        from tfpipe.training.tensorflow.train import train as run

        strategy = resolve_strategy(options["tpu"])
    config = _build_config(options, manifest, split, strategy.num_replicas_in_sync)
    with Output(options["dataset"], config, as_json=options["as_json"]) as output:
        output.begin(describe_strategy(strategy))
        result = run(manifest, config, strategy, build, output, stop, customize)
        output.end(result)
    return result


def _train_with_torch(
    options: dict[str, Any], manifest: "Manifest", split: str, stop: Callable[[], bool]
) -> "TrainResult":
    build = _load_model(options["model"])
    from tfpipe.training.torch.processes import join_processes
    from tfpipe.training.torch.train import train as run

    # torchrun says in the environment how many processes it started, and which this is.
    with join_processes(int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("LOCAL_RANK", "0"))) as place:
        config = _build_config(options, manifest, split, place.num_ranks)
        if place.rank > 0:
            return run(manifest, config, place, build, None, stop)
        with Output(options["dataset"], config, as_json=options["as_json"]) as output:
            output.begin(place.describe())
            result = run(manifest, config, place, build, output, stop)
            output.end(result)
        return result


def _train_with_jax(
    options: dict[str, Any], manifest: "Manifest", split: str, stop: Callable[[], bool]
) -> "TrainResult":
    if options["tpu"] not in (None, "local"):
        raise ConfigError(f"--tpu must be local with --framework jax, got {options['tpu']!r}. Run on the TPU VM.")
    from tfpipe.training.jax.processes import join_processes
    from tfpipe.training.jax.train import train as run

    coordinator = os.environ.get("JAX_COORDINATOR_ADDRESS")
    count, index = (_read_number(name) for name in ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID"))
    with join_processes(coordinator, count, index, is_tpu=options["tpu"] is not None) as place:
        config = _build_config(options, manifest, split, place.mesh.size)
        if place.process[0] > 0:
            return run(manifest, config, place, None, stop)
        with Output(options["dataset"], config, as_json=options["as_json"]) as output:
            output.begin(place.describe())
            result = run(manifest, config, place, output, stop)
            output.end(result)
        return result


def _read_number(name: str) -> int | None:
    """Reads a whole number from the environment; None if it is not set."""
    text = os.environ.get(name)
    if text is not None and not text.isdigit():
        raise ConfigError(f"{name} must be a whole number, got {text!r}.")
    return None if text is None else int(text)


_REQUIRE = {"tensorflow": require_tensorflow, "torch": require_torch, "jax": require_jax}
_TRAIN = {"tensorflow": _train_with_tensorflow, "torch": _train_with_torch, "jax": _train_with_jax}


def _check_outside_tensorflow(framework: str, options: dict[str, Any]) -> None:
    """Checks that options of the command that only TensorFlow has are not given to another framework."""
    for name, frameworks in (("stages", ("tensorflow",)), ("tpu", ("tensorflow", "jax"))):
        if options[name] is not None and framework not in frameworks:
            raise ConfigError(f"--{name} needs --framework {' or '.join(frameworks)}, got {framework}. Leave it out.")


def _load_model(model: str) -> Callable[..., Any] | None:
    return load_function(model, "--model") if ":" in model else None


def _check_model(model: str) -> None:
    if model not in MODELS and ":" not in model:
        raise ConfigError(f"--model must be {', '.join(MODELS)} or module:function, got {model!r}.")


def _build_config(options: dict[str, Any], manifest: "Manifest", split: str, num_replicas: int) -> TrainConfig:
    """Builds the config from the command line; `TrainConfig` has the defaults of the other options."""
    pipeline = read_config(
        options["config"],
        options["batch_size"],
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
