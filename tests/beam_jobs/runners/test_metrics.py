"""The progress of a job by the metrics of its runner."""

from types import SimpleNamespace
from typing import Any

from apache_beam.metrics.execution import MetricKey, MetricResult
from apache_beam.metrics.metricbase import MetricName

from beam_jobs.runners.metrics import read_metrics
from tfpipe.system.progress import Progress


class Result:
    """A job with these counters: step, name, committed, attempted."""

    def __init__(self, *counted: tuple[str, str, int | None, int | None]) -> None:
        self.counters = [
            MetricResult(MetricKey(step, MetricName("tfpipe", name)), committed, attempted)
            for step, name, committed, attempted in counted
        ]

    def metrics(self) -> Any:
        return SimpleNamespace(query=lambda _: {"counters": self.counters})


def test_counters_of_all_steps_are_added() -> None:
    result = Result(
        ("a", "images", 3, 5),
        ("b", "images", 2, None),
        ("a", "bytes", None, 700),
        ("a", "bad", 1, 1),
        ("a", "unreadable", 2, 2),
        ("a", "shards", 1, 1),
        ("a", "kept", 1, 1),
    )
    assert read_metrics(result, num_images=9, num_shards=4) == Progress(7, 9, bytes=700, bad=3, shards=1, num_shards=4)


def test_shards_that_were_tried_twice_never_exceed_the_plan() -> None:
    result = Result(("a", "images", 30, 30), ("a", "shards", 3, 3))
    assert read_metrics(result, num_images=20, num_shards=2) == Progress(20, 20, shards=2, num_shards=2)


def test_a_service_that_does_not_answer_gives_no_progress() -> None:
    def fail() -> None:
        raise ConnectionError

    assert read_metrics(SimpleNamespace(metrics=fail), num_images=9, num_shards=4) is None
