"""Turns what docstrings and help texts say in Markdown into reStructuredText, which autodoc and sphinx-click read.

They have single backticks, which `default_role` understands, fenced blocks, stars that mean a star, and options as
plain text.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

CLICK_EVENTS = ("description", "options", "arguments", "epilog")

OPTION = re.compile(r"(?<![\w`'\"=(/-])(--[a-z][a-z-]*[a-z])(?![\w`])")


def convert(lines: list[str]) -> list[str]:
    """Returns the lines with fenced blocks as literal blocks, and with every star outside of code escaped."""
    converted: list[str] = []
    inside = False
    for line in lines:
        if line.strip().startswith("```"):
            inside = not inside
            indent = line[: len(line) - len(line.lstrip())]
            converted += [f"{indent}::", ""] if inside else [""]
        elif inside:
            converted.append(f"    {line}" if line else line)
        else:
            converted.append(escape(line))
    return converted


def escape(line: str) -> str:
    """Returns a line with options as code, and a backslash before each star and between code and a letter."""
    if not line.lstrip().startswith(".. "):  # a directive, as sphinx-click writes for each option
        line = OPTION.sub(r"``\1``", line)
    parts = re.split(r"(``.*?``|`[^`]*`)", line)
    parts[::2] = [re.sub(r"(?<!\\)\*", r"\\*", part) for part in parts[::2]]
    parts[2::2] = [rf"\ {part}" if part[:1].isalnum() else part for part in parts[2::2]]
    return "".join(parts)


def convert_docstring(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Converts a docstring in place; autodoc calls it before napoleon."""
    lines[:] = convert(lines)


def shorten_signature(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str, None] | None:
    """Leaves out the signature of a dataclass that has computed defaults: its attributes say more; autodoc calls it."""
    return ("", None) if what == "class" and "<factory>" in (signature or "") else None


def convert_help(app: Sphinx, ctx: Any, lines: list[str]) -> None:
    """Converts a part of a command's help in place; sphinx-click calls it."""
    lines[:] = convert(lines)


def setup(app: Sphinx) -> dict[str, bool]:
    """Connects the conversions; Sphinx calls it."""
    app.connect("autodoc-process-docstring", convert_docstring, priority=100)
    app.connect("autodoc-process-signature", shorten_signature)
    for event in CLICK_EVENTS:
        app.connect(f"sphinx-click-process-{event}", convert_help)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
