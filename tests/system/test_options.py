"""An option knows its values: each kind refuses the others and says so, and `check_options` goes through the fields."""

import math
from dataclasses import dataclass
from typing import Any

import pytest

from tests.refusals import refusal
from tfpipe.errors import ConfigError
from tfpipe.system.options import (
    Addresses,
    Amount,
    Choice,
    Count,
    Flag,
    Kind,
    Names,
    Nested,
    Number,
    Seed,
    Share,
    Size,
    Text,
    check_options,
    get_names,
    get_options,
    option,
)


@dataclass(frozen=True)
class Inner:
    flip: bool = option(Flag(), True)


@dataclass(frozen=True)
class Config:
    name: str = option(Text())
    cycle_length: int = option(Count(1), 8, affects="speed")
    order: str = option(Choice(("exact", "throughput")), "exact", affects="order", without_tensorflow=("exact",))
    budget: int | None = option(Count(1), None, affects="speed")
    inner: Inner = option(Nested(Inner), default_factory=Inner)
    note: object = None


WHOLE, SIDE = "a whole number", "a side from 1 to 100 pixels, or (height, width)"
ADDRESSES, AMOUNT = "a list of addresses like host:5050", "at least 1, a whole number or a size such as 128MiB or 2GB"


@pytest.mark.parametrize(
    ("kind", "allowed", "refused"),
    [
        (Flag(), [True, False], {1: "be true or false"}),
        (Count(1), [1, 2**70], {True: f"be {WHOLE}", 0: "be at least 1"}),
        (Count(0), [0], {-1: "be at least 0", 1.0: f"be {WHOLE}"}),
        (Count(0, zero="all cores"), [0, 1], {-1: "be at least 1, or 0 for all cores"}),
        (Count(1, 100), [1, 100], {101: "be from 1 to 100", 0: "be from 1 to 100"}),
        (Seed(), [-(2**63), 2**64 - 1], {2**64: f"be {WHOLE} that fits into 64 bits"}),
        (Seed(signed=True), [-(2**63), 2**63 - 1], {2**63: f"be {WHOLE} that fits into 64 bits"}),
        (Number(above=0), [1e-9, 3], {0: "be above 0", math.inf: "be above 0"}),
        (Number(at_least=0), [0], {math.nan: "be at least 0", "1": "be at least 0"}),
        (Number(at_least=0, below=1), [0, 0.999], {1.0: "be at least 0 and below 1"}),
        (Number(below=1, word="auto"), [0.5, "auto"], {"many": 'be below 1, or "auto"'}),
        (Share(), [1e-9, 1], {0: "be in (0, 1]", 1.01: "be in (0, 1]"}),
        (Choice(("a", "b", "c")), ["a", "b", "c"], {"d": "be a, b or c"}),
        (Size(100), [1, 100, (100, 1)], {101: f"be {SIDE}", (1, 0): f"be {SIDE}"}),
        (Amount(), [1, "1", "8 GiB"], {0: f"be {AMOUNT}", "big": f"be {AMOUNT}"}),
        (Text(), ["a"], {"": "be text in Unicode and not empty"}),
        (Names(), [(), ("a", "b")], {"a": "be a list of names, none of them empty", ("a", "a"): "name each only once"}),
        (
            *(Addresses(), [(), ("a:1", "[::1]:65535")]),
            dict.fromkeys(("host", ("a:1", "b:0"), ("::1:5",)), f"be {ADDRESSES}"),
        ),
        (Nested(Inner), [Inner()], {(): "be Inner"}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_kind_allows_its_values_and_refuses_others(kind: Kind, allowed: list[Any], refused: dict[Any, str]) -> None:
    for value in allowed:
        kind.check("x", value)
    for value, must in refused.items():
        assert refusal(ConfigError, kind.check, "x", value) == f"`x` must {must}, got {value!r}."


def test_each_option_is_checked_and_none_only_where_it_is_the_default() -> None:
    check_options(Config("a"))
    faults: tuple[tuple[dict[str, Any], str], ...] = (
        ({"name": ""}, "`name` must be text in Unicode and not empty, got ''."),
        ({"cycle_length": None}, "`cycle_length` must be a whole number, got None."),
        ({"budget": 0}, "`budget` must be at least 1, got 0."),
        ({"inner": None}, "`inner` must be Inner, got None."),
    )
    for options, message in faults:
        assert refusal(ConfigError, check_options, Config(**{"name": "a", **options})) == message


def test_options_are_found_by_what_they_affect() -> None:
    assert list(get_options(Config)) == ["name", "cycle_length", "order", "budget", "inner"]
    assert get_names(Config, "speed") == ("cycle_length", "budget")
    assert get_names(Config, "order", "images") == ("order",)
    assert get_options(Config("a"))["order"].without_tensorflow == ("exact",)
