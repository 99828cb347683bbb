"""The report as sentences, as a screen of text, and as JSON."""

import json
import re
from dataclasses import fields, replace
from pathlib import Path

from tests.profiler.profiles import PROFILE, make_profile, make_spread, make_stage, make_step
from tfpipe import profiler
from tfpipe.profiler.diagnose.diagnosis import make_report
from tfpipe.profiler.report.html import render
from tfpipe.profiler.report.text_json import (
    NO_STAGES,
    RANKING,
    explain_rates,
    format_headline,
    format_shortfall,
    to_json,
    to_text,
)
from tfpipe.profiler.types import Buffer, DatasetInfo, Spread, Step


def test_the_first_line_is_the_answer_and_the_rates_stand_side_by_side() -> None:
    report = make_report(PROFILE)
    assert format_headline(report) == "decode limits this pipeline: 1,000 of 4,000 images/s, 75 % idle."
    long = make_report(make_profile(stages=(make_stage("a_stage_with_a_very_long_name", 3800),)))
    assert len(format_headline(long)) < 80
    assert explain_rates(report) == (
        "The accelerator needs 4,000 images/s, and this pipeline gives 1,000; this host's cores allow 1,053; its "
        "storage 10,000."
    )
    unknown = make_report(make_profile(host={"storage_limit_bytes_per_second": None}))
    assert explain_rates(unknown).endswith("this host's cores allow 1,053.")


def test_memory_names_the_stage_that_takes_it() -> None:
    buffers = (Buffer("mix", "elements", 2000, 301e6), Buffer("prefetch", "batches", 2, 20e6))
    report = make_report(make_profile(buffers=buffers, first_batch_s=1.7))
    sentence, start = "emory at most 1.0 GB, 301.0 MB of it in mix (2,000 elements); ", "first batch after 1.7 s"
    assert to_text(report).splitlines()[5] == f"4 cores 95 % busy; m{sentence}reads 100.0 MB/s; {start}."
    assert f"M{sentence}{start}" in render(report)
    assert to_json(report)["buffers"][0] == {"stage": "mix", "what": "elements", "number": 2000, "num_bytes": 301e6}


def test_records_without_images_are_called_records() -> None:
    report = make_report(make_profile(dataset={"unit": "records", "name": "/data/images/s"}))
    text, page = to_text(report), render(report)
    assert "The accelerator needs 4,000 records/s, " in text
    assert "\nstage            µs/record   share" in text
    for shown in (text, page):
        assert "images/s" not in shown.replace("/data/images/s", "")
        assert "µs/image" not in shown
        assert "records/s" in shown
    assert "/data/images/s" in page
    assert to_text(make_report(PROFILE)).replace("images/s", "records/s").count("records/s") == text.count("records/s")


def test_the_text_fits_a_screen() -> None:
    lines = to_text(make_report(make_profile(dataset={"records": 1000}), price_per_hour=10)).splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 160
    assert "The idle time costs 180.00 a day." in lines
    loop = "for a plain loop, which takes a batch and then computes; 100 steps in 10.0 s."
    assert f"Idle 75 % (75 % to 75 %) {loop}" in lines
    assert "decode               2,400     63%                   4      150" in lines
    assert "hand-over              300      8%" in lines
    assert RANKING in lines
    assert "1. cache = 'decoded' (an option or a line of yours)" in lines
    fit = to_text(make_report(replace(PROFILE, step=replace(PROFILE.step, method="fit"))))
    assert "for Keras' `fit` on a device with a queue, which takes the next batch while the device computes;" in fit
    stage = make_stage("ask", 50, parallelism=4, wait_us_per_image=900.0, locked_us_per_image=1000.0)
    locked = to_text(make_report(make_profile(stages=(stage,))))
    assert "ask                     50      1%        950  1, lock        0" in locked


def test_a_stage_that_changes_the_number_says_by_how_much() -> None:
    stages = (
        *(replace(PROFILE.stages[3], elements_out_per_in=0.9996), make_stage("keep", 4, elements_out_per_in=0.2604)),
        *(make_stage("apart", 2, elements_out_per_in=32), make_stage("batch", 100, elements_out_per_in=1 / 64)),
    )
    lines = to_text(make_report(make_profile(stages=stages))).splitlines()
    table = [line.split() for line in lines if line.startswith(("stage  ", "decode  ", "keep  ", "apart  ", "batch  "))]
    assert table[0][-1] == "out/in"
    assert [row[-1] for row in table[2:]] == ["0.26", "32", "0.0156"]
    assert table[1][-2:] == ["4", "150"]


def test_an_accelerator_that_never_waits_is_compute_bound() -> None:
    text = to_text(make_report(make_profile(step=make_step(1000, 1000))))
    assert text.startswith("Compute-bound: the accelerator is never idle, at 1,000 images/s.\n")
    assert "Only a faster step makes this training faster.\n" in text
    idle = make_profile(stages=(), step=make_step(1000, 1000))
    assert NO_STAGES in to_text(make_report(idle))
    sentence = "The cache was still being filled. Epochs that only read it begin after 71 s more."
    assert sentence in to_text(make_report(replace(PROFILE, fill_s=70.2))).splitlines()


def test_the_json_has_the_figures() -> None:
    document = json.loads(json.dumps(to_json(make_report(PROFILE, price_per_hour=1)), allow_nan=False))
    assert (document["version"], document["method"]) == (6, "loop")
    assert (document["idle_fraction"], document["images_per_second"]) == (0.75, 1000)
    assert (document["required_images_per_second"], document["first_batch_s"]) == (4000, 0.5)
    assert document["bottleneck"]["stage"] == "decode"
    decode = document["stages"][3]
    assert (decode["name"], decode["cpu_us_per_image"], decode["parallelism"]) == ("decode", 2400, 4)
    assert document["price_per_day"] == 18
    unknown = to_json(make_report(make_profile(stages=(), host={"cpu_fraction": 0.0})))
    json.dumps(unknown, allow_nan=False)
    assert unknown["cpu_limit_images_per_second"] is None


TRIED = ("now", "uint8", "device", "dct_scaling", "cached", "smaller", "smaller_bytes", "seekable")
UNPACED = make_profile(step=replace(make_step(), method="none", step_s=make_spread(0.0)), dataset={"records": 1000})
"""Batches are taken as fast as they come: 1,000 images/s."""


def test_without_a_step_the_rate_the_stages_and_the_fixes_are_told() -> None:
    report = make_report(UNPACED, price_per_hour=None)
    lines = to_text(report).splitlines()
    assert lines[:6] == [
        "decode limits this pipeline: 1,000 images/s.",
        "",
        "The 4 cores are 95% busy, 63% of it in decode: 2,400 µs of a core for each image.",
        "This pipeline gives 1,000 images/s; this host's cores allow 1,053; its storage 10,000.",
        "100 batches in 10.0 s. With --step-ms it says how long an accelerator waits.",
        "4 cores 95 % busy; memory at most 1.0 GB; reads 100.0 MB/s; first batch after 0.5 s.",
    ]
    assert "decode               2,400     63%                   4      150" in lines
    first = lines.index("1. cache = 'decoded' (an option or a line of yours)")
    assert lines[first + 1].startswith("   4,204 images/s predicted. From the second epoch on")
    assert not re.search("any rate|idle|needs|reaches", "\n".join(lines))
    document = json.loads(json.dumps(to_json(report), allow_nan=False))
    unknown = ("idle_fraction", "idle_fraction_spread", "input_wait_fraction", "required_images_per_second")
    assert [document[name] for name in unknown] == [None] * 4
    assert {fix["predicted_idle_fraction"] for fix in document["fixes"]} == {None}
    page = render(report)
    assert 'id="gauge"' not in page
    assert ">Required<" not in page
    assert "4,204 images/s predicted." in page
    tried = replace(report, after_images_per_second=2000.0)
    assert to_text(tried).endswith("With what was kept: 2,000 images/s.\n")


def test_a_late_start_without_a_step() -> None:
    lines = to_text(make_report(replace(UNPACED, first_batch_s=20.0))).splitlines()
    assert lines[2] == "The first batch took 20.0 s, and a whole epoch 1.0 s."


def test_busy_neighbors_stand_in_the_first_line_and_busy_has_one_meaning() -> None:
    report = make_report(make_profile(host={"cpu_fraction": 0.51, "other_cpu_fraction": 0.49}))
    lines = to_text(report).splitlines()
    assert lines[0] == (
        "Busy neighbors: other programs take 49 % of 4 cores. End them and run this again: the figures hold only "
        "beside them."
    )
    assert lines[3].startswith("The 4 cores are 51% busy with this pipeline, 69% of it in decode: ")
    assert lines[6].startswith("4 cores 51 % busy with this pipeline, 49 % with other programs; memory ")
    assert lines[0] in render(report)
    quiet = make_report(make_profile(host={"other_cpu_fraction": 0.05}))
    assert "neighbors" not in to_text(quiet) + render(quiet)


def test_the_readme_lists_every_field_of_the_json() -> None:
    section = (Path(profiler.__file__).parent / "README.md").read_text().split("\n# ")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    listed = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    profile = make_profile(buffers=(Buffer("shuffle", "records", 8192, 0.8e9),), timeline=(Step(0.1, 0.0, 0.02),))
    document = to_json(make_report(profile, price_per_hour=1))
    fields_of = dict(document)
    for name in ("dataset", "config", "what_if", *(name for name in document if name.endswith("_spread"))):
        del fields_of[name]  # their fields are those of the data, the options and the stages
    parts = [part for value in fields_of.values() for part in (value if isinstance(value, list) else [value])]
    assert listed == {*document, *(name for part in parts if isinstance(part, dict) for name in part)}
    assert all(f"`{name}`" in section for name in TRIED)
    assert all(f"`{field.name}`" in section for field in fields(DatasetInfo))


def test_fixes_that_were_tried_show_what_they_gave() -> None:
    report = make_report(PROFILE)
    tried = replace(report.fixes[0], measured_images_per_second=2000.0, measured_gain=Spread(2.0, 1.9, 2.1), kept=True)
    report = replace(report, fixes=(tried, *report.fixes[1:]), after_images_per_second=2000.0)
    text = to_text(report)
    assert "   2,000 images/s measured, x 2.00 (1.90 to 2.10): kept. " in text
    assert "predicted" not in text.split("\n2. ")[0]
    assert text.endswith("With what was kept: 2,000 images/s, 50 % idle.\n")
    assert to_json(report)["after_images_per_second"] == 2000.0
    assert report.idle_after_fixes == 0.5


def test_the_shortfall_says_how_many_cores_or_machines_it_takes() -> None:
    """The best fix gives 1,994 images/s on 4 cores: 4 x (4,000 / 1,994 - 1) more, or three hosts."""
    report = make_report(PROFILE)
    assert format_shortfall(report) == (
        "No fix here alone reaches 4,000 images/s; the best gives 1,994. The rest needs about 5 more cores, or `tfpipe "
        "serve` on 3 machines like this one."
    )
    assert format_shortfall(report) in to_text(report)
    kept = replace(report, after_images_per_second=2000.0)
    assert "what was kept gives 2,000. The rest needs about 4 more cores, or `tfpipe serve` on 2 " in to_text(kept)
    alone = make_report(make_profile(option_costs={"now": None}, dataset={"short_side": None}))
    assert "this pipeline gives 1,000. The rest needs about 12 more cores" in format_shortfall(alone)
    slow = make_profile(host={"storage_limit_bytes_per_second": 110e6, "cpu_fraction": 0.3})
    assert "cores" not in format_shortfall(make_report(slow))
    for changes in (
        {"config": {"cache": "bytes"}},
        {"dataset": {"by_engine": False}},
        {"dataset": {"own_stages": "b"}},
    ):
        assert "more cores." in format_shortfall(make_report(make_profile(**changes)))  # it cannot be served
    assert format_shortfall(make_report(make_profile(step=make_step(1000, 1300)))) == ""  # one fix is enough
    assert format_shortfall(make_report(make_profile(step=make_step(1000, 1000)))) == ""
    assert format_shortfall(replace(report, after_images_per_second=3990.0)) == ""
