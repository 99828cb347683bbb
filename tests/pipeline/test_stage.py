"""Stages by name, in print and cut off; and each option of `tf.data` where it belongs."""

import re

import pytest
import tensorflow as tf

from tests.refusals import refusal
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.errors import ConfigError
from tfpipe.pipeline.stage import STAGE_NAMES, Stage, Stages, tf_data_options, without_autograph
from tfpipe.system.options import replace_options

CONFIG = PipelineConfig(batch_size=4)
POLICY = tf.data.experimental.AutoShardPolicy


def counting() -> Stages:
    return Stages(
        (
            Stage("list", lambda _: tf.data.Dataset.range(10), {"files": 12345, "host": "0 of 1"}, "one pass"),
            Stage("decode", lambda dataset: dataset.map(lambda x: -x), {"num_parallel_calls": None, "fast": True}),
            Stage("batch", lambda dataset: dataset.batch(5), {"calls": tf.data.AUTOTUNE, "size": 5}, "static shapes"),
        )
    )


def test_stages_fold_into_a_dataset_and_can_be_cut() -> None:
    stages = counting()
    assert stages.names == ("list", "decode", "batch")
    assert [batch.tolist() for batch in stages.dataset().as_numpy_iterator()] == [
        [0, -1, -2, -3, -4],
        [*range(-5, -10, -1)],
    ]
    cut = stages.until("decode")
    assert cut.names == ("list", "decode")
    assert list(cut.dataset().as_numpy_iterator()) == list(range(0, -10, -1))
    assert refusal(ConfigError, stages.until, "cache") == (
        "This pipeline has no stage 'cache'; it has list, decode, batch. With order='throughput' it has stages for "
        "single records."
    )


def test_stages_of_ones_own() -> None:
    stages = counting()
    stages.options = tf.data.Options()
    own = Stage("own", lambda dataset: dataset.map(lambda x: x * 10))
    longer = stages.insert_after("decode", own)
    assert longer.names == ("list", "decode", "own", "batch")
    assert longer.options is stages.options
    assert next(longer.dataset().as_numpy_iterator()).tolist() == [0, -10, -20, -30, -40]
    assert stages.replace("decode", own, own).names == ("list", "own", "own", "batch")
    assert stages.replace("decode").names == ("list", "batch")
    rest = Stages(stages.replace("list"))
    assert next(rest.apply_to(tf.data.Dataset.range(5, 10)).as_numpy_iterator()).tolist() == [-5, -6, -7, -8, -9]
    for change in (stages.replace, stages.insert_after):
        assert "no stage 'cache'" in refusal(ConfigError, change, "cache", own)


def test_a_stage_of_ones_own_may_branch_on_a_tensor() -> None:
    """AutoGraph is for those: it is off, and saves seconds, where it was said that nothing branches."""

    def absolute(x: tf.Tensor) -> tf.Tensor:
        if x < -5:
            x = -x
        return x

    own = Stage("own", lambda dataset: dataset.map(absolute))
    assert list(counting().until("decode").insert_after("decode", own).dataset().as_numpy_iterator())[4:8] == [
        *(-4, -5, 6, 7)
    ]
    plain = without_autograph(own)
    assert (plain.name, plain.settings, plain.reason) == (own.name, own.settings, own.reason)
    with pytest.raises(tf.errors.OperatorNotAllowedInGraphError, match="AutoGraph"):
        counting().until("decode").insert_after("decode", plain).dataset()


def test_they_print_as_a_table() -> None:
    assert str(counting()) == (
        "list    files=12,345, host=0 of 1\n"
        "        one pass\n"
        "decode  num_parallel_calls=auto, fast=True\n"
        "batch   calls=auto, size=5\n"
        "        static shapes"
    )
    assert str(Stages(())) == ""
    assert len(set(STAGE_NAMES)) == len(STAGE_NAMES)


def test_options_go_with_the_dataset_and_autotune_by_stages_beside_a_users_own() -> None:
    options = tf_data_options(replace_options(CONFIG, {"tf_data.private_threadpool_size": 3}), deterministic=True)
    stages = Stages(counting(), options)
    for dataset in (stages.dataset(), stages.until("list").dataset()):
        assert dataset.options().threading.private_threadpool_size == 3
    plain = Stages(counting(), tf_data_options(CONFIG, deterministic=True))
    own = plain.insert_after("decode", Stage("noise", lambda dataset: dataset.map(lambda x: x)))
    algorithms = [stages.dataset().options().autotune.autotune_algorithm for stages in (plain, own)]
    assert algorithms == [None, tf.data.experimental.AutotuneAlgorithm.STAGE_BASED]
    assert own.dataset().options().threading == plain.dataset().options().threading
    assert plain.options.autotune.autotune_algorithm is None  # the stages share them


@pytest.mark.parametrize(
    ("changes", "path", "value"),
    [
        ({"tf_data.autotune": False}, "autotune.enabled", False),
        ({}, "autotune.enabled", True),
        # The thread that tunes may hold up the end of a pass, and evaluation ends often.
        ({"training": False}, "autotune.enabled", False),
        ({"training": False, "tf_data.autotune": True}, "autotune.enabled", True),
        # A serial map must stay serial where nothing is tuned.
        ({"tf_data.autotune": False}, "experimental_optimization.apply_default_optimizations", False),
        ({"tf_data.autotune": True}, "experimental_optimization.apply_default_optimizations", True),
        ({"cpu_budget": 0.5}, "autotune.cpu_budget", 2),
        ({"cpu_budget": 0.8}, "threading.private_threadpool_size", 3),
        ({"cpu_budget": 0.1, "tf_data.private_threadpool_size": 4}, "threading.private_threadpool_size", 1),
        ({"cpu_budget": 0.9, "tf_data.private_threadpool_size": 2}, "threading.private_threadpool_size", 2),
        ({"tf_data.ram_budget": "1MiB"}, "autotune.ram_budget", 2**20),
        ({"tf_data.inject_prefetch": False}, "experimental_optimization.inject_prefetch", False),
        ({"tf_data.map_fusion": False}, "experimental_optimization.map_fusion", False),
        ({"tf_data.private_threadpool_size": 5}, "threading.private_threadpool_size", 5),
        ({"tf_data.max_intra_op_parallelism": 2}, "threading.max_intra_op_parallelism", 2),
    ],
    ids=str,
)
def test_every_option_arrives(changes: dict, path: str, value: object, monkeypatch) -> None:
    monkeypatch.setattr("tfpipe.system.host_limits.usable_cpus", lambda: 4)
    options = tf_data_options(replace_options(CONFIG, changes), deterministic=True)
    value_set: object = tf.data.Dataset.range(3).with_options(options).options()
    for name in path.split("."):
        value_set = getattr(value_set, name)
    assert value_set == value


def test_operations_that_hold_threads_leave_one_for_each_core(monkeypatch) -> None:
    monkeypatch.setattr("tfpipe.system.host_limits.usable_cpus", lambda: 4)
    for changes, size in (({}, 6), ({"cpu_budget": 0.5}, 4), ({"tf_data.private_threadpool_size": 3}, 3)):
        options = tf_data_options(replace_options(CONFIG, changes), deterministic=True, busy_threads=2)
        assert options.threading.private_threadpool_size == size


def test_options_that_nobody_gave() -> None:
    options = tf_data_options(CONFIG, deterministic=False)
    assert options.deterministic is False
    assert tf_data_options(CONFIG, deterministic=True).deterministic is True
    assert options.threading.private_threadpool_size is None
    assert options.threading.max_intra_op_parallelism == 1
    left = tf_data_options(replace_options(CONFIG, {"tf_data.max_intra_op_parallelism": 0}), deterministic=True)
    assert left.threading.max_intra_op_parallelism is None
    assert options.autotune.cpu_budget is None
    assert options.autotune.ram_budget is None
    assert options.experimental_optimization.inject_prefetch is True
    assert options.experimental_distribute.auto_shard_policy == POLICY.DATA  # workers get no record twice
    # Budgets are for what tunes.
    fixed = replace_options(CONFIG, {"tf_data.autotune": False, "cpu_budget": 0.5, "tf_data.ram_budget": "1GiB"})
    assert tf_data_options(fixed, deterministic=True).autotune.cpu_budget is None
    with pytest.raises(ConfigError, match=re.escape("`ram_budget` must be")):
        replace_options(CONFIG, {"tf_data.ram_budget": "much"})
