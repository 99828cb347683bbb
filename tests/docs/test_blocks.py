"""Every Python and shell block of the README and of the site runs, or says in the line before it why it does not."""

import ast
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import click
import pytest

import tfpipe
from tests.conftest import PATH_OF_REPOSITORY, ROOT
from tests.docs.pages import PAGES, Block, copy_samples, find_blocks
from tests.docs.run_in_process import run_blocks
from tfpipe.cli.main import tfpipe as commands

BLOCKS = [block for page in PAGES for block in find_blocks(page)]

# These take some seconds each.
FAST = {"docs/howto/clusters.md", "docs/start/install.md"}


def name_page(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def mark_slow(page: Path) -> object:
    name = name_page(page)
    return pytest.param(page, id=name, marks=() if name in FAST else pytest.mark.slow)


@pytest.mark.parametrize(
    "page", [mark_slow(page) for page in PAGES if any(not block.reason for block in BLOCKS if block.page == page)]
)
def test_the_blocks_of_a_page_run(page: Path, tmp_path: Path) -> None:
    copy_samples(tmp_path / "images")
    for name in ("photos", "sample_data"):
        shutil.copytree(ROOT / "sample_data", tmp_path / name)
    environment = {
        **os.environ,
        "PYTHONPATH": f"{tmp_path}{os.pathsep}{PATH_OF_REPOSITORY}",  # modules that a page writes can be imported
        "CUDA_VISIBLE_DEVICES": "",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    blocks = [block for block in BLOCKS if block.page == page and not block.reason]
    run_blocks(blocks, tmp_path, sys.executable, environment)


def test_each_block_is_valid() -> None:
    faults = []
    for block in BLOCKS:
        try:
            if block.kind == "python" or (block.kind == "cell" and not block.code.startswith("!")):
                ast.parse(re.sub(r"\A%%writefile .*", "", block.code))
        except SyntaxError as error:
            faults.append(f"{block.place}: {error}")
    assert not faults, "\n".join(faults)


def test_each_command_has_the_options_that_the_pages_give_it() -> None:
    faults = [fault for block in BLOCKS for fault in check_commands(block)]
    assert not faults, "\n".join(faults)


def test_the_page_for_machines_names_options_that_exist() -> None:
    text = (ROOT / "docs" / "llms.txt").read_text(encoding="utf-8")
    lines = re.sub(r"[\[\]|]", " ", "\n".join(re.findall(r"`(tfpipe [^`]+)`", text)))
    assert lines.count("\n") > 10
    assert check_commands(Block(ROOT / "docs" / "llms.txt", 1, "sh", lines, None)) == []


def test_the_skill_for_agents_names_what_exists() -> None:
    page = ROOT / "skills" / "tfpipe" / "SKILL.md"
    text = page.read_text(encoding="utf-8")
    assert re.match(r"---\nname: tfpipe\ndescription: (.{1,1024})\n---\n", text) is not None
    blocks = list(find_blocks(page))
    assert len(blocks) == 5
    assert [fault for block in blocks for fault in check_commands(block)] == []
    known = {
        flag for name in commands.modules for param in commands.get_command(None, name).params for flag in param.opts
    }
    for option in re.findall(r"`(--[a-z-]+)", text):
        assert option in known, option
    for name in re.findall(r"`tfpipe\.(\w+)[`(]", text):
        assert name in tfpipe.__all__, name
    for name in ("docs/llms.txt", "tfpipe/readers/torch.py", "tfpipe/readers/jax.py"):
        assert (ROOT / name).exists(), name


HELP = {"--help", "--help-all"}


def check_commands(block: Block) -> list[str]:
    if block.kind == "python":
        return []
    faults = []
    for line in re.sub(r"\\\n\s*", " ", block.code).splitlines():
        for text in re.findall(r"(?:^|[!$;&|]\s*|/)tfpipe ([a-z]+(?: .*)?)$", line):
            name, *words = split_words(re.split(r" (?:-- |&& |\|\| |\| |2>)", text)[0])
            command = commands.get_command(None, name)
            if command is None:
                faults.append(f"{block.place}: tfpipe has no command {name!r}.")
                continue
            options = {flag for param in command.params if isinstance(param, click.Option) for flag in param.opts}
            given = {word.partition("=")[0] for word in words if word.startswith("--") and len(word) > 2}
            unknown = given - options - {flag for p in command.params for flag in p.secondary_opts} - HELP
            faults += [f"{block.place}: tfpipe {name} has no option {option}." for option in sorted(unknown)]
    return faults


def split_words(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError:
        return text.split()


def test_a_wrong_command_is_found() -> None:
    for code, faults in (
        ("tfpipe shard a b --num-shards 3", []),
        ("tfpipe shard a b --num-shard 3", ["tfpipe shard has no option --num-shard."]),
        ("tfpipe shards a b", ["tfpipe has no command 'shards'."]),
        ("cd x && .venv/bin/tfpipe shard a b \\\n  --nothing   # a comment", ["tfpipe shard has no option --nothing."]),
        ("tfpipe shard a b -- --nothing", []),
    ):
        block = Block(ROOT / "README.md", 1, "sh", code, None)
        assert check_commands(block) == [f"README.md:1: {fault}" for fault in faults]


def test_a_block_that_is_not_run_says_why(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    fences = "% not run: needs a TPU\n```sh\ntrue\n```\n\n<!-- not run: needs a bucket -->\n\n```sh\ntrue\n```\n"
    page.write_text(fences + "\ntext\n```python\nx = 1\n```\n```text\nno code\n```\n")
    found = [(block.language, block.reason) for block in find_blocks(page)]
    assert found == [("sh", "needs a TPU"), ("sh", "needs a bucket"), ("python", None)]
