"""The pages of the site and the README: their blocks of code, which run, their links, and the anchors of headings."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from tests.conftest import ROOT

DOCS = ROOT / "docs"
PAGES = (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))

SHELL = {"sh", "bash", "shell", "console"}
PYTHON = {"python", "py"}
NOTEBOOK = "{code-cell}"

_NOT_RUN = re.compile(r"^(?:%|<!--) not run: (\S.*?)(?: ?-->)?$")
_CELL_OPTIONS = re.compile(r"\A(---\n.*?\n---\n|(:\w+:[^\n]*\n)+\n?)", re.DOTALL)
_MARKDOWN = MarkdownIt("commonmark").enable("table")


@dataclass(frozen=True)
class Block:
    """A block of code on a page."""

    page: Path
    line: int
    language: str
    code: str
    reason: str | None

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def kind(self) -> str:
        return "shell" if self.language in SHELL else "cell" if self.language == NOTEBOOK else "python"


def copy_samples(target: Path) -> None:
    """Copies those sample images that pages count on: one or more of every kind, without the many small ones."""
    shutil.copytree(ROOT / "sample_data", target, ignore=shutil.ignore_patterns("*-[1-5][0-9].jpg"))


def find_blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    lines = text.splitlines()
    for token in parse(text):
        language = (token.info.split() or [""])[0] if token.type == "fence" else ""
        if language not in SHELL | PYTHON | {NOTEBOOK}:
            continue
        assert token.map is not None
        first = token.map[0]
        above = [line for line in lines[max(first - 2, 0) : first] if line.strip()]
        match = _NOT_RUN.match(above[-1]) if above else None
        code = _CELL_OPTIONS.sub("", token.content) if language == NOTEBOOK else token.content
        yield Block(page, first + 1, language, code, match[1] if match else None)


def find_output(block: Block) -> str:
    """Returns the block of text after a block of code; empty if there is none."""
    fences = [token for token in parse(block.page.read_text(encoding="utf-8")) if token.type == "fence"]
    places = [token.map[0] + 1 for token in fences if token.map is not None]
    following = fences[places.index(block.line) + 1 :][:1]
    return following[0].content if following and following[0].info == "text" else ""


@cache
def parse(text: str) -> list[Token]:
    """Returns the tokens of a page, without the header of a notebook, whose lines stay counted."""
    header = re.match(r"---\n.*?\n---\n", text, re.DOTALL)
    return _MARKDOWN.parse("\n" * header[0].count("\n") + text[header.end() :] if header else text)


def find_links(page: Path) -> Iterator[str]:
    for token in parse(page.read_text(encoding="utf-8")):
        for child in token.children or ():
            if target := child.attrGet("href") or child.attrGet("src"):
                yield str(target)


def find_anchors(page: Path) -> set[str]:
    """Returns the names of a page's headings, as GitHub and MyST make them, and those that the page gives itself.

    What a page includes counts.
    """
    text = page.read_text(encoding="utf-8")
    tokens = parse(text)
    headings = [tokens[i + 1].content for i, token in enumerate(tokens) if token.type == "heading_open"]
    slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
    own = set(re.findall(r"^\(([\w-]+)\)=$", text, re.MULTILINE))
    included = [page.parent / name for name in re.findall(r"^```\{include\} (\S+)$", text, re.MULTILINE)]
    return slugs.union(own, *map(find_anchors, included))


def run_blocks(blocks: Iterable[Block], folder: Path, python: str, environment: dict[str, str]) -> str:
    """Runs blocks one after another in a folder, by any Python, and returns what they print.

    The command `tfpipe` is that of the tests, so it needs nothing from the other Python.
    """
    tasks = [{"place": block.place, "kind": block.kind, "code": block.code} for block in blocks]
    (folder / "blocks.json").write_text(json.dumps(tasks))
    scripts = folder / ".bin"
    scripts.mkdir()
    path = f"{shlex.quote(str(ROOT))}${{PYTHONPATH:+:$PYTHONPATH}}"
    command = f"PYTHONPATH={path} exec {shlex.quote(sys.executable)} -m tfpipe"
    (scripts / "tfpipe").write_text(f'#!/bin/sh\n{command} "$@"\n')
    (scripts / "tfpipe").chmod(0o755)
    path = os.pathsep.join([str(scripts), str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        [python, str(Path(__file__).with_name("run_blocks.py")), "blocks.json"],
        cwd=folder,
        env={**environment, "PATH": path, "HF_HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return done.stdout
