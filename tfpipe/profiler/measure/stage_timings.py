"""From samples of a running pipeline to the cost of each stage.

Four things are not as simple as a difference of two counters:

- A stage may give more or fewer elements than it takes: a filter, a batch, a record that is left out. All figures are
  for an image that leaves the pipeline. So the operations are followed from the end to the source: an operation that
  gives a quarter of what it takes makes four elements of each operation before it one element of its own.
- An operation that is made anew, such as one below a `repeat`, counts from 0 again; then all that it has counted is
  added. Nodes are recognized by their place in the chain, not by their number.
- What an interleave opens comes and goes between two samples. The nodes that are seen give a time per element, and the
  node above them knows how many elements there were.
- Time by the clock is longer than processor time where threads wait for a core. So all of it is divided by how much
  longer the threads of this process took than they ran. What the processor cannot have done in the rest is waiting: for
  Python's lock, or for whatever else a Python function waits for, if there is one; else for files, in `read`.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

from tfpipe.profiler.diagnose.calibration import UNCOUNTED_CPU_SHARE
from tfpipe.profiler.measure.stage_matching import Match, PlannedOperation, get_operation_kind, match_stages
from tfpipe.profiler.measure.tfdata_counters import Node, Sample
from tfpipe.profiler.types import Spread, StageTiming

_MAX_PARTS = 10
_COUNTERS = ("elements", "busy_s", "bytes_in", "bytes_out")
_FULL = 0.5
"""The mean share of a buffer above which nobody waits for the threads that fill it."""
_KEEPS_NUMBER = frozenset({"Cache", "Map", "Prefetch", "Repeat", "Scan", "Shuffle", "ShuffleAndRepeat", "Zip"})
"""Kinds of operations that give as many elements as they take. They may hold many, which must not count as dropped;
those of other kinds are counted."""
_ENOUGH = 30
"""Elements from which on those of the measured time are counted, and not those of the pipeline's whole life."""
_ON_THE_WAY = 2
"""Elements that may be inside of an operation that drops none."""
_LIMITS = ("max_buffered_elements", "buffer_size", "parallelism")
"""The parameters that bound an operation's buffer; the first one that is there counts."""


@dataclass
class _Part:
    """The counts of a part of the run, between two samples.

    Attributes:
        wall_s: Its duration, in seconds.
        cpu_s: Processor time of the process.
        queue_s: Time in which threads waited for a core.
        lock_s: Time in which Python's lock was held.
        busy_s: Time by stage in which threads were not blocked.
        images: Images that leave the pipeline by stage, as many as its elements make.
        bytes_in: Bytes by stage.
        bytes_out: Bytes by stage.
    """

    wall_s: float = 0.0
    cpu_s: float = 0.0
    queue_s: float = 0.0
    lock_s: float = 0.0
    busy_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    images: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    bytes_in: Counter[str] = field(default_factory=Counter)
    bytes_out: Counter[str] = field(default_factory=Counter)

    @property
    def stretch(self) -> float:
        """The factor by which threads took longer than they ran."""
        return 1 + self.queue_s / self.cpu_s if self.cpu_s > 0 else 1.0

    def add(self, other: _Part) -> None:
        """Adds a later part."""
        self.wall_s, self.cpu_s = self.wall_s + other.wall_s, self.cpu_s + other.cpu_s
        self.queue_s += other.queue_s
        self.lock_s += other.lock_s
        for mine, others in ((self.busy_s, other.busy_s), (self.images, other.images)):
            for name, value in others.items():
                mine[name] += value
        for name in ("bytes_in", "bytes_out"):
            getattr(self, name).update(getattr(other, name))


class _Chain(NamedTuple):
    """The operations from the root to the source.

    Attributes:
        stages: The stage of each operation.
        ends: The place of the operation whose elements leave a stage, by stage, from the last stage to the first.
        elements_per_image: The elements of each operation that make one image that leaves the pipeline.
        out_per_in: The elements that each stage gives for each that it takes.
    """

    stages: list[str]
    ends: dict[str, int]
    elements_per_image: list[float]
    out_per_in: dict[str, float]


class _Settings(NamedTuple):
    """The threads and the buffer of a stage.

    Attributes:
        parallelism: Threads that it has.
        max_parallelism: Threads that it can have.
        buffer_size: Elements that its last buffer can hold.
        buffer_fill: Mean share of that buffer that was full.
    """

    parallelism: int
    max_parallelism: int
    buffer_size: int | None
    buffer_fill: float | None


def compute_stage_timings(
    samples: Sequence[Sample],
    planned: Sequence[PlannedOperation],
    python_stages: Collection[str],
    images_per_batch: int,
) -> tuple[StageTiming, ...]:
    """Returns the figures of each stage from the first sample to the last, in the order of the pipeline.

    Args:
        samples: Samples in steady state.
        planned: The operations of the stages, from `list_planned_operations`.
        python_stages: Names of the stages in which a Python function runs, from `find_python_stages`.
        images_per_batch: Images in an element of the whole pipeline.
    """
    if len(samples) < 2:
        return ()
    samples = _keep_last_shape(samples)
    chain = _make_chain(samples, planned, images_per_batch)
    labels = chain.stages
    side_costs = _compute_side_costs(samples)
    parts = [_make_part(before, after, chain, side_costs) for before, after in pairwise(samples)]
    # A few long parts: in a short one a stage may give nothing, and counters jump.
    size = -(-len(parts) // _MAX_PARTS)
    parts = [_sum_parts(parts[i : i + size]) for i in range(0, len(parts), size)]
    whole = _sum_parts(parts)
    blocked = _compute_blocked_s(whole, python_stages)
    # If a stage gave nothing while it was sampled, its whole life must do.
    life = _make_part(_clear_counters(samples[-1]), samples[-1], chain, side_costs)
    timings = []
    for name in reversed(chain.ends):
        settings = _read_settings(name, samples, labels)
        timing = _make_timing(name, whole, parts, blocked.get(name), life, settings)
        timings.append(replace(timing, python=name in python_stages, elements_out_per_in=chain.out_per_in[name]))
    return tuple(timings)


def leave_out_false_wait(timings: Sequence[StageTiming]) -> tuple[StageTiming, ...]:
    """Returns the figures of the stages, without a wait of `read` if its records waited to be taken."""
    if not _is_backed_up(timings):
        return tuple(timings)
    return tuple(
        replace(timing, blocked_fraction=0.0, wait_us_per_image=0.0) if timing.name == "read" else timing
        for timing in timings
    )


def compute_stretch(samples: Sequence[Sample]) -> float:
    """Returns the factor by which the threads of the process took longer than they ran, at least 1."""
    if len(samples) < 2 or samples[-1].cpu_s <= samples[0].cpu_s:
        return 1.0
    return 1 + max(samples[-1].queue_s - samples[0].queue_s, 0.0) / (samples[-1].cpu_s - samples[0].cpu_s)


def count_records_per_image(stages: Sequence[StageTiming], images_per_batch: int, records_per_element: int) -> float:
    """Returns the records that are taken for an image that leaves the pipeline; 1 if there are no stages.

    Args:
        stages: All stages of the pipeline.
        images_per_batch: Images in an element of the whole pipeline.
        records_per_element: Records in an element of the stage `read`.
    """
    given = math.prod(stage.elements_out_per_in for stage in stages)
    return records_per_element / (given * images_per_batch) if stages else 1.0


def _make_timing(
    name: str, whole: _Part, parts: Sequence[_Part], blocked_s: float | None, life: _Part, settings: _Settings
) -> StageTiming:
    """Returns the figures of one stage.

    Args:
        name: The stage.
        whole: All parts together.
        parts: The parts, for the spread.
        blocked_s: Time in which the stage's threads waited; None where they cannot wait.
        life: The whole life of the pipeline, for a stage that gave nothing in `whole`.
        settings: Threads and buffer of the stage.
    """
    busy_s, images = whole.busy_s[name], whole.images[name]
    ran = 1 - (blocked_s or 0.0) / busy_s if busy_s else 1.0
    factor = ran / whole.stretch * 1e6
    costs = [run.busy_s[name] / run.images[name] * factor for run in _join_parts(name, parts)]
    source = whole if images else life
    mean = source.busy_s[name] / source.images[name] * factor if source.images[name] else 0.0
    # The mean of all parts together: images leave some stages in bursts.
    spread = Spread.from_values(costs, mean) if costs else Spread(mean, mean, mean)
    waiting = None if blocked_s is None else blocked_s / whole.wall_s
    return StageTiming(
        name=name,
        cpu_us_per_image=spread,
        images_per_second=images / whole.wall_s,
        bytes_in_per_second=whole.bytes_in[name] / whole.wall_s,
        bytes_out_per_second=whole.bytes_out[name] / whole.wall_s,
        parallelism=settings.parallelism,
        buffer_size=settings.buffer_size,
        buffer_fill=settings.buffer_fill,
        blocked_fraction=None if waiting is None else min(waiting / settings.parallelism, 1.0),
        wait_us_per_image=(waiting or 0.0) * whole.wall_s / images * 1e6 if images else 0.0,
        max_parallelism=settings.max_parallelism,
    )


def _join_parts(name: str, parts: Sequence[_Part]) -> list[_Part]:
    """Returns longer parts, in each of which images left the stage.

    A stage that gives a batch a second works in all parts and gives in some: the work of all of them counts.
    """
    runs: list[_Part] = []
    run = _Part()
    for part in parts:
        run.add(part)
        if run.images[name]:
            runs.append(run)
            run = _Part()
    if runs:
        runs[-1].add(run)
    return runs


def _keep_last_shape(samples: Sequence[Sample]) -> Sequence[Sample]:
    """Returns the last samples with the same operations: a full cache has others than one that is being filled."""
    names = [[sample.nodes[node].name for node in sample.list_chain()] for sample in samples]
    if names[-2] != names[-1]:
        return _clear_counters(samples[-1]), samples[-1]
    first = len(samples) - 1
    while first and names[first - 1] == names[-1]:
        first -= 1
    return samples[min(first, len(samples) - 2) :]


def _make_chain(samples: Sequence[Sample], planned: Sequence[PlannedOperation], images_per_batch: int) -> _Chain:
    """Returns the stages of the operations and the elements of each that make an image; arguments as above."""
    names = [samples[-1].nodes[node].name for node in samples[-1].list_chain()]
    matches = match_stages(names[1:], planned)
    # The root, which hands elements over, is the last stage's.
    matches = [matches[0]._replace(batch_size=None) if matches else Match("", "", None), *matches]
    stages = [match.stage for match in matches]
    counted = _find_source(stages)
    ends: dict[str, int] = {}
    for place, match in enumerate(matches):
        for stage in (match.giver, match.stage):
            ends.setdefault(stage, place)
    per_image, out_per_in = [1 / images_per_batch], dict.fromkeys(ends, 1.0)
    for place, match in enumerate(matches[:-1]):
        # What the source takes, such as epochs, files and places in a cache, are not images.
        ratio = _count_out_per_in(samples, place, match) if 0 < place < counted else 1.0
        out_per_in[match.giver] *= ratio
        per_image.append(per_image[-1] / ratio)
    return _Chain(stages, ends, per_image, out_per_in)


def _find_source(stages: Sequence[str]) -> int:
    """Returns the place of the operation that first has images: of `read`, or of `repeat` behind a cache in memory."""
    return next((stages.index(name) for name in ("read", "repeat") if name in stages), len(stages))


def _count_out_per_in(samples: Sequence[Sample], place: int, match: Match) -> float:
    """Returns the elements that the operation at a place of the chain gave for each that it took."""
    if match.batch_size is not None:
        return 1 / match.batch_size
    last = samples[-1]
    if get_operation_kind(last.nodes[last.list_chain()[place]].name) in _KEEPS_NUMBER:
        return 1.0
    life = [_subtract_counters(_clear_counters(last), last, each)["elements"] for each in (place, place + 1)]
    given, taken = (
        sum(_subtract_counters(before, after, each)["elements"] for before, after in pairwise(samples))
        for each in (place, place + 1)
    )
    if min(given, taken) < _ENOUGH and life[1] > taken:
        given, taken = life
    if not given or not taken or abs(given - taken) <= _ON_THE_WAY:
        return 1.0
    return given / taken


def _compute_side_costs(samples: Sequence[Sample]) -> list[float]:
    """Returns, for each operation of the chain, the cost of one element of its side inputs, in seconds."""
    busy_s: dict[int, float] = defaultdict(float)
    elements: Counter[int] = Counter()
    for sample in samples:
        chain = sample.list_chain()
        for place, (node, next_node) in enumerate(pairwise(chain)):
            for child in sample.list_side_inputs(node, next_node):
                elements[place] += sample.nodes[child].elements
                busy_s[place] += sum(sample.nodes[number].busy_s for number in sample.list_subtree(child))
    places = range(max(len(sample.list_chain()) for sample in samples))
    return [busy_s[place] / elements[place] if elements[place] else 0.0 for place in places]


def _make_part(before: Sample, after: Sample, chain: _Chain, side_costs: Sequence[float]) -> _Part:
    """Returns the part of the run between two samples.

    Args:
        before: The earlier sample.
        after: The later sample.
        chain: The operations.
        side_costs: The cost of an element of each operation's side inputs.
    """
    part = _Part(after.at - before.at, after.cpu_s - before.cpu_s, max(after.queue_s - before.queue_s, 0.0))
    part.lock_s = after.lock_fraction * part.wall_s
    labels = chain.stages
    for place, stage in enumerate(labels):
        change = _subtract_counters(before, after, place)
        part.busy_s[stage] += change["busy_s"] + side_costs[place] * change["elements"]
        for name in (name for name, end in chain.ends.items() if end == place):
            part.images[name] = change["elements"] / chain.elements_per_image[place]
            part.bytes_out[name] = round(change["bytes_out"])
        part.bytes_in[stage] = round(change["bytes_in"])
    source = labels[_find_source(labels) :]
    for stage in source:  # epochs and files are not images
        part.images[stage] = part.images[source[0]]
    return part


def _subtract_counters(before: Sample, after: Sample, place: int) -> dict[str, float]:
    """Returns the counts of the operation at a place of the chain. An operation that was made anew began at 0."""
    new, old = after.list_chain()[place], before.list_chain()[place]
    now, then = after.nodes[new], before.nodes[old] if new == old else Node("")
    return {name: max(getattr(now, name) - getattr(then, name), 0) for name in _COUNTERS}


def _compute_blocked_s(whole: _Part, python_stages: Collection[str]) -> dict[str, float]:
    """Returns the time that stages waited: the counted time in which the processor cannot have worked.

    A Python function waits in all of its time but the time in which Python's lock was held. What is left is the wait
    of `read`.
    """
    busy_s, ran_s = sum(whole.busy_s.values()), whole.cpu_s * (1 - UNCOUNTED_CPU_SHARE)
    left_s = max(busy_s - ran_s, 0.0)
    blocked_s: dict[str, float] = {}
    python_busy_s = sum(whole.busy_s[name] for name in python_stages)
    for name in python_stages:
        held_s = whole.lock_s * whole.stretch * whole.busy_s[name] / python_busy_s if python_busy_s else 0.0
        blocked_s[name] = min(max(whole.busy_s[name] - held_s, 0.0), left_s)
        left_s -= blocked_s[name]
    left_s = max(busy_s - ran_s * whole.stretch - sum(blocked_s.values()), 0.0)
    return {**blocked_s, "read": min(left_s, whole.busy_s["read"])}


def _is_backed_up(timings: Sequence[StageTiming]) -> bool:
    """Returns whether records that were read waited to be taken, so that no thread of `read` waited for files.

    Then its own buffer is full, and the next one too. Its own may be full alone: it holds the records of several files,
    and those of other files wait while the file whose turn it is gives none. A shuffle buffer is full by its nature.
    """
    fills = {timing.name: timing.buffer_fill for timing in timings if timing.buffer_fill is not None}
    fills.pop("shuffle", None)
    names = list(fills)
    place = names.index("read") if "read" in fills else len(names)
    return "read" in fills and all((fills[name] or 0.0) > _FULL for name in names[place : place + 2])


def _read_settings(name: str, samples: Sequence[Sample], labels: Sequence[str]) -> _Settings:
    """Returns the threads and the last buffer of a stage."""
    parallelism, max_parallelism, buffer_size, fills = 1, 1, None, []
    for sample in samples:
        parallelism, buffer_size = 1, None
        stage_nodes = [
            sample.nodes[node] for node, label in zip(sample.list_chain(), labels, strict=False) if label == name
        ]
        for node in stage_nodes:
            parameters = node.parameters or {}
            parallelism = max(parallelism, round(parameters.get("parallelism", 1)))
            max_parallelism = max(max_parallelism, round(node.max_parallelism or 1))
            limit = next((parameters[key] for key in _LIMITS if parameters.get(key)), None)
            if limit is not None and buffer_size is None:
                buffer_size = max(round(limit), 1)
                fills.append(min(node.buffered / buffer_size, 1.0))
    return _Settings(parallelism, max_parallelism, buffer_size, sum(fills) / len(fills) if fills else None)


def _clear_counters(sample: Sample) -> Sample:
    """Returns the sample with all counters at 0."""
    nodes = {number: Node(node.name, node.inputs) for number, node in sample.nodes.items()}
    return Sample(0.0, nodes, sample.output, 0.0, 0.0)


def _sum_parts(parts: Iterable[_Part]) -> _Part:
    total = _Part()
    for part in parts:
        total.add(part)
    return total
