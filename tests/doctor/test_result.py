"""The values that the doctor's checks are made of."""

import pytest

from tfpipe.doctor.result import Check, TargetConfig, fail_check
from tfpipe.errors import ConfigError


def test_a_check_as_json() -> None:
    assert Check("xla", "ok", "It compiled.").to_json() == {
        "name": "xla",
        "status": "ok",
        "found": "It compiled.",
        "advice": "",
    }


@pytest.mark.parametrize(
    ("tpu", "elsewhere"),
    [
        (None, False),
        ("local", False),
        ("grpc://localhost:8470", False),
        ("127.0.0.1", False),
        ("[::1]:8470", False),
        ("my-tpu", True),
        ("localhost-of-mine", True),
        ("grpc://10.0.0.2:8470", True),
    ],
)
def test_a_tpu_with_a_name_is_elsewhere(tpu: str | None, elsewhere: bool) -> None:
    assert TargetConfig(tpu=tpu).tpu_elsewhere == elsewhere
    assert TargetConfig(tpu=tpu).elsewhere == elsewhere


def test_a_number_of_replicas_plans_for_another_machine() -> None:
    assert TargetConfig(num_replicas=8).elsewhere
    assert not TargetConfig(num_replicas=8).tpu_elsewhere


@pytest.mark.parametrize(
    ("name", "value", "limit"),
    [("num_replicas", 0, "at least 1"), ("num_hosts", -1, "at least 1"), ("images_per_second", 0.0, "above 0")],
)
def test_numbers_are_above_0(name: str, value: float, limit: str) -> None:
    with pytest.raises(ConfigError, match=f"`{name}` must be {limit}, got {value}."):
        TargetConfig(**{name: value})


def test_an_error_is_what_was_found_and_what_to_do() -> None:
    error = ConfigError("`num_hosts` must be 8, got 2.5 (v1.2). Use num_hosts=8. Or not.")
    assert fail_check("batch", error) == Check(
        "batch", "failure", "`num_hosts` must be 8, got 2.5 (v1.2).", "Use num_hosts=8. Or not."
    )
    assert fail_check("batch", ConfigError("Bad.")) == Check("batch", "failure", "Bad.")
