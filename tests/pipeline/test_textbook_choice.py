"""Which pipeline reads and in what order, what a cache takes, and what the textbook pipeline refuses."""

import gzip
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import tfpipe
from tests.beam_jobs.datasets import make_dataset
from tests.beam_jobs.images import write_files
from tests.format.tensors.datasets import write_tensors
from tests.mask_files import MASK_NAME, make_masked_images
from tests.refusals import refusal
from tests.several_images import write_several
from tfpipe.engine.cache import check_memory, estimate_cache_bytes
from tfpipe.engine.config.augment_config import AugmentOptions
from tfpipe.engine.config.pipeline_config import PipelineConfig, ServiceOptions, TfDataOptions
from tfpipe.engine.host import Host, split_batch
from tfpipe.engine.plan import BatchPlan, check_plan, plan_batches
from tfpipe.engine.source import Source, tfrecord_files
from tfpipe.errors import ConfigError
from tfpipe.format.manifest import Manifest
from tfpipe.pipeline.build import build_dataset, build_stages
from tfpipe.pipeline.textbook import count_shuffled_records
from tfpipe.pipeline.textbook_choice import is_by_engine

EXACT = "Use order='exact', in which stages of your own get whole batches."
INDEX = "Run `tfpipe index FILES --output INDEX`, and read INDEX: the engine makes its batches."
ORDER = "that is for batches by their steps, and `order` is throughput."


def refuse(data: Any, split: str | None = "train", build: Callable[..., Any] = build_dataset, **options: Any) -> str:
    config = PipelineConfig(**{"batch_size": 2, "image_size": 8, **options})
    return refusal(ConfigError, build, data, split, config)


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({"extra_features": ("marks",)}, "The feature 'marks' is a list of any length"),
        ({"extra_features": ("words",), "pad_to": {"words": 2}}, "The feature 'words' is a list of any length"),
        (
            {"extra_features": ("id", "image/object/bbox/xmin")},
            "The feature 'image/object/bbox/xmin' is a list of any length",
        ),
        ({"augment": "device"}, "`augment` is device"),
        ({"augment_options": AugmentOptions(dct_scaling=True)}, "`augment_options.dct_scaling` is True"),
    ],
)
def test_records_and_crops_that_the_engine_makes(few: Manifest, options: dict[str, Any], refused: str) -> None:
    assert refuse(few, order="throughput", **options) == f"{refused}: {ORDER} {EXACT}"
    build_dataset(few, "train", PipelineConfig(batch_size=2, image_size=8, **options))
    own = partial(build_stages, customize=lambda stages: stages)
    assert refuse(few, build=own, **options) == f"{refused}: {ORDER} {EXACT}"


def test_masks_several_images_and_tensors(tmp_path: Path) -> None:
    make_dataset(write_files(tmp_path / "in", make_masked_images(6)), tmp_path / "masks", num_shards=1)
    masks, several = str(tmp_path / "masks"), write_several(tmp_path / "several")
    assert refuse(masks, order="throughput", extra_features=(MASK_NAME,)) == (
        f"The feature 'image/mask' is a mask: {ORDER} {EXACT}"
    )
    next(iter(build_dataset(masks, "train", PipelineConfig(batch_size=2, image_size=8, order="throughput"))))
    assert refuse(several, order="throughput", images="first") == (
        f"A record of 'train' of {several.directory} has several images: {ORDER} {EXACT}"
    )
    (tmp_path / "tensors").mkdir()
    write_tensors(tmp_path / "tensors")
    assert refuse(str(tmp_path / "tensors"), order="throughput") == f"The feature 'tokens' is a tensor: {ORDER} {EXACT}"


def test_files_without_an_index(foreign: Path, tmp_path: Path) -> None:
    files = tfrecord_files(str(foreign / "train-*"))
    why = f"that is for batches by their steps, and {files.name} are files without a manifest."
    for options, refused in (
        ({"extra_features": ("marks",)}, "The feature 'marks' is a list of any length"),
        ({"augment": "device"}, "`augment` is device"),
        ({"service": ServiceOptions(workers=("127.0.0.1:9",))}, "`service` is 127.0.0.1:9"),
    ):
        assert refuse(files, None, **options) == f"{refused}: {why} {INDEX}"
    for path in foreign.glob("train-*"):
        (tmp_path / path.name).write_bytes(gzip.compress(path.read_bytes()))
    packed = tfrecord_files(str(tmp_path / "train-*"))
    assert refuse(packed, None, augment="device") == (
        f"`augment` is device: that is for batches by their steps, and the files of {packed.name} are GZIP compressed, "
        "and are read from their beginning only. Write the files anew by `tfpipe reshard --opaque FILES OUTPUT`, and "
        "read OUTPUT."
    )


def test_what_it_names_works(foreign: Path, tmp_path: Path) -> None:
    from tfpipe.integrity.foreign.index import IndexConfig, index

    index(IndexConfig(target=str(foreign / "train-*"), output=str(tmp_path / "index")))
    config = PipelineConfig(batch_size=2, image_size=8, augment="device", extra_features=("marks",))
    batch = next(iter(build_dataset(tfpipe.load_manifest(str(tmp_path / "index")), "train", config)))
    assert set(batch) == {"image", "crop", "flip", "label", "marks"}


Plan = Callable[..., BatchPlan]


@pytest.fixture
def plan(many: Manifest) -> Plan:
    def make(num_hosts: int = 1, host: int = 0, num_replicas: int | None = None, start_step: int = 0, **options):
        config = PipelineConfig(**{"batch_size": 16, **options})
        replicas = num_replicas or num_hosts
        source = Source.from_manifest(many, "train")
        return plan_batches(source, config, Host(host, num_hosts, replicas, start_step))

    return make


@pytest.mark.parametrize(("batch_size", "fitting"), [(17, "16 or 24"), (7, "8")])
def test_a_batch_that_replicas_cannot_share(batch_size: int, fitting: str) -> None:
    sentence = f"`batch_size` {batch_size} must be divisible by 8 replicas; use {fitting}."
    assert refusal(ConfigError, split_batch, batch_size, 8) == sentence


def test_where_a_run_begins(plan: Plan) -> None:
    assert plan().steps_per_epoch == 16
    assert plan(batch_size=4).order.block_records == 16  # by the size of the records
    assert plan(batch_size=100).steps_per_epoch == 2
    for order in ("auto", "throughput"):
        with pytest.raises(ConfigError, match=r"at most the 257 records of an epoch, got 258\. Use 257"):
            check_plan(plan(batch_size=258, order=order))

    assert "evaluation begins at 0, got 3." in refusal(ConfigError, plan, start_step=3, training=False)
    for hosts, host, replicas in ((2, 2, 2), (2, 0, 3), (2, -1, 2)):
        with pytest.raises(ConfigError, match=f"got {replicas} replicas for host {host} of 2"):
            plan(hosts, host, replicas)


def test_steps_of_an_evaluation_are_those_of_the_host_with_most(plan: Plan) -> None:
    for num_hosts, steps in ((1, 17), (2, 17), (4, 17)):  # of 257: 65 for one of four hosts, in batches of 4
        hosts = [plan(num_hosts, host, training=False) for host in range(num_hosts)]
        assert {host.steps_per_epoch for host in hosts} == {steps}
        shares = [each.host.share(257) for each in hosts]
        assert [number for share in shares for number in share] == list(range(257))
        assert max(-(-len(share) // hosts[0].batch_size) for share in shares) == steps


@pytest.fixture
def uncounted(foreign: Path) -> Source:
    return tfrecord_files(str(foreign / "train-*"))


@pytest.mark.parametrize(
    ("options", "exact", "deterministic"),
    [
        ({}, True, True),
        ({"order": "throughput"}, False, False),
        ({"order": "throughput", "tf_data": TfDataOptions(deterministic=True)}, False, True),
        ({"order": "exact"}, True, True),
        ({"cache": "bytes", "order": "throughput"}, False, False),
        ({"augment_options": AugmentOptions(antialias=True)}, True, True),
        ({"service": ServiceOptions(workers=("a:1",))}, True, True),
        ({"training": False}, False, True),
        ({"order": "throughput", "training": False, "tf_data": TfDataOptions(deterministic=False)}, *(False, False)),
    ],
)
def test_which_order(plan: Plan, uncounted: Source, options: dict, exact: bool, deterministic: bool) -> None:
    source, config = plan().source, PipelineConfig(batch_size=1, **options)
    assert (config.training and is_by_engine(source, config)) == exact
    assert is_by_engine(source, config) or config.keeps_order == deterministic
    assert not is_by_engine(uncounted, config)
    if options.get("order") == "exact":
        with pytest.raises(ConfigError, match=r"`order` exact must know .*train-\* are files without a manifest"):
            build_stages(uncounted, None, config)


def test_options_of_tf_data_are_refused_where_the_engine_reads(many: Manifest) -> None:
    options = TfDataOptions(cycle_length=4, autotune=False)
    build_stages(many, "train", PipelineConfig(batch_size=16, order="throughput", tf_data=options))
    for training in (True, False):
        config = PipelineConfig(batch_size=16, training=training, tf_data=options)
        assert refusal(ConfigError, build_stages, many, "train", config) == (
            "`tf_data` is for the textbook pipeline, and batches are made by their steps here, got cycle_length, "
            "autotune. Leave it out, or set order='throughput'."
        )


def test_an_evaluation_is_made_by_steps_unless_it_cannot(plan: Plan, uncounted: Source, context) -> None:
    evaluation = PipelineConfig(batch_size=2, training=False)
    assert is_by_engine(plan().source, evaluation)
    assert not is_by_engine(plan().source, replace(evaluation, order="throughput"))
    assert refusal(ConfigError, build_stages, uncounted, None, evaluation, context(2, 0, 2)) == (
        f"Evaluation on 2 hosts needs to know where each record lies, and {uncounted.name} are files without a "
        "manifest. Evaluate on one host."
    )


def test_the_shuffle_buffer_in_records(plan: Plan, uncounted: Source) -> None:
    assert count_shuffled_records(plan(tf_data=TfDataOptions(shuffle_buffer_size=100))) == 100
    size = plan().source.record_bytes
    assert count_shuffled_records(plan(tf_data=TfDataOptions(shuffle_buffer_size="100KB"))) == round(100_000 / size)
    assert count_shuffled_records(plan(tf_data=TfDataOptions(shuffle_buffer_size="1B"))) == 1
    most = count_shuffled_records(plan(tf_data=TfDataOptions(shuffle_buffer_size=1000)))
    assert most == 257  # no more than there are
    assert count_shuffled_records(plan(2)) == 129
    by_size = plan_batches(uncounted, PipelineConfig(batch_size=1))
    assert count_shuffled_records(by_size) == 16  # by the files' size, about


# What a cache takes

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


def test_nobody_knows_what_uncounted_records_take(uncounted: Source, caplog) -> None:
    plan = plan_batches(uncounted, PipelineConfig(batch_size=8, cache="bytes", order="throughput"))
    assert estimate_cache_bytes(plan) is None
    for cache in ("none", "bytes"):
        build_stages(uncounted, None, PipelineConfig(batch_size=8, cache=cache, training=False))
    assert caplog.messages == [f"Nobody counted the records of {uncounted.name}, so its cache may outgrow the memory."]


def test_a_cache_that_does_not_fit_is_refused(few: Manifest, monkeypatch) -> None:
    monkeypatch.setattr("tfpipe.system.host_limits.available_memory_bytes", lambda: 10_000)
    check_memory(plan_of(few), 9000, by_engine=True)
    plan = plan_of(few, order="throughput")
    assert refusal(ConfigError, check_memory, plan, estimate_cache_bytes(plan) or 0, by_engine=False) == (
        f"`cache` decoded of {plan.source.name} needs 10.2 KB of memory, and 10.0 KB are free, of which a cache may "
        "take 90 %. Use a smaller `decoded_size`, or no cache."
    )
