"""Libraries that the environment of the tests does not have, in a folder of their own, for slow tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

LIBRARIES = ("grain==0.2.18", "webdataset==1.0.2", "datasets>=4", "array_record")


@pytest.fixture(scope="session")
def other_libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Installs them from the package index, and returns the environment of a process that imports them."""
    return install_libraries(tmp_path_factory.mktemp("libraries"), *LIBRARIES)


def install_libraries(folder: Path, *libraries: str) -> dict[str, str]:
    """Installs libraries in a folder, and returns the environment of a process that imports them."""
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-input", "--target", str(folder), *libraries]
    subprocess.run(install, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=280)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]), "HF_HUB_OFFLINE": "1"}


def run_script(script: str, environment: dict[str, str], folder: Path, *arguments: object) -> str:
    """Runs a script in a folder and returns what it prints. It is a file, so that worker processes can import it."""
    (folder / "script.py").write_text(script)
    command = [sys.executable, "script.py", *map(str, arguments)]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
