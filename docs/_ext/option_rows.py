"""The options of a config class as a Markdown table, from its fields and its docstring."""

import dataclasses
import re
from inspect import getdoc
from typing import Any

from tfpipe.system.options import get_options, read_words


def write_markdown(config: type[Any]) -> list[str]:
    """Returns the lines of the paragraphs and of the table."""
    summary, entries = (getdoc(config) or "").partition("\nAttributes:\n")[0].strip(), read_words(config)
    options = get_options(config)
    rows = [["option", "default", "meaning"], ["---"] * 3]
    for field in dataclasses.fields(config):
        if field.name not in entries:
            continue  # not an option: the class fills it
        meaning, _, default = entries[field.name].rpartition("Default: ")
        if not meaning:
            meaning, default = entries[field.name].removesuffix("Required."), ""
        default = f"`{default.removesuffix('.')}`" if default else "required"
        option = options.get(field.name)
        affects = f" *Affects: {option.affects}.*" if option and option.affects else ""
        rows.append([f"`{field.name}`", default, escape(meaning.strip()) + affects])
    return [*escape(summary).splitlines(), "", *(f"| {' | '.join(row)} |" for row in rows), ""]


def escape(text: str) -> str:
    """Escapes what Markdown would read as markup, outside of code."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"([*_<>|\[\]])", r"\\\1", part) for part in parts[::2]]
    return "`".join(part.replace("|", r"\|") if i % 2 else part for i, part in enumerate(parts))
