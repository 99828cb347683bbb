"""`tfpipe train`: the reference trainer."""

import json
import os
import shlex
import signal
import sys
from typing import TYPE_CHECKING, Any, TextIO

import click

from tfpipe.cli.shared.command import command
from tfpipe.cli.shared.config_option import config_option, take
from tfpipe.cli.shared.inputs import load_stages, open_data, quiet_start, read_config
from tfpipe.cli.shared.load_function import load_function
from tfpipe.cli.shared.params import budget_option, config_file_option, stages_option
from tfpipe.cli.shared.requirements import require_tensorflow
from tfpipe.cli.shared.status import status_line
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.errors import ConfigError
from tfpipe.storage.file_io import is_url
from tfpipe.system.interrupts import restore_interrupts
from tfpipe.system.progress import Observer
from tfpipe.system.units import human_rate, human_share
from tfpipe.training.config import TrainConfig, TrainObserver, default_batch_size, default_pipeline, format_means

if TYPE_CHECKING:
    from tfpipe.format.manifest import Manifest
    from tfpipe.training.train import TrainResult

TERMINATED = 128 + signal.SIGTERM
_IDLE_WORTH_A_LOOK = 0.05

_BATCH = "from the number of records, at most 128 for each replica"
_JSON = "Print a JSON object for each epoch, and one at the end."
_SIDE = "The side of the square images that the model gets, in pixels."
_TPU = "The name or address of a TPU, or local.  [default: the devices of this machine]"


@command("Train a classifier on a dataset, and export it.", json_help=_JSON)
@click.argument("dataset")
@config_option(TrainConfig, "model", metavar="NAME")
@config_option(TrainConfig, "epochs", metavar="N", default="100 for small_cnn, else 90")
@config_option(TrainConfig, "output", metavar="RUN", default="runs/ and the name of DATASET")
@config_option(TrainConfig, "split", "The split to train on.", metavar="NAME", default="train, or the only one")
@config_file_option
@stages_option
@budget_option
@config_option(PipelineConfig, "batch_size", "The images in a batch, over all replicas.", metavar="N", default=_BATCH)
@config_option(PipelineConfig, "image_size", _SIDE, kind=click.INT, metavar="PX", default="64 for small_cnn, else 224")
@config_option(TrainConfig, "learning_rate", metavar="R")
@config_option(TrainConfig, "warmup_epochs", metavar="N", default="5, at most a tenth of --epochs")
@config_option(TrainConfig, "weight_decay", metavar="W")
@config_option(TrainConfig, "label_smoothing", metavar="SHARE")
@config_option(TrainConfig, "precision", "The type of the numbers with which the model computes.")
@config_option(PipelineConfig, "seed", "The seed of the weights, the order of the images and the crops.", metavar="N")
@config_option(TrainConfig, "deterministic", "Make runs repeatable to the bit, if the device allows it; slower.")
@config_option(TrainConfig, "steps_per_execution", metavar="N", default="50 on a TPU, else 1")
@config_option(TrainConfig, "checkpoint_every_steps", metavar="N")
@config_option(TrainConfig, "keep_checkpoints", metavar="N")
@config_option(TrainConfig, "tflite", "Also export a quantized TFLite model.")
@click.option("--tpu", metavar="NAME", help=_TPU)
def train(**options: Any) -> None:
    """Train a classifier on DATASET, evaluate it after each epoch, and export it.

    To go on with a run that was killed, run the same command again: it starts from the last checkpoint. On SIGTERM, a
    checkpoint is saved first (exit code 143).
    """
    require_tensorflow("train")
    from tfpipe.engine.source import Source

    manifest, split = open_data(options["dataset"], options["split"])
    if isinstance(manifest, Source) or split is None:
        files = options["dataset"]
        raise ConfigError(f"`tfpipe train` needs a dataset, got the files {files}. Make one with `tfpipe index`.")
    signals: list[int] = []
    before, out = signal.signal(signal.SIGTERM, lambda number, _: signals.append(number)), sys.stdout
    try:
        # The user's own functions come first: TensorFlow takes its time.
        build = load_function(options["model"], "--model") if ":" in (options["model"] or "") else None
        customize = load_stages(options["stages"])
        with quiet_start():
            from tfpipe.distribution import describe_strategy, resolve_strategy
            from tfpipe.training.train import train as run

            strategy = resolve_strategy(options["tpu"])
        config = _build_config(options, manifest, split, strategy.num_replicas_in_sync)
        with restore_interrupts(), status_line("Starting") as line:
            output = Output(options["dataset"], config, line, out, as_json=options["as_json"])
            output.note(f"{config.model} on {describe_strategy(strategy)}. The run is in {config.output}.")
            result = run(manifest, config, strategy, build, output, lambda: bool(signals), customize)
            output.end(result)
    except KeyboardInterrupt:
        click.echo("Interrupted. The same command goes on from the last checkpoint, if there is one.", err=True)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
    if not result.finished:
        raise SystemExit(TERMINATED)


def _build_config(options: dict[str, Any], manifest: "Manifest", split: str, num_replicas: int) -> TrainConfig:
    """Builds the config from the command line; `TrainConfig` has the defaults of the other options."""
    from tfpipe.training.train import hold_layer

    path = options["dataset"] if is_url(options["dataset"]) else os.path.abspath(options["dataset"])
    output = options["output"] or f"runs/{path.rstrip('/').rpartition('/')[2]}"
    held = hold_layer(manifest, output, split)
    records = (manifest if held is None else held.begun).splits[split].records  # a run that goes on keeps its batch
    batch = options["batch_size"], default_batch_size(records, num_replicas)
    given = {name: options[name] for name in ("image_size", "seed", "cpu_budget")}
    pipeline = read_config(options["config"], *batch, given, default_pipeline(options["model"] or TrainConfig.model))
    return TrainConfig(pipeline=pipeline, **take(TrainConfig, {**options, "split": split, "output": output}))


class Output(TrainObserver):
    """The output: epochs or JSON on standard output, all else on standard error."""

    def __init__(self, dataset: str, config: "TrainConfig", line: Observer, out: TextIO, *, as_json: bool) -> None:
        self._dataset, self._config, self._as_json = dataset, config, as_json
        # The live line takes over standard output to print above itself. It would write to the terminal what is meant
        # for a file or a pipe, so `out` is what standard output was before.
        self._out = None if out.isatty() else out
        self.phase = line.phase  # type: ignore[method-assign]

    def note(self, text: str) -> None:
        """Prints a sentence."""
        click.echo(text, err=True)

    def epoch(self, result: dict[str, Any]) -> None:
        """Prints a line of text or JSON."""
        text = json.dumps(result, allow_nan=False) if self._as_json else _format_epoch(result)
        click.echo(text, file=self._out)

    def end(self, result: "TrainResult") -> None:
        """Prints the end of the run, and the command that explains idle time."""
        names = ("step_s", "idle_fraction", "input_wait_fraction")
        timing = None if result.timing is None else {name: getattr(result.timing, name).median for name in names}
        if self._as_json:
            click.echo(json.dumps({**result._asdict(), "timing": timing}, allow_nan=False), file=self._out)
        if not result.finished:
            epoch, step = result.position
            self.note(f"Stopped and saved at epoch {epoch + 1}, step {step}. Run the same command again to go on.")
            return
        if timing is not None:
            idle, wait = timing["idle_fraction"], timing["input_wait_fraction"]
            self.note(f"The device was idle for {human_share(idle)} of the time; input wait {human_share(wait)}.")
            if idle > _IDLE_WORTH_A_LOOK:
                options = f"--step-ms {1000 * timing['step_s']:.3g} --batch-size {result.global_batch_size}"
                self.note(f"To see why: tfpipe profile {shlex.quote(self._dataset)} {options}")
        if result.was_finished:
            self.note(f"The run in {result.output} was already finished: {self._config.num_epochs} epochs.")
        if result.tflite_accuracy is not None:
            self.note(f"TFLite, {self._config.tflite}: accuracy {result.tflite_accuracy:.1%}.")
        use = f"`tfpipe predict {result.output} IMAGE` classifies images with it."
        self.note(f"The model is in {result.output}/model; {use}")


def _format_epoch(result: dict[str, Any]) -> str:
    parts = [f"Epoch {result['epoch']}/{result['epochs']}: {format_means(result['training'])}"]
    if result["evaluation"] is not None:
        parts.append(f"evaluation: {format_means(result['evaluation'])}")
    if result["images_per_second"] is not None:
        parts.append(f"{human_rate(result['images_per_second'])} images/s")
    return "; ".join(parts)
