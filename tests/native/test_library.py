"""The native library: found, missing, or damaged."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.refusals import refusal
from tfpipe.errors import MissingDependencyError
from tfpipe.native import batches, jpeg, library, records

LIBRARY = Path(library.__file__).with_name("libtfpipe_native.so")


@pytest.fixture(autouse=True)
def load_again(monkeypatch, tmp_path: Path) -> Iterator[None]:
    """Looks for the library in a folder of the test's."""
    with monkeypatch.context() as patch:
        patch.setattr(library, "_PATH", tmp_path / "libtfpipe_native.so")
        library.load.cache_clear()
        yield
    library.load.cache_clear()


def refuse() -> str:
    """Returns the sentence that names what is wrong."""
    return refusal(MissingDependencyError, library.load)


def test_a_damaged_library(tmp_path: Path) -> None:
    (tmp_path / "libtfpipe_native.so").write_bytes(b"\x7fELF")
    begin = f"tfpipe's native library cannot be loaded: {tmp_path / 'libtfpipe_native.so'}: "
    assert (refuse().startswith(begin), refuse().endswith(". Install tfpipe again.")) == (True, True)


def test_a_library_of_other_sources(tmp_path: Path, monkeypatch) -> None:
    shutil.copy(LIBRARY, tmp_path)
    assert library.load()
    library.load.cache_clear()
    monkeypatch.setattr(library, "_INTERFACE", -1)
    assert refuse() == "tfpipe's native library was built from other sources than this release's: install tfpipe again."


@pytest.mark.parametrize("is_installed", [True, False])
def test_a_checkout_finds_the_library_of_the_tfpipe_that_is_installed(tmp_path: Path, is_installed: bool) -> None:
    site = tmp_path / "site"
    if is_installed:
        (site / "tfpipe-1.0.dist-info").mkdir(parents=True)
        (site / "tfpipe-1.0.dist-info" / "METADATA").write_text("Name: tfpipe\nVersion: 1.0\n")
    (site / "tfpipe" / "native").mkdir(parents=True)
    shutil.copy(LIBRARY, site / "tfpipe" / "native")
    checkout = tmp_path / "checkout"
    shutil.copytree(LIBRARY.parents[1], checkout / "tfpipe", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    code = "import sys; sys.path.append(sys.argv[1]); from tfpipe.native import library; print(library._PATH.parent)"
    command = [sys.executable, "-S", "-c", code, site]
    found = subprocess.run(command, cwd=checkout, check=True, capture_output=True, text=True).stdout
    assert found == f"{(site if is_installed else checkout) / 'tfpipe' / 'native'}\n"


def test_modules_load_without_the_library() -> None:
    with pytest.raises(MissingDependencyError):
        jpeg.check(b"")
    assert (records.TEXTS, batches.OK, jpeg.MAX_PIXELS) == (1, 0, 2**28)


def test_no_decoder_of_the_system_is_used() -> None:
    """An upgrade of libjpeg cannot change pixels."""
    assert b"libjpeg" not in LIBRARY.read_bytes()
