"""One pipeline's rate, as a figure that can be compared with the same figure of another day.

Rates by the clock cannot: the machine is shared, or another one. So a yardstick runs in turns with the pipeline: a
fixed JPEG decoded over and over by tf.data, with nothing of tfpipe in it. What is compared is the score, the pipeline's
rate by the yardstick's beside it. A machine that has become slower has become so for both.

The pipeline is also started anew several times, since two processes of the same program differ by more than two turns
of one (memory layout, what AUTOTUNE arrived at); the interval is over processes. See A. Georges et al., "Statistically
Rigorous Java Performance Evaluation", OOPSLA 2007.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tfpipe.errors import ConfigError
from tfpipe.pipeline.config.pipeline_config import PipelineConfig
from tfpipe.profiler.measure.simulated_accelerator import Accelerator
from tfpipe.tuning.paired_benchmark import Interval, Turn, mean, paired_ratio, rate, ratio, take_turns
from tfpipe.tuning.pipeline_process import Contestant, Tick, WarmUp
from tfpipe.tuning.trials import MAX_WARM_UP_S, Job, Watch, turn_s
from tfpipe.tuning.tuned_file import Place, place_of

VERSION = 1
_KIND = "tfpipe bench"
MIN_PROCESSES = 3
_ROUNDS = 8
_YARD_BATCH, _YARD_SIDE, _NO_TIME_S = 64, 384, 1e-9


@dataclass(frozen=True)
class Bench:
    """The rate of a pipeline, and all that is needed to compare it."""

    images_per_second: Interval
    """By the clock: the mean of its processes (`ratio`), with the bounds of its 95 % interval."""
    images_per_cpu_second: float
    scores: tuple[float, ...]
    """Of each process: its rate by the yardstick's."""
    yardstick_images_per_second: float
    place: Place
    config: Mapping[str, Any]

    @property
    def score(self) -> Interval:
        """The mean of the scores, with the bounds of its 95 % interval."""
        return mean(self.scores)


@dataclass(frozen=True)
class Comparison:
    """A bench by another."""

    ratio: Interval
    """Of the scores."""
    same_host: bool
    same_data: bool
    changed: Mapping[str, tuple[Any, Any]]
    """Options that differ: then and now."""

    def is_below(self, share: float) -> bool:
        """Whether the pipeline has certainly become slower than this share of what it was."""
        return self.ratio.high < share


def yardstick() -> Any:
    """A JPEG of 384 x 384 noise, decoded for ever, in batches of 64; as much work as a usual photograph."""
    import tensorflow as tf

    noise = tf.random.stateless_uniform((_YARD_SIDE // 8, _YARD_SIDE // 8, 3), (1, 2), 0, 256, tf.int32)
    smooth = tf.image.resize(tf.cast(noise, tf.float32), (_YARD_SIDE, _YARD_SIDE), "bicubic")
    encoded = tf.io.encode_jpeg(tf.cast(tf.clip_by_value(smooth, 0, 255), tf.uint8), quality=95)
    images = tf.data.Dataset.from_tensors(encoded).repeat()
    images = images.map(tf.io.decode_jpeg, num_parallel_calls=tf.data.AUTOTUNE, deterministic=False)
    return images.batch(_YARD_BATCH, drop_remainder=True).prefetch(2)


def measure(job: Job, config: PipelineConfig, processes: int, watch: Watch, tick: Tick | None = None) -> Bench:
    """Starts the pipeline several times, and lets each run in turns with the yardstick.

    Args:
        job: What is measured.
        config: Of the pipeline.
        processes: How often it is started, at least 3.
        watch: Told what is being done.
        tick: Called while one waits.

    Raises:
        DataError: The pipeline does not run.
    """
    if processes < MIN_PROCESSES:
        raise ConfigError(
            f"A pipeline must be started at least {MIN_PROCESSES} times to know the spread, got {processes}."
        )
    own: list[list[Turn]] = []
    yard: list[list[Turn]] = []
    with ExitStack() as stack:
        watch("Starting the yardstick")
        measure_by = Accelerator(_NO_TIME_S, _YARD_BATCH)
        stick = stack.enter_context(Contestant(yardstick, measure_by, WarmUp(MAX_WARM_UP_S), tick))
        for number in range(processes):
            watch(f"Run {number + 1} of {processes}")
            with job.contestant(config, tick) as pipeline:
                seconds = turn_s(job.accelerator_of(config), pipeline.start.images_per_second)
                turns = take_turns({"own": pipeline, "yard": stick}, _ROUNDS, seconds)
            own.append(turns["own"])
            yard.append(turns["yard"])
    every = [turn for turns in own for turn in turns]
    return Bench(
        images_per_second=mean([rate(turns) for turns in own]),
        images_per_cpu_second=sum(turn.images for turn in every) / sum(turn.cpu_s for turn in every),
        scores=tuple(paired_ratio(turns, beside).ratio for turns, beside in zip(own, yard, strict=True)),
        yardstick_images_per_second=mean([rate(turns) for turns in yard]).ratio,
        place=place_of(job.data, job.split),
        config=asdict(config),
    )


def compare(now: Bench, base: Bench) -> Comparison:
    """How fast it is now by how fast it was."""
    then, today = json.loads(json.dumps([base.config, now.config]))  # a tuple is a list where it was in a file
    names = [name for name in today if today[name] != then.get(name)]
    return Comparison(
        ratio=ratio(now.scores, base.scores),
        same_host=(now.place.processor, now.place.cores) == (base.place.processor, base.place.cores),
        same_data=now.place.fingerprint == base.place.fingerprint,
        changed={name: (then.get(name), today[name]) for name in names},
    )


def to_json(bench: Bench, compared: Comparison | None = None) -> dict[str, Any]:
    """Plain values, with the version of their form."""
    document = {"version": VERSION, "kind": _KIND, **asdict(bench), "score": asdict(bench.score)}
    return document if compared is None else {**document, "comparison": asdict(compared)}


def load(path: str) -> Bench:
    """Reads what `save` wrote.

    Raises:
        ConfigError: The file is missing, or something else.
    """
    try:
        document = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}. Give a file that `save` wrote.") from None
    except (ValueError, RecursionError):
        raise ConfigError(f"{path} must be a file that `save` wrote, and is no JSON.") from None
    if not isinstance(document, dict) or document.get("kind") != _KIND or document.get("version") != VERSION:
        raise ConfigError(f"{path} must be a file that `save` of this version wrote.")
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
        raise ConfigError(f"{path} must be a file that `save` wrote: some of it is missing or no number.") from None
