"""The report: sentences, a screen, JSON."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

from tfpipe import profiler
from tfpipe.profiler.diagnose import bottleneck
from tfpipe.profiler.report.text_json import budget_line, make_report, to_json, to_text
from tfpipe.profiler.types import Spread, Step


def test_the_budget(profile_with, step_of) -> None:
    assert budget_line(make_report(profile_with())) == (
        "the accelerator needs 4,000 images/s; this pipeline gives 1,000 (75 % idle); this host's CPU allows 1,053; "
        "storage allows 10,000; the wall is decode."
    )
    assert budget_line(
        make_report(profile_with(step=step_of(1000, 1000), host={"storage_limit_bytes_per_second": None}))
    ) == (
        "the accelerator needs 1,000 images/s; this pipeline gives 1,000 (0 % idle); this host's CPU allows 1,053; "
        "compute-bound: the wall is the accelerator."
    )


def test_it_fits_a_screen(profile_with) -> None:
    lines = to_text(make_report(profile_with(dataset={"records": 1000}), price_per_hour=10)).splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines[2:])) <= 120
    assert "The idle time costs 180.00 a day." in lines
    assert "decode         2,400   2,400   2,400     63%        4      50% of 4       150" in lines
    assert "other            300                      8%" in lines
    assert "1. cache = 'decoded'" in lines


def test_an_accelerator_that_is_the_wall(profile_with, step_of) -> None:
    text = to_text(make_report(profile_with(step=step_of(1000, 1000))))
    assert "compute-bound" in text
    assert text.endswith("Only a faster step makes this training faster.\n")


def test_without_stages(profile_with) -> None:
    assert "No stages: with `autotune` off tf.data keeps no counters." in to_text(make_report(profile_with(stages=())))


def test_json(profile_with) -> None:
    document = json.loads(json.dumps(to_json(make_report(profile_with(), price_per_hour=1)), allow_nan=False))
    assert (document["version"], document["method"]) == (1, "simulated")
    assert (document["idle_fraction"], document["images_per_second"]) == (0.75, 1000)
    assert (document["required_images_per_second"], document["first_batch_s"]) == (4000, 0.5)
    assert document["bottleneck"]["stage"] == "decode"
    decode = document["stages"][3]
    assert (decode["name"], decode["cpu_us_per_image"], decode["parallelism"]) == ("decode", 2400, 4)
    fix = document["fixes"][-1]
    assert set(fix) == {
        *("changes", "reason", "predicted_images_per_second", "predicted_idle_fraction"),
        *("measured_images_per_second", "measured_gain", "kept", "action"),
    }
    assert document["price_per_day"] == 18


def test_json_has_no_infinity(profile_with) -> None:
    document = to_json(make_report(profile_with(stages=(), host={"cpu_fraction": 0.0})))
    json.dumps(document, allow_nan=False)
    assert document["cpu_limit_images_per_second"] is None


def test_json_has_the_timeline(profile_with) -> None:
    profile = replace(profile_with(), timeline=(Step(0.1, 0.0, 0.02), Step(0.2, 0.05, 0.07)))
    assert to_json(make_report(profile))["timeline"] == [
        {"begins_s": 0.1, "idle_s": 0.0, "wait_s": 0.02},
        {"begins_s": 0.2, "idle_s": 0.05, "wait_s": 0.07},
    ]


def test_the_readme_lists_every_field_of_the_json(profile_with) -> None:
    section = (Path(profiler.__file__).parent / "README.md").read_text()
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    listed = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    document = to_json(make_report(replace(profile_with(), timeline=(Step(0.1, 0.0, 0.02),)), price_per_hour=1))
    free = {"dataset", "config", "what_if"}  # whatever the data and the options are
    inner = [
        part
        for name, value in document.items()
        if name not in free
        for part in (value if isinstance(value, list) else [value])
        if isinstance(part, dict) and not name.endswith("_spread")
    ]
    assert listed == {*document, *(name for part in inner for name in part)}


def test_what_was_tried(profile_with) -> None:
    report = make_report(profile_with())
    tried = replace(report.fixes[0], measured_images_per_second=2000.0, measured_gain=Spread(2.0, 1.9, 2.1), kept=True)
    report = replace(report, fixes=(tried, *report.fixes[1:]), after_images_per_second=2000.0)
    text = to_text(report)
    assert "   2,000 measured, x 2.00 (1.90 to 2.10): kept.\n" in text
    assert text.endswith("With what was kept: 2,000 images/s, 50 % idle.\n")
    assert to_json(report)["after_images_per_second"] == 2000.0
    assert bottleneck.idle_after(report) == 0.5
