"""From measured figures to what limits the rate. Pure: numbers in, numbers and a sentence out.

The laws are those of operational analysis, which hold for any system over any time, whatever its distributions:
the utilisation law U = X S (busy share = rate x time per item), and the asymptotic bound X <= m / D for every station
with m servers and a demand of D. See P. J. Denning and J. P. Buzen, "The Operational Analysis of Queueing Network
Models", ACM Computing Surveys 10(3), 1978; E. D. Lazowska et al., "Quantitative System Performance", 1984, chapters 3
and 5. The stations here are the host's cores, which all stages share, the threads of each stage, and the storage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tfpipe.profiler.types import Bottleneck, Profile, Report, StageTiming, StepTiming
from tfpipe.system.units import human_bytes

NO_IDLE = 0.01
"""Idle shares up to this are none: what is measured is right to within a point."""
SATURATED = 0.85
"""A station that is busy for this share of time is the wall: more than that few get, and what is behind it queues."""
SLOW_FIRST_BATCH_S = 5.0
THREADS_SLACK = 0.15
"""Less is asked of a stage's threads: their demand is worked out, not counted, and threads also hand over."""
FULL_MEMORY = 0.9


@dataclass(frozen=True)
class Model:
    """What an image asks of each station, in seconds."""

    cores: float
    """That this process can have: others may take some."""
    cpu_s: Mapping[str, float]
    """Processor time by stage; "other" is what no stage accounts for."""
    wait_s: Mapping[str, float] = field(default_factory=dict)
    """Time by stage in which a thread is neither running nor waiting for another stage: it waits for files, or for
    what a user's function waits for."""
    threads: Mapping[str, float] = field(default_factory=dict)
    """By stage, at most; those of stages that are left out are no limit."""
    locked: frozenset[str] = frozenset()
    """Stages of Python functions that hold Python's lock all the time."""
    storage_limit: float | None = None
    """Images a second."""
    taking_s: float = 0.0
    """Part of `batch`: what the trainer's thread does to take one, which is the price of a batch, not of its images."""

    @property
    def cpu_limit(self) -> float:
        """Images a second that the cores allow."""
        return self.cores / total if (total := sum(self.cpu_s.values())) > 0 else float("inf")

    def stage_limit(self, name: str) -> float:
        """Images a second that the threads of a stage allow."""
        service = self.cpu_s.get(name, 0.0) + self.wait_s.get(name, 0.0)
        return self.threads[name] / service if name in self.threads and service > 0 else float("inf")

    @property
    def limit(self) -> float:
        """Images a second that all stations allow."""
        storage = float("inf") if self.storage_limit is None else self.storage_limit
        return min(self.cpu_limit, storage, *(self.stage_limit(name) for name in self.threads))


def idle_fraction(step: StepTiming) -> float:
    """Share of wall time in which the accelerator had nothing to work on.

    Of a simulated accelerator it is exact: the time that was not compute. The median over parts of a run would miss
    waits that come in bursts.
    """
    if step.method == "simulated":
        return max(1 - step.steps * step.step_s.median / step.wall_s, 0.0)
    return step.idle_fraction.median


def idle_after(report: Report) -> float:
    """Share of time in which the accelerator has nothing to work on, after what was tried and kept."""
    if report.after_images_per_second is None:
        return idle_fraction(report.profile.step)
    return max(1 - report.after_images_per_second / report.required_images_per_second, 0.0)


def required_images_per_second(step: StepTiming) -> float:
    """What the accelerator consumes when it never waits."""
    return step.images_per_step / step.step_s.median


def model_of(profile: Profile) -> Model:
    """The demands that a profile shows."""
    host, rate = profile.host, profile.images_per_second
    cpu_s = {stage.name: stage.cpu_us_per_image.median / 1e6 for stage in profile.stages}
    # The kernel's count is the truth; the stages' sum leaves out threads that hand over, and the trainer's own.
    other = max(host.cpu_fraction * host.cores / rate - sum(cpu_s.values()), 0.0)
    taking = min(host.trainer_us_per_step / profile.step.images_per_step / 1e6, other) if "batch" in cpu_s else 0.0
    if taking:
        cpu_s["batch"], other = cpu_s["batch"] + taking, other - taking
    cpu_s["other"] = other
    # A function that keeps Python's lock for most of the time waits for nothing but that.
    locked = frozenset(s.name for s in profile.stages if s.python and rate * cpu_s[s.name] > SATURATED - THREADS_SLACK)
    wait_s = {
        stage.name: stage.wait_us_per_image / 1e6
        for stage in profile.stages
        if stage.wait_us_per_image and stage.name not in locked
    }
    return Model(
        cores=max(host.cores * (1 - host.other_cpu_fraction), 0.1),
        cpu_s=cpu_s,
        wait_s=wait_s,
        threads={s.name: 1 if s.name in locked else _threads(s, profile) for s in profile.stages},
        locked=locked,
        storage_limit=storage_limit(profile),
        taking_s=taking,
    )


def cpu_limit(profile: Profile) -> float:
    """Images a second that this host's cores would give if they did nothing but this pipeline."""
    return profile.images_per_second / profile.host.cpu_fraction if profile.host.cpu_fraction > 0 else float("inf")


def storage_limit(profile: Profile) -> float | None:
    """Images a second that the storage gives; None where that was not measured, or where it has just given more."""
    host = profile.host
    if not host.storage_limit_bytes_per_second or not host.storage_bytes_per_second:
        return None
    if host.storage_limit_bytes_per_second < host.storage_bytes_per_second:
        return None
    return host.storage_limit_bytes_per_second * profile.images_per_second / host.storage_bytes_per_second


def find_bottleneck(profile: Profile) -> Bottleneck:
    """What limits the rate, with the numbers that prove it."""
    found = _memory(profile) or _first_batch(profile)
    if found is not None:
        return found
    if idle_fraction(profile.step) <= NO_IDLE:
        return _accelerator(profile)
    model = model_of(profile)
    return (
        _storage(profile, model)
        or _lock(profile, model)
        or _cores(profile, model)
        or _threads_of(profile, model)
        or _slack(profile, model)
    )


def _threads(stage: StageTiming, profile: Profile) -> float:
    """How many threads a stage can have; what AUTOTUNE gave it is no limit, since it can give more."""
    most = max(stage.max_parallelism or stage.parallelism, 1)
    if stage.name == "read" and reads_whole_files(profile):
        return min(most, profile.dataset.get("files") or most)
    return most


def reads_whole_files(profile: Profile) -> bool:
    """Whether no more can be read at once than there are files.

    That is in an evaluation of files that nobody counted. Of others parts are read side by side, and in training the
    files of the next epochs.
    """
    return profile.config.get("training") is False and profile.dataset.get("records") is None


def _memory(profile: Profile) -> Bottleneck | None:
    """Before all else: a run that is killed has no rate."""
    host = profile.host
    share = host.peak_memory_bytes / host.memory_limit_bytes
    if share <= FULL_MEMORY:
        return None
    reason = f"{share:.0%} of the memory is taken, {human_bytes(host.peak_memory_bytes)}: a little more ends the run."
    return Bottleneck("memory", reason, profile.images_per_second)


def _first_batch(profile: Profile) -> Bottleneck | None:
    """Where more time is lost before the first step than in an epoch of steps."""
    first_s, idle = profile.first_batch_s, idle_fraction(profile.step)
    epoch_s = (profile.dataset.get("records") or 0) / profile.images_per_second
    if first_s <= SLOW_FIRST_BATCH_S or (idle > NO_IDLE and first_s <= idle * epoch_s):
        return None
    lost = f"is idle for {idle * epoch_s:.1f} s of an epoch" if idle > NO_IDLE else "never waits after that"
    reason = f"The first batch took {first_s:.1f} s, and the accelerator {lost}."
    return Bottleneck("first_batch", reason, required_images_per_second(profile.step))


def _accelerator(profile: Profile) -> Bottleneck:
    required = required_images_per_second(profile.step)
    reason = (
        f"The accelerator is never idle: a step takes {profile.step.step_s.median * 1e3:,.1f} ms, and its batch is "
        "there before. Only a faster step makes this training faster."
    )
    return Bottleneck("accelerator", reason, required)


def _storage(profile: Profile, model: Model) -> Bottleneck | None:
    rate, limit = profile.images_per_second, model.storage_limit
    if limit is None or rate < SATURATED * limit:
        return None
    used, most = profile.host.storage_bytes_per_second, profile.host.storage_limit_bytes_per_second or 0.0
    reason = f"The storage gives {used / 1e6:,.0f} MB/s of the {most / 1e6:,.0f} MB/s that it can."
    return Bottleneck("storage", reason, limit)


def _lock(profile: Profile, model: Model) -> Bottleneck | None:
    """A Python function that runs all the time, on one core: Python's lock allows no more."""
    if not model.locked:
        return None
    name = max(model.locked, key=lambda stage: model.cpu_s[stage])
    limit = model.stage_limit(name)
    reason = (
        f"{name} runs a Python function for {model.cpu_s[name] * 1e6:,.0f} µs for each image; Python's lock gives it "
        f"one core whatever its threads, and that is busy {min(profile.images_per_second / limit, 1.0):.0%} of the "
        "time."
    )
    return Bottleneck(name, reason, limit)


def _cores(profile: Profile, model: Model) -> Bottleneck | None:
    host = profile.host
    if host.cpu_fraction + host.other_cpu_fraction < SATURATED:
        return None
    if host.other_cpu_fraction > host.cpu_fraction:
        reason = (
            f"Other processes take {host.other_cpu_fraction:.0%} of the {host.cores} cores, this pipeline "
            f"{host.cpu_fraction:.0%}."
        )
        return Bottleneck("cpu", reason, model.cpu_limit)
    stages = {name: seconds for name, seconds in model.cpu_s.items() if name != "other"}
    busy = f"{_cores_text(host.cores)} {host.cpu_fraction + host.other_cpu_fraction:.0%} busy"
    if not stages:
        return Bottleneck("cpu", f"{busy}.", model.cpu_limit)
    name = max(stages, key=lambda stage: stages[stage])
    share = stages[name] / sum(model.cpu_s.values())
    reason = f"{busy}, {share:.0%} of it in {name}: {stages[name] * 1e6:,.0f} µs of a core for each image."
    return Bottleneck(name, reason, model.cpu_limit)


def _threads_of(profile: Profile, model: Model) -> Bottleneck | None:
    """The stage whose threads are busy nearly all the time, by the utilisation law."""
    limits = {name: model.stage_limit(name) for name in model.threads}
    if not limits:
        return None
    name = min(limits, key=lambda stage: limits[stage])
    busy = profile.images_per_second / limits[name]
    if busy < SATURATED - THREADS_SLACK:
        return None
    threads, wait_s = model.threads[name], model.wait_s.get(name, 0.0)
    service = model.cpu_s[name] + wait_s
    what = "for files" if name == "read" else "for something else"
    of_it = f", {wait_s / service:.0%} of it waiting {what}" if wait_s > 0.1 * service else ""
    plural = "s are" if threads > 1 else " is"
    reason = (
        f"{name} takes {service * 1e6:,.0f} µs for each image{of_it}; its {threads:,.0f} thread{plural} busy "
        f"{min(busy, 1.0):.0%} of the time, while the cores are {profile.host.cpu_fraction:.0%} busy."
    )
    return Bottleneck(name, reason, limits[name])


def _slack(profile: Profile, model: Model) -> Bottleneck:
    """Nothing is busy all the time, so one waits for the other: there is no buffer between them."""
    config = profile.config
    limits = {name: model.stage_limit(name) for name in model.threads}
    unbuffered = config.get("prefetch_batches") == 0 and not config.get("inject_prefetch")
    if unbuffered or not limits:
        name, why = "prefetch", "no batch is made while the accelerator works"
    else:
        name = min(limits, key=lambda stage: limits[stage])
        why = f"{name} is the busiest, {profile.images_per_second / limits[name]:.0%} of the time"
    cpu = profile.host.cpu_fraction
    return Bottleneck(name, f"The cores are {cpu:.0%} busy and no stage all the time: {why}.", model.limit)


def _cores_text(cores: int) -> str:
    return "The core is" if cores == 1 else f"The {cores} cores are"
