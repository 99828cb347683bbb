"""Predicts the rate of a pipeline with a fix, or with several. Pure.

Each measured demand is changed as the fix changes it, and the asymptotic bounds of `bottleneck` are computed again. A
prediction is `efficiency x bound`. The efficiency is the share of its bound that this pipeline reached while it was
measured (above 1 if a demand was overestimated).

Two fixes go together where they change different demands: each saves what it saves alone. Where both change the same
demand, as two other ways to decode do, what they save together was not measured, and nothing is predicted. Fixes of the
user's own stages are the exception: a filter that moves leaves fewer images to all other stages, whatever one costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tfpipe.profiler.types import Fix, FixAction, ServiceDemand

_INDEPENDENT: frozenset[FixAction] = frozenset({"move_stage", "move_to_device", "rewrite_stage", "vectorize_stage"})
"""The kinds of changes that save their share of a demand, whatever else is saved of it."""


def predict_rate(now: float, demand: ServiceDemand, fix: Fix) -> float:
    """Returns the images per second that a pipeline with the fix would give.

    Args:
        now: The measured rate, in images per second.
        demand: The measured demand.
        fix: The fix, which has a demand.
    """
    changed = scale_other(fix.demand or demand, demand)
    efficiency = fix.efficiency or (now / demand.limit if demand.limit > 0 else 1.0)
    if changed.limit == changed.cpu_limit and demand.limit < demand.cpu_limit:
        efficiency = 1.0  # the efficiency at another bound says nothing about the bound of the cores
    return min(efficiency * changed.limit, fix.max_images_per_second)


def scale_other(changed: ServiceDemand, demand: ServiceDemand) -> ServiceDemand:
    """Returns the changed demand with the time that no stage accounts for.

    Handing over stays the same for every image. The rest, such as allocations, is in proportion to the stages' time.
    """
    if changed.cpu_s["other"] != demand.cpu_s["other"]:
        return changed  # the fix knows what it saves there
    before_s, after_s = (sum(each.cpu_s.values()) - each.cpu_s["other"] for each in (demand, changed))
    if before_s <= 0:
        return changed
    grows_s = demand.cpu_s["other"] - demand.handover_s
    handover_s = demand.handover_s - demand.take_batch_s + changed.take_batch_s
    return replace(changed, cpu_s={**changed.cpu_s, "other": grows_s * after_s / before_s + handover_s})


def can_combine(first: Fix, second: Fix, demand: ServiceDemand) -> bool:
    """Returns whether what two fixes give together follows from what each gives alone."""
    shared = set(first.changes) & set(second.changes)
    if any(first.changes[name] != second.changes[name] for name in shared):
        return False
    if not (first.is_sure and second.is_sure):
        return False
    if "cache_before_stage" in (first.action, second.action):
        return False  # nothing is left to save of what such a cache keeps
    if first.stage is not None and first.stage == second.stage:
        return False
    if first.action in _INDEPENDENT or second.action in _INDEPENDENT:
        return True
    return not (_list_changed(first.demand or demand, demand) & _list_changed(second.demand or demand, demand))


def combine(first: Fix, second: Fix, demand: ServiceDemand) -> Fix:
    """Returns two fixes as one. Each demand is changed by the factors of both.

    Args:
        first: A fix, or several that were combined.
        second: A fix that goes together with it, see `can_combine`.
        demand: The measured demand.
    """
    left, right = (scale_other(each.demand or demand, demand) for each in (first, second))
    merged = replace(
        demand,
        cpu_s=_multiply(demand.cpu_s, left.cpu_s, right.cpu_s),
        wait_s=_multiply(demand.wait_s, left.wait_s, right.wait_s),
        threads={name: max(left.threads[name], right.threads[name]) for name in left.threads if name in right.threads},
        lock_bound=left.lock_bound & right.lock_bound,
        storage_limit=None
        if demand.storage_limit is None or left.storage_limit is None or right.storage_limit is None
        else left.storage_limit * right.storage_limit / demand.storage_limit,
        take_batch_s=left.take_batch_s * right.take_batch_s / demand.take_batch_s if demand.take_batch_s else 0.0,
    )
    # What bounds one fix beside its demand is time that the other one shortens, too.
    bounds = [
        each.max_images_per_second * max(other.limit / demand.limit, 1.0)
        for each, other in ((first, right), (second, left))
    ]
    return Fix(
        effort=max(first.effort, second.effort),
        reason="",
        demand=merged,
        changes={**first.changes, **second.changes},
        max_images_per_second=min(bounds),
        efficiency=first.efficiency or second.efficiency,
    )


def _multiply(now: Mapping[str, float], left: Mapping[str, float], right: Mapping[str, float]) -> dict[str, float]:
    """Returns times by stage with the factors of two changes. A stage that one of them adds keeps its time."""
    both = {}
    for name in {**left, **right}:
        base, a, b = (times.get(name, 0.0) for times in (now, left, right))
        both[name] = a * b / base if base else a + b
    return both


def _list_changed(changed: ServiceDemand, demand: ServiceDemand) -> set[tuple[str, str]]:
    """Lists the demands that a fix changes; the time that no stage accounts for follows from the others."""
    parts = {"cpu": (changed.cpu_s, demand.cpu_s), "wait": (changed.wait_s, demand.wait_s)}
    different = {
        (kind, name)
        for kind, (after, before) in parts.items()
        for name in {**after, **before}
        if name != "other" and after.get(name, 0.0) != before.get(name, 0.0)
    }
    threads = {("threads", name) for name, count in changed.threads.items() if count != demand.threads.get(name)}
    storage = {("storage", "")} if changed.storage_limit != demand.storage_limit else set()
    return different | threads | storage
