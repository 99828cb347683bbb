"""Whether tfpipe-kernels is there: installed, missing, or damaged. The package itself is not needed."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tfpipe.errors import MissingDependencyError
from tfpipe.system import kernels


@pytest.fixture(autouse=True)
def ask_again() -> Iterator[None]:
    kernels.explain_missing_kernels.cache_clear()
    yield
    kernels.explain_missing_kernels.cache_clear()


def test_it_is_there_if_it_is_installed() -> None:
    assert kernels.has_kernels() == (importlib.util.find_spec("tfpipe_kernels") is not None)


def test_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tfpipe_kernels", None)
    assert not kernels.has_kernels()
    with pytest.raises(MissingDependencyError) as error:
        kernels.check_kernels("`--seekable`")
    assert str(error.value) == (
        "`--seekable` needs tfpipe-kernels, and it is not installed. "
        "Install it from a checkout with: pip install ./kernels."
    )


def test_a_package_without_the_reader_of_records(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (kernels.load_native_records() is not None) == kernels.has_kernels()
    kernels.explain_missing_kernels.cache_clear()
    monkeypatch.setitem(sys.modules, "tfpipe_kernels", ModuleType("tfpipe_kernels"))  # of an older release
    monkeypatch.delitem(sys.modules, "tfpipe_kernels.records", raising=False)
    assert kernels.load_native_records() is None
    records = ModuleType("tfpipe_kernels.records")
    monkeypatch.setitem(sys.modules, "tfpipe_kernels.records", records)
    assert kernels.load_native_records() is records


def test_the_version_of_an_installed_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert (kernels.get_version() is not None) == kernels.has_kernels()
    (tmp_path / "tfpipe_kernels-9.8.7.dist-info").mkdir()
    (tmp_path / "tfpipe_kernels-9.8.7.dist-info" / "METADATA").write_text("Name: tfpipe-kernels\nVersion: 9.8.7\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert kernels.get_version() == "9.8.7"


def test_a_damaged_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "tfpipe_kernels.py").write_text("raise OSError('libjpeg.so.62: cannot open shared object file.')")
    monkeypatch.delitem(sys.modules, "tfpipe_kernels", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert kernels.explain_missing_kernels() == "libjpeg.so.62: cannot open shared object file"
    assert not kernels.has_kernels()
