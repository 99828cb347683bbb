"""The wheel of the kernels that Dataflow's workers get."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import tfpipe_kernels

from beam_jobs.runners.wheel import build_kernels_wheel
from tests.beam_jobs.datasets import read_tree
from tfpipe.errors import DataError
from tfpipe.system import kernels


def test_the_wheel_for_workers_holds_the_libraries(tmp_path: Path) -> None:
    wheel = build_kernels_wheel(str(tmp_path))
    assert os.path.basename(wheel).startswith("tfpipe_kernels-")
    pip = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--quiet", "--target"]
    subprocess.run([*pip, str(tmp_path / "site"), wheel], check=True)
    folder = Path(tfpipe_kernels.__file__).parent
    installed = read_tree(tmp_path / "site" / "tfpipe_kernels")
    assert {name: data for name, data in installed.items() if not name.startswith("__pycache__")} == {
        name: data for name, data in read_tree(folder).items() if not name.startswith("__pycache__")
    }
    (tmp_path / "again").mkdir()
    assert Path(build_kernels_wheel(str(tmp_path / "again"))).read_bytes() == Path(wheel).read_bytes()


def test_libraries_of_another_system_are_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Another package may have put its own finder before Python's.
    found = type(metadata.distribution(kernels.DISTRIBUTION))
    monkeypatch.setattr(found, "read_text", lambda self, name: "Tag: py3-none-macosx_14_0_arm64\n")
    with pytest.raises(DataError) as caught:
        build_kernels_wheel(str(tmp_path))
    assert str(caught.value) == (
        "The workers run Linux and get tfpipe-kernels as it is installed here, but it is installed for "
        "py3-none-macosx_14_0_arm64. Start the job on Linux, or let `sdk_location` be a container."
    )
