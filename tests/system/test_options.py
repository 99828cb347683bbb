"""An option knows its values: each kind refuses the others and says so, and `check_options` goes through the fields."""

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


def refused(kind: Kind, value: object) -> str:
    return refusal(ConfigError, kind.check, "x", value)


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (Flag(), 1, "`x` must be true or false, got 1."),
        (Count(1), True, "`x` must be a whole number, got True."),
        (Count(1), 1.0, "`x` must be a whole number, got 1.0."),
        (Count(1), 0, "`x` must be at least 1, got 0."),
        (Count(0), -1, "`x` must be at least 0, got -1."),
        (Count(0, zero="all cores"), -1, "`x` must be at least 1, or 0 for all cores, got -1."),
        (Count(1, 100), 101, "`x` must be from 1 to 100, got 101."),
        (Count(1, 100), 0, "`x` must be from 1 to 100, got 0."),
        (Seed(), 2**64, f"`x` must be a whole number that fits into 64 bits, got {2**64}."),
        (Seed(signed=True), 2**63, f"`x` must be a whole number that fits into 64 bits, got {2**63}."),
        (Number(above=0), 0, "`x` must be above 0, got 0."),
        (Number(above=0), float("inf"), "`x` must be above 0, got inf."),
        (Number(at_least=0), float("nan"), "`x` must be at least 0, got nan."),
        (Number(at_least=0), "1", "`x` must be at least 0, got '1'."),
        (Number(at_least=0, below=1), 1.0, "`x` must be at least 0 and below 1, got 1.0."),
        (Number(below=1, word="auto"), "many", "`x` must be below 1, or \"auto\", got 'many'."),
        (Share(), 0, "`x` must be in (0, 1], got 0."),
        (Share(), 1.01, "`x` must be in (0, 1], got 1.01."),
        (Choice(("a", "b", "c")), "d", "`x` must be a, b or c, got 'd'."),
        (Size(100), 101, "`x` must be a side from 1 to 100 pixels, or (height, width), got 101."),
        (Size(100), (1, 0), "`x` must be a side from 1 to 100 pixels, or (height, width), got (1, 0)."),
        (Amount(), 0, "`x` must be at least 1, a whole number or a size such as 128MiB or 2GB, got 0."),
        (Amount(), "big", "`x` must be at least 1, a whole number or a size such as 128MiB or 2GB, got 'big'."),
        (Text(), "", "`x` must be text in Unicode and not empty, got ''."),
        (Names(), ["a"], "`x` must be a list of names, none of them empty, got ['a']."),
        (Names(), ("a", "a"), "`x` must name each only once, got ('a', 'a')."),
        (Addresses(), "host", "`x` must be a list of addresses like host:5050, got 'host'."),
        (Addresses(), ("a:1", "b:0"), "`x` must be a list of addresses like host:5050, got ('a:1', 'b:0')."),
        (Addresses(), ("::1:5",), "`x` must be a list of addresses like host:5050, got ('::1:5',)."),
        (Nested(Inner), {}, "`x` must be Inner, got {}."),
    ],
    ids=repr,
)
def test_a_wrong_value_is_refused(kind: Kind, value: object, message: str) -> None:
    assert refused(kind, value) == message


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (Flag(), [True, False]),
        (Count(1), [1, 2**70]),
        (Count(1, 100), [1, 100]),
        (Count(0, zero="all cores"), [0, 1]),
        (Seed(), [-(2**63), 2**64 - 1]),
        (Seed(signed=True), [-(2**63), 2**63 - 1]),
        (Number(above=0), [1e-9, 3]),
        (Number(at_least=0, below=1), [0, 0.999]),
        (Number(below=1, word="auto"), [0.5, "auto"]),
        (Share(), [1e-9, 1]),
        (Choice(("a", "b")), ["a", "b"]),
        (Size(100), [1, 100, (100, 1)]),
        (Amount(), [1, "1", "8 GiB"]),
        (Names(), [(), ("a", "b")]),
        (Addresses(), [(), ("a:1", "[::1]:65535")]),
        (Nested(Inner), [Inner()]),
    ],
    ids=repr,
)
def test_the_limits_are_allowed(kind: Kind, values: list[Any]) -> None:
    for value in values:
        kind.check("x", value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": ""}, "`name` must be text in Unicode and not empty, got ''."),
        ({"cycle_length": None}, "`cycle_length` must be a whole number, got None."),
        ({"budget": 0}, "`budget` must be at least 1, got 0."),
        ({"inner": None}, "`inner` must be Inner, got None."),
    ],
    ids=repr,
)
def test_each_option_is_checked_and_none_only_where_it_is_the_default(options: dict[str, Any], message: str) -> None:
    check_options(Config("a"))
    assert refusal(ConfigError, check_options, Config(**{"name": "a", **options})) == message


def test_options_are_found_by_what_they_affect() -> None:
    assert list(get_options(Config)) == ["name", "cycle_length", "order", "budget", "inner"]
    assert get_names(Config, "speed") == ("cycle_length", "budget")
    assert get_names(Config, "order", "images") == ("order",)
    assert get_options(Config("a"))["order"].without_tensorflow == ("exact",)
