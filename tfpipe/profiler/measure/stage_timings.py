"""From looks at a running pipeline to the cost of each stage.

Three things are not as simple as a difference of two counters:

- An operation that is made anew, such as what lies below a `repeat`, counts from 0 again: what it has counted is then
  all added. Nodes are known again by their place in the chain, not by their number.
- What an interleave opens comes and goes between two looks. Of such nodes those that are seen give a time per element,
  and the node above knows how many elements there were.
- Time by the clock is longer than processor time where threads wait for a core: all of it is divided by how much
  longer the threads of this process took than they ran. What the processor then cannot have done is waiting: for
  Python's lock, or whatever else a Python function waits for, where there is one; else for files, in `read`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from tfpipe.profiler.measure.stage_matching import stages_of
from tfpipe.profiler.measure.tfdata_counters import Node, Sample
from tfpipe.profiler.types import Spread, StageTiming

_MAX_PARTS = 10
_COUNTERS = ("elements", "busy_s", "bytes_in", "bytes_out")
OUTSIDE = 0.16
"""Of the processor's time that no operation accounts for: threads that hand over, allocations. 16 % to 25 % of it in
pipelines that read from memory (2 cores)."""
_FULL = 0.5
"""Mean share of a buffer from which on its makers are not the ones that are waited for."""
_LIMITS = ("max_buffered_elements", "buffer_size", "parallelism")
"""What bounds an operation's buffer, in this order."""


@dataclass
class _Part:
    """What happened between two looks."""

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
        """How much longer threads took than they ran."""
        return 1 + self.queue_s / self.cpu_s if self.cpu_s > 0 else 1.0

    def add(self, other: _Part) -> None:
        """Takes what happened later, too."""
        self.wall_s, self.cpu_s = self.wall_s + other.wall_s, self.cpu_s + other.cpu_s
        self.queue_s += other.queue_s
        self.lock_s += other.lock_s
        for name, seconds in other.busy_s.items():
            self.busy_s[name] += seconds
        for name in ("images", "bytes_in", "bytes_out"):
            getattr(self, name).update(getattr(other, name))


def stage_timings(
    samples: Sequence[Sample], planned: Sequence[tuple[str, str]], python: Collection[str], images_per_batch: int
) -> tuple[StageTiming, ...]:
    """What each stage cost and gave, from the first look to the last; in the order of the pipeline.

    Args:
        samples: In steady state.
        planned: From `stage_nodes.planned_chain`.
        python: Stages in which a Python function runs, from `stage_nodes.python_stages`.
        images_per_batch: Images in an element of the whole pipeline.
    """
    if len(samples) < 2:
        return ()
    samples = _same_shape(samples)
    labels = _labels(samples[-1], planned)
    shared = _shared_costs(samples)
    parts = [_part(before, after, labels, shared, images_per_batch) for before, after in pairwise(samples)]
    # A few long parts: in a short one a stage may give nothing, and counters jump.
    size = -(-len(parts) // _MAX_PARTS)
    parts = [_sum(parts[i : i + size]) for i in range(0, len(parts), size)]
    whole = _sum(parts)
    blocked = _blocked_s(whole, python)
    order = list(dict.fromkeys(reversed(labels)))
    # Where a stage gave nothing while it was looked at, its whole life must do.
    life = _part(_empty(samples[-1]), samples[-1], labels, shared, images_per_batch)
    timings = [_timing(name, whole, parts, blocked.get(name), life, samples, labels) for name in order]
    if _backed_up(samples, labels):
        timings = [replace(t, blocked_fraction=0.0, wait_us_per_image=0.0) if t.name == "read" else t for t in timings]
    return tuple(replace(timing, python=timing.name in python) for timing in timings)


def _timing(
    name: str,
    whole: _Part,
    parts: Sequence[_Part],
    blocked_s: float | None,
    life: _Part,
    samples: Sequence[Sample],
    labels: Sequence[str],
) -> StageTiming:
    seen = whole if whole.images[name] else life
    factor = (1 - (blocked_s or 0.0) / whole.busy_s[name] if whole.busy_s[name] else 1.0) / whole.stretch * 1e6
    each = [part.busy_s[name] / part.images[name] * factor for part in parts if part.images[name]]
    mean = seen.busy_s[name] / seen.images[name] * factor if seen.images[name] else 0.0
    around = Spread.of(each) if each else Spread(mean, mean, mean)
    parallelism, most, buffer_size, fill = _settings(name, samples, labels)
    waiting_s = None if blocked_s is None else blocked_s / whole.wall_s
    return StageTiming(
        name=name,
        # Of all parts together: images leave some stages in bursts.
        cpu_us_per_image=replace(around, median=mean),
        images_per_second=whole.images[name] / whole.wall_s,
        bytes_in_per_second=whole.bytes_in[name] / whole.wall_s,
        bytes_out_per_second=whole.bytes_out[name] / whole.wall_s,
        parallelism=parallelism,
        buffer_size=buffer_size,
        buffer_fill=fill,
        blocked_fraction=None if waiting_s is None else min(waiting_s / parallelism, 1.0),
        wait_us_per_image=(waiting_s or 0.0) * whole.wall_s / whole.images[name] * 1e6 if whole.images[name] else 0.0,
        max_parallelism=most,
    )


def _same_shape(samples: Sequence[Sample]) -> Sequence[Sample]:
    """The last looks between which no operation was added: a cache has others when it is full."""
    names = [[sample.nodes[node].name for node in sample.chain()] for sample in samples]
    first = len(samples) - 1
    while first and names[first - 1] == names[-1]:
        first -= 1
    return samples[min(first, len(samples) - 2) :] if names[-2] == names[-1] else (_empty(samples[-1]), samples[-1])


def _labels(sample: Sample, planned: Sequence[tuple[str, str]]) -> list[str]:
    """The stage of each operation of the chain; the root, which hands elements over, is the last stage's."""
    names = stages_of([sample.nodes[node].name for node in sample.chain()[1:]], planned)
    return [names[0] if names else "", *names]


def _shared_costs(samples: Sequence[Sample]) -> list[float]:
    """For each operation of the chain what else hangs below it costs for each of its elements, in seconds."""
    busy: dict[int, float] = defaultdict(float)
    elements: Counter[int] = Counter()
    for sample in samples:
        chain = sample.chain()
        for place, (node, next_node) in enumerate(pairwise(chain)):
            for child in sample.beside(node, next_node):
                elements[place] += sample.nodes[child].elements
                busy[place] += sum(sample.nodes[one].busy_s for one in sample.below(child))
    places = range(max(len(sample.chain()) for sample in samples))
    return [busy[place] / elements[place] if elements[place] else 0.0 for place in places]


def _part(
    before: Sample, after: Sample, labels: Sequence[str], shared: Sequence[float], images_per_batch: int
) -> _Part:
    part = _Part(after.at - before.at, after.cpu_s - before.cpu_s, max(after.queue_s - before.queue_s, 0.0))
    part.lock_s = after.lock_fraction * part.wall_s
    change = [_change(before, after, place) for place in range(len(labels))]
    batched = _last_batch(after, labels)
    for place, stage in enumerate(labels):
        part.busy_s[stage] += change[place]["busy_s"] + shared[place] * change[place]["elements"]
        if place == labels.index(stage):  # the stage's end
            part.images[stage] = round(change[place]["elements"]) * (images_per_batch if place <= batched else 1)
            part.bytes_out[stage] = round(change[place]["bytes_out"])
        part.bytes_in[stage] = round(change[place]["bytes_in"])
    if "read" in labels:
        for stage in labels[labels.index("read") :]:  # epochs and files are no images
            part.images[stage] = part.images["read"]
    return part


def _change(before: Sample, after: Sample, place: int) -> dict[str, float]:
    new, old = after.chain()[place], before.chain()[place]
    counted, known = after.nodes[new], before.nodes[old] if new == old else Node("")
    return {name: max(getattr(counted, name) - getattr(known, name), 0) for name in _COUNTERS}


def _last_batch(sample: Sample, labels: Sequence[str]) -> int:
    """Place of the operation that makes batches; all from there on counts batches."""
    chain = sample.chain()
    for place, node in enumerate(chain):
        if sample.nodes[node].name.removeprefix("Parallel").startswith(("Batch", "MapAndBatch")):
            return place
    return len(chain) if "batch" in labels else -1


def _blocked_s(whole: _Part, python: Collection[str]) -> dict[str, float]:
    """Time that stages waited: what the processor cannot have done in the time that was counted.

    Of Python functions that is all but the time in which Python's lock was held; what is left is of `read`.
    """
    busy, ran = sum(whole.busy_s.values()), whole.cpu_s * (1 - OUTSIDE)
    left, found = max(busy - ran, 0.0), {}
    own_busy = sum(whole.busy_s[name] for name in python)
    for name in python:
        held = whole.lock_s * whole.stretch * whole.busy_s[name] / own_busy if own_busy else 0.0
        found[name] = min(max(whole.busy_s[name] - held, 0.0), left)
        left -= found[name]
    left = max(busy - ran * whole.stretch - sum(found.values()), 0.0)
    return {**found, "read": min(left, whole.busy_s["read"])}


def _backed_up(samples: Sequence[Sample], labels: Sequence[str]) -> bool:
    """Whether what was read waited to be taken: then no thread of `read` waited for files, but for what comes after.

    Its own buffer is full, or that of the windows that are made of it; a shuffle buffer is full by its nature.
    """
    _, _, _, own = _settings("read", samples, labels)
    _, _, _, windows = _settings("shuffle", samples, labels)
    shuffled = {sample.nodes[node].name for sample in samples[-1:] for node in sample.chain()}
    exact = not any(name.startswith("Shuffle") for name in shuffled)
    return (own or 0.0) > _FULL or (exact and (windows or 0.0) > _FULL)


def _settings(name: str, samples: Sequence[Sample], labels: Sequence[str]) -> tuple[int, int, int | None, float | None]:
    """Threads of a stage, how many it can have, size of its last buffer, and how full that was on average."""
    parallelism, most, size, fills = 1, 1, None, []
    for sample in samples:
        parallelism, size = 1, None
        for node in (sample.nodes[n] for n, label in zip(sample.chain(), labels, strict=False) if label == name):
            parameters = node.parameters or {}
            parallelism = max(parallelism, round(parameters.get("parallelism", 1)))
            most = max(most, round(node.max_parallelism or 1))
            limit = next((parameters[key] for key in _LIMITS if parameters.get(key)), None)
            if limit is not None and size is None:
                size = max(round(limit), 1)
                fills.append(min(node.buffered / size, 1.0))
    return parallelism, most, size, sum(fills) / len(fills) if fills else None


def _empty(sample: Sample) -> Sample:
    """Before anything was counted."""
    nodes = {number: Node(node.name, node.inputs) for number, node in sample.nodes.items()}
    return Sample(0.0, nodes, sample.output, 0.0, 0.0)


def _sum(parts: Iterable[_Part]) -> _Part:
    total = _Part()
    for part in parts:
        total.add(part)
    return total
