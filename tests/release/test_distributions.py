"""The distributions of a release, built as a release builds them, and installed where nothing else is."""

import os
import re
import subprocess
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tfpipe import __version__

pytestmark = pytest.mark.slow


def run(*command: object, cwd: Path | None = None) -> str:
    """Runs a program without this environment's packages, and returns what it printed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    words = list(map(str, command))
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def make_environment(folder: Path) -> Path:
    venv.create(folder, with_pip=True)
    return folder / "bin"


def test_tfpipe(tmp_path: Path) -> None:
    """The wheel is made from the files of the source distribution."""
    programs = make_environment(tmp_path / "builder")
    run(programs / "pip", "install", "--quiet", "build")
    run(programs / "python", "-m", "build", "--outdir", tmp_path / "dist", ROOT)
    source, wheel = tmp_path / "dist" / f"tfpipe-{__version__}.tar.gz", next(tmp_path.glob("dist/*.whl"))
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    top = {name.partition("/")[0] for name in names}
    assert {*("beam_jobs", "containers", "docs", "sample_data", "tests", "tfpipe", ".ci", ".github")} <= top
    for name in ("hatch_build.py", "docs/llms.txt", ".github/workflows/tests.yml", "CITATION.cff", "LICENSE"):
        assert name in names
    assert {path.relative_to(ROOT).as_posix() for path in (ROOT / "tfpipe/native/csrc").rglob("*.[ch]")} <= names
    left_out = (".so", ".pyc")
    assert not [name for name in names if name.endswith(left_out) or "__pycache__" in name]
    assert re.fullmatch(rf"tfpipe-{__version__}-py3-none-\w+\.whl", wheel.name)
    with zipfile.ZipFile(wheel) as archive:
        assert {name.partition("/")[0] for name in archive.namelist()} == {
            *("tfpipe", "beam_jobs", f"tfpipe-{__version__}.dist-info")
        }
        assert "tfpipe/profiler/report/page.html.j2" in archive.namelist()
        assert {"tfpipe/py.typed", "beam_jobs/py.typed", "tfpipe/pages/symptoms.md"} <= set(archive.namelist())
        assert not [name for name in archive.namelist() if name.endswith((".c", ".h"))]

    programs = make_environment(tmp_path / "empty")
    run(programs / "pip", "install", "--quiet", wheel)
    versions = run(programs / "tfpipe", "--version")
    assert versions.splitlines()[0] == f"tfpipe {__version__}"
    assert "tensorflow" not in versions
    run(programs / "pip", "install", "--quiet", f"{wheel}[beam]")
    printed = run(programs / "tfpipe", "shard", ROOT / "sample_data", "shapes", cwd=tmp_path).splitlines()
    assert printed[0].startswith("train: 149 records, 1 shard")
    assert run(programs / "tfpipe", "verify", "shapes", cwd=tmp_path).startswith("shapes is intact: 1 file, 149 intact")
