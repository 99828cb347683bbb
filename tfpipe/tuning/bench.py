"""One pipeline's rate, as a figure that can be compared with the same figure of another day.

Rates by the clock cannot be compared so: the machine is shared, or it is another one. So a yardstick runs in turns with
the pipeline: a fixed JPEG decoded over and over by tf.data, with nothing of tfpipe in it. The score is the pipeline's
rate divided by that of the yardstick beside it, and scores are compared. A slower machine slows both.

The pipeline is also started anew several times, since two processes of the same program differ by more than two turns
of one (memory layout, what AUTOTUNE arrived at); the interval is over processes. See A. Georges et al., "Statistically
Rigorous Java Performance Evaluation", OOPSLA 2007.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.errors import ConfigError
from tfpipe.profiler.measure.simulated_accelerator import NO_TIME_S, Accelerator
from tfpipe.system.progress import Observer
from tfpipe.tuning.paired_benchmark import (
    Interval,
    Turn,
    choose_turn_s,
    get_mean,
    get_paired_ratio,
    get_rate,
    get_ratio_of_means,
    take_turns,
)
from tfpipe.tuning.pipeline_process import PipelineProcess
from tfpipe.tuning.trials import PipelineJob
from tfpipe.tuning.tuned_file import Place, get_place

VERSION = 1
_KIND = "tfpipe bench"
MIN_PROCESSES = 3
_ROUNDS = 8
_YARDSTICK_BATCH, _YARDSTICK_SIDE = 64, 384


@dataclass(frozen=True)
class Bench:
    """The rate of a pipeline, with the facts that a comparison needs.

    Attributes:
        images_per_second: The rate by the clock: the mean over its processes, with its 95 % interval.
        images_per_cpu_second: The images per second of processor time.
        scores: The rate divided by the yardstick's, for each process.
        yardstick_images_per_second: The rate of the yardstick by the clock.
        place: The host and the data.
        config: The options of the pipeline, plain values.
    """

    images_per_second: Interval
    images_per_cpu_second: float
    scores: tuple[float, ...]
    yardstick_images_per_second: float
    place: Place
    config: Mapping[str, Any]

    @property
    def score(self) -> Interval:
        """The mean of the scores, with its 95 % interval."""
        return get_mean(self.scores)


@dataclass(frozen=True)
class Comparison:
    """A bench compared with an earlier one.

    Attributes:
        ratio: The ratio of the scores.
        same_host: Whether both were measured on the same kind of host.
        same_data: Whether both read the same data.
        changed: The options that differ: the earlier and the present value, by names as in "tf_data.cycle_length".
    """

    ratio: Interval
    same_host: bool
    same_data: bool
    changed: Mapping[str, tuple[Any, Any]]

    def is_below(self, share: float) -> bool:
        """Returns whether the pipeline has certainly become slower than this share of its earlier rate."""
        return self.ratio.high < share


def build_yardstick() -> Any:
    """Builds batches of 64 of one JPEG, 384 x 384 of noise, without end; as much work as a usual photograph."""
    import tensorflow as tf

    coarse_side = _YARDSTICK_SIDE // 8
    noise = tf.random.stateless_uniform((coarse_side, coarse_side, 3), (1, 2), 0, 256, tf.int32)
    smooth = tf.image.resize(tf.cast(noise, tf.float32), (_YARDSTICK_SIDE, _YARDSTICK_SIDE), "bicubic")
    encoded = tf.io.encode_jpeg(tf.cast(tf.clip_by_value(smooth, 0, 255), tf.uint8), quality=95)
    images = tf.data.Dataset.from_tensors(encoded).repeat()
    images = images.map(tf.io.decode_jpeg, num_parallel_calls=tf.data.AUTOTUNE, deterministic=False)
    return images.batch(_YARDSTICK_BATCH, drop_remainder=True).prefetch(2)


def measure(job: PipelineJob, config: PipelineConfig, processes: int, observer: Observer) -> Bench:
    """Starts the pipeline several times, and lets each process run in turns with the yardstick.

    Args:
        job: The data and the accelerator.
        config: The options of the pipeline.
        processes: The number of starts of the pipeline, at least 3.
        observer: The observer of the runs.

    Raises:
        DataError: The pipeline does not run.
    """
    if processes < MIN_PROCESSES:
        raise ConfigError(
            f"A pipeline must be started at least {MIN_PROCESSES} times to know the spread, got {processes}."
        )
    pipeline_runs: list[list[Turn]] = []
    yardstick_runs: list[list[Turn]] = []
    with ExitStack() as stack:
        observer.phase("Starting the yardstick")
        no_accelerator = Accelerator(NO_TIME_S, _YARDSTICK_BATCH)
        yardstick_process = stack.enter_context(PipelineProcess(build_yardstick, no_accelerator))
        began = time.monotonic()
        for number in range(processes):
            left_s = (time.monotonic() - began) / max(number, 1) * (processes - number)
            left = f", about {left_s:,.0f} s left" if number else ""
            observer.phase(f"Run {number + 1} of {processes}{left}")
            with job.start_process(config) as pipeline:
                turn_s = choose_turn_s(job.get_accelerator(config), pipeline.start.images_per_second)
                turns = take_turns({"pipeline": pipeline, "yardstick": yardstick_process}, _ROUNDS, turn_s)
            pipeline_runs.append(turns["pipeline"])
            yardstick_runs.append(turns["yardstick"])
    all_turns = [turn for turns_of_run in pipeline_runs for turn in turns_of_run]
    pairs = zip(pipeline_runs, yardstick_runs, strict=True)
    return Bench(
        images_per_second=get_mean([get_rate(turns_of_run) for turns_of_run in pipeline_runs]),
        images_per_cpu_second=sum(turn.images for turn in all_turns) / sum(turn.cpu_s for turn in all_turns),
        scores=tuple(get_paired_ratio(pipeline_turns, beside).ratio for pipeline_turns, beside in pairs),
        yardstick_images_per_second=get_mean([get_rate(turns_of_run) for turns_of_run in yardstick_runs]).ratio,
        place=get_place(job.data, job.split),
        config=asdict(config),
    )


def compare(bench: Bench, base: Bench) -> Comparison:
    """Compares the rate of the pipeline with its earlier rate."""
    before, after = map(_flatten, json.loads(json.dumps([base.config, bench.config])))  # a tuple is a list in a file
    names = [name for name in {**after, **before} if after.get(name) != before.get(name)]
    return Comparison(
        ratio=get_ratio_of_means(bench.scores, base.scores),
        same_host=(bench.place.processor, bench.place.cores) == (base.place.processor, base.place.cores),
        same_data=bench.place.fingerprint == base.place.fingerprint,
        changed={name: (before.get(name), after.get(name)) for name in names},
    )


def _flatten(table: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of a table and of those in it, by names as in "tf_data.cycle_length"."""
    flat: dict[str, Any] = {}
    for name, value in table.items():
        inner = {f"{name}.{each}": part for each, part in _flatten(value).items()} if isinstance(value, dict) else {}
        flat |= inner or {name: value}
    return flat


def to_json(bench: Bench, comparison: Comparison | None = None) -> dict[str, Any]:
    """Returns plain values, with the version of their form."""
    document = {"version": VERSION, "kind": _KIND, **asdict(bench), "score": asdict(bench.score)}
    return document if comparison is None else {**document, "comparison": asdict(comparison)}


def load(path: str) -> Bench:
    """Reads a file with the JSON of a bench.

    Raises:
        ConfigError: The file is missing, or it is not a bench.
    """
    try:
        document = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}. Give a file that `output` wrote.") from None
    except (ValueError, RecursionError):
        raise ConfigError(f"{path} must be a file that `output` wrote, and is not JSON.") from None
    if not isinstance(document, dict) or document.get("kind") != _KIND or document.get("version") != VERSION:
        raise ConfigError(f"{path} must be a file that `output` of this version wrote.")
    try:
        scores = tuple(float(score) for score in document["scores"])
        if len(scores) < MIN_PROCESSES or not all(0 < score < math.inf for score in scores):
            raise ValueError
        return Bench(
            images_per_second=Interval(**document["images_per_second"]),
            images_per_cpu_second=float(document["images_per_cpu_second"]),
            scores=scores,
            yardstick_images_per_second=float(document["yardstick_images_per_second"]),
            place=Place(**document["place"]),
            config=dict(document["config"]),
        )
    except (KeyError, TypeError, ValueError):
        raise ConfigError(f"{path} must be a file that `output` wrote: a part is missing or is not a number.") from None
