"""Options as a TOML or JSON file, and back. An error says what is wrong in a file, and where."""

import json
import os
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar

from tfpipe.errors import ConfigError
from tfpipe.storage import file_io
from tfpipe.system.arguments import check_path

Options = TypeVar("Options")
Table = Mapping[str, Any]
FilePath = str | os.PathLike[str]

NOTES = "tuned"
"""The table in which `tfpipe profile --apply` notes the host and the data of its trials. It is not an option."""


def read(path: FilePath) -> dict[str, Any]:
    """Reads the options in a .toml or .json file."""
    return read_with_notes(path)[0]


def read_with_notes(path: FilePath) -> tuple[dict[str, Any], dict[str, Any]]:
    """Reads the options in a .toml or .json file and its table `tuned`, which is empty if the file has none."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    suffix = check_suffix(path)
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:
        raise ConfigError(f"There is no configuration file {path}. Check its name.") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}. Give a file with options.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} must be text in UTF-8, got byte {error.object[error.start]:#04x}.") from None

    def refuse_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        counts = Counter(name for name, _ in pairs)
        if len(counts) < len(pairs):
            raise ConfigError(f"{path}: `{counts.most_common(1)[0][0]}` must be given once. Remove one of them.")
        return dict(pairs)

    try:
        if suffix == ".toml":
            table = tomllib.loads(text)
        else:
            table = json.loads(text, object_pairs_hook=refuse_repetition)
    except ConfigError:
        raise
    except (ValueError, RecursionError) as error:  # the parser's error, or a number with thousands of digits
        raise ConfigError(f"{path} is not {suffix[1:].upper()}: {error}.") from None
    if not isinstance(table, dict):
        raise ConfigError(f"{path} must be a JSON object with options in it, got {table!r}.")
    notes = table.pop(NOTES, {})
    if not isinstance(notes, dict):
        raise ConfigError(f"{path}: `{NOTES}` must be a table: `tfpipe profile --apply` keeps notes there. Rename it.")
    return table, notes


def build(kind: type[Options], table: Table, where: str) -> Options:
    """Builds a dataclass from a table of the file `where`.

    A table inside it becomes a dataclass too, of the class that is the field's `default_factory`.
    """
    refuse_unknown(table, kind, where)
    for field in fields(kind):  # type: ignore[arg-type]
        if field.name not in table and field.default is MISSING and field.default_factory is MISSING:
            raise ConfigError(f"{where}: `{field.name}` is missing, and it has no default. Give it.")
    classes: dict[str, Any] = {field.name: field.default_factory for field in fields(kind)}  # type: ignore[arg-type]
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
    """Returns TOML text: plain values first, then tables."""
    import tomli_w  # slow to load, and needed for writing only

    return tomli_w.dumps(table)


def to_json(table: Table) -> str:
    """Returns JSON text."""
    return json.dumps(table, indent=2, allow_nan=False) + "\n"


def write(path: FilePath, table: Table) -> None:
    """Writes a .toml or .json file in one step: readers see the old or the new file, never a part."""
    text = to_toml(table) if check_suffix(path) == ".toml" else to_json(table)
    try:
        file_io.write_file(os.fspath(path), text.encode())
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}. Choose another place.") from None


def check_suffix(path: FilePath) -> str:
    """Returns the suffix of a configuration file, which names its format."""
    check_path("path", path)
    suffix = os.path.splitext(path)[1]
    if suffix not in (".toml", ".json"):
        raise ConfigError(f"A configuration file's name must end in .toml or .json, got {str(path)!r}.")
    return suffix


def refuse_unknown(table: Table, kind: type[Any], where: str) -> None:
    """Checks that each name of a table is an option of a config; `where` begins the sentence if one is not."""
    options = [field.name for field in fields(kind)]
    unknown = [name for name in table if name not in options]
    if not unknown:
        return
    from difflib import get_close_matches

    sentences = []
    for name in unknown:
        close = get_close_matches(name, options, n=1)
        advice = f"did you mean `{close[0]}`?" if close else f"see the fields of {kind.__name__}."
        sentences.append(f"`{name}` is not an option; {advice}")
    raise ConfigError(f"{where}: {' '.join(sentences)}")
