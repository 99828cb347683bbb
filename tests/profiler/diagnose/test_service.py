"""A service's bottleneck, its fixes and its sentences, from figures that are easy to follow by hand."""

from dataclasses import replace
from typing import Any

import pytest

from tests.profiler.profiles import SERVICE, make_profile, make_step
from tfpipe.profiler.diagnose.bottleneck import count_needed_workers, explain_needed_workers, explain_wire
from tfpipe.profiler.diagnose.diagnosis import make_report
from tfpipe.profiler.types import Profile, ServiceUse, WorkerTiming


def make_served(service: ServiceUse, **changes: Any) -> Profile:
    return make_profile(service=service, **({"host": {"cpu_fraction": 0.2}} | changes))


def test_too_few_workers_are_counted() -> None:
    report = make_report(make_served(SERVICE))
    assert report.bottleneck.reason == (
        "The 2 workers can make 1,100 images/s, and the accelerator needs 4,000: it takes 8 like them."
    )
    assert (report.bottleneck.stage, report.bottleneck.limit_images_per_second) == ("service", 1100)
    [fix] = report.fixes
    assert (fix.action, fix.predicted_images_per_second, fix.predicted_idle_fraction) == ("add_machines", 4000, 0)
    assert fix.reason == "A worker makes 550 images/s."
    assert fix.instruction == "Run 8 workers like these with `tfpipe serve`, in place of 2."
    assert (report.combination, report.shortfall) == (None, None)
    assert count_needed_workers(replace(SERVICE, local_fraction=0.5), 4000) == 4


def test_workers_that_wait_have_a_full_network() -> None:
    idle = replace(SERVICE, workers=(WorkerTiming("a:1", 500.0, 0.3), WorkerTiming("b:1", 600.0, 0.4)))
    report = make_report(make_served(idle))
    assert (report.bottleneck.stage, report.bottleneck.limit_images_per_second) == ("wire", 1100)
    assert report.bottleneck.reason == (
        "The network hands over 110.0 MB/s at most: the workers are busy 40 % of the time, and wait for it else."
    )
    assert report.fixes == ()


@pytest.mark.parametrize(
    ("use", "changes", "stage", "reason"),
    [
        (SERVICE, {"host": {"cpu_fraction": 0.97}}, "cpu", "This host's 4 cores are 97% busy with taking batches."),
        (
            replace(SERVICE, workers=(WorkerTiming("a:1", 9000.0, 0.9),)),
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
    report = make_report(make_served(SERVICE, step=make_step(1000, 1000)))
    assert (report.bottleneck.stage, report.fixes) == ("accelerator", ())


def test_the_sentences() -> None:
    assert explain_wire(SERVICE) == "Batches of 10.0 MB: 100.0 MB/s came from workers."
    assert explain_needed_workers(SERVICE, 500) == "For 500 images/s it takes 1 worker of 550 images/s."
    none = replace(SERVICE, workers=(WorkerTiming("a:1", 0.0, 0.0),))
    assert (explain_needed_workers(none, 500), count_needed_workers(none, 500)) == ("", None)
