"""The Beam graph of a job, by Beam's local runner."""

from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.metrics import MetricsFilter
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.testing.test_pipeline import TestPipeline

from beam_jobs.config import ShardConfig
from beam_jobs.graph import add_steps
from beam_jobs.shard_job import plan_shards
from beam_jobs.shards.job import Job
from beam_jobs.shards.output_dir import open_work_dir
from beam_jobs.shards.work_dir import WorkDir
from tests.beam_jobs.datasets import make_dataset, read_tree
from tests.beam_jobs.images import make_photos, write_files

TestPipeline.__test__ = False  # no test, whatever its name


def build(job: Job) -> Any:
    pipeline = TestPipeline(runner=FnApiRunner())
    add_steps(pipeline | beam.Create([0]), job)
    return pipeline


def run(job: Job) -> dict[str, Any]:
    result = build(job).run()
    result.wait_until_finish()
    return {
        metric.key.metric.name: metric.committed
        for kind in ("counters", "distributions")
        for metric in result.metrics().query(MetricsFilter().with_namespace("tfpipe"))[kind]
    }


def test_the_graph_is_as_large_for_many_shards() -> None:
    """No step asks for the plan before it runs."""
    assert build(Job(WorkDir("gs://out"), "f", {})).to_runner_api().ByteSize() < 40_000


@pytest.mark.parametrize("workers", [0, 2])
def test_shards_are_written_and_counted(workers: int, tmp_path: Path) -> None:
    source = write_files(tmp_path / "in", make_photos({"cat": 8}) | {"cat/bad.jpg": b"bad"})
    make_dataset(source, tmp_path / "straight", num_shards=3)
    config = ShardConfig(str(source), str(tmp_path / "out"), num_shards=3, max_bad=10)
    with open_work_dir(config, plan_shards(config)) as work:
        header = work.read_header()
        metrics, again = (run(Job(work, header.fingerprint, header.versions, workers)) for _ in range(2))
    written = {name: data for name, data in read_tree(tmp_path / "out").items() if not name.startswith(".tfpipe")}
    assert written == read_tree(tmp_path / "straight")
    sizes = [path.stat().st_size for path in source.rglob("*.jpg")]
    if workers == 0:  # Beam's own worker sees every image
        assert metrics.pop("image_ms").count == 9
        image_bytes = metrics.pop("image_bytes")
        assert (image_bytes.sum, image_bytes.count) == (sum(sizes), 9)
        assert (image_bytes.min, image_bytes.max) == (min(sizes), max(sizes))
        assert metrics.pop("bytes") == sum(sizes)
    assert metrics == {"images": 9, "bad": 1, "shards": 3, "kept": 0}
    assert {name: again[name] for name in metrics} == {"images": 9, "bad": 1, "shards": 3, "kept": 3}
