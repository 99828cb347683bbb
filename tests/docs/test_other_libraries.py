"""The blocks of pages that need Grain or Hugging Face's `datasets` run with them, and print what the pages say."""

import sys
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, PAGES, SHELL, Block, copy_samples, find_blocks, find_output
from tests.docs.run_in_process import run_blocks
from tests.docs.test_blocks import name_page
from tests.other_libraries import other_libraries as other_libraries

REASONS = ("needs Grain", "needs datasets")
PAGES_OF_OTHERS = [page for page in PAGES if any(block.reason in REASONS for block in find_blocks(page))]

# The batches of the page's own dataset with and without worker processes, beyond the end of an epoch of 23 records.
WORKERS = """
plain = iter(make_dataset(source, resize, 4, 0, 1, seed=1))
workers = iter(make_dataset(source, resize, 4, 0, 1, seed=1, num_workers=2))
print([np.array_equal(next(plain)["images"], next(workers)["images"]) for _ in range(7)])
workers.close()
"""


def test_the_pages_with_such_blocks_are_known() -> None:
    names = {"docs/howto/jax.md", "docs/howto/other-trainers.md"}
    assert {name_page(page) for page in PAGES_OF_OTHERS} == names


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES_OF_OTHERS, ids=name_page)
def test_blocks_run_with_other_libraries(page: Path, tmp_path: Path, other_libraries: dict[str, str]) -> None:
    copy_samples(tmp_path / "images")
    blocks = [block for block in find_blocks(page) if block.reason in REASONS or block.language in SHELL]
    printed = run_blocks(blocks, tmp_path, sys.executable, other_libraries)
    for block in blocks:
        assert find_output(block) in printed, block.place


@pytest.mark.slow
def test_worker_processes_give_the_same_batches(tmp_path: Path, other_libraries: dict[str, str]) -> None:
    page = DOCS / "howto" / "other-trainers.md"
    copy_samples(tmp_path / "images")
    shell = next(block for block in find_blocks(page) if block.language in SHELL)
    first = next(block for block in find_blocks(page) if block.reason == "needs Grain")
    blocks = [shell, first, Block(page, 0, "python", WORKERS, None)]
    assert run_blocks(blocks, tmp_path, sys.executable, other_libraries).endswith(f"\n{[True] * 7}\n")
