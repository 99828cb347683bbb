"""From a profile to a report: demand, bottleneck, fixes. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tfpipe.profiler.diagnose.bottleneck import NO_IDLE, find_bottleneck
from tfpipe.profiler.diagnose.fixes import find_fixes
from tfpipe.profiler.diagnose.together import find_combination, find_shortfall
from tfpipe.profiler.types import Fix, Profile, Report

HOURS_PER_DAY = 24


def make_report(profile: Profile, price_per_hour: float | None = None) -> Report:
    """Returns a profile with the conclusions from it.

    Args:
        profile: The measured figures, from `profile_pipeline`.
        price_per_hour: The price of the accelerator in any currency; None leaves the price of idle time out.
    """
    bottleneck = find_bottleneck(profile)
    fixes = find_fixes(profile, bottleneck)
    return Report(
        profile=profile,
        bottleneck=bottleneck,
        fixes=fixes,
        combination=find_combination(profile, fixes),
        shortfall=find_shortfall(profile, bottleneck, fixes),
        price_per_day=None if price_per_hour is None else price_per_hour * HOURS_PER_DAY * profile.step.idle,
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
    required, needs = report.profile.step.required_rate, report.shortfall
    if needs is not None and after >= required * (1 - NO_IDLE):
        needs = None
    elif needs is not None:
        machines = None if needs.machines is None else math.ceil(required / after)
        needs = replace(needs, best_images_per_second=after, machines=machines, cores=None, raw_images=False)
    return replace(tried, combination=None, shortfall=needs)
