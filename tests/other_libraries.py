"""Libraries that the environment of the tests does not have, in a place of their own, for slow tests."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.conftest import ROOT

LIBRARIES = ("grain==0.2.18", "webdataset==1.0.2", "datasets>=4", "array_record")


@pytest.fixture(scope="session")
def other_libraries(tmp_path_factory) -> dict[str, str]:
    """Installs them from the package index, and returns the environment of a process that imports them."""
    return install_libraries(tmp_path_factory.mktemp("libraries"), *LIBRARIES)


def install_libraries(folder: Path, *libraries: str) -> dict[str, str]:
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-input", "--target", str(folder), *libraries]
    subprocess.run(install, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=280)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]), "HF_HUB_OFFLINE": "1"}


def make_environment(
    folder: Path, oldest: tuple[int, int], *libraries: str, without_dependencies: Sequence[str] = ()
) -> tuple[str, dict[str, str]]:
    """Makes a virtual environment with this code and libraries, which shares nothing with that of the tests."""
    version = f"{oldest[0]}.{oldest[1]}"
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    first = sys.executable if sys.version_info >= oldest else f"python{version}"
    make = [first, "-m", "venv", str(folder)]
    _run(make, {**environment, "PYENV_VERSION": version})  # the command of pyenv starts the version of this variable
    python = str(folder / "bin" / "python")
    pip = [python, "-m", "pip", "install", "-q", "--no-input"]
    _run([*pip, "--upgrade", "pip"], environment)  # the pip of old Pythons takes minutes to choose versions
    _run([*pip, str(ROOT), *libraries], environment)
    if without_dependencies:
        _run([*pip, "--no-deps", *without_dependencies], environment)
    return python, environment


def _run(command: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


def run_script(script: str, environment: dict[str, str], folder: Path, *arguments: object) -> str:
    """Runs a script in a folder and returns what it prints. It is a file, so that worker processes can import it."""
    (folder / "script.py").write_text(script)
    command = [sys.executable, "script.py", *map(str, arguments)]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
