"""Which records a cache keeps if not all of them fit: the same ones in every run and on every host."""

from pathlib import Path
from typing import Any

from tests.refusals import refusal
from tfpipe.engine.cache import check_memory, estimate_cache_bytes
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.host import Host
from tfpipe.engine.plan import BatchPlan, plan_batches
from tfpipe.engine.source import Source, tfrecord_files
from tfpipe.errors import ConfigError
from tfpipe.format.manifest import Manifest

IMAGE = 9 * 9 * 3 + 200


def plan_of(data: Manifest, num_hosts: int = 1, host: int = 0, **options: Any) -> BatchPlan:
    config = PipelineConfig(**{"batch_size": 8, "image_size": 8, "block_records": 1, "cache": "decoded", **options})
    return plan_batches(Source.from_manifest(data, "train"), config, Host(host, num_hosts, num_hosts))


def test_as_much_is_needed_as_all_records_take_or_as_may_be_kept(few: Manifest) -> None:
    assert estimate_cache_bytes(plan_of(few)) == 23 * IMAGE
    assert estimate_cache_bytes(plan_of(few, cache_bytes=7 * IMAGE)) == 7 * IMAGE
    assert estimate_cache_bytes(plan_of(few, cache_bytes="1GiB")) == 23 * IMAGE
    source = Source.from_manifest(few, "train")
    assert estimate_cache_bytes(plan_of(few, cache="bytes")) == source.total_bytes
    assert estimate_cache_bytes(plan_of(few, 2, 1, training=False)) == 12 * (8 * 8 * 3 + 200)


def test_nobody_knows_what_uncounted_records_take(foreign: Path) -> None:
    source = tfrecord_files(str(foreign / "train-*"))
    plan = plan_batches(source, PipelineConfig(batch_size=8, cache="bytes", order="throughput"))
    assert estimate_cache_bytes(plan) is None


def test_a_cache_that_does_not_fit_is_refused(few: Manifest, monkeypatch) -> None:
    monkeypatch.setattr("tfpipe.system.host_limits.available_memory_bytes", lambda: 10_000)
    check_memory(plan_of(few), 9000, by_engine=True)
    plan = plan_of(few, order="throughput")
    assert refusal(ConfigError, check_memory, plan, estimate_cache_bytes(plan) or 0, by_engine=False) == (
        f"`cache` decoded of {plan.source.name} needs 10.2 KB of memory, and 10.0 KB are free, of which a cache may "
        "take 90 %. Use a smaller `decoded_size`, or no cache."
    )
