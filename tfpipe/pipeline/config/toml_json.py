"""Options as a TOML or JSON file, and back; every mistake in a file is named with its place.

Nothing here knows which options there are: it takes any dataclass whose fields are plain values, lists or another
such dataclass.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from tfpipe.errors import ConfigError
from tfpipe.system import file_io

Options = TypeVar("Options")
Table = Mapping[str, Any]
FilePath = str | os.PathLike[str]

NOTES = "tuned"
"""What a tuner notes about the host and the data it tried the options on; not an option."""


def read(path: FilePath) -> dict[str, Any]:
    """The options in a .toml or .json file; errors as `read_with_notes`."""
    return read_with_notes(path)[0]


def read_with_notes(path: FilePath) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options in a .toml or .json file, and its table `tuned`, empty if there is none.

    Raises:
        ConfigError: The file is missing, not to be read, or not in the format that its name says.
    """
    file = _named(path)
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"There is no configuration file {path}. Check its name.") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}. Give a file with options.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} must be text in UTF-8, got byte {error.object[error.start]:#04x}.") from None
    table = _parse_toml(text, path) if file.suffix == ".toml" else _parse_json(text, path)
    notes = table.pop(NOTES, {})
    if not isinstance(notes, dict):
        raise ConfigError(f"{path}: `{NOTES}` must be a table: it is kept for a tuner's notes. Rename it.")
    return table, notes


def build(kind: type[Options], table: Table, where: str) -> Options:
    """A dataclass from a table; a table in it stands for a dataclass too.

    Args:
        kind: The dataclass. A field that is one itself must have its class as `default_factory`.
        table: Values by name of the field.
        where: The file's name, for messages.

    Raises:
        ConfigError: A name that is no field, with the one probably meant; a value that the dataclass refuses.
    """
    _refuse_unknown(table, kind, where)
    classes: dict[str, Any] = {one.name: one.default_factory for one in fields(kind)}  # type: ignore[arg-type]
    values = dict(table)
    for name, value in table.items():
        if not is_dataclass(classes[name]) or type(value) is classes[name]:
            continue
        if not isinstance(value, dict):
            raise ConfigError(f"{where}: `{name}` must be a table of options, got {value!r}.")
        values[name] = build(classes[name], value, f"{where}: {name}")
    try:
        return kind(**values)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def to_toml(table: Table) -> str:
    """TOML text; plain values first, then tables."""
    import tomli_w  # only who writes one needs it

    return tomli_w.dumps(table)


def to_json(table: Table) -> str:
    """JSON text."""
    return json.dumps(table, indent=2, allow_nan=False) + "\n"


def write(path: FilePath, table: Table) -> None:
    """Writes a .toml or .json file; who opens it at any moment finds the old or the new one, never a part.

    Raises:
        ConfigError: The name ends otherwise, or the file cannot be written.
    """
    file = _named(path)
    text = to_toml(table) if file.suffix == ".toml" else to_json(table)
    try:
        file_io.write_file(str(file), text.encode())
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}. Choose another place.") from None


def _named(path: FilePath) -> Path:
    file = Path(path)
    if file.suffix not in (".toml", ".json"):
        raise ConfigError(f"A configuration file's name must end in .toml or .json, got {str(path)!r}.")
    return file


def _parse_toml(text: str, path: FilePath) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        table: dict[str, Any] = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # its own error, or a number of thousands of digits
        raise ConfigError(f"{path} is not TOML: {error}.") from None
    return table


def _parse_json(text: str, path: FilePath) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigError(f"{path}: `{twice}` must be given once. Remove one of them.")
        return table

    try:
        table = json.loads(text, object_pairs_hook=once)
    except ConfigError:
        raise
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {error}.") from None
    if not isinstance(table, dict):
        raise ConfigError(f"{path} must be a JSON object with options in it, got {table!r}.")
    return table


def _refuse_unknown(table: Table, kind: type[Any], where: str) -> None:
    known = [one.name for one in fields(kind)]
    unknown = [name for name in table if name not in known]
    if not unknown:
        return
    from difflib import get_close_matches

    sentences = []
    for name in unknown:
        close = get_close_matches(name, known, n=1)
        advice = f"did you mean `{close[0]}`?" if close else f"see the fields of {kind.__name__}."
        sentences.append(f"`{name}` is no option; {advice}")
    raise ConfigError(f"{where}: {' '.join(sentences)}")
