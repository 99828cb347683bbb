"""Which changes are proposed, and which of them leave alone what the training step sees."""

from __future__ import annotations

import dataclasses

import pytest

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.config.service_options import ServiceOptions
from tfpipe.engine.config.tf_data_options import TfDataOptions
from tfpipe.system.options import get_default, replace_options
from tfpipe.tuning.candidates import MECHANICAL, apply_changes, is_mechanical, reset_to_defaults

CONFIG = PipelineConfig(batch_size=64)


@pytest.mark.parametrize(
    ("changes", "mechanical"),
    [
        ({"tf_data.cycle_length": 4, "tf_data.autotune": False}, True),
        ({"cache": "bytes"}, True),
        ({"cache": "bytes", "cache_dir": "/tmp"}, True),
        ({"cache": "decoded"}, False),
        ({"tf_data.cycle_length": 4, "image_dtype": "uint8"}, False),
        ({"augment_options.dct_scaling": True}, False),
        ({"tf_data.shuffle_buffer_size": 100}, False),
        ({"tf_data.deterministic": False}, False),
        ({"order": "throughput"}, False),
    ],
)
def test_what_leaves_the_batches_alone(changes: dict[str, object], mechanical: bool) -> None:
    assert is_mechanical(changes) is mechanical


def test_every_mechanical_option_is_one_and_has_a_default() -> None:
    assert {"tf_data.cycle_length", "service.share", "prefetch_batches"} < set(MECHANICAL)
    assert all(get_default(PipelineConfig, name) is not dataclasses.MISSING for name in MECHANICAL)
    defaults = {name: get_default(PipelineConfig, name) for name in MECHANICAL}
    assert replace_options(CONFIG, defaults) == CONFIG


def test_reset_to_defaults_change_only_what_is_mechanical() -> None:
    assert reset_to_defaults(CONFIG) == {}
    slow = TfDataOptions(cycle_length=1, num_parallel_calls=1, autotune=False)
    spoiled = dataclasses.replace(CONFIG, tf_data=slow, prefetch_batches=0, image_dtype="float32")
    spoiled = dataclasses.replace(spoiled, cpu_budget=0.5)  # a limit, which is kept
    assert reset_to_defaults(spoiled) == {
        "prefetch_batches": None,
        "tf_data.cycle_length": None,
        "tf_data.num_parallel_calls": None,
        "tf_data.autotune": None,
    }


def test_a_change_that_cannot_be_had_is_none() -> None:
    served = dataclasses.replace(CONFIG, service=ServiceOptions(workers=("a:1",)))
    assert apply_changes(served, {"order": "throughput"}) is None
    assert apply_changes(CONFIG, {"tf_data.cycle_length": 0}) is None
    assert apply_changes(CONFIG, {"tf_data.cycle_length": None}) is None
    assert apply_changes(CONFIG, {"tf_data.cycle_length": 9}) == dataclasses.replace(
        CONFIG, tf_data=TfDataOptions(cycle_length=9)
    )


def test_nobody_goes_back_from_decoded_images_to_bytes() -> None:
    assert apply_changes(dataclasses.replace(CONFIG, cache="decoded"), {"cache": "bytes"}) is None
    assert apply_changes(CONFIG, {"cache": "bytes"}) == dataclasses.replace(CONFIG, cache="bytes")
