"""The sentence about a package that is not installed."""

import sys
from importlib import metadata
from pathlib import Path

import pytest

from tfpipe.errors import MissingDependencyError
from tfpipe.system import extras
from tfpipe.system.extras import check_installed, importing

SENTENCE = "Flying needs Wings. Install it with: pip install '.[wings]' in a checkout of tfpipe."


def test_an_import_that_fails_names_what_to_install() -> None:
    with pytest.raises(MissingDependencyError) as caught, importing("Flying", "Wings", "tfpipe[wings]"):
        import no_such_package  # type: ignore[import-not-found]  # noqa: F401
    assert str(caught.value) == SENTENCE
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_other_errors_pass() -> None:
    with pytest.raises(ZeroDivisionError), importing("Flying", "Wings", "tfpipe[wings]"):
        _ = 1 / 0


def test_a_check_names_what_to_install_and_loads_nothing() -> None:
    with pytest.raises(MissingDependencyError) as caught:
        check_installed("no_such_package", "Flying", "Wings", "tfpipe[wings]")
    assert str(caught.value) == SENTENCE
    loaded = "this" in sys.modules
    check_installed("this", "Flying", "Wings", "tfpipe[wings]")
    assert ("this" in sys.modules) == loaded


def test_what_an_inner_block_needs_is_named() -> None:
    with pytest.raises(MissingDependencyError) as caught, importing("Flying", "Wings", "tfpipe[wings]"):  # noqa: SIM117
        with importing("Landing", "Wheels", "tfpipe[wheels]"):
            import no_such_package  # type: ignore[import-not-found]  # noqa: F401
    assert str(caught.value).startswith("Landing needs Wheels. Install it with: pip install '.[wheels]' in a checkout")


def test_what_is_not_installed_is_left_out(monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "libtpu-1.2.3.dist-info").mkdir()
    (tmp_path / "libtpu-1.2.3.dist-info" / "METADATA").write_text("Name: libtpu\nVersion: 1.2.3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert extras.get_versions(["libtpu", "no-such-package"]) == {"libtpu": "1.2.3"}


def test_the_libraries_are_those_of_the_environment() -> None:
    found = extras.get_versions(extras.LIBRARIES)
    assert (found["numpy"], found["pillow"]) == (metadata.version("numpy"), metadata.version("pillow"))
    assert len(set(extras.LIBRARIES)) == len(extras.LIBRARIES)
