"""Finds a loader's bottleneck, the costs of an image, and the fixes with their gains, from its profile. Pure."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from tfpipe.profiler.model import Demand
from tfpipe.profiler.types import ACTIVITIES, Activity, Bottleneck, Effort, Fix, LoaderProfile
from tfpipe.system.units import human_bytes, human_count, human_share

_OUTLIER, _OUTLIER_S, _FEW = 10.0, 0.05, 0.05  # records that take ten times the median and 50 ms, if at most 5 % do
_SLOWER, _IDLE = 2.5, 0.3
_FED, _STALLED, _MAIN, _MOVED, _ON_STORAGE, _ON_LOCK = 0.03, 0.2, 0.6, 0.35, 0.4, 0.2
_ON_CORES, _DELAYED, _WAITS = 0.75, 0.25, 0.4
_PLENTY, _NEARLY_FED = 2.0, 0.1
_FAST_BYTES = 50e6  # per second of waiting: with fewer bytes the latency limits, not the bandwidth
_MANY_THREADS = 0.2  # the share of processor time in a library's threads, collating left out
_WORDS = {"storage": "waiting for storage", "functions": "functions of yours", "other": "other code"}
_MIN_GAIN, _ENOUGH = 1.03, 0.98
_MAX_WORKERS = 16
_LARGE_SHARE, _SMALL_SHARE = 0.2, 0.1
_FLOAT_BYTES = {"float64": 8, "float32": 4}
_MADE: tuple[Activity, ...] = ("reading", "storage", "decoding", "functions", "collating", "waiting")
"""The activities of making a batch. In the others, the trainer's process receives batches and frees them."""


@dataclass(frozen=True)
class Costs:
    """The costs of an image in a loader, in seconds."""

    num_workers: int  # 0 if this process does all
    worker_s: float  # of a worker, without waits for cores that this loader itself uses
    slowest_s: float  # of the slowest worker, which all wait for if batches come in order
    cpu_s: float  # of all processes
    main_s: float  # of this process while it fetches
    main_cpu_s: float  # of `cpu_s`, what this process uses besides its workers; 0 without workers
    lock_s: float  # in which Python's lock is held, if several threads of one process want it; else 0
    stall_s: float  # that slow records take beyond the others
    restart_s: float  # to start workers for an epoch, spread over its images
    step_s: float  # of the trainer's step, spread over the images of a batch
    cores: float

    @property
    def demand(self) -> Demand:
        """The time that an image needs at each station: a worker, the lock of a process, the trainer, the cores."""
        wait_s, pause_s = {"workers": self.worker_s + self.stall_s, "lock": self.lock_s}, self.step_s
        if self.num_workers:
            made_s = self.slowest_s + self.num_workers * self.stall_s
            wait_s |= {"workers": made_s, "trainer": self.step_s + self.main_s}
            pause_s = self.restart_s
        threads = {**dict.fromkeys(wait_s, 1.0), "workers": max(self.num_workers, 1)}
        return Demand(self.cores, {"other": self.cpu_s}, wait_s, threads, pause_s=pause_s)

    @property
    def rate(self) -> float:
        """The images per second of the loop with steps."""
        return min(self.demand.limit, 1e9)

    def save(self, seconds: float, received: float = 0.0) -> Costs:
        """Returns the costs if workers save these seconds per image, and the fetching process the share `received`."""
        names = ("worker_s", "slowest_s", "cpu_s", *(("lock_s",) if self.lock_s else ()))
        made = replace(self, **{name: max(getattr(self, name) - seconds, 0.0) for name in names})
        saved_s = received * self.main_cpu_s
        main_s = (1 - received) * self.main_s
        return replace(made, cpu_s=max(made.cpu_s - saved_s, 0.0), main_cpu_s=self.main_cpu_s - saved_s, main_s=main_s)


def compute_costs(profile: LoaderProfile) -> Costs:
    """Computes the costs of an image from a profile."""
    images = profile.free.batches * profile.batch.images
    workers, main, makers = profile.workers, profile.main, profile.makers
    cpu_s = main.cpu_s + sum(use.cpu_s for use in workers)
    # Waits for cores that other programs use stay in a worker's time: with more workers each still waits as long.
    own = cpu_s / max(cpu_s + profile.host.other_cpu_fraction * profile.host.cores * profile.free.wall_s, 1e-9)
    busy_s = [max(use.wall_s - use.sum("idle"), 1e-9) for use in makers]
    # Several threads of a worker can wait for a core at once, so its time is at least its processor time.
    busy_s = [
        max(time - own * use.sum("no core"), min(use.cpu_s, time)) for time, use in zip(busy_s, makers, strict=True)
    ]
    stall_s = sum(list_excess(profile)) / images
    slowest_s = worker_s = max(sum(busy_s) / images - stall_s, 0.0)
    if find_slow_worker(profile):  # batches come in order, so all workers make the same number
        slowest_s = max(busy_s) * len(busy_s) / images
        worker_s = len(busy_s) ** 2 / sum(1 / seconds for seconds in busy_s) / images
    locked = [use.cpu_s for use in makers if use.sum("lock") > 0.1 * use.working_s]
    main_s = main.working_s - main.sum("waiting", "lock") + (1 - own) * main.sum("no core")
    return Costs(
        num_workers=profile.num_workers,
        worker_s=worker_s,
        slowest_s=slowest_s,
        cpu_s=cpu_s / images,
        main_s=min(main_s, main.wall_s) / images if workers else 0.0,
        main_cpu_s=main.cpu_s / images if workers else 0.0,
        lock_s=max(locked, default=0.0) / images,
        stall_s=stall_s,
        # Workers make batches while the trainer waits for the first one, so this is a little too much.
        restart_s=profile.restart_s / ((profile.steps_per_epoch or float("inf")) * profile.batch.images),
        step_s=profile.step.step_s.median / profile.batch.images,
        cores=profile.host.cores if profile.host.is_crowded else profile.cores,
    )


def list_excess(profile: LoaderProfile) -> list[float]:
    """Returns the time of each slow record beyond the median; nothing if there are none, or more than a few."""
    times = [seconds for use in profile.makers for seconds in use.record_s]
    if len(times) < 20:
        return []
    median = statistics.median(times)
    excess = [seconds - median for seconds in times if seconds > max(_OUTLIER * median, _OUTLIER_S)]
    return excess if len(excess) <= _FEW * len(times) else []


def find_slow_worker(profile: LoaderProfile) -> tuple[float, int, float] | None:
    """Finds a worker that takes 2.5 times as long for a record as the idle others; returns both times and its pid."""
    times = sorted(
        (statistics.median(use.record_s), use.pid, use.sum("idle")) for use in profile.workers if len(use.record_s) > 2
    )
    others_s = statistics.median(time for time, _, _ in times[:-1]) if len(times) > 1 else float("inf")
    idle_s = [idle_s for _, _, idle_s in times[:-1]]
    is_slow = times and times[-1][0] >= _SLOWER * others_s and statistics.fmean(idle_s) > _IDLE * profile.free.wall_s
    return (*times[-1][:2], others_s) if is_slow else None


def keep_workers(profile: LoaderProfile, now: Costs) -> Costs:
    """Returns the costs if the workers stay from one epoch to the next."""
    times = [seconds for use in profile.makers for seconds in use.record_s] or [now.worker_s]
    first_s = statistics.median(times) / (profile.steps_per_epoch or 1)  # a worker makes the first batch alone
    return replace(now, restart_s=min(now.restart_s, first_s))


def find_loader_bottleneck(profile: LoaderProfile) -> Bottleneck:
    """Returns the resource, activity or record that limits a loader, with the numbers that prove it."""
    fed = _FED if profile.free_rate < _PLENTY * profile.step.required_rate else _NEARLY_FED  # rare stalls are normal
    if profile.step.idle <= fed:
        return Bottleneck("accelerator", "The loader is fast enough: the step has its next batch when it asks for it.")
    found = next(chain(_list_stalls(profile), _list_idle_workers(profile), _list_work(profile)), None)
    text, where = _explain_largest(profile)
    return found or Bottleneck("unknown", f"No single resource holds the loader. {text}", where=where)


def find_function(profile: LoaderProfile, *activities: Activity) -> tuple[str, float]:
    """Finds the user's function with the most time in some activities; returns its costliest line and its share."""
    lines: dict[tuple[str, str], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for line, activity, seconds in (one for use in profile.makers for one in use.functions):
        if activity in activities:
            lines[split_line(line)][line] += seconds
    if not lines:
        return "", 0.0
    own = max(lines.values(), key=lambda own: sum(own.values()))
    every_s = sum(use.working_s + use.sum("no core") for use in profile.makers)
    return max(own, key=lambda line: own[line]), sum(own.values()) / max(every_s, 1e-9)


def split_line(line: str) -> tuple[str, str]:
    """Splits a line of user code such as "train.py:12 load" into its file and its function."""
    file, _, function = line.partition(":")
    return file, function.partition(" ")[2]


def _explain_largest(profile: LoaderProfile) -> tuple[str, str]:
    """Returns a sentence about the activity that takes most of the makers' time, and the user's line that does most."""
    name = max(ACTIVITIES[:-3], key=profile.share)
    where, _ = find_function(profile, name)
    most = f", most of it in {where}" if where else ""
    waits = f", and {_show(profile, 'no core')} to waiting for a core" if profile.delay >= _DELAYED else ""
    owners = "the workers' time" if profile.workers else "the time"
    return f"{_show(profile, name)} of {owners} goes to {_WORDS.get(name, name)}{most}{waits}.", where


def choose_threads(profile: LoaderProfile) -> int:
    """Returns the number of threads that the cores this loader gets can run, at least one."""
    return max(round(profile.used_cores), 1)


def _list_stalls(profile: LoaderProfile) -> Iterator[Bottleneck]:
    """Yields the bottlenecks that stall all workers: too many library threads, slow records, and worker restarts."""
    cpu_s, threads = sum(use.cpu_s for use in profile.makers), profile.torch_threads
    pool_s = sum(max(use.pool_s - use.sum("collating"), 0.0) for use in profile.makers)  # collating alone is short
    is_many = threads == 1 or threads > choose_threads(profile)
    if pool_s > _MANY_THREADS * cpu_s and profile.delay >= _DELAYED and is_many:
        whose = "A library computes in threads of its own" if threads == 1 else f"PyTorch computes in {threads} threads"
        gets = f"this loader gets {profile.used_cores:.1f} of {human_count(profile.host.cores, 'core')}"
        reason = f"{whose}, and {gets}: it waits for a core in {_show(profile, 'no core')} of the time."
        yield Bottleneck("starving threads", reason, where="" if threads == 1 else "torch.set_num_threads")
    excess = list_excess(profile)
    # Batches come in order, so every worker waits for the slow one in the end; queued batches bridge a part of that.
    if excess and sum(excess) >= _STALLED * profile.free.wall_s:
        times = [time for use in profile.makers for time in use.record_s]
        name = max(profile.makers, key=lambda use: max(use.record_s, default=0.0)).slowest
        more = f"{statistics.fmean(excess):.2g} s more than the median of {statistics.median(times) * 1e3:.2g} ms"
        slow = f"{human_count(len(excess), 'record')} of {len(times):,} took {more}"
        reason = f"{slow}, and batches come in order. The slowest is record {name}."
        yield Bottleneck("slow record", reason, where=f"record {name}")
    now = compute_costs(profile)
    share = 1 - now.rate / keep_workers(profile, now).rate
    if profile.free.epochs and share >= _STALLED:
        starts = f"Each epoch starts the workers anew, and its first batch comes after {profile.restart_s:.2g} s."
        yield Bottleneck("restarts", f"{starts} Workers that stay would save {human_share(share)} of the time.")


def _list_idle_workers(profile: LoaderProfile) -> Iterator[Bottleneck]:
    """Yields the bottlenecks of idle workers: Python's lock, no workers at all, a busy main process, a slow worker."""
    share, where = profile.share("lock"), find_function(profile, "functions")[0]
    if share >= _ON_LOCK and profile.share("handing over") <= _MOVED * (1 - share):
        reason = f"Threads of one process wait for Python's lock in {_show(profile, 'lock')} of their time"
        reason += f"{_put_in(where)}. One at a time computes, however many there are."
        yield Bottleneck("lock", reason, where=where)
    if not profile.workers:
        text, where = _explain_largest(profile)
        start = "No worker process makes batches: the loop does it itself, and the step waits meanwhile."
        yield Bottleneck("too few workers", f"{start} {text}", where=where)
        return
    main = profile.main
    share = (main.working_s + main.sum("no core") - main.sum("waiting")) / profile.free.wall_s
    idle = statistics.fmean(use.sum("idle") / use.wall_s for use in profile.workers)
    if share >= _MAIN and idle >= _STALLED:
        name = max((one for one in ACTIVITIES[:-3] if one != "waiting"), key=main.sum)
        where = next((line for line, activity, _ in main.functions if activity == name), "")
        reason = f"The process of the trainer is busy with batches for {human_share(min(share, 1.0))} of the time"
        reason += f", mostly {name}{_put_in(where)}; its workers have nothing to do for {human_share(idle)}."
        yield Bottleneck("hand-over" if name == "handing over" else "main process", reason, where=where or name)
    if slow := find_slow_worker(profile):
        slow_s, pid, others_s = slow
        reason = f"One of {len(profile.workers)} workers takes {slow_s * 1e3:.2g} ms for a record"
        reason += f", the others {others_s * 1e3:.2g} ms. Batches come in order, so all of them wait for it."
        yield Bottleneck("slow worker", reason, where=f"process {pid}")


def _list_work(profile: LoaderProfile) -> Iterator[Bottleneck]:
    """Yields the bottlenecks of busy workers: storage, hand-over, other waits, their number, the cores."""
    batch, makers, cores, workers = profile.batch, profile.makers, profile.host.cores, profile.num_workers
    if profile.share("storage") >= _ON_STORAGE:
        waited_s, num_bytes = sum(use.sum("storage") for use in makers), sum(use.bytes for use in makers)
        where, _ = find_function(profile, "storage", "reading")
        reason = f"Workers wait for files in {_show(profile, 'storage')} of their time{_put_in(where)}: "
        if num_bytes >= _FAST_BYTES * waited_s:
            reason += f"{human_bytes(num_bytes / profile.free.wall_s)}/s come."
            yield Bottleneck("storage bytes", reason, where=where)
        wait_ms = waited_s / (profile.free.batches * batch.images) * 1e3
        yield Bottleneck("storage latency", f"{reason}{wait_ms:.2g} ms an image, for few bytes.", where=where)
    if profile.share("handing over") >= _MOVED * (1 - profile.share("lock")):
        many = batch.objects > batch.images
        what = human_count(batch.objects, "Python object") if many else human_bytes(batch.bytes)
        shown = _show(profile, "handing over")
        yield Bottleneck("hand-over", f"Handing over takes {shown} of the workers' time: {what} a batch.")
    if profile.share("waiting") >= _WAITS:
        where, shown = find_function(profile, "waiting")[0], _show(profile, "waiting")
        yield Bottleneck("waits", f"Workers do nothing but wait in {shown} of their time, in {where}.", where=where)
    text, where = _explain_largest(profile)
    if workers > 2 * cores:
        shared = f"{workers} workers share {human_count(cores, 'core')}"
        reason = f"{shared}: they wait for one in {_show(profile, 'no core')} of their time, and each takes memory."
        yield Bottleneck("too many workers", reason, where=where)
    if workers < cores:
        reason = f"{human_count(workers, 'worker')} cannot keep {cores} cores busy. {text}"
        yield Bottleneck("too few workers", reason, where=where)
    used, left = profile.used_cores, (1 - profile.host.other_cpu_fraction) * cores
    if used >= _ON_CORES * min(profile.cores, left) or profile.delay >= _DELAYED:
        yield Bottleneck("cores", f"The cores are busy, {used:.1f} of {cores} with this loader. {text}", where=where)


def _show(profile: LoaderProfile, activity: Activity) -> str:
    return human_share(profile.time_share(activity))


def _put_in(where: str) -> str:
    return f" ({where})" if where else ""


_Idea = tuple[Costs, Any, str, bool]
"""The costs after a change; its new option values or instruction; the reason; whether the bottleneck calls for it."""


def list_loader_fixes(profile: LoaderProfile, wall: Bottleneck) -> tuple[Fix, ...]:
    """Returns the fixes that help, the best first."""
    if wall.stage == "accelerator":
        return ()
    now, rate = compute_costs(profile), profile.images_per_second
    proposers = (_change_workers, _change_order, _change_handing, _change_work)
    fixes = []
    for costs, change, reason, is_due in chain.from_iterable(propose(profile, wall, now) for propose in proposers):
        is_code = isinstance(change, str)
        fix = Fix(
            Effort.REWRITE if is_code else Effort.VISIBLE_OPTION,
            reason,
            costs.demand,
            {} if is_code else change,
            change if is_code else ", ".join(f"{name}={value!r}" for name, value in change.items()),
            "rewrite_stage" if is_code else "set_option",
            efficiency=rate / now.rate,
        ).predict(profile, now.demand)
        gain = fix.predicted_images_per_second / rate
        if gain >= _MIN_GAIN or is_due:
            fixes.append((not is_due, -gain, fix))
    return tuple(fix for _, _, fix in sorted(fixes, key=lambda one: one[:2]))


def _choose_workers(now: Costs, hop_s: float) -> Costs:
    """Returns the costs with the fewest workers that give nearly the best rate."""
    if not now.num_workers:
        now = replace(now.save(-hop_s), num_workers=1, slowest_s=now.worker_s + hop_s)
    choices = [
        replace(now, num_workers=number, lock_s=now.lock_s * now.num_workers / number)
        for number in range(1, max(_MAX_WORKERS, math.ceil(now.cores)) + 1)
    ]
    best = max(costs.rate for costs in choices)
    return next(costs for costs in choices if costs.rate >= _ENOUGH * best)


def _change_workers(profile: LoaderProfile, wall: Bottleneck, now: Costs) -> Iterator[_Idea]:
    options, cores = profile.options, profile.host.cores
    costs = _choose_workers(now, profile.hop_s / profile.batch.images)
    cpu_s, pool_s = sum(use.cpu_s for use in profile.makers), sum(use.pool_s for use in profile.makers)
    waits = sum(use.working_s - use.sum("lock") for use in profile.makers) / max(cpu_s, 1e-9)
    # Use all cores, even those that other programs use now; only work that waits gains from more workers than cores.
    number = min(max(costs.num_workers, cores if waits < 2 else 1), math.ceil(cores * max(waits, 1) - 0.5))
    costs = replace(costs, num_workers=number)
    meanwhile = "" if now.num_workers else ", while the step runs"
    reason = f"{human_count(number, 'worker')} can make batches at once{meanwhile}."
    is_due = wall.stage in ("too few workers", "lock")
    if wall.stage == "too many workers" and "num_workers" in options:
        reason = f"As many workers as cores do the same work; {now.num_workers - cores} processes are not started."
        costs = replace(now, num_workers=cores, slowest_s=now.worker_s)
        yield costs, {"num_workers": cores}, reason, True
    elif wall.stage not in ("slow record", "slow worker", "main process") and number > now.num_workers:
        if "num_workers" in options:
            yield costs, {"num_workers": number}, reason, is_due
        elif "use_multiprocessing" in options:
            yield costs, {"workers": number, "use_multiprocessing": True}, reason, is_due
        else:
            of_grain = f"`.mp_prefetch(grain.MultiprocessingOptions({number}))`"
            way = of_grain if profile.kind == "Grain loader" else "the workers of a DataLoader"
            yield costs, f"Make batches in {human_count(number, 'process', 'processes')}, such as {way}", reason, is_due
    if profile.workers and options.get("persistent_workers") is False:
        reason = "The workers stay from one epoch to the next."
        costs = keep_workers(profile, now)
        yield costs, {"persistent_workers": True}, reason, wall.stage == "restarts"
    delay_s = sum(use.sum("no core") for use in profile.makers)
    is_starving, is_full = wall.stage == "starving threads", profile.num_workers >= cores
    if is_starving or (is_full and pool_s > _LARGE_SHARE * cpu_s and delay_s > _SMALL_SHARE * cpu_s):
        owners = "workers'" if profile.workers else "loader's"
        reason = f"{human_share(pool_s / cpu_s)} of the {owners} processor time is in threads of a library."
        change = "Give each worker one thread, by `torch.set_num_threads(1)` or `cv2.setNumThreads(0)` in "
        change += "`worker_init_fn`"
        if not profile.workers:
            change = "Give the library one thread, such as by `cv2.setNumThreads(0)`"
            if profile.torch_threads > 1:
                change = f"Call `torch.set_num_threads({choose_threads(profile)})`"
        yield now, change, reason, is_starving or wall.stage == "cores"


def _change_order(profile: LoaderProfile, wall: Bottleneck, now: Costs) -> Iterator[_Idea]:
    if wall.stage not in ("slow record", "slow worker"):
        return
    if profile.options.get("in_order") is True and now.num_workers > 1:
        costs = replace(now, stall_s=now.stall_s / now.num_workers, slowest_s=now.worker_s)
        reason = "Batches come as they are ready, in another order: nobody waits for the slow one."
        yield costs, {"in_order": False}, reason, True
    if wall.stage == "slow record":
        change = f"Store {wall.where} smaller, or leave it out"
        yield replace(now, stall_s=0.0), change, "Without it no batch is late.", False


def _change_handing(profile: LoaderProfile, wall: Bottleneck, now: Costs) -> Iterator[_Idea]:
    batch, made_s = profile.batch, now.worker_s + now.stall_s
    received = 1 - profile.main.sum(*_MADE) / max(profile.main.working_s, 1e-9)  # share of time not making batches
    if wall.stage == "main process":
        moved_s = now.main_s * 0.9
        costs = replace(now.save(-moved_s), main_s=now.main_s - moved_s, cpu_s=now.cpu_s)
        reason = "Several workers do at once what the process of the trainer does alone."
        change = f"Move {wall.where} into the workers: into the dataset, or into `collate_fn`"
        yield costs, change, reason, True
    elif wall.stage == "hand-over" and batch.objects > batch.images:
        working_s = max(sum(use.working_s for use in profile.makers), 1e-9)
        collecting = sum(use.collecting_s for use in profile.makers) / working_s
        # While objects are kept to be packed, Python's garbage collector looks through them, and the loader walks over
        # them.
        kept = profile.share("functions", "collating")
        saved = profile.share("handing over", "lock", "other")
        saved += min(collecting * kept / max(kept + profile.share("other"), 1e-9), kept)
        hop_s = profile.hop_s / batch.images
        costs = now.save(made_s * saved - 2 * hop_s, received)  # arrays are collated, and then handed over
        reason = f"{human_count(batch.objects, 'Python object')} a batch are packed and unpacked one by one."
        change = "Hand over tensors or arrays in place of lists, dictionaries and other objects"
        yield costs, change, reason, True
    width = _FLOAT_BYTES.get(batch.dtype)
    if width and batch.image_size is not None:
        saved, collated = 1 - 1 / width, profile.share("collating")
        # Collating writes all values again, so writing them in the user's functions took at least as long. But small
        # arrays cost more per value than a large one, so only half of the functions' time counts.
        written = collated + min(collated, profile.share("functions")) / 2
        sizes = f"{human_bytes(batch.bytes)} a batch become {human_bytes(batch.bytes / width)}"
        is_due = batch.dtype == "float64" and wall.stage == "hand-over"
        costs = now.save(saved * made_s * (profile.share("handing over", "lock") + written), saved * received)
        change = f"Hand over uint8 in place of {batch.dtype}"
        yield costs, change, f"{sizes}; convert and normalize on the device.", is_due


def _change_work(profile: LoaderProfile, wall: Bottleneck, now: Costs) -> Iterator[_Idea]:
    # Decoding goes along with its reading, and with other work in the lines of code that decode.
    timed = [one for use in profile.makers for one in use.functions]
    lines = {line for line, activity, _ in timed if activity == "decoding"}
    functions = {split_line(line) for line in lines}
    seconds: dict[Activity, float] = defaultdict(float)
    for line, activity, passed_s in timed:
        belongs = split_line(line) in functions if activity == "reading" else line in lines
        seconds[activity] += passed_s if belongs else 0.0
    made_s, decoding, draft_s = now.worker_s + now.stall_s, profile.share("decoding"), profile.draft_s
    scale = decoding / max(seconds["decoding"], 1e-9)
    beside = sum(min(scale * seconds[name], profile.share(name)) for name in ("reading", "functions"))
    decoding_s = made_s * (decoding + beside)
    if draft_s is not None and draft_s < decoding_s and decoding > _LARGE_SHARE:
        reason = f"Pillow then decodes {decoding_s / draft_s:.1f} times as fast, measured on files of this loader."
        change = 'Call `image.draft("RGB", SIZE)` with the size that you need before the image is loaded'
        yield now.save(decoding_s - draft_s), change, reason, False
    line, share = find_function(profile, "functions", "waiting")
    if share > _LARGE_SHARE / 2:
        yield now.save(made_s * share / 2), f"Make {line} faster", "If it took half of its time.", False
