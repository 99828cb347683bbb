"""`PipelineConfig` refuses values that cannot be used, and options that exclude each other."""

import dataclasses
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from tests.refusals import refusal
from tfpipe.engine.config.augment_config import AugmentOptions
from tfpipe.engine.config.pipeline_config import PipelineConfig, ServiceOptions, TfDataOptions
from tfpipe.errors import ConfigError

SERVICE = ServiceOptions(workers=("a:1",))


def make_config(**options: Any) -> PipelineConfig:
    return PipelineConfig(**{"batch_size": 256, **options})


def get_refusal(**options: Any) -> str:
    return refusal(ConfigError, make_config, **options)


def test_defaults_are_valid_and_every_option_is_checked() -> None:
    assert hash(make_config()) == hash(PipelineConfig(batch_size=256))
    assert PipelineConfig(batch_size=32) != make_config()
    for field in dataclasses.fields(PipelineConfig):
        assert f"`{field.name}`" in get_refusal(**{"batch_size": 256, field.name: object()})


def test_needs_no_library() -> None:
    code = "import sys, tfpipe; tfpipe.PipelineConfig(batch_size=1).to_json(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"tensorflow", "numpy", "PIL", "tomli_w", "tomllib", "difflib"} & set(done.stdout.split())


def test_lists_become_tuples() -> None:
    config = make_config(image_size=[160, 192], decoded_size=[200, 220], extra_features=["depth"])
    assert (config.image_size, config.decoded_size, config.extra_features) == ((160, 192), (200, 220), ("depth",))
    options = AugmentOptions(scale=[0.25, 1], mean=[0, 0, 0], std=[1, 1, 1], crop_fraction=1)
    assert options == AugmentOptions(scale=(0.25, 1.0), mean=(0.0,) * 3, std=(1.0,) * 3, crop_fraction=1.0)
    assert hash(dataclasses.replace(config, augment_options=options))
    assert [type(value) for value in (*options.scale, options.crop_fraction)] == [float] * 3


def test_sizes() -> None:
    assert make_config().size == (224, 224)
    assert make_config(image_size=(160, 192)).size == (160, 192)
    assert make_config().resolve_decoded_size() == (256, 256)
    assert make_config(image_size=(160, 192)).resolve_decoded_size() == (183, 219)
    assert make_config().resolve_decoded_size(stored_square=240) == (240, 240)
    assert make_config(decoded_size=300).resolve_decoded_size(stored_square=240) == (300, 300)
    assert make_config(decoded_size=(300, 280)).resolve_decoded_size() == (300, 280)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"extra_features": "depth"}, "`extra_features` must be a list of names, none of them empty, got 'depth'."),
        (
            {"service": SERVICE, "max_bad_records": 100},
            "A `service` needs `max_bad_records` 0: each worker would count the records that it left out by itself.",
        ),
        (
            {"cache": "bytes", "service": SERVICE},
            "A `service` excludes a cache, got `cache` 'bytes': any worker may make any step, so each would keep all "
            "data. Leave one of them out.",
        ),
        (
            {"order": "throughput", "service": SERVICE},
            "A `service` gives batches in exact order, got `order` throughput. Leave it out.",
        ),
        (
            {"augment": "device", "image_dtype": "float32"},
            "`augment` device needs `image_dtype` uint8, got 'float32': the device normalizes.",
        ),
        ({"cache_dir": "/tmp/c"}, "`cache_dir` needs a cache. Set `cache` to bytes or decoded, or leave it out."),
        ({"cache_bytes": "8GiB"}, "`cache_bytes` needs a cache. Set `cache` to bytes or decoded, or leave it out."),
        (
            {"cache": "bytes", "cache_bytes": "8GiB", "cache_dir": "/tmp/c"},
            "`cache_bytes` limits a cache in memory, and `cache_dir` keeps it in files. Leave one out.",
        ),
        (
            {"cache": "decoded", "max_bad_records": 100},
            "`max_bad_records` excludes a cache of decoded images: every record must have its place in it. Use "
            "cache='bytes', or mend the data first.",
        ),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    assert get_refusal(**options) == message


def test_wrong_options_in_others() -> None:
    text = "a whole number or a size such as 128MiB or 2GB, got 1.5."
    assert refusal(ConfigError, TfDataOptions, ram_budget=1.5) == f"`ram_budget` must be at least 1, {text}"
    assert refusal(ConfigError, ServiceOptions, share=0.5) == "`share` of a service needs `workers`, got 0.5 without."


@pytest.mark.parametrize(
    "options",
    [
        {"order": "throughput", "tf_data": TfDataOptions(block_length=1)},
        {"augment": "device", "cache": "decoded", "cache_dir": "/tmp/c"},
        {"service": replace(SERVICE, share="auto"), "order": "exact"},
        {"prefetch_batches": 0, "max_bad_records": 0},
        {"tf_data": TfDataOptions(shuffle_buffer_size=1000, ram_budget="8 GiB")},
    ],
    ids=str,
)
def test_what_goes_together(options: dict[str, Any]) -> None:
    make_config(**options)


def test_the_workers_of_a_service_are_a_tuple() -> None:
    listed = ServiceOptions(workers=["a:1", "[fe80::1%eth0]:1"])
    assert listed.workers == ("a:1", "[fe80::1%eth0]:1")
    assert PipelineConfig(batch_size=1).service.workers == ()


def test_there_are_at_most_25_options() -> None:
    assert len(dataclasses.fields(PipelineConfig)) <= 25


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": "all"}, "`scale` must be a list of finite numbers, got 'all'."),
        ({"ratio": (1.0, float("inf"))}, "`ratio` must be a list of finite numbers, got (1.0, inf)."),
        ({"scale": (0.1, 0.2, 0.3)}, "`scale` must be two rising shares in (0, 1], got (0.1, 0.2, 0.3)."),
        ({"crop_fraction": "most"}, "`crop_fraction` must be in (0, 1], got 'most'."),
        ({"ratio": (2, 1)}, "`ratio` must be two rising numbers above 0, got (2.0, 1.0)."),
        ({"std": (1, 0, 1)}, "`std` must be numbers above 0, one for each channel, got (1.0, 0.0, 1.0)."),
        ({"mean": (0,)}, "`mean` and `std` must have one number for each channel, got (0.0,), (0.229, 0.224, 0.225)."),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], message: str) -> None:
    assert refusal(ConfigError, AugmentOptions, **options) == message
