"""From a profile to a report: demand, bottleneck, fixes. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tfpipe.profiler.diagnose.bottleneck import (
    NO_IDLE,
    compute_cpu_limit,
    compute_demand,
    compute_idle_fraction,
    compute_required_rate,
    find_bottleneck,
)
from tfpipe.profiler.diagnose.fixes import rank_fixes
from tfpipe.profiler.diagnose.together import find_combination, find_shortfall
from tfpipe.profiler.types import Fix, Profile, Report

_HOURS_PER_DAY = 24


def make_report(profile: Profile, price_per_hour: float | None = None) -> Report:
    """Returns a profile with the conclusions from it.

    Args:
        profile: The measured figures, from `profile_pipeline`.
        price_per_hour: The price of the accelerator in any currency; None leaves the price of idle time out.
    """
    demand = compute_demand(profile)
    bottleneck = find_bottleneck(profile, demand)
    idle = compute_idle_fraction(profile.step)
    ranked = rank_fixes(profile, demand, bottleneck)
    return Report(
        profile=profile,
        demand=demand,
        bottleneck=bottleneck,
        required_images_per_second=compute_required_rate(profile.step),
        cpu_limit_images_per_second=compute_cpu_limit(profile),
        storage_limit_images_per_second=demand.storage_limit,
        fixes=tuple(fix for fix, _ in ranked),
        combination=find_combination(profile, demand, ranked),
        shortfall=find_shortfall(profile, demand, bottleneck, ranked),
        price_per_day=None if price_per_hour is None else compute_idle_price_per_day(price_per_hour, idle),
    )


def add_measured(report: Report, fixes: Sequence[Fix], after: float) -> Report:
    """Returns the report with what was measured in the place of what was predicted.

    Args:
        report: The report.
        fixes: Its fixes, those that were tried with their gains.
        after: The images per second with all that was kept.
    """
    tried = replace(report, fixes=tuple(fixes), after_images_per_second=after)
    if not any(fix.kept for fix in fixes):
        return tried
    required, needs = report.required_images_per_second, report.shortfall
    if needs is not None and after >= required * (1 - NO_IDLE):
        needs = None
    elif needs is not None:
        machines = None if needs.machines is None else math.ceil(required / after)
        needs = replace(needs, best_images_per_second=after, machines=machines, cores=None, raw_images=False)
    return replace(tried, combination=None, shortfall=needs)


def compute_idle_price_per_day(price_per_hour: float, idle_fraction: float) -> float:
    """Returns the price of a day's idle time, in the currency of `price_per_hour`."""
    return price_per_hour * _HOURS_PER_DAY * idle_fraction


def compute_idle_after_fixes(report: Report) -> float:
    """Returns the share of idle time after the fixes that were tried and kept; without any, the measured share."""
    if report.after_images_per_second is None:
        return compute_idle_fraction(report.profile.step)
    return max(1 - report.after_images_per_second / report.required_images_per_second, 0.0)
