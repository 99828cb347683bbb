"""The number format that fits the devices."""

from collections.abc import Iterator

import pytest

from tfpipe.errors import ConfigError

tf = pytest.importorskip("tensorflow")

from tfpipe import distribution  # noqa: E402


@pytest.fixture
def policy() -> Iterator[object]:
    yield lambda: tf.keras.mixed_precision.global_policy().name
    tf.keras.mixed_precision.set_global_policy("float32")


@pytest.mark.parametrize(
    ("devices", "capability", "precision", "name"),
    [
        ({"CPU": 1}, None, "auto", "float32"),
        ({"CPU": 1}, None, "bfloat16", "mixed_bfloat16"),
        ({"CPU": 1, "GPU": 1}, (7, 5), "auto", "float32"),
        ({"CPU": 1, "GPU": 1}, None, "auto", "float32"),
        ({"CPU": 1, "GPU": 2}, (8, 0), "auto", "mixed_bfloat16"),
        ({"CPU": 1, "GPU": 2}, (9, 0), "float32", "float32"),
        ({"CPU": 1, "TPU": 8}, None, "auto", "mixed_bfloat16"),
    ],
)
@pytest.mark.parametrize("given", [True, False])
def test_precision_fits_the_device(machine, policy, devices, capability, precision, name, given):
    machine.devices, machine.capability = devices, capability
    assert distribution.set_precision(precision, distribution.resolve_strategy() if given else None) == name
    assert policy() == name


def test_an_unknown_precision() -> None:
    with pytest.raises(ConfigError, match=r"^`precision` must be auto, float32 or bfloat16, got 'float16'\.$"):
        distribution.set_precision("float16")
