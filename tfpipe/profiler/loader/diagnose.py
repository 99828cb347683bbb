"""From a profile to the wall that holds the loader. Pure; every threshold is a share of time.

wall = find_wall(profile)
"""

from __future__ import annotations

import statistics

from tfpipe.profiler.loader.model import compute_costs, get_restart_s, is_worker_slow, keep_workers, list_excess
from tfpipe.profiler.loader.types import ACTIVITIES, Activity, LoaderProfile, Wall
from tfpipe.system.units import human_bytes, human_count, human_share

_FED, _STALLED, _MAIN, _MOVED, _ON_STORAGE, _ON_LOCK = 0.03, 0.2, 0.6, 0.35, 0.4, 0.2
_ON_CORES, _DELAYED, _WAITS, _NARROW = 0.75, 0.25, 0.4, 0.5
_PLENTY, _NEARLY_FED = 2.0, 0.1
_FAST_BYTES = 50e6  # a second of waiting: a stream that gives less is late rather than narrow
_MANY_THREADS = 0.2  # of the processor time, beside collating
_WORDS = {"storage": "waiting for storage", "functions": "functions of yours", "other": "other code"}


def find_wall(profile: LoaderProfile) -> Wall:
    """Returns what holds a loader, with its proof."""
    needed = profile.batch.images / profile.step_s if profile.step_s else float("inf")
    fed = _FED if profile.free_rate < _PLENTY * needed else _NEARLY_FED  # the loop itself is late at times
    if profile.idle_fraction <= fed:
        return Wall("accelerator", "The loader is fast enough: the step has its next batch when it asks for it.")
    for find in (_find_starving, _find_slow_record, _find_restarts, _find_lock, _find_no_workers, _find_main):
        if (wall := find(profile)) is not None:
            return wall
    for find in (_find_slow_worker, _find_storage, _find_moves, _find_waits, _find_cores):
        if (wall := find(profile)) is not None:
            return wall
    text, where = _explain_largest(profile)
    return Wall("unknown", f"No single resource holds the loader. {text}", where)


def find_function(profile: LoaderProfile, *activities: Activity) -> tuple[str, float]:
    """Returns the user's function with the most time in some activities, at its most expensive line, and its share."""
    lines: dict[tuple[str, str], dict[str, float]] = {}
    for place, activity, seconds in (one for use in profile.makers for one in use.functions):
        if activity in activities:
            own = lines.setdefault(split_place(place), {})
            own[place] = own.get(place, 0.0) + seconds
    if not lines:
        return "", 0.0
    own = max(lines.values(), key=lambda own: sum(own.values()))
    every_s = sum(use.working_s + use.sum("no core") for use in profile.makers)
    return max(own, key=lambda place: own[place]), sum(own.values()) / max(every_s, 1e-9)


def split_place(place: str) -> tuple[str, str]:
    """Returns the file and the function of a line of the user."""
    file, _, function = place.partition(":")
    return file, function.partition(" ")[2]


def _explain_largest(profile: LoaderProfile) -> tuple[str, str]:
    """Returns a sentence about the activity with the most time of the makers, and the user's line with most of it."""
    name = max(ACTIVITIES[:-3], key=profile.share)
    where, _ = find_function(profile, name)
    most = f", most of it in {where}" if where else ""
    waits = (
        f", and {human_share(profile.time_share('no core'))} to waiting for a core" if profile.delay >= _DELAYED else ""
    )
    owners = "the workers' time" if profile.workers else "the time"
    return f"{human_share(profile.time_share(name))} of {owners} goes to {_WORDS.get(name, name)}{most}{waits}.", where


def choose_threads(profile: LoaderProfile) -> int:
    """Returns the threads for which the loader gets cores, at least one."""
    return max(round(profile.used_cores), 1)


def _find_starving(profile: LoaderProfile) -> Wall | None:
    """Returns the threads of a library, if they work much, and are more than the cores that they get."""
    cpu_s, threads = sum(use.cpu_s for use in profile.makers), profile.torch_threads
    pool_s = sum(max(use.pool_s - use.sum("collating"), 0.0) for use in profile.makers)  # collating alone is short
    is_many = threads == 1 or threads > choose_threads(profile)
    if pool_s <= _MANY_THREADS * cpu_s or profile.delay < _DELAYED or not is_many:
        return None
    whose = "A library computes in threads of its own" if threads == 1 else f"PyTorch computes in {threads} threads"
    reason = (
        f"{whose}, and this loader gets {profile.used_cores:.1f} of {human_count(profile.num_cores, 'core')}: it waits "
        f"for a core in {human_share(profile.time_share('no core'))} of the time, and the threads for each other."
    )
    return Wall("starving threads", reason, "" if threads == 1 else "torch.set_num_threads")


def _find_slow_record(profile: LoaderProfile) -> Wall | None:
    excess = list_excess(profile)
    # In order, every worker waits for the slow one in the end; what lies in the queues bridges a part.
    if not excess or sum(excess) < _STALLED * profile.free.wall_s:
        return None
    times = [time for use in profile.makers for time in use.record_s]
    name = max(profile.makers, key=lambda use: max(use.record_s, default=0.0)).slowest
    reason = (
        f"{human_count(len(excess), 'record')} of {len(times):,} took {statistics.fmean(excess):.2g} s more than the "
        f"median of {statistics.median(times) * 1e3:.2g} ms, and batches come in order. The slowest is record {name}."
    )
    return Wall("slow record", reason, f"record {name}")


def _find_restarts(profile: LoaderProfile) -> Wall | None:
    if not profile.free.epochs:
        return None
    now = compute_costs(profile)
    share = 1 - now.rate / keep_workers(profile, now).rate
    if share < _STALLED:
        return None
    starts = f"Each epoch starts the workers anew, and its first batch comes after {get_restart_s(profile):.2g} s."
    return Wall("restarts", f"{starts} Workers that stay would save {human_share(share)} of the time.")


def _find_lock(profile: LoaderProfile) -> Wall | None:
    share = profile.share("lock")
    if share < _ON_LOCK or profile.share("handing over") > _MOVED * (1 - share):
        return None
    where, shown = find_function(profile, "functions")[0], human_share(profile.time_share("lock"))
    reason = (
        f"Threads of one process wait for Python's lock in {shown} of their time. One at a time computes, "
        f"however many there are{f'; most of it in {where}' if where else ''}."
    )
    return Wall("lock", reason, where)


def _find_no_workers(profile: LoaderProfile) -> Wall | None:
    if profile.workers:
        return None
    text, where = _explain_largest(profile)
    start = "No worker process makes batches: the loop does it itself, and the step waits meanwhile."
    return Wall("too few workers", f"{start} {text}", where)


def _find_main(profile: LoaderProfile) -> Wall | None:
    main = profile.main
    share = (main.working_s + main.sum("no core") - main.sum("waiting")) / profile.free.wall_s
    idle = statistics.fmean(use.sum("idle") / use.wall_s for use in profile.workers)
    if share < _MAIN or idle < _STALLED:
        return None
    name = max((one for one in ACTIVITIES[:-3] if one != "waiting"), key=main.sum)
    where = next((place for place, activity, _ in main.functions if activity == name), "")
    busy = human_share(min(share, 1.0))  # its threads can be several
    reason = (
        f"The process of the trainer is busy with batches for {busy} of the time, most of it {name}"
        f"{f' ({where})' if where else ''}, while its workers have nothing to do for {human_share(idle)}."
    )
    return Wall("hand-over" if name == "handing over" else "main process", reason, where or name)


def _find_slow_worker(profile: LoaderProfile) -> Wall | None:
    if not is_worker_slow(profile):
        return None
    times = sorted((statistics.median(use.record_s), use.pid) for use in profile.workers if len(use.record_s) > 2)
    others_s = statistics.median(time for time, _ in times[:-1])
    reason = (
        f"One of {len(profile.workers)} workers takes {times[-1][0] * 1e3:.2g} ms for a record, the others "
        f"{others_s * 1e3:.2g} ms. Batches come in order, so all of them wait for it."
    )
    return Wall("slow worker", reason, f"process {times[-1][1]}")


def _find_storage(profile: LoaderProfile) -> Wall | None:
    share = profile.share("storage")
    if share < _ON_STORAGE:
        return None
    waited_s, num_bytes = sum(use.sum("storage") for use in profile.makers), sum(use.bytes for use in profile.makers)
    where, _ = find_function(profile, "storage", "reading")
    shown = human_share(profile.time_share("storage"))
    reason = f"Workers wait for files in {shown} of their time{f' ({where})' if where else ''}: "
    if num_bytes >= _FAST_BYTES * waited_s:
        return Wall("storage bytes", f"{reason}{human_bytes(num_bytes / profile.free.wall_s)}/s come.", where)
    wait_ms = waited_s / (profile.free.batches * profile.batch.images) * 1e3
    return Wall("storage latency", f"{reason}{wait_ms:.2g} ms an image, for few bytes.", where)


def _find_moves(profile: LoaderProfile) -> Wall | None:
    share, batch = profile.share("handing over"), profile.batch
    if share < _MOVED * (1 - profile.share("lock")):
        return None
    many, shown = batch.objects > batch.images, profile.time_share("handing over")
    what = human_count(batch.objects, "Python object") if many else human_bytes(batch.bytes)
    return Wall("hand-over", f"Handing over takes {human_share(shown)} of the workers' time: {what} a batch.")


def _find_waits(profile: LoaderProfile) -> Wall | None:
    share, (where, _) = profile.share("waiting"), find_function(profile, "waiting")
    if share < _WAITS:
        return None
    shown = human_share(profile.time_share("waiting"))
    return Wall("waits", f"Workers do nothing but wait in {shown} of their time, in {where}.", where)


def _find_cores(profile: LoaderProfile) -> Wall | None:
    makers, cores, used, delay = profile.makers, profile.num_cores, profile.used_cores, profile.delay
    workers = profile.num_workers
    text, where = _explain_largest(profile)
    shown = human_share(profile.time_share("no core"))
    if workers > 2 * cores:
        reason = (
            f"{workers} workers share {human_count(cores, 'core')}: they wait for one in {shown} of their "
            "time, and each takes memory and time to start."
        )
        return Wall("too many workers", reason, where)
    idle = sum(use.sum("idle") for use in makers) / sum(use.wall_s for use in makers)
    if workers < cores and idle < _NARROW:
        return Wall(
            "too few workers", f"{human_count(workers, 'worker')} cannot keep {cores} cores busy. {text}", where
        )
    if used >= _ON_CORES * min(profile.cores, cores - profile.others_cores) or delay >= _DELAYED:
        return Wall("cores", f"The cores are busy, {used:.1f} of {cores} with this loader. {text}", where)
    return None
