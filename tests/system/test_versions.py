"""The versions of packages."""

from importlib import metadata
from pathlib import Path

from tfpipe.system import extras


def test_what_is_not_installed_is_left_out(monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "libtpu-1.2.3.dist-info").mkdir()
    (tmp_path / "libtpu-1.2.3.dist-info" / "METADATA").write_text("Name: libtpu\nVersion: 1.2.3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert extras.get_version("no-such-package") is None
    assert extras.get_versions(["libtpu", "no-such-package"]) == {"libtpu": "1.2.3"}


def test_the_libraries_are_those_of_the_environment() -> None:
    found = extras.get_versions(extras.LIBRARIES)
    assert (found["numpy"], found["pillow"]) == (metadata.version("numpy"), metadata.version("pillow"))
    assert len(set(extras.LIBRARIES)) == len(extras.LIBRARIES)
