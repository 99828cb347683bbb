"""From samples of a running pipeline to the cost of each stage.

Three things are not as simple as a difference of two counters:

- An operation that is made anew, such as one below a `repeat`, counts from 0 again; then all that it has counted is
  added. Nodes are recognized by their place in the chain, not by their number.
- What an interleave opens comes and goes between two samples. The nodes that are seen give a time per element, and the
  node above them knows how many elements there were.
- Time by the clock is longer than processor time where threads wait for a core. So all of it is divided by how much
  longer the threads of this process took than they ran. What the processor cannot have done in the rest is waiting: for
  Python's lock, or for whatever else a Python function waits for, if there is one; else for files, in `read`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

from tfpipe.profiler.diagnose.calibration import UNCOUNTED_CPU_SHARE
from tfpipe.profiler.measure.stage_matching import PlannedOperation, match_stages
from tfpipe.profiler.measure.tfdata_counters import Node, Sample
from tfpipe.profiler.types import Spread, StageTiming

_MAX_PARTS = 10
_COUNTERS = ("elements", "busy_s", "bytes_in", "bytes_out")
_FULL = 0.5
"""The mean share of a buffer above which nobody waits for the threads that fill it."""
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
        images: Images by stage that left it.
        bytes_in: Bytes by stage.
        bytes_out: Bytes by stage.
    """

    wall_s: float = 0.0
    cpu_s: float = 0.0
    queue_s: float = 0.0
    lock_s: float = 0.0
    busy_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    images: Counter[str] = field(default_factory=Counter)
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
        for name, seconds in other.busy_s.items():
            self.busy_s[name] += seconds
        for name in ("images", "bytes_in", "bytes_out"):
            getattr(self, name).update(getattr(other, name))


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
    labels = _label_chain(samples[-1], planned)
    side_costs = _compute_side_costs(samples)
    parts = [_make_part(before, after, labels, side_costs, images_per_batch) for before, after in pairwise(samples)]
    # A few long parts: in a short one a stage may give nothing, and counters jump.
    size = -(-len(parts) // _MAX_PARTS)
    parts = [_sum_parts(parts[i : i + size]) for i in range(0, len(parts), size)]
    whole = _sum_parts(parts)
    blocked = _compute_blocked_s(whole, python_stages)
    # If a stage gave nothing while it was sampled, its whole life must do.
    life = _make_part(_clear_counters(samples[-1]), samples[-1], labels, side_costs, images_per_batch)
    timings = []
    for name in dict.fromkeys(reversed(labels)):
        settings = _read_settings(name, samples, labels)
        timing = _make_timing(name, whole, parts, blocked.get(name), life, settings)
        timings.append(replace(timing, python=name in python_stages))
    if _is_backed_up(samples, labels):
        timings = [
            replace(timing, blocked_fraction=0.0, wait_us_per_image=0.0) if timing.name == "read" else timing
            for timing in timings
        ]
    return tuple(timings)


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
    costs = [part.busy_s[name] / part.images[name] * factor for part in parts if part.images[name]]
    source = whole if images else life
    mean = source.busy_s[name] / source.images[name] * factor if source.images[name] else 0.0
    spread = Spread.from_values(costs) if costs else Spread(mean, mean, mean)
    waiting = None if blocked_s is None else blocked_s / whole.wall_s
    return StageTiming(
        name=name,
        # The mean of all parts together: images leave some stages in bursts.
        cpu_us_per_image=replace(spread, median=mean),
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


def _keep_last_shape(samples: Sequence[Sample]) -> Sequence[Sample]:
    """Returns the last samples with the same operations: a full cache has others than one that is being filled."""
    names = [[sample.nodes[node].name for node in sample.list_chain()] for sample in samples]
    if names[-2] != names[-1]:
        return _clear_counters(samples[-1]), samples[-1]
    first = len(samples) - 1
    while first and names[first - 1] == names[-1]:
        first -= 1
    return samples[min(first, len(samples) - 2) :]


def _label_chain(sample: Sample, planned: Sequence[PlannedOperation]) -> list[str]:
    """Returns the stage of each operation of the chain; the root, which hands elements over, is the last stage's."""
    stages = match_stages([sample.nodes[node].name for node in sample.list_chain()[1:]], planned)
    return [stages[0] if stages else "", *stages]


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


def _make_part(
    before: Sample, after: Sample, labels: Sequence[str], side_costs: Sequence[float], images_per_batch: int
) -> _Part:
    """Returns the part of the run between two samples.

    Args:
        before: The earlier sample.
        after: The later sample.
        labels: The stage of each operation of the chain.
        side_costs: The cost of an element of each operation's side inputs.
        images_per_batch: Images in an element from the batch on.
    """
    part = _Part(after.at - before.at, after.cpu_s - before.cpu_s, max(after.queue_s - before.queue_s, 0.0))
    part.lock_s = after.lock_fraction * part.wall_s
    changes = [_subtract_counters(before, after, place) for place in range(len(labels))]
    batched = _find_batch(after, labels)
    for place, stage in enumerate(labels):
        change = changes[place]
        part.busy_s[stage] += change["busy_s"] + side_costs[place] * change["elements"]
        if place == labels.index(stage):  # the stage's end
            part.images[stage] = round(change["elements"]) * (images_per_batch if place <= batched else 1)
            part.bytes_out[stage] = round(change["bytes_out"])
        part.bytes_in[stage] = round(change["bytes_in"])
    if "read" in labels:
        for stage in labels[labels.index("read") :]:  # epochs and files are not images
            part.images[stage] = part.images["read"]
    return part


def _subtract_counters(before: Sample, after: Sample, place: int) -> dict[str, float]:
    """Returns the counts of the operation at a place of the chain. An operation that was made anew began at 0."""
    new, old = after.list_chain()[place], before.list_chain()[place]
    now, then = after.nodes[new], before.nodes[old] if new == old else Node("")
    return {name: max(getattr(now, name) - getattr(then, name), 0) for name in _COUNTERS}


def _find_batch(sample: Sample, labels: Sequence[str]) -> int:
    """Returns the place of the operation that makes batches; from there to the end everything counts batches."""
    chain = sample.list_chain()
    for place, node in enumerate(chain):
        if sample.nodes[node].name.removeprefix("Parallel").startswith(("Batch", "MapAndBatch")):
            return place
    return len(chain) if "batch" in labels else -1


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


def _is_backed_up(samples: Sequence[Sample], labels: Sequence[str]) -> bool:
    """Returns whether records that were read waited to be taken, so that no thread of `read` waited for files.

    Then its own buffer is full. A shuffle buffer is full by its nature.
    """
    return (_read_settings("read", samples, labels).buffer_fill or 0.0) > _FULL


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
