"""Each step of the graph by itself, run by Beam."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from apache_beam import Create
from apache_beam.metrics import MetricsFilter
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.testing.test_pipeline import TestPipeline
from apache_beam.testing.util import assert_that, equal_to

from beam_jobs.config import ShardConfig
from beam_jobs.list_and_plan import plan_shards
from beam_jobs.shard_job import build
from beam_jobs.shards.output_dir import open_work
from beam_jobs.shards.work_dir import WorkDir
from beam_jobs.shards.worker_check import Agreement
from beam_jobs.shards.write_shard import write_shard
from beam_jobs.transforms import FinishDataset, JobSettings, ListShards, WriteShards
from tests.beam_jobs.datasets import read_tree
from tests.beam_jobs.images import make_photos, write_files
from tfpipe.errors import DataError


@pytest.fixture
def work(tmp_path: Path) -> Any:
    """A dataset directory with a plan of three shards and one bad image."""
    source = write_files(tmp_path / "in", make_photos({"cat": 8}) | {"cat/bad.jpg": b"bad"})
    config = ShardConfig(str(source), str(tmp_path / "out"), num_shards=3)
    with open_work(config, plan_shards(config)) as work:
        yield work


def pipeline() -> Any:
    return TestPipeline(runner=FnApiRunner())


def rows(work: WorkDir) -> list[dict[str, Any]]:
    header = work.header()
    return [{**write_shard(work, header, k).to_json(), "kept": False} for k in range(3)]


@pytest.mark.parametrize("num_shards", [1, 5])
def test_list_shards(num_shards: int) -> None:
    with pipeline() as p:
        assert_that(p | ListShards(num_shards), equal_to(list(range(num_shards))))


def test_the_graph_is_as_large_for_many_shards() -> None:
    sizes = []
    for num_shards in (1000, 100_000):
        p = pipeline()
        build(p, num_shards, JobSettings("gs://out", 10))
        sizes.append(p.to_runner_api().ByteSize())
    assert abs(sizes[0] - sizes[1]) < 200


def test_shards_listed_in_the_graph() -> None:
    with pipeline() as p:
        assert_that(p | ListShards(5, count_here=True), equal_to(list(range(5))))


@pytest.mark.parametrize("workers", [0, 2])
def test_write_shards(work: WorkDir, workers: int, tmp_path: Path) -> None:
    p = pipeline()
    found = p | Create([2, 0, 1]) | WriteShards(JobSettings(work.output, 10, workers))
    # Rows are pure functions of the plan, so writing the shards once more here says what must have come.
    written = {name: data for name, data in read_tree(tmp_path / "out").items() if name.endswith(".tfrecord")}
    assert written == {}
    assert_that(
        found | "Files" >> _Map(lambda row: (row["file"], row["records"], len(row["quarantined"]), row["kept"])),
        _three_shards,
    )
    result = p.run()
    result.wait_until_finish()
    metrics = {
        one.key.metric.name: one.committed
        for kind in ("counters", "distributions")
        for one in result.metrics().query(MetricsFilter().with_namespace("tfpipe"))[kind]
    }
    sizes = [path.stat().st_size for path in (tmp_path / "in").rglob("*.jpg")]
    if workers == 0:  # Beam's own worker sees every image
        assert metrics.pop("image_ms").count == 9
        one = metrics.pop("image_bytes")
        assert (one.sum, one.count, one.min, one.max) == (sum(sizes), 9, min(sizes), max(sizes))
        assert metrics.pop("bytes") == sum(sizes)
    assert metrics == {"images": 9, "bad": 1, "shards": 3, "kept": 0}
    assert [write_shard(work, work.header(), k).kept for k in range(3)] == [True] * 3


def _three_shards(found: list[Any]) -> None:
    assert sorted(one[0] for one in found) == [f"train-0000{k}-of-00003.tfrecord" for k in range(3)]
    assert sum(one[1] for one in found) == 8
    assert sum(one[2] for one in found) == 1
    assert not any(one[3] for one in found)


def _Map(function: Any) -> Any:  # noqa: N802
    import apache_beam as beam

    return beam.Map(function)


@pytest.mark.parametrize("workers", [0, 1])
def test_kept_shards_are_counted(work: WorkDir, workers: int) -> None:
    rows(work)
    p = pipeline()
    found = p | Create([0, 1, 2]) | WriteShards(JobSettings(work.output, 10, workers))
    assert_that(found | _Map(lambda row: row["kept"]), equal_to([True] * 3))
    result = p.run()
    counters = {c.key.metric.name: c.committed for c in result.metrics().query()["counters"]}
    assert (counters["kept"], counters["shards"], counters["images"], counters["bad"]) == (3, 3, 9, 1)


@pytest.mark.parametrize("workers", [0, 1])
def test_too_many_bad_images_end_it_early(work: WorkDir, workers: int) -> None:
    p = pipeline()
    _ = p | Create([0, 1, 2]) | WriteShards(JobSettings(work.output, 0, workers))
    with pytest.raises(DataError, match=r"^At most 0 of 9 images may be bad, got 1, the first cat/bad\.jpg: "):
        p.run()


def test_finish_dataset(work: WorkDir, tmp_path: Path) -> None:
    with pipeline() as p:
        found = p | Create(rows(work)[::-1]) | FinishDataset(JobSettings(work.output, 10))
        assert_that(found, equal_to([work.header().fingerprint]))
    assert (tmp_path / "out" / "manifest.json").exists()


def test_finish_without_all_shards(work: WorkDir, tmp_path: Path) -> None:
    made = rows(work)
    (tmp_path / "out" / made[1]["file"]).unlink()
    p = pipeline()
    _ = p | Create(made[:2]) | FinishDataset(JobSettings(work.output, 10))
    with pytest.raises(DataError) as caught:
        p.run()
    assert str(caught.value).startswith(
        f"All 3 shards must be in {work.output}, but 2 are not, the first train-00001-of-00003.tfrecord. Do all "
        "workers write to the same place? Run the same command again to make the others."
    )
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_worker_that_may_not_take_part(work: WorkDir) -> None:
    p = pipeline()
    agreement = Agreement(work.header().fingerprint, {"tfpipe": "0"})
    _ = p | Create([0]) | WriteShards(JobSettings(work.output, 10, agreement=agreement))
    with pytest.raises(DataError, match=r"^All workers must have tfpipe 0, as the process that planned the job has, "):
        p.run()
