"""A report as text for a screen, and as JSON, which `tfpipe/profiler/README.md` documents. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from tfpipe.profiler.diagnose.bottleneck import count_needed_workers, explain_needed_workers, explain_wire
from tfpipe.profiler.types import Effort, Fix, HostUse, Profile, Report, ServiceUse, Spread, StageTiming, StepTiming
from tfpipe.system.units import human_bytes, human_count, human_rate, human_share

VERSION = 4
NO_STAGES = "No stage was tried, since the accelerator does not wait."
NO_FIXES = "No fix here would help."
HAND_OVER = "hand-over"  # what no stage accounts for: handing elements over, memory, the trainer's thread
RANKING = "Fixes, best first. Among similar gains the easier one comes first."
SERVICE_NOTE = "The workers of the service run the other stages. To time these, run this on a worker without `service`."
_BOTTLENECK_NAMES = {
    "cpu": "this host's CPU",
    "first_batch": "the first batch",
    "accelerator": "the accelerator",
    "service": "the service",
    "wire": "the wire",
}
_TRAINERS = {
    "loop": "a plain loop, which takes a batch and then computes",
    "fit": "Keras' `fit` on a device with a queue, which takes the next batch while the device computes",
}
EFFORTS = {
    Effort.WASTE: "work for nothing",
    Effort.OPTION: "an option",
    Effort.VISIBLE_OPTION: "an option or a line of yours",
    Effort.NEW_SHARDS: "new shards",
    Effort.REWRITE: "your code",
    Effort.MORE_MACHINES: "more machines",
}  # the kinds of effort, in their order
_MOST_NAME = 20  # characters of a stage in the first line
_RECORDS = {
    "images/s": "records/s",
    " µs/image": "µs/record",  # as wide as before, in a table
    ">µs/image": ">µs/record",
    "for each image": "for each record",
    "an image may take": "a record may take",
}
_IMAGES = re.compile(rf"(?<![\w/.-])(?:{'|'.join(_RECORDS)})(?![\w/.-])")
_MAX_FIXES = 5
_NOTABLE_SHARE = 0.05


def format_headline(report: Report) -> str:
    """Returns the answer in less than 80 characters, with the bottleneck first."""
    rate, idle = human_rate(report.profile.images_per_second), report.profile.step.idle
    if report.bottleneck.stage == "accelerator":
        return f"Compute-bound: the accelerator is never idle, at {rate} images/s."
    stage = report.bottleneck.stage
    name = name_bottleneck(stage)[:_MOST_NAME]
    name = name[0].upper() + name[1:] if stage in _BOTTLENECK_NAMES else name
    if not report.profile.step.has_steps:
        return f"{name} limits this pipeline: {rate} images/s."
    required = human_rate(report.profile.step.required_rate)
    return f"{name} limits this pipeline: {rate} of {required} images/s, {human_share(idle)} idle."


def explain_neighbors(host: HostUse) -> str:
    """Returns the sentence about other programs that take the cores, or an empty text if they take hardly any."""
    if not host.is_crowded:
        return ""
    cores = human_count(host.cores, "core")
    return (
        f"Busy neighbors: other programs take {human_share(host.other_cpu_fraction)} of {cores}. End them and run this "
        "again: the figures hold only beside them."
    )


def explain_rates(report: Report) -> str:
    """Returns the rates that the accelerator needs, that the pipeline gives, and that the machine allows."""
    given = human_rate(report.profile.images_per_second)
    needed = f"The accelerator needs {human_rate(report.profile.step.required_rate)} images/s, and this pipeline gives"
    parts = [
        f"{needed} {given}" if report.profile.step.has_steps else f"This pipeline gives {given} images/s",
        f"this host's cores allow {human_rate(report.profile.cpu_limit)}",
    ]
    if report.profile.storage_limit is not None:
        parts.append(f"its storage {human_rate(report.profile.storage_limit)}")
    return f"{'; '.join(parts)}."


def explain_idle(step: StepTiming) -> str:
    """Returns for which trainer the idle time holds; an empty text if it was measured in a training."""
    return f"for {_TRAINERS[step.method]}" if step.method in _TRAINERS else ""


def explain_memory(profile: Profile) -> str:
    """Returns the memory that was taken, and the stage that holds most of it."""
    text = f"memory at most {human_bytes(profile.host.peak_memory_bytes)}"
    if profile.held and profile.held[0].num_bytes >= _NOTABLE_SHARE * profile.host.peak_memory_bytes:
        most = profile.held[0]
        text += f", {human_bytes(most.num_bytes)} of it in {most.stage} ({most.number:,} {most.what})"
    return text


def explain_first_batch(profile: Profile) -> str:
    """Returns the time until the first batch, and the stage that takes most of it."""
    text = f"first batch after {profile.first_batch_s:.1f} s"
    slowest = max(profile.held, key=lambda held: held.fill_s, default=None)
    if slowest is not None and slowest.fill_s >= max(_NOTABLE_SHARE * profile.first_batch_s, 0.1):
        text += f", about {slowest.fill_s:.1f} s of it to fill {slowest.stage}"
    return text


def explain_filling(profile: Profile) -> str:
    """Returns a sentence if the profile is of the epoch that fills a cache, or an empty text."""
    if not profile.fill_s:
        return ""
    return (
        f"The cache was still being filled. Epochs that only read it begin after {math.ceil(profile.fill_s):,} s more."
    )


def name_bottleneck(stage: str) -> str:
    """Returns the words for a bottleneck in a sentence."""
    return _BOTTLENECK_NAMES.get(stage, stage)


def format_out_per_in(stage: StageTiming) -> str:
    """Returns the elements that a stage gives for each that it takes, or an empty text if it gives as many."""
    text = f"{stage.elements_out_per_in:.3g}"
    return "" if text == "1" else text


def to_text(report: Report) -> str:
    """Returns at most one screen: the budget, the stages, the bottleneck, the first fixes."""
    lines = [*_summary_lines(report), "", *_stage_lines(report), *_service_lines(report), *_fix_lines(report)]
    return use_unit("\n".join(line.rstrip() for line in lines) + "\n", report)


def use_unit(text: str, report: Report) -> str:
    """Returns a report's text with `DatasetFacts.unit` in the place of images. Paths such as `images/s` stay."""
    unit = report.profile.dataset.unit
    return text if unit == "images" else _IMAGES.sub(lambda found: _RECORDS[found[0]], text)


def to_json(report: Report) -> dict[str, Any]:
    """Returns the report as one object of plain values, in which infinite limits are None."""
    profile = report.profile
    return {
        "version": VERSION,
        "summary": use_unit(format_headline(report), report),
        **step_to_json(profile.step),
        "images_per_second": profile.images_per_second,
        "required_images_per_second": _finite_or_none(report.profile.step.required_rate),
        "cpu_limit_images_per_second": _finite_or_none(report.profile.cpu_limit),
        "storage_limit_images_per_second": report.profile.storage_limit,
        "first_batch_s": profile.first_batch_s,
        "warm_up_s": profile.warm_up_s,
        "fill_s": profile.fill_s,
        "records_per_image": profile.records_per_image,
        "bottleneck": {
            **asdict(report.bottleneck),
            "limit_images_per_second": _finite_or_none(report.bottleneck.limit_images_per_second),
        },
        "stages": [
            {
                **asdict(stage),
                "cpu_us_per_image": stage.cpu_us_per_image.median,
                "cpu_us_per_image_spread": _spread_to_json(stage.cpu_us_per_image),
            }
            for stage in profile.stages
        ],
        "fixes": [_fix_to_json(fix) for fix in report.fixes],
        "combination": None if report.combination is None else asdict(report.combination),
        "shortfall": None if report.shortfall is None else asdict(report.shortfall),
        "after_images_per_second": report.after_images_per_second,
        "host": asdict(profile.host),
        "service": None if profile.service is None else _service_to_json(profile.service, report),
        "price_per_day": report.price_per_day,
        "dataset": asdict(profile.dataset),
        "config": asdict(profile.config),
        "held": [asdict(held) for held in profile.held],
        "what_if": dict(profile.option_costs),
        "timeline": [asdict(step) for step in profile.timeline],
    }


def _fix_to_json(fix: Fix) -> dict[str, Any]:
    document = asdict(replace(fix, demand=None, changes=dict(fix.changes)))
    for name in ("demand", "max_images_per_second", "efficiency"):
        del document[name]
    return {**document, "effort": fix.effort.name.lower()}


def _service_to_json(use: ServiceUse, report: Report) -> dict[str, Any]:
    return {**asdict(use), "needed_workers": count_needed_workers(use, report.profile.step.required_rate)}


def step_to_json(step: StepTiming) -> dict[str, Any]:
    """Returns the accelerator's part of the JSON, for every way to measure it."""
    idle, wait = step.idle_fraction, step.input_wait_fraction
    return {
        "method": step.method,
        "idle_fraction": step.idle if step.has_steps else None,
        "idle_fraction_spread": _spread_to_json(idle) if step.has_steps else None,
        "input_wait_fraction": wait.median if step.has_steps else None,
        "input_wait_fraction_spread": _spread_to_json(wait) if step.has_steps else None,
        "steps": step.steps,
        "step_s": step.step_s.median,
        "images_per_step": step.images_per_step,
        "wall_s": step.wall_s,
    }


def _summary_lines(report: Report) -> Iterator[str]:
    profile, step, host = report.profile, report.profile.step, report.profile.host
    yield from filter(None, (explain_neighbors(host),))
    yield format_headline(report)
    yield ""
    yield report.bottleneck.reason
    yield explain_rates(report)
    low, high = human_share(step.idle_fraction.low), human_share(step.idle_fraction.high)
    if step.has_steps:
        yield (
            f"Idle {human_share(step.idle)} ({low} to {high}) {explain_idle(step)}; {step.steps:,} steps "
            f"in {step.wall_s:.1f} s."
        )
    else:
        yield (
            f"{step.steps:,} batches in {step.wall_s:.1f} s. With --step-ms MS, the time of a step of your training, "
            "this says how long your accelerator waits."
        )
    others = ""
    if host.other_cpu_fraction >= _NOTABLE_SHARE:
        others = f" with this pipeline, {human_share(host.other_cpu_fraction)} with other programs"
    budget = "" if host.budget_cores is None else f" of a budget of {host.budget_cores / host.cores:.0%}"
    yield (
        f"{host.cores} cores {human_share(host.cpu_fraction)} busy{budget}{others}; {explain_memory(profile)}; reads "
        f"{human_bytes(host.storage_bytes_per_second)}/s; {explain_first_batch(profile)}."
    )
    if profile.fill_s:
        yield explain_filling(profile)
    if report.price_per_day is not None:
        yield f"The idle time costs {report.price_per_day:,.2f} a day."


def _stage_lines(report: Report) -> Iterator[str]:
    if not report.profile.stages:
        yield NO_STAGES
        return
    cpu_s = report.profile.demand.cpu_s
    total_us = 1e6 * sum(cpu_s.values()) or 1.0
    yield f"{'stage':<16}{'µs/image':>10}{'share':>8}{'waits, µs':>11}{'at once':>9}{'out kB':>9}{'out/in':>8}"
    for stage in report.profile.stages:
        wait_us = 1e6 * report.profile.demand.wait_s.get(stage.name, 0.0)
        yield (
            f"{stage.name:<16}{1e6 * cpu_s[stage.name]:>10,.0f}{cpu_s[stage.name] * 1e6 / total_us:>8.0%}"
            f"{f'{wait_us:,.0f}' if wait_us >= 1 else '':>11}{format_at_once(stage):>9}"
            f"{stage.bytes_out_per_image / 1e3:>9,.0f}{format_out_per_in(stage):>8}"
        )
    other_us = 1e6 * cpu_s["other"]
    yield f"{HAND_OVER:<16}{other_us:>10,.0f}{other_us / total_us:>8.0%}"


def format_at_once(stage: StageTiming) -> str:
    """Returns the calls of a stage that work at once, and that a lock lets through only one."""
    return f"{stage.parallelism}" if stage.hold_us_per_image is None else "1, lock"


def list_service_notes(report: Report) -> list[str]:
    """Returns the sentences about the service of a profile: the network, the number of workers."""
    use = report.profile.service
    if use is None:
        return []
    required = report.profile.step.required_rate
    return [*filter(None, (explain_wire(use), explain_needed_workers(use, required)))]


def _service_lines(report: Report) -> Iterator[str]:
    use = report.profile.service
    if use is None:
        return
    yield SERVICE_NOTE
    yield ""
    yield f"{'worker':<30}{'images/s':>10}{'busy':>8}"
    for worker in use.workers:
        rate, busy = human_rate(worker.images_per_second), human_share(worker.busy_fraction)
        yield f"{worker.address:<30}{rate:>10}{busy:>8}"
    yield from list_service_notes(report)


def format_combination(report: Report) -> str:
    """Returns what several fixes give together in a sentence, or an empty text if one alone gives as much."""
    together = report.combination
    if together is None:
        return ""
    names = [str(number) if number <= _MAX_FIXES else name_fix(report.fixes[number - 1]) for number in together.fixes]
    gain = _format_rate(together.predicted_images_per_second, together.predicted_idle_fraction)
    return f"Fixes {', '.join(names[:-1])} and {names[-1]} together: {gain} predicted."


def format_shortfall(report: Report) -> str:
    """Returns what it takes if no fix on this host reaches the rate, or an empty text if one does."""
    needs = report.shortfall
    if needs is None:
        return ""
    required, best = human_rate(report.profile.step.required_rate), human_rate(needs.best_images_per_second)
    helps = f"the best gives {best}" if report.fixes else f"this pipeline gives {best}"
    if report.after_images_per_second is not None and any(fix.kept for fix in report.fixes):
        helps = f"what was kept gives {best}"
    text = f"No fix here reaches {required} images/s; {helps}."
    if needs.stage is not None:
        text += f" The stage {needs.stage} is too slow for that however many cores there are."
    here = []
    if needs.cores is not None:
        here.append(f"about {human_count(math.ceil(needs.cores - report.profile.demand.cores), 'more core')}")
    if needs.storage_bytes_per_second is not None:
        limit = human_bytes(report.profile.host.storage_limit_bytes_per_second or 0.0)
        here.append(f"storage of {human_bytes(needs.storage_bytes_per_second)}/s in place of {limit}/s")
    ways = [
        *([" and ".join(here)] if here and needs.stage is None else []),
        *([f"`tfpipe serve` on {needs.machines} machines like this one"] if needs.machines is not None else []),
        *(["raw pixels in the shards (`tfpipe shard --encoding raw`)"] if needs.raw_images else []),
    ]
    if ways:
        text += f" The rest needs {', or '.join(ways)}."
    if needs.cores is not None:
        text += (
            f" On these cores an image may take {needs.affordable_cpu_us_per_image:,.0f} µs, and would take "
            f"{needs.cpu_us_per_image:,.0f}."
        )
    return text


def name_fix(fix: Fix) -> str:
    """Returns the options of a fix with their values, or its instruction."""
    return fix.instruction or ", ".join(f"{name} = {_option_to_text(value)}" for name, value in fix.changes.items())


def _fix_lines(report: Report) -> Iterator[str]:
    yield ""
    if not report.fixes:
        if report.bottleneck.stage != "accelerator":
            yield NO_FIXES
        yield from filter(None, (format_shortfall(report),))
        return
    if len(report.fixes) > 1:
        yield RANKING
    for number, fix in enumerate(report.fixes[:_MAX_FIXES], 1):
        yield f"{number}. {name_fix(fix)} ({EFFORTS[fix.effort]})"
        yield f"   {explain_gain(fix)} {fix.reason}"
    if len(report.fixes) > _MAX_FIXES:
        yield f"{len(report.fixes) - _MAX_FIXES} more with --json."
    yield from filter(None, ("", format_combination(report), format_shortfall(report), format_after(report)))


def explain_gain(fix: Fix) -> str:
    """Returns the rate with a fix: as measured, or else as predicted."""
    if fix.measured_images_per_second is not None and fix.measured_gain is not None:
        gain = fix.measured_gain
        return (
            f"{human_rate(fix.measured_images_per_second)} images/s measured, x {gain.median:.2f} ({gain.low:.2f} to "
            f"{gain.high:.2f}): {'kept' if fix.kept else 'not kept'}."
        )
    return f"{_format_rate(fix.predicted_images_per_second, fix.predicted_idle_fraction)} predicted."


def format_after(report: Report) -> str:
    """Returns the rate with all fixes that were kept, or an empty text if none was tried."""
    if report.after_images_per_second is None:
        return ""
    idle = report.idle_after_fixes if report.profile.step.has_steps else None
    return f"With what was kept: {_format_rate(report.after_images_per_second, idle)}."


def _format_rate(rate: float, idle: float | None) -> str:
    return f"{human_rate(rate)} images/s{'' if idle is None else f', {human_share(idle)} idle'}"


def _option_to_text(value: object) -> str:
    return "auto" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)


def _spread_to_json(spread: Spread) -> dict[str, float]:
    return {"low": spread.low, "high": spread.high}


def _finite_or_none(number: float) -> float | None:
    return None if number == float("inf") else number
