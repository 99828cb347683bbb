"""Runs blocks of a page by another Python than that of the tests, or with other libraries."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.conftest import ROOT
from tests.docs.pages import Block

RUNNER = Path(__file__).with_name("run_blocks.py")


def run_blocks(blocks: Iterable[Block], folder: Path, python: str, environment: dict[str, str]) -> str:
    """Runs blocks one after another in a folder, and returns what they print.

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
        [python, str(RUNNER), "blocks.json"],
        cwd=folder,
        env={**environment, "PATH": path, "HF_HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return done.stdout
