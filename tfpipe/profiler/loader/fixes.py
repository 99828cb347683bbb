"""From a wall to changes of options or code, each with the gain that the model predicts. Pure.

fixes = list_fixes(profile, wall, has_cuda=False)   # the most useful first
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tfpipe.profiler.loader.diagnose import get_makers, get_share, get_top_place, sum_functions, sum_seconds
from tfpipe.profiler.loader.model import Costs, compute_costs
from tfpipe.profiler.loader.types import LoaderFix, LoaderProfile, Wall
from tfpipe.system.units import human_bytes, human_count, human_share

_MIN_GAIN, _ENOUGH = 1.03, 0.98
_MAX_WORKERS, _PREFETCH, _DEFAULT_PREFETCH = 16, 8, 2
_CODE_WEIGHT = 0.7  # an option is changed in a moment, code is not
_LARGE_SHARE, _SMALL_SHARE = 0.2, 0.1
_FLOAT_BYTES = {"float64": 8, "float32": 4}
_LEFT = 0.1  # of the time for Python objects, where arrays are handed over


@dataclass(frozen=True)
class _Idea:
    """A change, with the costs after it. `is_due`: the wall itself asks for it, also without a predicted gain."""

    costs: Costs
    reason: str
    instruction: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict)
    is_due: bool = False


def list_fixes(
    profile: LoaderProfile, wall: Wall, has_cuda: bool = False, draft_gain: float | None = None
) -> tuple[LoaderFix, ...]:
    """Returns the fixes that help, the one with the best gain for its effort first.

    Args:
        profile: The measured profile.
        wall: The wall that holds the loader.
        has_cuda: Whether a GPU takes the batches.
        draft_gain: The gain of Pillow's decoding of the loader's files in the smallest size that is enough; None if it
            is not known.
    """
    if wall.kind == "accelerator":
        return ()
    now = compute_costs(profile)
    ideas = [
        *_change_workers(profile, wall, now),
        *_change_order(profile, wall, now),
        *_change_handing(profile, wall, now, has_cuda),
        *_change_threads(profile, wall, now),
        *_change_work(profile, wall, now, draft_gain),
    ]
    fixes = []
    for idea in ideas:
        gain = idea.costs.rate / now.rate
        if gain >= _MIN_GAIN or idea.is_due:
            gain = max(gain, 1.0)
            rate = profile.given_rate * gain
            fixes.append((idea, LoaderFix(idea.changes, idea.instruction, idea.reason, rate, gain)))
    fixes.sort(key=lambda pair: (not pair[0].is_due, -(pair[1].predicted_gain - 1) * _weigh(pair[1])))
    return tuple(fix for _, fix in fixes)


def _weigh(fix: LoaderFix) -> float:
    return _CODE_WEIGHT if fix.instruction else 1.0


def choose_workers(now: Costs, copy_s: float) -> tuple[int, Costs]:
    """Returns the fewest workers that give nearly the best rate, with the costs then.

    Args:
        now: The costs as they are.
        copy_s: The time to copy an image once, in seconds: what handing over costs at least.
    """
    options = {}
    for number in range(1, max(_MAX_WORKERS, math.ceil(now.cores)) + 1):
        costs = replace(now, num_workers=number, stall_s=now.stall_s, lock_s=0.0)
        if not now.num_workers:
            costs = replace(
                costs, worker_s=now.worker_s + copy_s, slowest_s=now.worker_s + copy_s, cpu_s=now.cpu_s + copy_s
            )
        options[number] = costs
    best = max(costs.rate for costs in options.values())
    number = next(number for number, costs in options.items() if costs.rate >= _ENOUGH * best)
    return number, options[number]


def _change_workers(profile: LoaderProfile, wall: Wall, now: Costs) -> Iterator[_Idea]:
    can_change = "num_workers" in profile.options
    if wall.kind == "too many workers" and can_change:
        number = profile.num_cores
        yield _Idea(
            replace(now, num_workers=number, slowest_s=now.worker_s),
            f"As many workers as cores do the same work, and {now.num_workers - number} processes are not started.",
            changes={"num_workers": number},
            is_due=True,
        )
    elif wall.kind not in ("slow record", "slow worker", "main process"):
        number, costs = choose_workers(now, profile.copy_s / profile.batch.images)
        if now.cpu_s > now.worker_s / 2:
            number = max(number, profile.num_cores)  # others may have some of them at the moment
        if number > now.num_workers:
            meanwhile = "" if now.num_workers else ", while the step runs"
            reason = f"{human_count(number, 'worker')} can make batches at once{meanwhile}."
            is_due = wall.kind in ("too few workers", "lock")
            if can_change:
                yield _Idea(costs, reason, changes={"num_workers": number}, is_due=is_due)
            elif "use_multiprocessing" in profile.options:
                changes = {"workers": number, "use_multiprocessing": True}
                yield _Idea(costs, reason, changes=changes, is_due=is_due)
            else:
                how = f"Make batches in {human_count(number, 'worker')} that are processes, such as a DataLoader's"
                yield _Idea(costs, reason, instruction=how, is_due=is_due)
    if "persistent_workers" in profile.options and profile.workers and not profile.options["persistent_workers"]:
        yield _Idea(
            replace(now, restart_s=min(now.restart_s, now.worker_s * profile.batch.images / _epoch(profile))),
            "The workers stay from one epoch to the next.",
            changes={"persistent_workers": True},
            is_due=wall.kind == "restarts",
        )


def _epoch(profile: LoaderProfile) -> float:
    return float(profile.batch.images * (profile.steps_per_epoch or 1))


def _change_order(profile: LoaderProfile, wall: Wall, now: Costs) -> Iterator[_Idea]:
    if wall.kind not in ("slow record", "slow worker") or not now.num_workers:
        return
    record = wall.kind == "slow record"
    if profile.options.get("in_order") is True and now.num_workers > 1:
        yield _Idea(
            replace(now, stall_s=now.stall_s / now.num_workers, slowest_s=now.worker_s),
            "Batches come as they are ready, in another order: nobody waits for the slow one.",
            changes={"in_order": False},
            is_due=True,
        )
    ahead = profile.options.get("prefetch_factor") or _DEFAULT_PREFETCH
    if record and ahead < _PREFETCH:
        more_s = (_PREFETCH - ahead) * now.num_workers * profile.batch.images / now.rate
        events_s = now.stall_s * profile.batch.images * profile.free.batches
        if events_s:
            left = max(1 - more_s / events_s, 0.0)
            reason = "The queues bridge a part of the wait, and take more memory."
            yield _Idea(replace(now, stall_s=now.stall_s * left), reason, changes={"prefetch_factor": _PREFETCH})
    if record:
        reason = "Without it no batch is late."
        yield _Idea(replace(now, stall_s=0.0), reason, instruction=f"Store {wall.where} smaller, or leave it out")


def _change_handing(profile: LoaderProfile, wall: Wall, now: Costs, has_cuda: bool) -> Iterator[_Idea]:
    batch, main = profile.batch, profile.main
    if has_cuda and profile.options.get("pin_memory") is False:
        reason = "Copies to the GPU run beside its work."
        saved_s = min(profile.copy_s / batch.images, 0.5 * now.step_s)
        yield _Idea(replace(now, step_s=now.step_s - saved_s), reason, changes={"pin_memory": True})
    made_s = now.worker_s + now.stall_s
    main_busy_s = max(sum(main.seconds.values()) - main.seconds.get("waiting", 0.0), 1e-9)
    received_s = now.main_s * main.seconds.get("handing over", 0.0) / main_busy_s
    if wall.kind == "main process":
        moved_s = now.main_s * 0.9
        yield _Idea(
            replace(
                now, main_s=now.main_s - moved_s, worker_s=now.worker_s + moved_s, slowest_s=now.slowest_s + moved_s
            ),
            "Several workers do at once what the process of the trainer does alone.",
            instruction=f"Move {wall.where} into the workers: into the dataset, or into `collate_fn`",
            is_due=True,
        )
    elif wall.kind == "hand-over" and batch.objects > batch.images:
        saved = 1 - _LEFT
        yield _Idea(
            _save(
                replace(now, main_s=now.main_s - saved * received_s),
                saved * made_s * get_share(profile, "handing over"),
            ),
            f"{human_count(batch.objects, 'Python object')} a batch are packed and unpacked one by one.",
            instruction="Hand over tensors or arrays in place of lists, dictionaries and other objects",
            is_due=True,
        )
    width = _FLOAT_BYTES.get(batch.dtype)
    if width and batch.image_size is not None:
        share = 1 - 1 / width
        saved_s = share * made_s * get_share(profile, "handing over", "collating")
        costs = _save(replace(now, main_s=now.main_s - share * received_s), saved_s)
        yield _Idea(
            costs,
            f"{human_bytes(batch.bytes)} a batch become {human_bytes(batch.bytes / width)}; convert and normalize "
            f"on the device.",
            instruction=f"Hand over uint8 in place of {batch.dtype}",
            is_due=batch.dtype == "float64" and wall.kind == "hand-over",
        )


def _save(costs: Costs, seconds: float) -> Costs:
    """Returns the costs if an image takes less of a worker and of a core."""
    return replace(
        costs,
        worker_s=max(costs.worker_s - seconds, 1e-9),
        slowest_s=max(costs.slowest_s - seconds, 1e-9),
        cpu_s=max(costs.cpu_s - seconds, 1e-9),
        lock_s=max(costs.lock_s - seconds, 0.0),
    )


def _change_threads(profile: LoaderProfile, wall: Wall, now: Costs) -> Iterator[_Idea]:
    makers = get_makers(profile)
    pool_s = sum(use.pool_s for use in makers)
    cpu_s = sum(use.cpu_s for use in makers)
    delay_s = sum(use.delay_s for use in makers)
    if len(profile.workers) >= profile.num_cores and pool_s > _LARGE_SHARE * cpu_s and delay_s > _SMALL_SHARE * cpu_s:
        yield _Idea(
            now,
            f"{human_share(pool_s / cpu_s)} of the workers' time is spent in threads of a library, and "
            f"{human_count(len(profile.workers), 'worker')} share {human_count(profile.num_cores, 'core')}.",
            instruction="Give each worker one thread, such as by `cv2.setNumThreads(0)` in `worker_init_fn`",
            is_due=wall.kind == "cores",
        )
    if wall.kind == "lock" and not {"use_multiprocessing", "num_workers"} & set(profile.options):
        number = max(profile.num_cores, 1)
        yield _Idea(
            replace(now, lock_s=0.0, num_workers=number),
            "Each process has a lock of its own.",
            instruction=f"Use {human_count(number, 'worker')} that are processes in place of threads",
            is_due=True,
        )


def _change_work(profile: LoaderProfile, wall: Wall, now: Costs, draft_gain: float | None) -> Iterator[_Idea]:
    made_s = now.worker_s + now.stall_s
    decoding_s = made_s * get_share(profile, "decoding")
    input_s = made_s * get_share(profile, "decoding", "reading", "storage")
    if draft_gain is not None and draft_gain > 1 and get_share(profile, "decoding") > _LARGE_SHARE:
        yield _Idea(
            _save(now, decoding_s * (1 - 1 / draft_gain)),
            f"Pillow then decodes {draft_gain:.1f} times as fast, measured on files of this loader.",
            instruction='Call `image.draft("RGB", SIZE)` with the size that you need before the image is loaded',
        )
    memory = _estimate_cache(profile)
    if memory is not None and input_s > _LARGE_SHARE * made_s:
        yield _Idea(
            _save(now, input_s),
            f"From the second epoch on nothing is read and decoded; about {human_bytes(memory)} of memory, if all "
            f"workers share the cache.",
            instruction="Cache decoded images in memory",
        )
    place = get_top_place(profile, "functions", "waiting")
    share = get_share(profile, "functions", "waiting")
    if place and share > _LARGE_SHARE:
        own = sum_functions(profile, "functions", "waiting")[place] / sum(sum_seconds(profile).values())
        costs = _save(now, made_s * own / 2)
        yield _Idea(costs, "If it took half of its time.", instruction=f"Make {place} faster")


def _estimate_cache(profile: LoaderProfile) -> float | None:
    """Returns the bytes of a cache of decoded images; None if that is unknown, or more than half of what is free."""
    if profile.records is None or profile.batch.image_size is None:
        return None
    height, width = profile.batch.image_size
    num_bytes = 4.0 * profile.records * height * width * 3  # originals have about four times the pixels of a crop
    return num_bytes if num_bytes < profile.free_memory_bytes / 2 else None
