"""Which changes are proposed, and which of them leave alone what the training step sees."""

from __future__ import annotations

import dataclasses

import pytest

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.tuning.candidates import MECHANICAL, apply_changes, get_neighbors, is_mechanical, reset_to_defaults

CONFIG = PipelineConfig(batch_size=64)


@pytest.mark.parametrize(
    ("changes", "mechanical"),
    [
        ({"cycle_length": 4, "autotune": False}, True),
        ({"cache": "bytes"}, True),
        ({"cache": "bytes", "cache_dir": "/tmp"}, True),
        ({"cache": "decoded"}, False),
        ({"cycle_length": 4, "image_dtype": "uint8"}, False),
        ({"dct_scaling": True}, False),
        ({"shuffle_buffer_size": 100}, False),
        ({"deterministic": False}, False),
        ({"order": "throughput"}, False),
    ],
)
def test_what_leaves_the_batches_alone(changes: dict[str, object], mechanical: bool) -> None:
    assert is_mechanical(changes) is mechanical


def test_every_mechanical_option_is_one_and_has_a_default() -> None:
    defaults = {field.name: field.default for field in dataclasses.fields(PipelineConfig)}
    assert all(defaults[name] is not dataclasses.MISSING for name in MECHANICAL)


def test_reset_to_defaults_change_only_what_is_mechanical() -> None:
    assert reset_to_defaults(CONFIG) == {}
    spoiled = dataclasses.replace(
        CONFIG, cycle_length=1, num_parallel_calls=1, autotune=False, prefetch_batches=0, image_dtype="float32"
    )
    spoiled = dataclasses.replace(spoiled, cpu_budget=0.5)  # a limit, which is kept
    assert reset_to_defaults(spoiled) == {
        "cycle_length": None,
        "num_parallel_calls": None,
        "autotune": None,
        "prefetch_batches": None,
    }


def test_get_neighbors_are_single_steps_away() -> None:
    steps = list(get_neighbors(CONFIG, 4, by_engine=False, input_may_change=False))
    assert steps[0] == {"cache": "bytes"}
    assert [step["num_parallel_calls"] for step in steps if "num_parallel_calls" in step] == [4, 8]
    assert [step["cycle_length"] for step in steps if "cycle_length" in step] == [16, 4]
    assert {"max_intra_op_parallelism": 4} in steps
    assert {"map_fusion": True} not in steps
    assert all(len(step) == 1 and is_mechanical(step) for step in steps)
    assert all(apply_changes(CONFIG, step) for step in steps)


def test_the_engine_has_no_options_of_the_textbook_pipeline() -> None:
    names = {name for step in get_neighbors(CONFIG, 4, by_engine=True, input_may_change=False) for name in step}
    assert names == {"cache", "num_parallel_calls", "prefetch_batches", "private_threadpool_size"}


def test_what_the_training_step_sees_changes_only_if_it_may() -> None:
    steps = list(
        get_neighbors(dataclasses.replace(CONFIG, image_dtype="float32"), 4, by_engine=True, input_may_change=True)
    )
    assert steps[0] == {"cache": "decoded", "augment": "device", "image_dtype": "uint8"}
    assert {"image_dtype": "uint8"} in steps
    assert {"order": "throughput", "deterministic": False} in steps
    assert {"image_dtype": "uint8"} not in list(get_neighbors(CONFIG, 4, by_engine=True, input_may_change=True))


def test_a_change_that_cannot_be_had_is_none() -> None:
    exact = dataclasses.replace(CONFIG, order="exact")
    assert apply_changes(exact, {"deterministic": False}) is None
    assert apply_changes(exact, {"cycle_length": None}) is None
    assert apply_changes(exact, {"cycle_length": 9}) == dataclasses.replace(exact, cycle_length=9)


def test_nobody_goes_back_from_decoded_images_to_bytes() -> None:
    assert apply_changes(dataclasses.replace(CONFIG, cache="decoded"), {"cache": "bytes"}) is None
    assert apply_changes(CONFIG, {"cache": "bytes"}) == dataclasses.replace(CONFIG, cache="bytes")
