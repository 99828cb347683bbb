"""From a profile to the wall that holds the loader. Pure; every threshold is a share of time.

wall = find_wall(profile)
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from tfpipe.profiler.loader.model import (
    compute_costs,
    get_restart_s,
    images_per_epoch,
    is_worker_slow,
    list_excess,
)
from tfpipe.profiler.loader.types import ACTIVITIES, Activity, LoaderProfile, ProcessUse, Wall
from tfpipe.system.units import human_bytes, human_count, human_share

_FED, _STALLED, _MAIN, _MOVED, _ON_STORAGE, _ON_LOCK, _ON_CORES, _DELAYED, _WAITS = (
    *(0.03, 0.2, 0.6, 0.35, 0.4, 0.2, 0.75, 0.25, 0.4),
)
_FAST_BYTES = 50e6  # a second of waiting: a stream that gives less is late rather than narrow


def find_wall(profile: LoaderProfile) -> Wall:
    """Returns what holds a loader, with its proof."""
    if profile.step_s and profile.idle_fraction <= _FED:
        return Wall("accelerator", "The loader is fast enough: the step has its next batch when it asks for it.")
    finders = (_find_slow_record, _find_restarts, _find_lock, _find_no_workers, _find_main, _find_slow_worker)
    for find in (*finders, _find_storage, _find_moves, _find_waits, _find_cores):
        wall = find(profile)
        if wall is not None:
            return wall
    where = get_top_place(profile)
    return Wall("unknown", f"No single resource holds the loader; most time goes to {where or 'its workers'}.", where)


def sum_seconds(profile: LoaderProfile) -> dict[str, float]:
    """Returns the thread-seconds of the makers of batches in each activity, with "storage"."""
    makers = get_makers(profile)
    seconds: dict[str, float] = {name: sum(use.seconds.get(name, 0.0) for use in makers) for name in ACTIVITIES}
    return seconds | {"storage": sum(use.storage_s for use in makers)}


def get_makers(profile: LoaderProfile) -> Sequence[ProcessUse]:
    """Returns the processes that make batches: the workers, or this one."""
    return profile.workers or (profile.main,)


def get_share(profile: LoaderProfile, *names: str) -> float:
    """Returns the share of the makers' time that goes to some activities, of which one may be "storage"."""
    seconds = sum_seconds(profile)
    return sum(seconds[name] for name in names) / max(sum(seconds.values()), 1e-9)


def get_top_place(profile: LoaderProfile, *activities: Activity) -> str:
    """Returns the user's function with the most time in some activities, or in any, at its most expensive line."""
    functions = sum_functions(profile, *activities)
    return max(functions, key=lambda place: functions[place], default="")


def sum_functions(profile: LoaderProfile, *activities: Activity) -> dict[str, float]:
    """Returns the seconds of each function of the user in some activities, or in any, by its most expensive line."""
    lines: dict[tuple[str, ...], dict[str, float]] = {}
    for use in get_makers(profile):
        for one in use.functions:
            if one.place and (not activities or one.activity in activities):
                file, _, function = one.place.partition(":")
                own = lines.setdefault((file, function.partition(" ")[2]), {})
                own[one.place] = own.get(one.place, 0.0) + one.seconds
    return {max(own, key=lambda place: own[place]): sum(own.values()) for own in lines.values()}


def _find_slow_record(profile: LoaderProfile) -> Wall | None:
    excess = list_excess(profile)
    # In order, every worker waits for the slow one in the end; what lies in the queues bridges a part.
    if not excess or sum(excess) < _STALLED * profile.free.wall_s:
        return None
    use = max(get_makers(profile), key=lambda use: max(use.record_s, default=0.0))
    median = statistics.median(time for use in get_makers(profile) for time in use.record_s)
    reason = (
        f"{human_count(len(excess), 'record')} of {sum(len(use.record_s) for use in get_makers(profile)):,} took "
        f"{sum(excess) / len(excess):.2g} s more than the median of {median * 1e3:.2g} ms, and batches come in order. "
        f"The slowest is record {use.slowest}."
    )
    return Wall("slow record", reason, f"record {use.slowest}")


def _find_restarts(profile: LoaderProfile) -> Wall | None:
    restart_s = get_restart_s(profile)
    costs = compute_costs(profile)
    epoch_s = images_per_epoch(profile) / profile.given_rate
    if not restart_s or not profile.free.epochs or costs.restart_s * profile.given_rate < _STALLED:
        return None
    share = human_share(costs.restart_s * profile.given_rate)
    reason = (
        f"Each epoch of {epoch_s:.2g} s starts the workers anew, which takes {restart_s:.2g} s: {share} of the time."
    )
    return Wall("restarts", reason)


def _find_lock(profile: LoaderProfile) -> Wall | None:
    makers = get_makers(profile)
    share = sum(use.lock_s for use in makers) / max(sum(use.thread_s for use in makers), 1e-9)
    if share < _ON_LOCK or get_share(profile, "handing over") > _MOVED:
        return None
    where = get_top_place(profile, "functions")
    reason = (
        f"Threads of one process wait for Python's lock in {human_share(share)} of their time. One at a time computes, "
        f"however many there are{f'; most of it in {where}' if where else ''}."
    )
    return Wall("lock", reason, where)


def _find_no_workers(profile: LoaderProfile) -> Wall | None:
    if profile.workers:
        return None
    activity, share, where = get_largest(profile)
    reason = (
        f"No worker process makes batches: the loop does it itself, and the step waits meanwhile. "
        f"{human_share(share)} of that is {activity}{f', most of it in {where}' if where else ''}."
    )
    return Wall("too few workers", reason, where)


def get_largest(profile: LoaderProfile) -> tuple[str, float, str]:
    """Returns the activity with the most time of the makers, its share, and the user's line with most of it."""
    seconds = sum_seconds(profile)
    name = max(seconds, key=lambda name: seconds[name])
    words = {"storage": "waiting for storage", "functions": "in functions of yours"}
    activity: Any = "reading" if name == "storage" else name
    return words.get(name, name), get_share(profile, name), get_top_place(profile, activity)


def _find_main(profile: LoaderProfile) -> Wall | None:
    main = profile.main
    seconds = {name: value for name, value in main.seconds.items() if name != "waiting"}
    share = sum(seconds.values()) / profile.free.wall_s
    idle_workers = statistics.fmean(use.idle_s / use.wall_s for use in profile.workers)
    if share < _MAIN or idle_workers < _STALLED:
        return None
    name = max(seconds, key=lambda name: seconds[name])
    where = next((one.place for one in main.functions if one.activity == name), "")
    reason = (
        f"The process of the trainer is busy with batches for {human_share(share)} of the time, most of it {name}"
        f"{f' ({where})' if where else ''}, while its workers have nothing to do for {human_share(idle_workers)}."
    )
    return Wall("hand-over" if name == "handing over" else "main process", reason, where or name)


def _find_slow_worker(profile: LoaderProfile) -> Wall | None:
    if not is_worker_slow(profile):
        return None
    times = {use.pid: statistics.median(use.record_s) for use in profile.workers if len(use.record_s) > 2}
    slow = max(times, key=lambda pid: times[pid])
    others = statistics.median(time for pid, time in times.items() if pid != slow)
    reason = (
        f"One of {len(profile.workers)} workers takes {times[slow] * 1e3:.2g} ms for a record, the others "
        f"{others * 1e3:.2g} ms. Batches come in order, so all of them wait for it."
    )
    return Wall("slow worker", reason, f"process {slow}")


def _find_storage(profile: LoaderProfile) -> Wall | None:
    share = get_share(profile, "storage")
    if share < _ON_STORAGE:
        return None
    makers = get_makers(profile)
    waited_s, num_bytes = sum(use.storage_s for use in makers), sum(use.bytes for use in makers)
    rate = num_bytes / max(waited_s, 1e-9)
    where = get_top_place(profile, "reading")
    images = profile.free.batches * profile.batch.images
    reason = f"Workers wait for files in {human_share(share)} of their time{f' ({where})' if where else ''}: "
    if rate >= _FAST_BYTES:
        return Wall("storage bytes", f"{reason}{human_bytes(num_bytes / profile.free.wall_s)}/s come.", where)
    return Wall("storage latency", f"{reason}{waited_s / images * 1e3:.2g} ms an image, for few bytes.", where)


def _find_moves(profile: LoaderProfile) -> Wall | None:
    share = get_share(profile, "handing over")
    if share < _MOVED:
        return None
    batch = profile.batch
    what = (
        f"{human_count(batch.objects, 'Python object')}" if batch.objects > batch.images else human_bytes(batch.bytes)
    )
    return Wall("hand-over", f"Handing over takes {human_share(share)} of the workers' time: {what} a batch.", "")


def _find_waits(profile: LoaderProfile) -> Wall | None:
    share, where = get_share(profile, "waiting"), get_top_place(profile, "waiting")
    if share < _WAITS:
        return None
    return Wall("waits", f"Workers do nothing but wait in {human_share(share)} of their time, in {where}.", where)


def _find_cores(profile: LoaderProfile) -> Wall | None:
    makers, wall_s = get_makers(profile), profile.free.wall_s
    used = sum(use.cpu_s for use in makers) + profile.main.cpu_s
    delay = sum(use.delay_s for use in makers) / max(sum(use.thread_s for use in makers), 1e-9)
    workers, cores = len(profile.workers), profile.num_cores
    activity, share, where = get_largest(profile)
    if workers > 2 * cores:
        reason = (
            f"{workers} workers share {human_count(cores, 'core')}: they wait for one in {human_share(delay)} of their "
            f"time, and each takes memory and time to start."
        )
        return Wall("too many workers", reason, where)
    if used >= _ON_CORES * wall_s * profile.cores or delay >= _DELAYED:
        reason = (
            f"The cores are busy, {used / wall_s:.1f} of {cores} with this loader. {human_share(share)} of the time of "
            f"workers is {activity}{f', most of it in {where}' if where else ''}."
        )
        return Wall("cores", reason, where)
    if workers < cores or not any(use.idle_s > _STALLED * use.wall_s for use in makers):
        return Wall("too few workers", f"{human_count(workers, 'worker')} cannot keep {cores} cores busy.", where)
    return None
