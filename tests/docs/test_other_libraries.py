"""The blocks of pages that need Grain or Hugging Face's `datasets` run with them, and print what the pages say."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.docs.pages import PAGES, SHELL, find_blocks, parse
from tests.docs.test_blocks import RUNNER, name_page
from tests.other_libraries import other_libraries as other_libraries

REASONS = ("needs Grain", "needs datasets")
PAGES_OF_OTHERS = [page for page in PAGES if any(block.reason in REASONS for block in find_blocks(page))]


def find_output(page: Path, line: int) -> str:
    """Returns the block of text after the block of code at a line; empty if there is none."""
    fences = [token for token in parse(page.read_text(encoding="utf-8")) if token.type == "fence"]
    places = [token.map[0] + 1 for token in fences if token.map is not None]
    following = fences[places.index(line) + 1 :][:1]
    return following[0].content if following and following[0].info == "text" else ""


def test_the_pages_with_such_blocks_are_known() -> None:
    assert {name_page(page) for page in PAGES_OF_OTHERS} == {"docs/howto/jax.md", "docs/howto/other-trainers.md"}


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES_OF_OTHERS, ids=name_page)
def test_blocks_run_with_other_libraries(page: Path, tmp_path: Path, other_libraries: dict[str, str]) -> None:
    shutil.copytree(ROOT / "sample_data", tmp_path / "images")
    chosen = [block for block in find_blocks(page) if block.reason in REASONS or block.language in SHELL]
    blocks = [
        {"place": block.place, "kind": "shell" if block.language in SHELL else "python", "code": block.code}
        for block in chosen
    ]
    (tmp_path / "blocks.json").write_text(json.dumps(blocks))
    (tmp_path / ".bin").mkdir()
    (tmp_path / ".bin" / "tfpipe").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m tfpipe "$@"\n')
    (tmp_path / ".bin" / "tfpipe").chmod(0o755)
    done = subprocess.run(
        [sys.executable, str(RUNNER), "blocks.json"],
        cwd=tmp_path,
        env={**other_libraries, "PATH": f"{tmp_path}/.bin{os.pathsep}{os.environ['PATH']}", "HF_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    for block in chosen:
        assert find_output(page, block.line) in done.stdout, block.place
