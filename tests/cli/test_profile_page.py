"""`tfpipe profile --html`, as a user runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tfpipe.cli.profile import profile
from tfpipe.errors import ConfigError, MissingDependencyError

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = ("--step-ms", "2", "--global-batch-size", "4", "--seconds", "0.5")

TWICE = """
import sys
from tfpipe.cli.main import main

def run(*args):
    sys.argv = ["tfpipe", "profile", *args]
    try:
        main()
    except SystemExit as stop:
        assert not stop.code

page, *options = sys.argv[1:]
run(*options)
libraries = {"jinja2", "tfpipe.profiler.report.html", "tfpipe.profiler.report.charts"}  # Keras may load matplotlib
assert not libraries & set(sys.modules)
run(*options, "--json", "--html", page)
"""


def test_the_page_is_written_and_its_path_printed(small_dataset: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    line = [sys.executable, "-c", TWICE, str(page), str(small_dataset), *OPTIONS]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == f"Wrote {page}.\n"
    html = page.read_text(encoding="utf-8")
    assert html.startswith("<!doctype html>")
    assert html.endswith("</html>")
    assert 'id="timeline-wide"' in html
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_a_missing_folder_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    target = tmp_path / "none" / "report.html"
    done = CliRunner().invoke(profile, ["no such dataset", "--step-ms", "1", "--html", str(target)])
    assert isinstance(done.exception, ConfigError)
    assert str(done.exception).startswith(f"{target} cannot be written: the folder {target.parent} does not exist.")


@pytest.mark.parametrize(("library", "package"), [("jinja2", "Jinja2"), ("matplotlib", "matplotlib")])
def test_a_missing_library_is_named_before_anything_is_measured(
    library: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from importlib.util import find_spec

    monkeypatch.setattr("importlib.util.find_spec", lambda name, *more: None if name == library else find_spec(name))
    done = CliRunner().invoke(profile, ["none", "--step-ms", "1", "--html", str(tmp_path / "a.html")])
    assert isinstance(done.exception, MissingDependencyError)
    assert str(done.exception) == (
        f"`tfpipe profile --html` needs {package}. Install it with: pip install 'tfpipe[report]'."
    )
