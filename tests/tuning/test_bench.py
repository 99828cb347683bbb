"""A pipeline's rate by the yardstick's, and the comparison of two such figures."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from tests.observers import Recorder
from tfpipe.engine.config.augment_config import AugmentOptions
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.config.tf_data_options import TfDataOptions
from tfpipe.errors import ConfigError
from tfpipe.system.progress import Observer
from tfpipe.tuning import bench as benches
from tfpipe.tuning.bench import Bench, build_yardstick, compare, load, measure, to_json
from tfpipe.tuning.tuned_file import Place

CONFIG = PipelineConfig(batch_size=100)
SPOILED = replace(CONFIG, tf_data=TfDataOptions(cycle_length=4), augment_options=AugmentOptions(scale=(0.5, 1.0)))
PLACE = Place("Any CPU", 8, 2**34, "'train' of pets", "train", 12, "0123abcd")


@pytest.fixture
def bench(fake_job, runner, monkeypatch: pytest.MonkeyPatch):
    """Benches of runners: the rates of the starts, in order, and that of the yardstick."""

    def run(rates: tuple[float, ...], yard: float = 2000.0, scatter: float = 0.0) -> Bench:
        left = list(rates)
        monkeypatch.setattr(benches, "PipelineProcess", lambda *_: runner(yard, scatter))
        monkeypatch.setattr(benches, "get_place", lambda *_: PLACE)
        return measure(fake_job(lambda _: left.pop(0)), CONFIG, len(rates), Observer())

    return run


def test_the_score_is_the_rate_by_the_yardsticks(bench) -> None:
    found = bench((1000, 1100, 1000))
    assert found.scores == pytest.approx((0.5, 0.55, 0.5))
    assert found.score.ratio == pytest.approx((0.5 * 0.55 * 0.5) ** (1 / 3))
    assert found.images_per_second.ratio == pytest.approx((1000 * 1100 * 1000) ** (1 / 3))
    assert found.images_per_second.low < 1000 < 1100 < found.images_per_second.high
    assert found.yardstick_images_per_second == pytest.approx(2000)
    # A runner takes 1.5 s of a core for each second.
    assert found.images_per_cpu_second == pytest.approx(3100 / 3 / 1.5)
    assert (found.place, found.config["batch_size"]) == (PLACE, 100)


def test_the_observer_hears_of_every_run(fake_job, runner, monkeypatch: pytest.MonkeyPatch) -> None:
    observer = Recorder()
    monkeypatch.setattr(benches, "PipelineProcess", lambda *_: runner(2000.0, 0.0))
    monkeypatch.setattr(benches, "get_place", lambda *_: PLACE)
    measure(fake_job(lambda _: 1000.0), CONFIG, 3, observer)
    assert [phase.split(", about ")[0] for phase in observer.phases] == [
        *("Starting the yardstick", "Run 1 of 3", "Run 2 of 3", "Run 3 of 3"),
    ]
    assert observer.phases[2].endswith(" s left")


def test_a_machine_that_is_slower_is_so_for_both(bench) -> None:
    assert compare(bench((500, 510, 505), 1000), bench((1000, 1020, 1010), 2000)).ratio.ratio == pytest.approx(1.0)


def test_what_is_certainly_slower(bench) -> None:
    base = bench((1000, 1010, 990, 1005, 995))
    slower = compare(bench((800, 810, 790, 805, 795)), base)
    assert slower.ratio.ratio == pytest.approx(0.8, abs=1e-3)
    assert slower.is_below(0.9)
    assert not slower.is_below(0.7)
    # The same ratio, of runs that scatter so much that nobody knows.
    assert not compare(bench((400, 1600, 800, 1200, 533)), base).is_below(0.9)


def test_a_comparison_says_what_else_differs(bench) -> None:
    base = bench((1000, 1010, 990))
    same = compare(base, base)
    assert (same.same_host, same.same_data, same.changed) == (True, True, {})
    other = replace(base, place=replace(PLACE, cores=4, fingerprint="f"), config=asdict(SPOILED))
    found = compare(base, other)
    assert (found.same_host, found.same_data) == (False, False)
    assert found.changed == {"tf_data.cycle_length": (4, None), "augment_options.scale": ([0.5, 1.0], [0.08, 1.0])}


def test_what_is_saved_comes_back(bench, tmp_path: Path) -> None:
    path, found = tmp_path / "base.json", bench((1000, 1010, 990))
    document = to_json(found)
    path.write_text(json.dumps(document))
    back = load(str(path))
    assert compare(found, back).changed == {}
    assert (back.scores, back.place, back.images_per_second) == (found.scores, found.place, found.images_per_second)
    assert (document["version"], document["kind"]) == (1, "tfpipe bench")
    compared = to_json(found, compare(found, back))["comparison"]
    assert compared["ratio"]["ratio"] == pytest.approx(1.0)
    assert compared["ratio"]["low"] < 1 < compared["ratio"]["high"]
    assert compared["same_host"] is True


GOOD: dict[str, Any] = {
    "version": 1,
    "kind": "tfpipe bench",
    "images_per_second": {"ratio": 1.0, "low": 0.9, "high": 1.1},
    "images_per_cpu_second": 1.0,
    "scores": [0.5, 0.5, 0.5],
    "yardstick_images_per_second": 2.0,
    "place": vars(PLACE),
    "config": {},
}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "must be a file that `output` wrote, and is not JSON."),
        ("[]", "must be a file that `output` of this version wrote."),
        (json.dumps({**GOOD, "version": 2}), "must be a file that `output` of this version wrote."),
        (json.dumps({**GOOD, "scores": [0.5, 0.5]}), "must be a file that `output` wrote: a part is missing or is not"),
        (
            json.dumps({**GOOD, "scores": [0.5, 0.5, 0]}),
            "must be a file that `output` wrote: a part is missing or is not",
        ),
        (json.dumps({**GOOD, "place": {}}), "must be a file that `output` wrote: a part is missing or is not"),
    ],
)
def test_a_file_that_is_something_else(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "base.json"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(str(path))
    assert str(caught.value).startswith(f"{path} {message}")
    with pytest.raises(ConfigError, match="cannot be read: No such file or directory"):
        load(str(tmp_path / "none.json"))


def test_too_few_starts(fake_job) -> None:
    with pytest.raises(ConfigError, match=r"must be started at least 3 times to know the spread, got 2\.$"):
        measure(fake_job(lambda _: 1.0), CONFIG, 2, Observer())


def test_the_yardstick_decodes() -> None:
    batch = next(iter(build_yardstick()))
    assert (tuple(batch.shape), batch.dtype.name) == ((64, 384, 384, 3), "uint8")
    assert batch.numpy().std() > 30
