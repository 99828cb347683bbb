"""The blocks of pages that need Grain or Hugging Face's `datasets` run with them, and print what the pages say."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.docs.pages import PAGES, SHELL, find_blocks, find_output
from tests.docs.run_in_process import run_blocks
from tests.docs.test_blocks import name_page
from tests.other_libraries import other_libraries as other_libraries

REASONS = ("needs Grain", "needs datasets")
PAGES_OF_OTHERS = [page for page in PAGES if any(block.reason in REASONS for block in find_blocks(page))]


def test_the_pages_with_such_blocks_are_known() -> None:
    assert {name_page(page) for page in PAGES_OF_OTHERS} == {"docs/howto/jax.md", "docs/howto/other-trainers.md"}


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES_OF_OTHERS, ids=name_page)
def test_blocks_run_with_other_libraries(page: Path, tmp_path: Path, other_libraries: dict[str, str]) -> None:
    shutil.copytree(ROOT / "sample_data", tmp_path / "images")
    blocks = [block for block in find_blocks(page) if block.reason in REASONS or block.language in SHELL]
    printed = run_blocks(blocks, tmp_path, sys.executable, other_libraries)
    for block in blocks:
        assert find_output(block) in printed, block.place
