"""Writes JSON, and reads untrusted JSON: an error names the path of a wrong value, `splits.train.shards[3].records`."""

import json
import math
import re
import reprlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, Union, get_args, get_origin, get_type_hints

from tfpipe.errors import FormatError
from tfpipe.system.budget import DOCUMENT, OverBudget

MAX_COUNT = 2**63 - 1
MAX_ITEMS = DOCUMENT.items
"""The most lists, objects and commas in one document."""

MAX_TEXT = 10_000
"""The most characters of one string or key."""

_MAX_PATH = 200  # the most characters of a path that a message shows
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]{1,80}")


class Rule(NamedTuple):
    """A rule for the values of a field, written in the field's type: `Annotated[int, whole(1, 9)]`."""

    must: str  # what a value must be, for a message
    holds: Callable[[Any], bool]


def whole(low: int, high: int = MAX_COUNT) -> Rule:
    """Returns the rule for a whole number within bounds. `true` does not count as a number."""
    above = f" and at most {high}" if high < MAX_COUNT or low < 0 else ""
    return Rule(f"a whole number of at least {low}{above}", lambda value: type(value) is int and low <= value <= high)


def matching(pattern: str, must: str) -> Rule:
    """Returns the rule for text that matches a pattern."""
    compiled = re.compile(pattern)
    return Rule(must, lambda value: isinstance(value, str) and compiled.fullmatch(value) is not None)


def at_most(length: int, what: str) -> Rule:
    """Returns the rule for a list of at most `length` values."""
    return Rule(f"a list of at most {length} {what}", lambda values: len(values) <= length)


def is_number(value: object) -> bool:
    """Returns whether a value is a finite number."""
    return (type(value) is int and abs(value) <= MAX_COUNT) or (type(value) is float and math.isfinite(value))


_RULES: dict[Any, tuple[Rule, ...]] = {
    str: (
        Rule("text", lambda value: isinstance(value, str)),
        Rule(f"text of at most {MAX_TEXT:,} characters", lambda value: len(value) <= MAX_TEXT),
    ),
    int: (whole(0),),
    float: (Rule("a number of at least 0", lambda value: is_number(value) and value >= 0),),
    bool: (Rule("true or false", lambda value: isinstance(value, bool)),),
    object: (
        Rule(
            "text, a number, true, false or null",
            lambda value: value is None or isinstance(value, str | bool) or is_number(value),
        ),
    ),
    Any: (),
}
"""The default rules of types: an `int` is a count, and an `object` a single value."""


def to_json(value: Any) -> Any:
    """Converts a value to JSON values, which `read` converts back. Leaves out optional fields with their defaults."""
    if is_dataclass(value):
        found = {}
        for field in fields(value):
            one = getattr(value, field.name)
            is_default = field.name in getattr(value, "optional", ()) and (not one or one == field.default)
            if field.compare and not is_default:
                found[field.name] = to_json(one)
        return found
    if isinstance(value, Mapping):
        return {str(key): to_json(one) for key, one in sorted(value.items())}
    if hasattr(value, "_asdict"):
        return value._asdict()
    return list(map(to_json, value)) if isinstance(value, list | tuple) else value


def read(value: Any, kind: Any, where: str = "", path: str = "") -> Any:
    """Converts a JSON value to a type: a dataclass, a list, an object, or a single value that keeps the type's rules.

    Unknown fields are ignored, and so are a dataclass's fields with `compare=False`: they are not part of a document.
    Only the fields listed in the class's `optional` may be missing. Raises `FormatError` with the path of the invalid
    value in the document `where`.
    """
    origin, args = get_origin(kind), get_args(kind)
    if kind in _RULES:
        return _follow(_RULES[kind], value, where, path)
    if origin is Annotated:
        return _follow(args[1:], value if args[0] in _RULES else read(value, args[0], where, path), where, path)
    if origin in (Union, UnionType):
        return None if value is None else read(value, args[0], where, path)
    if origin is Literal:
        if not any(value == word for word in args):
            raise wrong(where, path, f"one of {', '.join(map(repr if '' in args else str, args))}", value)
        return value
    if origin is Counter:
        return Counter({args[0](key): count for key, count in read(value, dict[str, int], where, path).items()})
    if origin in (list, tuple):
        if not isinstance(value, list):
            raise wrong(where, path, "a list", value)
        if hasattr(args[0], "_fields") and (rows := _read_rows(value, args[0])) is not None:
            return origin(rows)
        return origin([read(one, args[0], where, f"{path}[{i}]") for i, one in enumerate(value)])
    if not isinstance(value, dict):
        raise wrong(where, path, "an object", value)
    if any(len(key) > MAX_TEXT for key in value):
        raise wrong(where, path, f"an object whose keys have at most {MAX_TEXT:,} characters", value)
    if origin in (dict, Mapping):
        return {key: read(one, args[1], where, join(path, key)) for key, one in value.items()}
    types, required = _list_fields(kind)
    if missing := [name for name in required if name not in value]:
        raise FormatError(f"{where and f'{where}: '}{_shorten(join(path, missing[0]))} is missing.")
    found = {name: read(value[name], below, where, join(path, name)) for name, below in types.items() if name in value}
    try:
        return kind(**found)
    except ValueError as error:  # raised by the type's own checks
        raise refuse(where, path, error) from None


def _read_rows(values: list[Any], kind: Any) -> list[Any] | None:
    """Reads objects as named tuples, column by column, as there may be 100,000; None if one may be invalid."""
    types, _ = _list_fields(kind)
    try:
        columns = [[value[name] for value in values] for name in types]
    except (LookupError, TypeError):
        return None
    rules = [_RULES.get(below) or get_args(below)[1:] for below in types.values()]
    right = (all(map(rule.holds, column)) for column, every in zip(columns, rules, strict=True) for rule in every)
    return list(map(kind, *columns)) if all(right) else None


def _follow(rules: tuple[Rule, ...], value: Any, where: str, path: str) -> Any:
    for rule in rules:
        if not rule.holds(value):
            raise wrong(where, path, rule.must, value)
    return value


@cache
def _list_fields(kind: Any) -> tuple[dict[str, Any], list[str]]:
    """Returns the type of each field that a document can have, and the names of the required fields."""
    beside = {name for name, field in getattr(kind, "__dataclass_fields__", {}).items() if not field.compare}
    types = {name: below for name, below in get_type_hints(kind, include_extras=True).items() if name not in beside}
    return types, [name for name in types if name not in getattr(kind, "optional", ())]


def parse_json(text: str, where: str) -> Any:
    """Parses one JSON document.

    Refused are `NaN` and `Infinity`, a key twice in one object (readers would differ on which value counts), numbers
    with thousands of digits, deep nesting, and more than a million lists, objects and commas.
    """
    try:
        DOCUMENT.check_json(text)
    except OverBudget:
        raise FormatError(f"{where} must have at most {MAX_ITEMS:,} lists, objects and commas.") from None

    def refuse_constant(constant: str) -> NoReturn:
        raise FormatError(f"{where}: {constant} is not a number that JSON allows.")

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
            raise FormatError(f"{where} must name a key once in an object, got {_show(twice)} twice.")
        return found

    try:
        return json.loads(text, parse_constant=refuse_constant, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise FormatError(f"{where} is not JSON: {error}.") from None
    except RecursionError:
        raise FormatError(f"{where} is nested too deeply.") from None
    except FormatError:
        raise
    except ValueError:  # Python's own limit on the digits of one number
        raise FormatError(f"{where} holds a number with too many digits.") from None


def wrong(where: str, path: str, must: str, got: object) -> FormatError:
    """Returns an error whose sentence is "<path> must be <must>, got <value>."."""
    return FormatError(f"{where and f'{where}: '}{_shorten(path) or 'the document'} must be {must}, got {_show(got)}.")


def refuse(where: str, path: str, reason: object) -> FormatError:
    """Returns an error for a value that another check refused. `reason` is a whole sentence."""
    return FormatError(f"{where and f'{where}: '}{_shorten(path)}: {reason}")


def join(path: str, key: str) -> str:
    """Appends a key to a path, as in `splits.train`."""
    name = key if _PLAIN_KEY.fullmatch(key) else f"[{_show(key)}]"
    return f"{path}.{name}" if path else name


def _shorten(path: str) -> str:
    """Cuts the middle out of a long path."""
    return path if len(path) <= _MAX_PATH else f"{path[: _MAX_PATH // 2]}…{path[-_MAX_PATH // 2 :]}"


def _show(value: object) -> str:
    try:
        return reprlib.repr(value)
    except ValueError:  # the number has thousands of digits
        return f"a {type(value).__name__} too long to show"
