"""The wheel that workers get: complete and installable."""

import base64
import csv
import hashlib
import subprocess
import sys
import sysconfig
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from beam_jobs.runners.dataflow import build_wheel
from tests.beam_jobs.commands import ROOT
from tests.beam_jobs.datasets import read_tree
from tfpipe._version import __version__
from tfpipe.errors import DataError

STEM = f"tfpipe-{__version__}"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return Path(build_wheel(str(tmp_path_factory.mktemp("wheel"))))


def test_the_wheel_holds_all_code_and_pins_packages(wheel: Path) -> None:
    assert wheel.name == f"{STEM}-py3-none-linux_x86_64.whl"
    with zipfile.ZipFile(wheel) as opened:
        inside = {name: opened.read(name) for name in opened.namelist()}
    assert {name: data for name, data in inside.items() if not name.startswith(STEM)} == {
        f"{package}/{name}": data
        for package in ("tfpipe", "beam_jobs")
        for name, data in read_tree(ROOT / package).items()
        if "__pycache__" not in name and not name.startswith("native/csrc/")
    }
    about = inside[f"{STEM}.dist-info/METADATA"].decode()
    assert "Name: tfpipe\n" in about
    assert f"Requires-Dist: pillow=={metadata.version('pillow')}\n" in about
    assert f"Requires-Dist: obstore=={metadata.version('obstore')}\n" in about
    assert "Requires-Dist: google-crc32c>=" in about
    assert b"tfpipe = tfpipe.cli.main:main" in inside[f"{STEM}.dist-info/entry_points.txt"]


def make_elf(machine: int) -> bytes:
    return b"\x7fELF" + bytes(14) + machine.to_bytes(2, "little") + bytes(44)


@pytest.mark.parametrize("data", [None, make_elf(0xB7), b"\xcf\xfa\xed\xfe" + bytes(60)], ids=["none", "arm", "macOS"])
def test_a_library_that_workers_cannot_load_is_refused(data: bytes | None, tmp_path: Path, monkeypatch):
    package = tmp_path / "tfpipe"
    (package / "native").mkdir(parents=True)
    if data is not None:
        (package / "native" / "libtfpipe_native.so").write_bytes(data)
    monkeypatch.setattr("tfpipe.errors.__file__", str(package / "errors.py"))
    with pytest.raises(DataError) as caught:
        build_wheel(str(tmp_path))
    assert str(caught.value) == (
        "The workers run Linux on x86-64, and get tfpipe as it is installed here, without a native library for that "
        "system. Start the job on Linux, or let `sdk_location` be a container."
    )


def test_the_record_lists_every_file(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        lines = list(csv.reader(opened.read(f"{STEM}.dist-info/RECORD").decode().splitlines()))
        assert [line[0] for line in lines] == opened.namelist()
        for name, digest, size in lines[:-1]:
            data = opened.read(name)
            expected = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            assert (digest, int(size)) == (f"sha256={expected}", len(data))
    assert lines[-1][1:] == ["", ""]


def test_equal_code_gives_equal_bytes(wheel: Path, tmp_path: Path) -> None:
    assert Path(build_wheel(str(tmp_path))).read_bytes() == wheel.read_bytes()


def test_an_installed_wheel_makes_itself_again(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", f"--python={python}", "install", "--no-index", "--no-deps", "--quiet"]
    subprocess.run([*pip, str(wheel)], check=True)
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    # Last on the path; the editable installation's own .pth file is not looked at there.
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    code = """
import sys
import beam_jobs.shards.write_shard, tfpipe
from beam_jobs.runners.dataflow import build_wheel
assert "venv" in tfpipe.__file__ and "venv" in beam_jobs.shards.write_shard.__file__
assert "tensorflow" not in sys.modules
build_wheel(sys.argv[1])
"""
    (tmp_path / "again").mkdir()
    subprocess.run([python, "-I", "-c", code, str(tmp_path / "again")], check=True, cwd=tmp_path)
    assert (tmp_path / "again" / wheel.name).read_bytes() == wheel.read_bytes()


def test_code_that_is_not_installed_is_refused(monkeypatch, tmp_path: Path) -> None:
    def missing(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    with pytest.raises(DataError, match=r"^The workers get tfpipe as it is installed here, but it is not installed\. "):
        build_wheel(str(tmp_path))
    assert list(tmp_path.iterdir()) == []
