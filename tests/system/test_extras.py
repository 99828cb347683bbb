"""The sentence about a package that is not installed."""

import importlib
import sys
from pathlib import Path

import pytest

from tests.refusals import refusal
from tfpipe.errors import MissingDependencyError
from tfpipe.system import extras
from tfpipe.system.extras import check_installed, importing

SENTENCE = "Flying needs Wings. Install it with: pip install '.[wings]' in a checkout of tfpipe."


def fly(module: str) -> None:
    with importing("Flying", "Wings", "tfpipe[wings]"):
        importlib.import_module(module)


def test_an_import_that_fails_names_what_to_install() -> None:
    with pytest.raises(MissingDependencyError) as caught:
        fly("no_such_package")
    assert str(caught.value) == SENTENCE
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)
    with pytest.raises(MissingDependencyError, match=r"^Flying needs Wings"), importing("Landing", "Wheels", "wheels"):
        fly("no_such_package")  # what an inner block needs is named
    with pytest.raises(TypeError):  # other errors pass
        fly("..relative")


def test_a_check_names_what_to_install_and_loads_nothing() -> None:
    needs = ("Flying", "Wings", "tfpipe[wings]")
    assert refusal(MissingDependencyError, check_installed, "no_such_package", *needs) == SENTENCE
    loaded = "this" in sys.modules
    check_installed("this", *needs)
    assert ("this" in sys.modules) == loaded


def test_what_is_not_installed_is_left_out(monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "libtpu-1.2.3.dist-info").mkdir()
    (tmp_path / "libtpu-1.2.3.dist-info" / "METADATA").write_text("Name: libtpu\nVersion: 1.2.3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert extras.get_versions(["libtpu", "no-such-package"]) == {"libtpu": "1.2.3"}
