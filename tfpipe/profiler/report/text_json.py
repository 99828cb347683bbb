"""A report as text for a screen, and as JSON, which `tfpipe/profiler/README.md` documents. Pure."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from tfpipe.profiler.loader.diagnose import compute_costs
from tfpipe.profiler.model import NO_IDLE
from tfpipe.profiler.types import ACTIVITIES, Effort, Fix, LoaderProfile, PipelineProfile, Profile, Report, StageTiming
from tfpipe.system.units import human_bytes, human_count, human_rate, human_share

VERSION = 6
_LEFT_OUT = ("demand", "max_images_per_second", "efficiency", "handover_us")  # fields that are left out of the JSON
_OF_A_LOADER = ("images_per_second", "first_batch_s", "host", "batch", "workers", "main")
_TOO_LONG = ("record_s", "files")  # fields that are null in the JSON
NO_FIXES = "No fix here would help."
NO_STAGES = "No stage was tried, since the accelerator does not wait."
RANKING = "Fixes, best first. Among similar gains the easier one comes first."
BOTTLENECK_NAMES = {
    "cpu": "this host's CPU",
    "first_batch": "the first batch",
    "accelerator": "the accelerator",
}
TRAINERS = {
    "loop": "for a plain loop, which takes a batch and then computes",
    "fit": "for Keras' `fit` on a device with a queue, which takes the next batch while the device computes",
    "train": "for a plain loop, which takes a batch and then waits for your step",
}
EFFORTS = {
    Effort.WASTE: "work for nothing",
    Effort.OPTION: "an option",
    Effort.VISIBLE_OPTION: "an option or a line of yours",
    Effort.NEW_SHARDS: "new shards",
    Effort.REWRITE: "your code",
}  # the kinds of effort, in their order
_MOST_NAME = 20  # the most characters of a stage's name in the headline
_IMAGES = re.compile(r"(?<![\w/.-])( ?µs/image|images/s|for each image)(?![\w/.-])")
_ACTIVITY_NAMES = {
    **{"functions": "your functions", "waiting": "other waits", "storage": "wait for storage"},
    **{"lock": "wait for the lock", "no core": "wait for a core", "idle": "nothing to do"},
}
_MAX_LINES, _MAX_PROCESSES = 5, 8  # the most lines of user code and processes in the text
_SMALLEST = 0.005  # activities with a smaller share of the time are not shown
_MAX_FIXES = 5
_NOTABLE_SHARE = 0.05


def format_headline(report: Report) -> str:
    """Returns the report's headline in less than 80 characters, with the bottleneck first."""
    rate, idle = human_rate(report.profile.images_per_second), report.profile.step.idle
    if report.bottleneck.stage == "accelerator":
        return f"Compute-bound: the accelerator is {'never' if idle <= NO_IDLE else 'rarely'} idle, at {rate} images/s."
    stage, where = report.bottleneck.stage, report.bottleneck.where
    if isinstance(report.profile, LoaderProfile):
        return f"Bottleneck: {stage}{f' ({where})' if where else ''}"
    name = BOTTLENECK_NAMES.get(stage, stage)[:_MOST_NAME]
    name = name[0].upper() + name[1:] if stage in BOTTLENECK_NAMES else name
    if not report.profile.step.has_steps:
        return f"{name} limits this pipeline: {rate} images/s."
    required = human_rate(report.profile.step.required_rate)
    return f"{name} limits this pipeline: {rate} of {required} images/s, {human_share(idle)} idle."


def explain_neighbors(profile: Profile) -> str:
    """Returns the warning about other programs that use the cores."""
    taken = f"{human_share(profile.host.other_cpu_fraction)} of {human_count(profile.host.cores, 'core')}"
    advice = "End them and run this again: the figures hold only beside them."
    return f"Busy neighbors: other programs take {taken}. {advice}"


def explain_rates(report: Report) -> str:
    """Returns the rates that the accelerator needs, that the pipeline gives, and that the machine allows."""
    given = human_rate(report.profile.images_per_second)
    needed = f"The accelerator needs {human_rate(report.profile.step.required_rate)} images/s, and this pipeline gives"
    rates = [
        f"{needed} {given}" if report.profile.step.has_steps else f"This pipeline gives {given} images/s",
        f"this host's cores allow {human_rate(report.profile.cpu_limit)}",
    ]
    if report.profile.storage_limit is not None:
        rates.append(f"its storage {human_rate(report.profile.storage_limit)}")
    return f"{'; '.join(rates)}."


def explain_memory(profile: Profile) -> str:
    """Returns the memory that was taken, and the stage that holds most of it."""
    text = f"memory at most {human_bytes(profile.host.peak_memory_bytes)}"
    if profile.buffers and profile.buffers[0].num_bytes >= _NOTABLE_SHARE * profile.host.peak_memory_bytes:
        most = profile.buffers[0]
        text += f", {human_bytes(most.num_bytes)} of it in {most.stage} ({most.number:,} {most.what})"
    return text


def explain_filling(profile: PipelineProfile) -> str:
    """Returns the note for a profile that measured the epoch in which a cache is filled."""
    begin = f"Epochs that only read it begin after {math.ceil(profile.fill_s):,} s more."
    return f"The cache was still being filled. {begin}"


def to_text(report: Report) -> str:
    """Returns at most one screen: the budget, the stages or processes, the bottleneck, the first fixes."""
    profile = report.profile
    lines = [*_summary_lines(report), ""]
    if isinstance(profile, LoaderProfile):
        lines += _loader_lines(profile)
    elif isinstance(profile, PipelineProfile) and profile.stages:
        widths = {"waits": 11, "at_once": 9, "out_kb": 9, "out_per_in": 8}
        lines += [f"{'stage':<16}{'µs/image':>10}{'share':>8}{'waits, µs':>11}{'at once':>9}{'out kB':>9}{'out/in':>8}"]
        for row in list_stage_rows(profile):
            cells = "".join(f"{row.get(name, ''):>{width}}" for name, width in widths.items())
            lines.append(f"{row['name']:<16}{row['us']:>10,.0f}{row['share']:>8.0%}{cells}")
    else:
        lines.append(NO_STAGES)
    return use_unit("\n".join(line.rstrip() for line in [*lines, *_fix_lines(report)]) + "\n", report)


def use_unit(text: str, report: Report) -> str:
    """Replaces "image" in the units of a report's text by `DatasetInfo.unit`, but not in file paths."""
    unit = report.profile.dataset.unit if isinstance(report.profile, PipelineProfile) else "images"
    return text if unit == "images" else _IMAGES.sub(lambda found: found[0].lstrip().replace("image", "record"), text)


def to_json(report: Report) -> dict[str, Any]:
    """Returns the report as one object of plain values, in which infinite limits are None."""
    profile, step = report.profile, report.profile.step
    shares = {"idle_fraction": step.idle_fraction, "input_wait_fraction": step.input_wait_fraction}
    spreads = {f"{name}_spread": {"low": share.low, "high": share.high} for name, share in shares.items()}
    idle = {"idle_fraction": step.idle, "input_wait_fraction": step.input_wait_fraction.median, **spreads}
    document = {
        "version": VERSION,
        "summary": use_unit(format_headline(report), report),
        "method": step.method,
        **(idle if step.has_steps else dict.fromkeys(idle)),
        "steps": step.steps,
        "step_s": step.step_s.median,
        "images_per_step": step.images_per_step,
        "wall_s": step.wall_s,
        "required_images_per_second": step.required_rate,
        "cpu_limit_images_per_second": profile.cpu_limit,
        "bottleneck": report.bottleneck,
        "fixes": report.fixes,
        "after_images_per_second": report.after_images_per_second,
        "price_per_day": report.price_per_day,
    }
    if isinstance(profile, LoaderProfile):
        document |= {
            **{name: getattr(profile, name) for name in _OF_A_LOADER},
            "loader": profile.kind,
            "options": _list_plain(profile),
            "free_images_per_second": profile.free_rate,
            "costs": compute_costs(profile),
        }
    elif isinstance(profile, PipelineProfile):
        names = tuple(field.name for field in fields(profile) if field.name not in ("step", "option_costs"))
        document |= {name: getattr(profile, name) for name in names}
        document |= {"what_if": profile.option_costs, "storage_limit_images_per_second": profile.storage_limit}
    return {name: _to_plain(value) for name, value in document.items() if name not in _LEFT_OUT}


def _to_plain(value: Any) -> Any:
    """Converts a value to plain JSON types, without the fields in `_LEFT_OUT` and with None for infinite limits."""
    if isinstance(value, Effort):
        return value.name.lower()
    if is_dataclass(value):
        given = {field.name: getattr(value, field.name) for field in fields(value) if field.name not in _LEFT_OUT}
        return {name: None if name in _TOO_LONG else _to_plain(each) for name, each in given.items()}
    if isinstance(value, Mapping):
        return {name: _to_plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_plain(each) for each in value]
    return None if value == float("inf") else value


def _list_plain(profile: LoaderProfile) -> dict[str, Any]:
    """Returns the options of a loader that are numbers and texts."""
    plain = (bool, int, float, str, type(None))
    return {name: value for name, value in profile.options.items() if isinstance(value, plain)}


def _summary_lines(report: Report) -> Iterator[str]:
    profile, step, host = report.profile, report.profile.step, report.profile.host
    if host.is_crowded:
        yield explain_neighbors(profile)
    yield format_headline(report)
    yield ""
    yield report.bottleneck.reason
    yield explain_rates(report)
    low, high = human_share(step.idle_fraction.low), human_share(step.idle_fraction.high)
    if step.has_steps:
        steps = f"{step.steps:,} steps in {step.wall_s:.1f} s"
        yield f"Idle {human_share(step.idle)} ({low} to {high}) {TRAINERS[step.method]}; {steps}."
    else:
        yield f"{step.steps:,} batches in {step.wall_s:.1f} s. With --step-ms it says how long an accelerator waits."
    others = ""
    if host.other_cpu_fraction >= _NOTABLE_SHARE:
        others = f" with this pipeline, {human_share(host.other_cpu_fraction)} with other programs"
    yield (
        f"{host.cores} cores {human_share(host.cpu_fraction)} busy{others}; {explain_memory(profile)}; reads "
        f"{human_bytes(host.storage_bytes_per_second)}/s; first batch after {profile.first_batch_s:.1f} s."
    )
    if isinstance(profile, PipelineProfile) and profile.fill_s:
        yield explain_filling(profile)
    if isinstance(profile, LoaderProfile):
        batch, options = profile.batch, ", ".join(f"{name}={value!r}" for name, value in _list_plain(profile).items())
        yield f"{profile.kind}{f': {options}' if options else ''}"
        shape = f", {batch.dtype} {list(batch.shape)}" if batch.dtype else ""
        yield f"{human_count(batch.images, 'image')} a batch{shape}, {human_bytes(batch.bytes)}."
    if report.price_per_day is not None:
        yield f"The idle time costs {report.price_per_day:,.2f} a day."


def _loader_lines(profile: LoaderProfile) -> Iterator[str]:
    """Yields the shares of time of each process, and the lines of the user's code that take most."""
    uses = (*profile.workers[:_MAX_PROCESSES], profile.main)
    names = [*(f"worker {number}" for number in range(len(uses) - 1)), "trainer"]
    yield f"{'share of time':<18}" + "".join(f"{name:>10}" for name in names)
    for name in ACTIVITIES:  # a column sums up all threads of its process
        shares = [use.time_share(name) for use in uses]
        if max(shares) >= _SMALLEST:
            cells = (human_share(share) if share >= _SMALLEST else "" for share in shares)
            yield f"{_ACTIVITY_NAMES.get(name, name):<18}" + "".join(f"{cell:>10}" for cell in cells)
    if len(profile.workers) > _MAX_PROCESSES:
        yield f"{len(profile.workers) - _MAX_PROCESSES} more workers with --json."
    totals: dict[tuple[str, str], float] = defaultdict(float)
    for use in profile.makers:
        for line, activity, seconds in use.functions:
            totals[line, activity] += use.time_scale * seconds
    every_s = sum(use.wall_s for use in profile.makers) or 1.0
    if totals:
        yield ""
        yield "Your code, with its waits for a core or the lock:"
    for line, activity in sorted(totals, key=lambda key: -totals[key])[:_MAX_LINES]:
        what = "" if activity == "functions" else f": {_ACTIVITY_NAMES.get(activity, activity)}"
        yield f"{human_share(totals[line, activity] / every_s):>10}  {line}{what}"


def list_stage_rows(profile: PipelineProfile) -> list[dict[str, Any]]:
    """Returns the table cells of each stage and of the time outside all stages; empty if no stage was timed."""
    demand, total_s = profile.demand, sum(profile.demand.cpu_s.values()) or 1.0
    stages: dict[str, StageTiming | None] = {stage.name: stage for stage in profile.stages}
    rows = []
    # Outside the stages, time goes to handing elements over, allocating memory, and the trainer's thread.
    for name, stage in [*stages.items(), ("other", None)] if stages else []:
        cpu_s = demand.cpu_s[name]
        row = {"name": "hand-over", "us": 1e6 * cpu_s, "share": cpu_s / total_s, "stage": stage}
        if stage is not None:
            wait_us, out_per_in = 1e6 * demand.wait_s.get(name, 0.0), f"{stage.elements_out_per_in:.3g}"
            row |= {
                "name": name,
                "waits": f"{wait_us:,.0f}" if wait_us >= 1 else "",
                "at_once": "1, lock" if stage.locked_us_per_image else f"{stage.parallelism}",
                "out_kb": f"{stage.bytes_out_per_image / 1e3:,.0f}",
                "out_per_in": "" if out_per_in == "1" else out_per_in,
            }
        rows.append(row)
    return rows


def format_shortfall(report: Report) -> str:
    """Returns the sentence about the missing cores or machines if no fix reaches the required rate; else empty."""
    profile, step = report.profile, report.profile.step
    if not isinstance(profile, PipelineProfile) or not step.has_steps or step.idle <= NO_IDLE:
        return ""
    sure = [fix for fix in report.fixes if fix.effort is not Effort.REWRITE]
    rates = [profile.images_per_second, *(fix.predicted_images_per_second for fix in sure)]
    best = max(rates) if report.after_images_per_second is None else report.after_images_per_second
    if best >= step.required_rate * (1 - NO_IDLE):
        return ""
    who = "the best" if report.fixes else "this pipeline"
    who = who if report.after_images_per_second is None else "what was kept"
    text = f"No fix here alone reaches {human_rate(step.required_rate)} images/s; {who} gives {human_rate(best)}."
    factor, demand = step.required_rate / best, profile.demand
    ways = []
    if demand.limit == demand.cpu_limit:
        ways.append(f"about {human_count(math.ceil((factor - 1) * demand.cores), 'more core')}")
    dataset = profile.dataset
    if dataset.by_engine and not dataset.own_stages and profile.config.cache == "none":
        ways.append(f"`tfpipe serve` on {math.ceil(factor)} machines like this one")
    return f"{text} The rest needs {', or '.join(ways)}." if ways else text


def _fix_lines(report: Report) -> Iterator[str]:
    yield ""
    if not report.fixes and report.bottleneck.stage != "accelerator":
        yield NO_FIXES
    if len(report.fixes) > 1:
        yield RANKING
    for number, fix in enumerate(report.fixes[:_MAX_FIXES], 1):
        yield f"{number}. {fix.name} ({EFFORTS[fix.effort]})"
        yield f"   {explain_gain(fix)} {fix.reason}"
    if len(report.fixes) > _MAX_FIXES:
        yield f"{len(report.fixes) - _MAX_FIXES} more with --json."
    yield from filter(None, (format_shortfall(report),))
    if report.fixes and report.after_images_per_second is not None:
        yield format_after(report)


def explain_gain(fix: Fix) -> str:
    """Returns the rate with a fix: as measured, or else as predicted."""
    if fix.measured_images_per_second is not None and fix.measured_gain is not None:
        gain = fix.measured_gain
        factor = f"x {gain.median:.2f} ({gain.low:.2f} to {gain.high:.2f}): {'kept' if fix.kept else 'not kept'}"
        return f"{human_rate(fix.measured_images_per_second)} images/s measured, {factor}."
    idle = "" if fix.predicted_idle_fraction is None else f", {human_share(fix.predicted_idle_fraction)} idle"
    return f"{human_rate(fix.predicted_images_per_second)} images/s{idle} predicted."


def format_after(report: Report) -> str:
    """Returns the rate with all fixes that were kept."""
    assert report.after_images_per_second is not None
    idle = f", {human_share(report.idle_after_fixes)} idle" if report.profile.step.has_steps else ""
    return f"With what was kept: {human_rate(report.after_images_per_second)} images/s{idle}."
