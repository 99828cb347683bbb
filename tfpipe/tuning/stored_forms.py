"""Measures how fast pipelines read the same images in the forms in which they can be stored.

    candidates = list_candidates(ImageForm(), config, "both", has_native_library=True)
    speeds = measure_forms(candidates, {form: manifest, ...}, config, observer)

Each pipeline runs in a separate process, and all take turns, so that other work on the machine hits all alike. The
figure that is compared is images per second of processor time: it hardly depends on how many cores were free.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.format.image_form import ImageForm
from tfpipe.format.manifest import Manifest
from tfpipe.profiler.measure.simulated_accelerator import NO_TIME_S, Accelerator
from tfpipe.system import host_limits
from tfpipe.system.progress import Observer
from tfpipe.tuning.advise_config import Crop
from tfpipe.tuning.candidates import Changes
from tfpipe.tuning.paired_benchmark import Interval, Turn, choose_turn_s, get_rate
from tfpipe.tuning.pipeline_process import PipelineProcess, build_endless_dataset

ROUNDS, MIN_TURN_S = 6, 1.0
_MAX_BATCH = 64

_PROCESS_BYTES = 0.8 * 2**30
"""The memory of a process that runs a pipeline: 0.65 GB were measured with a sample of 1,000 photos."""


@dataclass(frozen=True)
class Candidate:
    """A form of stored images, and the pipeline that reads it.

    Attributes:
        name: The name of the form, such as "raw 256".
        form: The form.
        changes: The options of the pipeline that differ from the defaults, by name.
        keeps_crops: Whether the model gets the crops that it gets from the originals. Otherwise the images are reduced
            before they are cropped, and the pixels differ.
    """

    name: str
    form: ImageForm
    changes: Changes = field(default_factory=dict)
    keeps_crops: bool = False

    @property
    def crop(self) -> str:
        """The place of the random crop: "host" or "device"."""
        return str(self.changes.get("augment", "host"))

    @property
    def caches_decoded(self) -> bool:
        """Whether the decoded images are kept in memory after the first epoch."""
        return self.changes.get("cache") == "decoded"


@dataclass(frozen=True)
class Speed:
    """The measured speed of a candidate.

    Attributes:
        images_per_cpu_second: The images per second of processor time: of all turns together, with those of the
            slowest and of the fastest turn.
        images_per_second: The images per second by the clock, of the median turn.
    """

    images_per_cpu_second: Interval
    images_per_second: float


def list_candidates(
    form: ImageForm, config: PipelineConfig, crop: Crop, *, has_native_library: bool
) -> list[Candidate]:
    """Lists the forms that are compared, each with the pipeline that fits it.

    Args:
        form: The form of images that stay as they are, with the quality and the limits that hold for every form.
        config: The options of the pipeline. Reduced images get its `resolve_decoded_size`.
        crop: The place where crops may be taken.
        has_native_library: Whether the native library is there, which restart markers need.
    """
    side = min(config.resolve_decoded_size())
    short = replace(form, resize_short=side, seekable=has_native_library)
    square = replace(form, encoding="jpeg", square=side)
    raw = replace(form, encoding="raw", square=side)
    device, cached = {"augment": "device"}, {"cache": "decoded"}
    candidates = [
        Candidate("original", form, keeps_crops=True),
        *([Candidate("seekable", replace(form, seekable=True), keeps_crops=True)] if has_native_library else []),
        Candidate(f"short side {side}", short),
        Candidate(f"square JPEG {side}", square),
        Candidate(f"raw {side}", raw),
        Candidate(f"original, cached at {side}", form, cached),
        Candidate("original", form, device),
        Candidate(f"square JPEG {side}", square, device),
        Candidate(f"raw {side}", raw, device),
        Candidate(f"original, cached at {side}", form, {**cached, **device}),
    ]
    return [candidate for candidate in candidates if crop in (candidate.crop, "both")]


def choose_batch_size(records: int) -> int:
    """Returns the images of a batch: 64, or a smaller power of two if the sample is small."""
    return min(_MAX_BATCH, 1 << max(records // 2, 1).bit_length() - 1)


def measure_forms(
    candidates: Sequence[Candidate],
    datasets: Mapping[ImageForm, Manifest],
    split: str,
    config: PipelineConfig,
    observer: Observer,
) -> list[Speed]:
    """Starts a pipeline for each candidate, and lets all run in turns at their full rate.

    If the free memory does not hold all of them, as many as it holds take turns, and then the next ones.

    Args:
        candidates: The forms and their pipelines.
        datasets: The dataset of each form, all of the same images.
        split: The name of the split that holds them.
        config: The options of every pipeline, besides those of its candidate.
        observer: The observer of the work.

    Returns:
        The speed of each candidate, in their order. A cache is full before its first turn.

    Raises:
        DataError: A pipeline does not run.
    """
    at_once = max(int(host_limits.available_memory_bytes() / _PROCESS_BYTES), 1)
    speeds: list[Speed] = []
    for first in range(0, len(candidates), at_once):
        speeds += _measure_in_turns(candidates[first : first + at_once], datasets, split, config, observer)
    return speeds


def _measure_in_turns(
    candidates: Sequence[Candidate],
    datasets: Mapping[ImageForm, Manifest],
    split: str,
    config: PipelineConfig,
    observer: Observer,
) -> list[Speed]:
    accelerator = Accelerator(NO_TIME_S, config.batch_size)
    pipelines: list[tuple[PipelineProcess, list[Turn]]] = []
    with ExitStack() as stack:
        for candidate in candidates:
            observer.phase(f"Starting the pipeline of {candidate.name}, crop on the {candidate.crop}")
            data = datasets[candidate.form]
            batches = math.ceil(data.splits[split].records / accelerator.images_per_step)
            make = partial(build_endless_dataset, data, split, replace(config, **candidate.changes))
            process = PipelineProcess(make, accelerator, batches if candidate.caches_decoded else 0)
            pipelines.append((stack.enter_context(process), []))
        order = list(pipelines)
        for round_number in range(ROUNDS):
            observer.phase(f"Measuring {len(candidates)} pipelines in turns, round {round_number + 1} of {ROUNDS}")
            for process, turns in order:
                turn_s = max(MIN_TURN_S, choose_turn_s(accelerator, process.start.images_per_second))
                turns.append(process.turn(turn_s))
            order.reverse()
    return [compute_speed(turns) for _, turns in pipelines]


def compute_speed(turns: Sequence[Turn]) -> Speed:
    """Computes the speed of a pipeline from its turns."""
    rates = [turn.images / turn.cpu_s for turn in turns]
    # Not the median: some of the images of a turn were prepared in the one before, and the sum makes up for it.
    mean = sum(turn.images for turn in turns) / sum(turn.cpu_s for turn in turns)
    return Speed(Interval(mean, min(rates), max(rates)), get_rate(turns))
