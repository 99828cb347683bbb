"""The output of `tfpipe train`: a live line, a line for each epoch, and at the end the next command."""

import json
import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TextIO

import click

from tfpipe.system.progress import Observer
from tfpipe.system.units import human_rate, human_share
from tfpipe.training.results import TrainObserver

if TYPE_CHECKING:
    from tfpipe.profiler.types import StepTiming
    from tfpipe.training.config import TrainConfig
    from tfpipe.training.results import EpochResult, Metrics, StepResult, TrainResult

_IDLE_WORTH_A_LOOK = 0.05


class Output(TrainObserver):
    """The output: epochs or JSON on standard output, all else on standard error."""

    def __init__(self, dataset: str, config: "TrainConfig", line: Observer, out: TextIO, *, as_json: bool) -> None:
        self._dataset, self._config, self._as_json = dataset, config, as_json
        # The live line takes over standard output to print above itself. It would write to the terminal what is meant
        # for a file or a pipe, so `out` is what standard output was before.
        self._line, self._out = line, None if out.isatty() else out

    def begin(self, devices: str) -> None:
        """Prints the device and the folder of the run."""
        self.note(f"{self._config.model} on {devices}. The run is in {self._config.output}.")

    def note(self, text: str) -> None:
        """Prints a sentence."""
        click.echo(text, err=True)

    def step(self, result: "StepResult") -> None:
        """Updates the live line."""
        idle, wait = result.idle_fraction, result.input_wait_fraction
        parts = [
            f"epoch {result.epoch + 1}/{result.num_epochs}, step {result.step}/{result.steps_per_epoch}",
            f"{human_rate(result.images_per_second)} images/s",
            _metrics(result.metrics),
            *([] if idle is None or wait is None else [f"{human_share(idle)} idle, {human_share(wait)} input wait"]),
        ]
        self._line.phase("  ".join(parts))

    def epoch(self, result: "EpochResult") -> None:
        """Prints a line of text or JSON."""
        if self._as_json:
            click.echo(json.dumps({"epoch": result.epoch + 1, **_plain(result)}, allow_nan=False), file=self._out)
            return
        speed = result.images_per_second
        parts = [
            f"Epoch {result.epoch + 1}/{result.num_epochs}: {_metrics(result.training)}",
            *([] if result.evaluation is None else [f"evaluation: {_metrics(result.evaluation)}"]),
            *([] if speed is None else [f"{human_rate(speed)} images/s"]),
        ]
        click.echo("; ".join(parts), file=self._out)

    def end(self, result: "TrainResult") -> None:
        """Prints the end of the run, and the command that explains idle time."""
        if self._as_json:
            timing = None if result.timing is None else _timing(result.timing)
            fields = {**asdict(result), "timing": timing}
            click.echo(json.dumps(fields, allow_nan=False), file=self._out)
        if not result.finished:
            epoch, step = result.position
            self.note(f"Stopped and saved at epoch {epoch + 1}, step {step}. Run the same command again to go on.")
            return
        self._verdict(result)
        if result.was_finished:
            self.note(f"The run in {result.output} was already finished: {self._config.num_epochs} epochs.")
        if result.tflite_accuracy is not None:
            self.note(f"TFLite, {self._config.tflite}: accuracy {result.tflite_accuracy:.1%}.")
        use = f"`tfpipe predict {result.output} IMAGE` classifies images with it."
        self.note(f"The model is in {result.output}/model; {use}")

    def _verdict(self, result: "TrainResult") -> None:
        timing = result.timing
        if timing is None:
            return
        idle, wait = timing.idle_fraction.median, timing.input_wait_fraction.median
        self.note(f"The device was idle for {human_share(idle)} of the time; input wait {human_share(wait)}.")
        if idle > _IDLE_WORTH_A_LOOK:
            step_ms = 1000 * timing.step_s.median
            dataset = shlex.quote(self._dataset)
            self.note(
                f"To see why: tfpipe profile {dataset} --step-ms {step_ms:.3g} --batch-size {result.global_batch_size}"
            )


def _metrics(metrics: "Metrics") -> str:
    text = f"loss {metrics.loss:.3f}, accuracy {metrics.accuracy:.1%}"
    return text if metrics.top5 is None else f"{text}, top 5 {metrics.top5:.1%}"


def _plain(result: "EpochResult") -> dict[str, Any]:
    evaluation = None if result.evaluation is None else asdict(result.evaluation)
    return {
        "epochs": result.num_epochs,
        "training": asdict(result.training),
        "evaluation": evaluation,
        "images_per_second": result.images_per_second,
        "seconds": result.seconds,
    }


def _timing(timing: "StepTiming") -> dict[str, float]:
    return {
        "step_s": timing.step_s.median,
        "idle_fraction": timing.idle_fraction.median,
        "input_wait_fraction": timing.input_wait_fraction.median,
    }
