"""Which records a cache keeps if not all of them fit: the same ones in every run and on every host."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.source import Source, tfrecord_files
from tfpipe.errors import ConfigError
from tfpipe.format.manifest import Manifest
from tfpipe.pipeline.plan.memory_cache import (
    CacheParts,
    estimate_cache_bytes,
    get_decoding_plan,
    share_cache_bytes,
    split_by_cache,
)
from tfpipe.pipeline.plan.read_plan import ReadPlan

IMAGE = 9 * 9 * 3 + 200


def plan_of(data: Manifest, num_hosts: int = 1, host: int = 0, start_step: int = 0, **options: Any) -> ReadPlan:
    config = PipelineConfig(
        **{"global_batch_size": 8, "image_size": 8, "block_records": 1, "cache": "decoded", **options}
    )
    return ReadPlan(Source.from_manifest(data, "train"), config, num_hosts, host, num_hosts, start_step)


def split(plan: ReadPlan) -> CacheParts:
    parts = split_by_cache(plan)
    assert parts is not None
    return parts


def list_kept(plan: ReadPlan) -> list[int]:
    chosen = split(plan).kept.chosen
    assert chosen is not None
    return np.flatnonzero(chosen).tolist()


def test_as_many_records_are_kept_as_fit(few: Manifest) -> None:
    for cache_bytes, kept in ((IMAGE, 1), (7 * IMAGE, 7), (8 * IMAGE - 1, 7), (22 * IMAGE, 22)):
        plan = plan_of(few, cache_bytes=cache_bytes)
        assert len(list_kept(plan)) == split(plan).kept_records == kept
        assert estimate_cache_bytes(plan) == cache_bytes
    assert split_by_cache(plan_of(few)) is None
    assert split_by_cache(plan_of(few, cache_bytes=23 * IMAGE)) is None
    assert estimate_cache_bytes(plan_of(few, cache_bytes="1GiB")) == 23 * IMAGE


def test_encoded_records_are_counted_by_their_own_size(few: Manifest) -> None:
    source = Source.from_manifest(few, "train")
    files = np.split(source.offsets(), source.bases[1:-1])
    sizes = np.concatenate([np.diff([*offsets, size]) for offsets, size in zip(files, source.file_bytes, strict=True)])
    for cache_bytes in (sizes.max(), source.total_bytes // 2, source.total_bytes - 1):
        plan = plan_of(few, cache="bytes", cache_bytes=int(cache_bytes))
        kept_bytes = sizes[list_kept(plan)].sum()
        assert cache_bytes - sizes.max() < kept_bytes <= cache_bytes


def test_every_host_and_every_run_keeps_the_same_records(few: Manifest) -> None:
    kept = list_kept(plan_of(few, cache_bytes=7 * IMAGE))
    assert list_kept(plan_of(few, 2, 1, 5, cache_bytes=7 * IMAGE)) == kept
    assert set(kept) < set(list_kept(plan_of(few, cache_bytes=8 * IMAGE)))  # a larger cache keeps these and more
    assert any(list_kept(plan_of(few, cache_bytes=7 * IMAGE, seed=seed)) != kept for seed in range(1, 9))


def test_an_evaluation_keeps_the_first_records_of_its_host(few: Manifest) -> None:
    plan = plan_of(few, 2, 1, training=False, cache_bytes=3 * (8 * 8 * 3 + 200))
    assert list_kept(plan) == [11, 12, 13]


def test_the_parts_are_all_that_is_read(few: Manifest) -> None:
    plan = plan_of(few, cache_bytes=7 * IMAGE, deterministic=False)
    kept, others, _ = split(plan)
    assert kept.chosen is not None
    assert others.chosen is not None
    assert (kept.chosen ^ others.chosen).all()
    assert kept.order == others.order == plan.order
    assert kept.exact
    assert others.exact
    assert (kept.config.cache, others.config.cache) == ("decoded", "none")
    assert split_by_cache(kept) is split_by_cache(others) is None
    assert get_decoding_plan(plan) is others
    assert get_decoding_plan(kept) is kept


def test_the_datasets_of_a_mixture_share_the_cache_by_their_size(few: Manifest) -> None:
    plan = plan_of(few)
    larger = replace(plan, config=replace(plan.config, decoded_size=(9, 27)))
    sizes = share_cache_bytes([plan, larger], 10_000)
    assert sizes == [10_000 * IMAGE // (2 * IMAGE + 486), 10_000 * (IMAGE + 486) // (2 * IMAGE + 486)]
    assert share_cache_bytes([plan, larger], None) == [None, None]


def test_a_cache_that_holds_no_record_is_refused(few: Manifest) -> None:
    with pytest.raises(ConfigError) as caught:
        split_by_cache(plan_of(few, cache_bytes=IMAGE - 1))
    assert str(caught.value) == (
        "`cache_bytes` must hold a record, of which the first takes 443 B, got 442 B. Use more, or no cache."
    )


def test_records_without_places_are_refused(foreign: Path) -> None:
    source = tfrecord_files(str(foreign / "train-*"))
    config = PipelineConfig(global_batch_size=8, cache="bytes", cache_bytes="1MiB")
    with pytest.raises(ConfigError) as caught:
        split_by_cache(ReadPlan(source, config))
    assert str(caught.value) == (
        f"`cache_bytes` needs to know where each record lies, and {source.unplaced}. Leave it out."
    )
