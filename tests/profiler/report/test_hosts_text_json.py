"""The report of several hosts: its sentences, its table, its JSON and its page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.profiler.hosts.records import make_host_profile, make_records
from tests.profiler.report.test_html import Page
from tfpipe import profiler
from tfpipe.profiler.hosts.compare import compare_hosts
from tfpipe.profiler.hosts.types import HostsReport
from tfpipe.profiler.report.hosts_text_json import find_largest_idle, format_verdict, to_json, to_text
from tfpipe.profiler.report.html import render_hosts

LATE = compare_hosts(make_records([0.0] * 10, [0.1] * 10, [0.02] * 10), [make_host_profile(1, 200)])
UNKNOWN = compare_hosts(make_records([0.0] * 10, [0.1] * 10), [])
IN_TURNS = compare_hosts(make_records(*([0.1 * (step % 4 == host) for step in range(12)] for host in range(4))), [])
ALIKE = compare_hosts(make_records([0.1] * 10, [0.1] * 10), [])
NOBODY = compare_hosts(make_records([0.0] * 10, [0.0] * 10), [])


@pytest.mark.parametrize(
    ("report", "verdict"),
    [
        (
            LATE,
            "Host 1 is late at read: all others wait for it 40 % of the time. All hosts together train on 150 "
            "images/s; without that wait it would be up to 250.",
        ),
        (
            compare_hosts(make_records([0.0] * 4, [0.2] * 4, [0.0] * 4, [0.3] * 4), []),
            "Hosts 3 and 1 are late: all others wait for them 75 % of the time. All hosts together train on 100 "
            "images/s; without that wait it would be up to 400.",
        ),
        (
            IN_TURNS,
            "Hosts are late in turns: each waits little, and yet the last batch of a step is missing 50 % of the time. "
            "Larger buffers even that out: raise `prefetch_batches`.",
        ),
        (
            ALIKE,
            "Most hosts wait alike, up to 50 % of the time: the pipeline is slow, not a host. `tfpipe profile` on one "
            "of them says why.",
        ),
        (NOBODY, "No host waits for its batches: no input pipeline makes this training faster."),
    ],
)
def test_the_verdict_is_a_sentence_or_two(report: HostsReport, verdict: str) -> None:
    assert format_verdict(report) == verdict
    assert to_text(report).splitlines()[0] == verdict


def test_each_host_has_a_line_and_the_late_one_its_fix() -> None:
    assert to_text(LATE).splitlines()[1:] == [
        "",
        "host  name           idle  input wait  for others  images/s    cores busy  slow stage",
        "   0  worker-0        0 %         0 %        50 %        50     50 % of 8  -",
        "   1  worker-1       50 %        50 %         0 %        50     50 % of 8  read  late",
        "   2  worker-2       10 %        10 %        40 %        50     50 % of 8  -",
        "",
        "Host 1: It waits.",
        '   cache = "bytes"',
        "   390 images/s predicted on this host. Nothing is read.",
        "",
        "Compared by 10 steps that all of them made together.",
    ]


def test_a_host_without_a_profile_is_told_how_to_get_one() -> None:
    assert (
        "   To see the stage, run on it: tfpipe profile DATASET --step-ms MS --host 1/2 --json > profile-1.json. Then "
        "name that file with --hosts too."
    ) in to_text(UNKNOWN).splitlines()


def test_hosts_that_are_missing_are_named() -> None:
    report = compare_hosts(make_records([0.0] * 3, [0.1] * 3, [0.0] * 3, [0.0] * 3)[1:3], [])
    assert "2 of 4 hosts were compared; nothing is known of 0, 3." in to_text(report).splitlines()


def test_the_json_has_all_figures() -> None:
    document = json.loads(json.dumps(to_json(LATE), allow_nan=False))
    assert list(document) == [
        "version",
        "verdict",
        "method",
        "num_hosts",
        "missing",
        "hosts",
        "late",
        "late_in_turns",
        "slowest_wait_fraction",
        "lost_fraction",
        "images_per_second",
        "images_per_second_without_late",
        "steps",
    ]
    assert (document["version"], document["late"], document["verdict"]) == (1, [1], format_verdict(LATE))
    assert document["hosts"][1] == {
        "index": 1,
        "name": "worker-1",
        "idle_fraction": pytest.approx(0.5),
        "input_wait_fraction": pytest.approx(0.5),
        "waits_for_others_fraction": 0.0,
        "images_per_second": pytest.approx(50),
        "usage": {"cores": 8, "cpu_fraction": 0.5, "other_cpu_fraction": 0.0},
        "stage": "read",
        "reason": "It waits.",
        "fix": {"text": 'cache = "bytes"', "reason": "Nothing is read.", "images_per_second": 390.0},
    }


def test_the_readme_lists_every_field_of_the_json() -> None:
    readme = (Path(profiler.__file__).parent / "README.md").read_text()
    (section,) = (part for part in readme.split("\n# ") if part.startswith("The JSON of `tfpipe profile --hosts`"))
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    listed = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    document = to_json(LATE)
    host = document["hosts"][1]
    assert listed == {*document, *host, *host["usage"]}


def test_the_idle_time_is_that_of_the_accelerators_whoever_is_late() -> None:
    assert find_largest_idle(LATE) == pytest.approx(0.5)
    assert find_largest_idle(NOBODY) == 0.0


@pytest.mark.parametrize("report", [LATE, UNKNOWN, IN_TURNS, ALIKE, NOBODY])
def test_the_page_shows_each_host(report: HostsReport) -> None:
    html = render_hosts(report)
    page = Page(html)
    assert format_verdict(report).replace("`", "").split(":")[0] in page.text
    assert page.bars("idle") == pytest.approx([100 * host.idle_fraction for host in report.hosts], rel=1e-3)
    assert ("It waits." in page.text) == (report is LATE)
    assert "<script" not in html
    assert html == render_hosts(report)
