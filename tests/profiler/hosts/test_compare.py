"""The late hosts and what the others lose, from waits that were written by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.profiler.hosts.records import USAGE, make_host_profile, make_records
from tfpipe.errors import DataError
from tfpipe.profiler.hosts.compare import compare_hosts
from tfpipe.profiler.hosts.types import HostUsage


def test_one_host_is_late_and_all_others_wait_for_it() -> None:
    report = compare_hosts(make_records([0.0] * 10, [0.1] * 10, [0.02] * 10), [])
    assert (report.method, report.num_hosts, report.missing, report.steps) == ("monitor", 3, (), 10)
    assert (report.late, report.late_in_turns) == ((1,), False)
    assert report.slowest_wait_fraction == pytest.approx(0.5)  # of steps that take 0.2 s
    assert report.lost_fraction == pytest.approx(0.4)  # host 2 would wait for 0.02 s anyway
    assert report.images_per_second == pytest.approx(150)
    assert report.images_per_second_without_late == pytest.approx(250)  # 30 images in 0.12 s
    assert [host.idle_fraction for host in report.hosts] == pytest.approx([0.0, 0.5, 0.1])
    assert [host.input_wait_fraction for host in report.hosts] == pytest.approx([0.0, 0.5, 0.1])
    assert [host.waits_for_others_fraction for host in report.hosts] == pytest.approx([0.5, 0.0, 0.4])
    assert [host.images_per_second for host in report.hosts] == pytest.approx([50, 50, 50])


def test_two_of_four_may_be_late_and_the_latest_comes_first() -> None:
    report = compare_hosts(make_records([0.0] * 4, [0.2] * 4, [0.0] * 4, [0.3] * 4), [])
    assert report.late == (3, 1)
    assert report.lost_fraction == pytest.approx(0.75)
    assert report.images_per_second_without_late == pytest.approx(400)


def test_the_loss_is_taken_step_by_step() -> None:
    """In the second half host 0 is the last, so that host 1 in time would save only what it adds."""
    report = compare_hosts(make_records([0.0] * 5 + [0.1] * 5, [0.4] * 5 + [0.1] * 5, [0.0] * 10), [])
    assert report.late == (1,)
    assert report.lost_fraction == pytest.approx(5 * 0.4 / (5 * 0.5 + 5 * 0.2))


def test_hosts_that_are_late_in_turns_cost_more_than_any_of_them_waits() -> None:
    waits = [[0.1 if step % 4 == host else 0.0 for step in range(12)] for host in range(4)]
    report = compare_hosts(make_records(*waits), [])
    assert (report.late, report.late_in_turns, report.lost_fraction) == ((), True, 0.0)
    assert report.slowest_wait_fraction == pytest.approx(0.5)
    assert [host.input_wait_fraction for host in report.hosts] == pytest.approx([0.125] * 4)


@pytest.mark.parametrize("waits", [[0.1, 0.09, 0.1], [0.1, 0.1, 0.0]])
def test_a_pipeline_that_is_slow_on_most_hosts_is_not_a_late_host(waits: list[float]) -> None:
    report = compare_hosts(make_records(*([wait] * 10 for wait in waits)), [])
    assert (report.late, report.late_in_turns, report.lost_fraction) == ((), False, 0.0)
    assert report.slowest_wait_fraction == pytest.approx(0.5)
    assert report.images_per_second_without_late == report.images_per_second


def test_a_host_that_explains_little_of_the_waiting_is_not_late() -> None:
    report = compare_hosts(make_records([0.04, 0.0, 0.05] * 4, [0.0, 0.05, 0.04] * 4, [0.05, 0.05, 0.05] * 4), [])
    assert (report.late, report.lost_fraction) == ((), 0.0)


def test_nobody_waits() -> None:
    report = compare_hosts(make_records([0.0005] * 10, [0.0] * 10), [])
    assert (report.late, report.late_in_turns) == ((), False)


def test_a_wait_counts_only_as_far_as_the_device_is_idle() -> None:
    """Steps are dispatched ahead: the host waits for 0.1 s of 0.2, and the device works for 0.15 s of it."""
    report = compare_hosts(make_records([0.0] * 10, [0.1] * 10, compute_s=0.15), [])
    assert report.late == (1,)
    assert report.hosts[1].idle_fraction == pytest.approx(0.25)
    assert report.hosts[1].input_wait_fraction == pytest.approx(0.5)
    assert report.hosts[0].waits_for_others_fraction == pytest.approx(0.25)
    assert report.lost_fraction == pytest.approx(0.25)
    assert report.images_per_second_without_late == pytest.approx(100 / 0.75)


def test_only_steps_that_all_hosts_recorded_are_compared() -> None:
    first, second = make_records([0.0] * 10, [0.1] * 10)
    report = compare_hosts([replace(first, calls=first.calls[4:]), replace(second, calls=second.calls[:7])], [])
    assert report.steps == 3
    with pytest.raises(DataError, match=r"^The records of the hosts have no step in common\. Name those of one run\.$"):
        compare_hosts([replace(first, calls=first.calls[:2]), replace(second, calls=second.calls[2:])], [])


def test_a_host_that_saves_for_longer_is_not_counted_as_a_longer_step_of_the_other() -> None:
    first, second = make_records([0.0] * 10, [0.1] * 10)
    longer = replace(first.calls[3], wall_s=first.calls[3].wall_s + 7.0)
    report = compare_hosts([replace(first, calls=(*first.calls[:3], longer, *first.calls[4:])), second], [])
    assert report.lost_fraction == pytest.approx(0.5)
    assert [host.images_per_second for host in report.hosts] == pytest.approx([50, 50])


def test_hosts_without_a_record_are_named() -> None:
    records = make_records([0.0] * 3, [0.1] * 3, [0.0] * 3, [0.0] * 3)
    assert compare_hosts(records[1:3], []).missing == (0, 3)


def test_one_host_cannot_be_compared() -> None:
    with pytest.raises(DataError) as error:
        compare_hosts(make_records([0.1]), [make_host_profile(0, 400)])
    assert str(error.value) == "A comparison needs the records of at least 2 hosts, or the profiles of 2, got 1 and 1."


def test_profiles_say_which_host_each_step_waits_for() -> None:
    """Alone the hosts need 25, 50 and 31.25 ms for a step of 25 ms; together the longest of these."""
    report = compare_hosts([], [make_host_profile(0, 400), make_host_profile(1, 200), make_host_profile(2, 320)])
    assert (report.method, report.late, report.steps) == ("simulated", (1,), 0)
    assert [host.idle_fraction for host in report.hosts] == pytest.approx([0.0, 0.5, 0.125])
    assert [host.waits_for_others_fraction for host in report.hosts] == pytest.approx([0.5, 0.0, 0.375])
    assert (report.images_per_second, report.images_per_second_without_late) == pytest.approx((600, 960))
    assert report.lost_fraction == pytest.approx(0.375)
    assert report.hosts[1].stage == "read"
    assert report.hosts[1].fix == make_host_profile(1, 200).fix


def test_a_profile_names_the_stage_of_a_host_that_a_record_shows_late() -> None:
    report = compare_hosts(make_records([0.0] * 3, [0.1] * 3, [0.0] * 3), [make_host_profile(1, 200)])
    assert [host.stage for host in report.hosts] == [None, "read", None]
    assert report.hosts[1].reason == "It waits."


@pytest.mark.parametrize(
    ("usage", "reason"),
    [
        (HostUsage(8, 0.5, 0.4), "Other processes take 40 % of its 8 cores."),
        (HostUsage(8, 0.95, 0.0), "Its 8 cores are 95 % busy: the processor limits it."),
        (HostUsage(1, 0.95, 0.0), "Its 1 core is 95 % busy, and the other hosts have 8: the processor limits it."),
        (
            HostUsage(8, 0.1, 0.0),
            "Its 8 cores are 10 % busy, those of the others 50 %: it waits for its storage, or for a stage that runs "
            "on one core.",
        ),
    ],
)
def test_without_a_profile_the_cores_say_why_a_host_is_late(usage: HostUsage, reason: str) -> None:
    first, second = make_records([0.0] * 3, [0.1] * 3)
    report = compare_hosts([first, replace(second, usage=usage)], [])
    assert (report.hosts[0].usage, report.hosts[0].reason) == (USAGE, "")
    assert report.hosts[1].reason == reason
