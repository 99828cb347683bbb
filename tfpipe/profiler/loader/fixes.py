"""From a wall to changes of options or code, each with the gain that the model predicts. Pure.

fixes = list_fixes(profile, wall, has_cuda=False)   # the most useful first
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from tfpipe.profiler.loader.diagnose import choose_threads, find_function, split_place
from tfpipe.profiler.loader.model import Costs, compute_costs, keep_workers
from tfpipe.profiler.loader.types import Activity, LoaderFix, LoaderProfile, Wall
from tfpipe.system.units import human_bytes, human_count, human_share

_MIN_GAIN, _ENOUGH, _CODE_WEIGHT = 1.03, 0.98, 0.7  # an option is changed in a moment, code is not
_MAX_WORKERS, _PREFETCH, _DEFAULT_PREFETCH = 16, 8, 2
_LARGE_SHARE, _SMALL_SHARE = 0.2, 0.1
_FLOAT_BYTES = {"float64": 8, "float32": 4}
_MADE: tuple[Activity, ...] = ("reading", "storage", "decoding", "functions", "collating", "waiting")
"""The activities of making a batch; the others of a trainer's process are receiving it, and freeing it."""


class _Idea(NamedTuple):
    """A change, with the costs after it. `is_due`: the wall itself asks for it, also without a predicted gain."""

    costs: Costs
    change: Any  # options with their new values, or an instruction
    reason: str
    is_due: bool = False


def list_fixes(
    profile: LoaderProfile, wall: Wall, has_cuda: bool = False, draft_s: float | None = None
) -> tuple[LoaderFix, ...]:
    """Returns the fixes that help, the one with the best gain for its effort first.

    Args:
        profile: The measured profile.
        wall: The wall that holds the loader.
        has_cuda: Whether a GPU takes the batches.
        draft_s: The time in which Pillow decodes an image of the loader in the smallest size that is enough; None if it
            is not known, or there is none but the whole one.
    """
    if wall.kind == "accelerator":
        return ()
    now = compute_costs(profile)
    proposers = (_change_workers, _change_order, _change_handing, _change_work)
    found = [idea for propose in proposers for idea in propose(profile, wall, now)]
    decoding_s = (now.worker_s + now.stall_s) * _get_decoding_share(profile)
    if draft_s is not None and draft_s < decoding_s and profile.share("decoding") > _LARGE_SHARE:
        reason = f"Pillow then decodes {decoding_s / draft_s:.1f} times as fast, measured on files of this loader."
        change = 'Call `image.draft("RGB", SIZE)` with the size that you need before the image is loaded'
        found.append(_Idea(now.save(decoding_s - draft_s), change, reason))
    if has_cuda and profile.options.get("pin_memory") is False:
        saved_s = min(profile.copy_s / profile.batch.images, 0.5 * now.step_s)
        costs = replace(now, step_s=now.step_s - saved_s)
        found.append(_Idea(costs, {"pin_memory": True}, "Copies to the GPU run beside its work."))
    most = 1 / max(1 - profile.idle_fraction, 1e-9) if profile.step_s else math.inf  # the trainer takes no more
    fixes = []
    for costs, change, reason, is_due in found:
        gain = min(costs.rate / now.rate, most)
        if gain >= _MIN_GAIN or is_due:
            is_code = isinstance(change, str)
            fix = LoaderFix({} if is_code else change, change if is_code else "", reason, max(gain, 1.0))
            fixes.append((not is_due, (1 - gain) * (_CODE_WEIGHT if is_code else 1.0), fix))
    return tuple(fix for _, _, fix in sorted(fixes, key=lambda one: one[:2]))


def _get_decoding_share(profile: LoaderProfile) -> float:
    """Returns the share of decoding, with reading for it, and with what the lines that decode do with the pixels."""
    places = [one for use in profile.makers for one in use.functions]
    lines = {place for place, activity, _ in places if activity == "decoding"}
    functions = {split_place(line) for line in lines}
    seconds: dict[Activity, float] = defaultdict(float)
    for place, activity, passed_s in places:
        belongs = split_place(place) in functions if activity == "reading" else place in lines
        seconds[activity] += passed_s if belongs else 0.0
    decoding = profile.share("decoding")
    scale = decoding / max(seconds["decoding"], 1e-9)
    return decoding + sum(min(scale * seconds[name], profile.share(name)) for name in ("reading", "functions"))


def _choose_workers(now: Costs, hop_s: float) -> tuple[int, Costs]:
    """Returns the fewest workers that give nearly the best rate, with the costs then."""
    if not now.num_workers:
        now = replace(now.save(-hop_s), num_workers=1, slowest_s=now.worker_s + hop_s)
    choices = {
        number: replace(now, num_workers=number, lock_s=now.lock_s * now.num_workers / number)
        for number in range(1, max(_MAX_WORKERS, math.ceil(now.cores)) + 1)
    }
    best = max(costs.rate for costs in choices.values())
    return next((number, costs) for number, costs in choices.items() if costs.rate >= _ENOUGH * best)


def _change_workers(profile: LoaderProfile, wall: Wall, now: Costs) -> Iterator[_Idea]:
    options, cores = profile.options, profile.num_cores
    number, costs = _choose_workers(now, profile.hop_s / profile.batch.images)
    cpu_s, pool_s = sum(use.cpu_s for use in profile.makers), sum(use.pool_s for use in profile.makers)
    waits = sum(use.working_s - use.sum("lock") for use in profile.makers) / max(cpu_s, 1e-9)
    # Others may have some of the cores now; and work that does not wait has no use for more workers than cores.
    number = min(max(number, cores if waits < 2 else 1), math.ceil(cores * max(waits, 1) - 0.5))
    costs = replace(costs, num_workers=number)
    reason = f"{number} workers can make batches at once{'' if now.num_workers else ', while the step runs'}."
    is_due = wall.kind in ("too few workers", "lock")
    if wall.kind == "too many workers" and "num_workers" in options:
        reason = f"As many workers as cores do the same work; {now.num_workers - cores} processes are not started."
        costs = replace(now, num_workers=cores, slowest_s=now.worker_s)
        yield _Idea(costs, {"num_workers": cores}, reason, is_due=True)
    elif wall.kind not in ("slow record", "slow worker", "main process") and number > now.num_workers:
        if "num_workers" in options:
            yield _Idea(costs, {"num_workers": number}, reason, is_due)
        elif "use_multiprocessing" in options:
            yield _Idea(costs, {"workers": number, "use_multiprocessing": True}, reason, is_due)
        else:
            of_grain = f"`.mp_prefetch(grain.MultiprocessingOptions({number}))`"
            way = of_grain if profile.kind == "Grain loader" else "the workers of a DataLoader"
            yield _Idea(costs, f"Make batches in {number} processes, such as {way}", reason, is_due)
    if profile.workers and options.get("persistent_workers") is False:
        reason = "The workers stay from one epoch to the next."
        costs = keep_workers(profile, now)
        yield _Idea(costs, {"persistent_workers": True}, reason, wall.kind == "restarts")
    delay_s = sum(use.sum("no core") for use in profile.makers)
    is_starving, is_full = wall.kind == "starving threads", profile.num_workers >= cores
    if is_starving or (is_full and pool_s > _LARGE_SHARE * cpu_s and delay_s > _SMALL_SHARE * cpu_s):
        owners = "workers'" if profile.workers else "loader's"
        reason = f"{human_share(pool_s / cpu_s)} of the {owners} processor time is in threads of a library."
        change = "Give each worker one thread, by `torch.set_num_threads(1)` or `cv2.setNumThreads(0)` in "
        change += "`worker_init_fn`"
        if not profile.workers:
            change = "Give the library one thread, such as by `cv2.setNumThreads(0)`"
            if profile.torch_threads > 1:
                change = f"Call `torch.set_num_threads({choose_threads(profile)})`"
        yield _Idea(now, change, reason, is_starving or wall.kind == "cores")


def _change_order(profile: LoaderProfile, wall: Wall, now: Costs) -> Iterator[_Idea]:
    if wall.kind not in ("slow record", "slow worker"):
        return
    if profile.options.get("in_order") is True and now.num_workers > 1:
        costs = replace(now, stall_s=now.stall_s / now.num_workers, slowest_s=now.worker_s)
        reason = "Batches come as they are ready, in another order: nobody waits for the slow one."
        yield _Idea(costs, {"in_order": False}, reason, is_due=True)
    if wall.kind == "slow record":
        ahead = profile.options.get("prefetch_factor") or _DEFAULT_PREFETCH
        more_s = max(_PREFETCH - ahead, 0) * now.num_workers * profile.batch.images / now.rate
        left = max(1 - more_s / (now.stall_s * profile.batch.images * profile.free.batches), 0.0)
        reason = "The queues bridge a part of the wait, and take more memory."
        yield _Idea(replace(now, stall_s=now.stall_s * left), {"prefetch_factor": _PREFETCH}, reason)
        change = f"Store {wall.where} smaller, or leave it out"
        yield _Idea(replace(now, stall_s=0.0), change, "Without it no batch is late.")


def _change_handing(profile: LoaderProfile, wall: Wall, now: Costs) -> Iterator[_Idea]:
    batch, made_s = profile.batch, now.worker_s + now.stall_s
    received = 1 - profile.main.sum(*_MADE) / max(profile.main.working_s, 1e-9)  # of the time of the trainer's process
    if wall.kind == "main process":
        moved_s = now.main_s * 0.9
        costs = replace(now.save(-moved_s), main_s=now.main_s - moved_s, cpu_s=now.cpu_s)
        reason = "Several workers do at once what the process of the trainer does alone."
        change = f"Move {wall.where} into the workers: into the dataset, or into `collate_fn`"
        yield _Idea(costs, change, reason, is_due=True)
    elif wall.kind == "hand-over" and batch.objects > batch.images:
        working_s = max(sum(use.working_s for use in profile.makers), 1e-9)
        collecting = sum(use.collecting_s for use in profile.makers) / working_s
        # Objects that are kept until they are packed are what Python looks through for garbage meanwhile, and what the
        # loader itself walks over.
        kept = profile.share("functions", "collating")
        saved = profile.share("handing over", "lock", "other")
        saved += min(collecting * kept / max(kept + profile.share("other"), 1e-9), kept)
        hop_s = profile.hop_s / batch.images
        costs = now.save(made_s * saved - 2 * hop_s, received)  # arrays are collated, and then handed over
        reason = f"{human_count(batch.objects, 'Python object')} a batch are packed and unpacked one by one."
        change = "Hand over tensors or arrays in place of lists, dictionaries and other objects"
        yield _Idea(costs, change, reason, is_due=True)
    width = _FLOAT_BYTES.get(batch.dtype)
    if width and batch.image_size is not None:
        saved, collated = 1 - 1 / width, profile.share("collating")
        # Collating writes the values once more. The user's functions wrote them, which took as long at least; but small
        # arrays take more than their part of a large one. So half of it counts.
        written = collated + min(collated, profile.share("functions")) / 2
        sizes = f"{human_bytes(batch.bytes)} a batch become {human_bytes(batch.bytes / width)}"
        is_due = batch.dtype == "float64" and wall.kind == "hand-over"
        costs = now.save(saved * made_s * (profile.share("handing over", "lock") + written), saved * received)
        change = f"Hand over uint8 in place of {batch.dtype}"
        yield _Idea(costs, change, f"{sizes}; convert and normalize on the device.", is_due)


def _change_work(profile: LoaderProfile, wall: Wall, now: Costs) -> Iterator[_Idea]:
    made_s, size = now.worker_s + now.stall_s, profile.batch.image_size
    read_s = made_s * profile.share("decoding", "reading", "storage")
    if size is not None and profile.records is not None and read_s > _LARGE_SHARE * made_s:
        memory = 4 * profile.records * math.prod(size) * 3  # originals have about four times the pixels of a crop
        reason = f"From the second epoch on nothing is read and decoded; about {human_bytes(memory)} for all workers."
        if memory < profile.free_memory_bytes / 2:
            yield _Idea(now.save(read_s), "Cache decoded images in shared memory", reason)
    place, share = find_function(profile, "functions", "waiting")
    if share > _LARGE_SHARE / 2:
        yield _Idea(now.save(made_s * share / 2), f"Make {place} faster", "If it took half of its time.")
