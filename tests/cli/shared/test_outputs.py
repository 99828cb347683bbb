"""Where a command may write, and that it writes whole files."""

import os
from pathlib import Path

import pytest

from tests.refusals import refusal
from tfpipe.cli.shared.outputs import check_target, write_file
from tfpipe.errors import ConfigError, DataError


def test_a_file_in_a_folder(tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    check_target(str(target))
    assert not target.exists()
    write_file(str(target), b"first")
    check_target(str(target))
    write_file(str(target), b"second")
    assert (target.read_bytes(), os.listdir(tmp_path)) == (b"second", ["page.html"])


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    target = tmp_path / "none" / "page.html"
    sentence = (
        f"{target} cannot be written: the folder {tmp_path}/none does not exist. Create it, or choose another place."
    )
    assert refusal(ConfigError, check_target, str(target)) == sentence
    with pytest.raises(DataError, match=r"page\.html cannot be written: No such file or directory\."):
        write_file(str(target), b"")


def test_a_folder_that_may_not_be_written_to(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # who is root may everything
    with pytest.raises(ConfigError, match=r"cannot be written: no permission to write to .*\. Choose another place\."):
        check_target(str(tmp_path / "page.html"))


def test_what_is_no_file(tmp_path: Path) -> None:
    for refuse in (lambda: check_target(str(tmp_path)), lambda: write_file(str(tmp_path), b"")):
        with pytest.raises(ConfigError, match="must be a file, and is a folder or a device"):
            refuse()


def test_a_link_keeps_pointing(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "page.html"
    link.symlink_to(tmp_path / "real" / "page.html")
    check_target(str(link))
    write_file(str(link), b"page")
    assert link.is_symlink()
    assert (tmp_path / "real" / "page.html").read_bytes() == b"page"
