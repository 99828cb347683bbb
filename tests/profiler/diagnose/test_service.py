"""A service's bottleneck, its fixes and its sentences, from figures that are easy to follow by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.profiler.profiles import SERVICE, make_profile, make_step
from tfpipe.profiler.diagnose.diagnosis import make_report
from tfpipe.profiler.diagnose.service import (
    count_needed_workers,
    explain_late_worker,
    explain_needed_workers,
    explain_wire,
)
from tfpipe.profiler.types import Profile, ServiceUse, WorkerTiming

LATE = replace(
    SERVICE,
    workers=(
        WorkerTiming("a:1", 0.34, 0.02, 900.0),
        WorkerTiming("b:1", 0.33, 0.7, 200.0, late=True),
        WorkerTiming("c:1", 0.33, 0.01, 1100.0),
    ),
)


def make_served(service: ServiceUse, **changes: Any) -> Profile:
    return make_profile(service=service, **({"host": {"cpu_fraction": 0.2}} | changes))


def test_a_late_worker_is_the_bottleneck_and_has_the_first_fix() -> None:
    report = make_report(make_served(LATE))
    assert report.bottleneck.stage == "service"
    assert report.bottleneck.limit_images_per_second == 600
    assert report.bottleneck.reason == (
        "The worker b:1 is late: it makes 200 images/s, and the median of the others is 1,000. The trainer waits for "
        "it 70 % of the time."
    )
    assert [(fix.action, fix.predicted_images_per_second) for fix in report.fixes] == [
        ("mend_worker", 3000),
        ("add_machines", 4000),
    ]
    assert report.fixes[0].instruction == (
        "Give the worker b:1 as many free cores and as near a dataset as the others have, or start the service without "
        "it."
    )
    assert report.fixes[1].instruction == "Run 4 workers like these with `tfpipe serve`, in place of 3."
    assert (report.combination, report.shortfall) == (None, None)


def test_too_few_workers_are_counted() -> None:
    report = make_report(make_served(SERVICE))
    assert report.bottleneck.reason == (
        "The 2 workers can make 1,100 images/s, and the accelerator needs 4,000: it takes 8 like them."
    )
    assert (report.bottleneck.stage, report.bottleneck.limit_images_per_second) == ("service", 1100)
    [fix] = report.fixes
    assert (fix.action, fix.predicted_images_per_second, fix.predicted_idle_fraction) == ("add_machines", 4000, 0)
    assert fix.reason == "A worker makes 550 images/s."
    assert count_needed_workers(replace(SERVICE, local_fraction=0.5), 4000) == 4


def test_more_workers_do_not_help_beyond_the_wire() -> None:
    [fix] = make_report(make_served(replace(SERVICE, wire_limit_images_per_second=2000.0))).fixes
    assert fix.predicted_images_per_second == 2000
    assert fix.reason == "A worker makes 550 images/s. The wire allows 2,000 at this size of a batch."


def test_a_full_wire_is_the_bottleneck() -> None:
    report = make_report(make_served(replace(SERVICE, wire_limit_images_per_second=1050.0)))
    assert report.bottleneck.stage == "wire"
    assert report.bottleneck.reason == "The wire hands over 100.0 MB/s of the 105.0 MB/s it can."


@pytest.mark.parametrize(
    ("use", "changes", "stage", "reason"),
    [
        (SERVICE, {"host": {"cpu_fraction": 0.97}}, "cpu", "This host's 4 cores are 97% busy with taking batches."),
        (
            replace(SERVICE, workers=(WorkerTiming("a:1"),)),
            {},
            "service",
            "The workers give 1,000 images/s; the accelerator needs more.",
        ),
        (
            replace(SERVICE, workers=(WorkerTiming("a:1", 1.0, 0.1, 9000.0),)),
            {"config": {"prefetch_batches": 0}},
            "prefetch",
            "The workers can make 9,000 images/s, and this host takes 1,000 of them: no batch waits, since "
            "`prefetch_batches` is 0.",
        ),
    ],
)
def test_other_limits(use: ServiceUse, changes: dict[str, Any], stage: str, reason: str) -> None:
    bottleneck = make_report(make_served(use, **changes)).bottleneck
    assert (bottleneck.stage, bottleneck.reason) == (stage, reason)


def test_an_accelerator_that_never_waits_needs_no_fix() -> None:
    report = make_report(make_served(LATE, step=make_step(1000, 1000)))
    assert (report.bottleneck.stage, report.fixes) == ("accelerator", ())


def test_the_sentences() -> None:
    assert explain_late_worker(SERVICE) == ""
    assert explain_wire(SERVICE) == (
        "Batches of 10.0 MB: 100.0 MB/s, not compressed. One is handed over in 12.0 ms (12.0 to 12.0). Snappy would "
        "make it 16 % smaller for 15.0 ms of a core there and 5.0 ms here."
    )
    larger = replace(SERVICE, compressed_fraction=1.01, hand_over_s=None)
    assert explain_wire(larger).startswith("Batches of 10.0 MB: 100.0 MB/s, not compressed. Snappy would make it no ")
    assert explain_needed_workers(SERVICE, 500) == "For 500 images/s it takes 1 worker of 550 images/s."
    assert explain_needed_workers(replace(SERVICE, workers=()), 500) == ""
