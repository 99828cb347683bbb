"""The steps of the graph, each alone, by Beam's local runner."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.metrics import MetricsFilter
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.testing.test_pipeline import TestPipeline
from apache_beam.testing.util import assert_that, equal_to

from beam_jobs.config import ShardConfig
from beam_jobs.list_and_plan import plan_shards
from beam_jobs.shards.output_dir import open_work_dir
from beam_jobs.shards.work_dir import WorkDir
from beam_jobs.shards.worker_check import WorkerCheck
from beam_jobs.shards.write_shard import write_shard
from beam_jobs.transforms import FinishDataset, JobConfig, ListShards, WriteShards, build_graph
from tests.beam_jobs.images import make_photos, write_files
from tfpipe.errors import DataError
from tfpipe.writer.written_shard import WrittenShard

TestPipeline.__test__ = False  # no test, whatever its name


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder of eight images and a bad one."""
    return write_files(tmp_path / "in", make_photos({"cat": 8}) | {"cat/bad.jpg": b"bad"})


@pytest.fixture
def work(tmp_path: Path, source: Path) -> Iterator[WorkDir]:
    """A dataset directory with a plan of three shards."""
    config = ShardConfig(str(source), str(tmp_path / "out"), num_shards=3)
    with open_work_dir(config, plan_shards(config)) as work:
        yield work


def make_pipeline() -> Any:
    return TestPipeline(runner=FnApiRunner())


def write_all(work: WorkDir) -> list[WrittenShard]:
    """Writes the three shards in this process."""
    header = work.read_header()
    return [write_shard(work, header, k) for k in range(3)]


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("num_shards", [1, 5])
def test_every_shard_is_listed(num_shards: int, in_graph: bool) -> None:
    with make_pipeline() as pipeline:
        assert_that(pipeline | ListShards(num_shards, in_graph=in_graph), equal_to(list(range(num_shards))))


def test_the_graph_is_as_large_for_many_shards() -> None:
    sizes = []
    for num_shards in (1000, 100_000):
        pipeline = make_pipeline()
        build_graph(pipeline, num_shards, JobConfig("gs://out", 10))
        sizes.append(pipeline.to_runner_api().ByteSize())
    assert abs(sizes[0] - sizes[1]) < 200


@pytest.mark.parametrize("workers", [0, 2])
def test_shards_are_written_and_counted(work: WorkDir, source: Path, workers: int, tmp_path: Path) -> None:
    # A shard is a pure function of the plan, so writing all of them elsewhere says what must come.
    config = ShardConfig(str(source), str(tmp_path / "elsewhere"), num_shards=3)
    with open_work_dir(config, plan_shards(config)) as elsewhere:
        expected = write_all(elsewhere)
    assert [shard.kept for shard in expected] == [False] * 3
    assert (sum(shard.info.records for shard in expected), sum(len(shard.left_out) for shard in expected)) == (8, 1)
    pipeline = make_pipeline()
    shards = pipeline | beam.Create([2, 0, 1]) | WriteShards(JobConfig(work.output, 10, workers))
    assert_that(shards, equal_to(expected))
    result = pipeline.run()
    result.wait_until_finish()
    metrics = {
        metric.key.metric.name: metric.committed
        for kind in ("counters", "distributions")
        for metric in result.metrics().query(MetricsFilter().with_namespace("tfpipe"))[kind]
    }
    sizes = [path.stat().st_size for path in source.rglob("*.jpg")]
    if workers == 0:  # Beam's own worker sees every image
        assert metrics.pop("image_ms").count == 9
        image_bytes = metrics.pop("image_bytes")
        assert (image_bytes.sum, image_bytes.count) == (sum(sizes), 9)
        assert (image_bytes.min, image_bytes.max) == (min(sizes), max(sizes))
        assert metrics.pop("bytes") == sum(sizes)
    assert metrics == {"images": 9, "bad": 1, "shards": 3, "kept": 0}
    assert write_all(work) == [replace(shard, kept=True) for shard in expected]


@pytest.mark.parametrize("workers", [0, 1])
def test_kept_shards_are_counted(work: WorkDir, workers: int) -> None:
    expected = [replace(shard, kept=True) for shard in write_all(work)]
    pipeline = make_pipeline()
    shards = pipeline | beam.Create([0, 1, 2]) | WriteShards(JobConfig(work.output, 10, workers))
    assert_that(shards, equal_to(expected))
    result = pipeline.run()
    counters = {counter.key.metric.name: counter.committed for counter in result.metrics().query()["counters"]}
    assert (counters["kept"], counters["shards"], counters["images"], counters["bad"]) == (3, 3, 9, 1)


@pytest.mark.parametrize("workers", [0, 1])
def test_too_many_bad_images_end_it_early(work: WorkDir, workers: int) -> None:
    pipeline = make_pipeline()
    _ = pipeline | beam.Create([0, 1, 2]) | WriteShards(JobConfig(work.output, 0, workers))
    with pytest.raises(DataError, match=r"^At most 0 of 9 images may be bad, got 1, the first cat/bad\.jpg: "):
        pipeline.run()


def test_the_dataset_is_finished(work: WorkDir, tmp_path: Path) -> None:
    with make_pipeline() as pipeline:
        fingerprints = pipeline | beam.Create(write_all(work)[::-1]) | FinishDataset(JobConfig(work.output, 10))
        assert_that(fingerprints, equal_to([work.read_header().fingerprint]))
    assert (tmp_path / "out" / "manifest.json").exists()


def test_a_dataset_without_all_shards_is_not_finished(work: WorkDir, tmp_path: Path) -> None:
    shards = write_all(work)
    (tmp_path / "out" / shards[1].info.file).unlink()
    pipeline = make_pipeline()
    _ = pipeline | beam.Create(shards[:2]) | FinishDataset(JobConfig(work.output, 10))
    with pytest.raises(DataError) as caught:
        pipeline.run()
    assert str(caught.value).startswith(
        f"All 3 shards must be in {work.output}, but 2 are not, the first train-00001-of-00003.tfrecord. Do all "
        "workers write to the same place? Run the same command again to make the others."
    )
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_worker_of_another_version_may_not_take_part(work: WorkDir) -> None:
    pipeline = make_pipeline()
    worker_check = WorkerCheck(work.read_header().fingerprint, {"tfpipe": "0"})
    _ = pipeline | beam.Create([0]) | WriteShards(JobConfig(work.output, 10, worker_check=worker_check))
    with pytest.raises(DataError, match=r"^All workers must have tfpipe 0, as the process that planned the job has, "):
        pipeline.run()
