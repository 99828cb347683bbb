"""The bytes of images in files, tar files and zip archives, and the messages where they cannot be read."""

import os
import zipfile
from pathlib import Path

import pytest

from beam_jobs.inputs.archive import list_archive
from beam_jobs.inputs.read_image import UnreadableError, read_image
from beam_jobs.plan.image_ref import ImageLocation, ImageRef
from tests.beam_jobs.images import write_tar, write_zip
from tests.memory import peak_memory


def list_refs(path: Path) -> dict[str, ImageRef]:
    files = list_archive(str(path), path.name)
    return {file.path: ImageRef(file.path, file.size, file.location) for file in files}


def unreadable(root: Path, ref: ImageRef) -> str:
    with pytest.raises(UnreadableError) as caught:
        read_image(str(root), ref)
    return str(caught.value)


FILES = {"a.jpg": b"a" * 5000, "empty.jpg": b"", "b.jpg": bytes(range(256))}


@pytest.mark.parametrize("kind", ["tar", "stored", "deflated"])
def test_members_of_archives_are_read(tmp_path: Path, kind: str) -> None:
    if kind == "tar":
        path = write_tar(tmp_path / "x.tar", FILES)
    else:
        path = write_zip(tmp_path / "x.zip", FILES, zipfile.ZIP_DEFLATED if kind == "deflated" else zipfile.ZIP_STORED)
    assert {name: read_image(str(tmp_path), ref) for name, ref in list_refs(path).items()} == FILES


def test_a_missing_file_or_one_that_is_cut_off_is_unreadable(tmp_path: Path) -> None:
    missing = "cannot be read: No such file or directory"
    assert unreadable(tmp_path, ImageRef("gone.jpg")) == missing
    assert unreadable(tmp_path, ImageRef("x", 5, ImageLocation("gone.tar", 0))) == missing
    assert unreadable(tmp_path, ImageRef("x", 5, ImageLocation("gone.zip", 0, 0))) == missing
    (tmp_path / "loop").symlink_to("loop")
    assert unreadable(tmp_path, ImageRef("loop")) == "cannot be read: Too many levels of symbolic links"
    assert unreadable(tmp_path, ImageRef("a" * 300)) == "cannot be read: File name too long"
    path = write_tar(tmp_path / "x.tar", FILES)
    ref = list_refs(path)["a.jpg"]
    os.truncate(path, ref.location.offset + 100)
    assert unreadable(tmp_path, ref) == "the archive holds 100 of its 5000 bytes"


def write_and_list_zip(tmp_path: Path, method: int = zipfile.ZIP_DEFLATED) -> tuple[Path, bytearray, ImageRef]:
    path = write_zip(tmp_path / "x.zip", {"a.jpg": bytes(range(256)) * 4}, method)
    return path, bytearray(path.read_bytes()), list_refs(path)["a.jpg"]


CHANGED = "the archive has changed or is damaged here"


@pytest.mark.parametrize(
    ("at", "value", "reason"),
    [
        (0, 0, CHANGED),
        (None, 0, CHANGED),
        (35, 0xFF, "the archive is damaged here (Error -3 while decompressing data: invalid block type)"),
    ],
    ids=["another header", "empty", "damaged deflate"],
)
def test_a_zip_that_changed_is_unreadable(tmp_path: Path, at: int | None, value: int, reason: str) -> None:
    path, data, ref = write_and_list_zip(tmp_path)
    if at is not None:
        data[at] = value
    path.write_bytes(b"" if at is None else data)
    assert unreadable(tmp_path, ref) == f"cannot be read: {reason}"


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_wrong_crc_is_unreadable(tmp_path: Path, method: int) -> None:
    _, _, ref = write_and_list_zip(tmp_path, method)
    wrong = "cannot be read: the archive is damaged here (wrong CRC-32)"
    assert unreadable(tmp_path, ref._replace(location=ref.location._replace(crc=ref.location.crc ^ 1))) == wrong


def test_a_zip_bomb_costs_no_memory(tmp_path: Path) -> None:
    """Reads 100 MB of zeros that promise to be 1000 bytes."""
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("a.jpg", "w") as member:
        for _ in range(100):
            member.write(bytes(10**6))
    _, _, ref = write_and_list_zip(tmp_path / "small")
    more = "cannot be read: the archive is damaged here (more than the 1023 bytes that it promises)"
    assert unreadable(tmp_path / "small", ref._replace(size=1023)) == more
    ref = list_refs(path)["a.jpg"]._replace(size=1000)
    with peak_memory() as peak:
        assert unreadable(tmp_path, ref).endswith("(more than the 1000 bytes that it promises)")
        assert peak() < 5_000_000
