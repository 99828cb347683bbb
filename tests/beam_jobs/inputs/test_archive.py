"""Real archives, good and hostile: their members, the bytes of these, and the messages of refusals."""

import bz2
import gzip
import io
import lzma
import os
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path
from random import Random
from typing import IO

import pytest

from beam_jobs.inputs import archive
from beam_jobs.inputs.archive import ListedFile, is_archive, is_compressed_tar, list_archive, strip_archive_suffix
from beam_jobs.inputs.dataset import unpack
from beam_jobs.inputs.read_image import UnreadableError, read_image
from beam_jobs.plan.image_ref import ImageLocation, ImageRef
from beam_jobs.plan.listing import Listing
from tests.beam_jobs.images import make_tar, write_tar, write_zip
from tests.memory import peak_memory
from tests.refusals import refusal
from tfpipe.errors import DataError
from tfpipe.system.budget import Budget

FILES = {"cat/1.jpg": b"first" * 200, "cat/2.jpg": b"second", "dog/3.jpg": b""}


def unpack_tar(path: str, out: IO[bytes]) -> None:
    folder, name = os.path.split(path)
    unpack(Listing("", folder), name, out)


def list_members(path: Path) -> list[ListedFile]:
    return list(list_archive(str(path), "where"))


def refused(path: Path) -> str:
    return refusal(DataError, list_members, path)


def make_link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize("suffix", ".tar .TAR .zip .tar.gz .tgz .tar.bz2 .tbz2 .tar.xz .txz".split())
def test_archives_are_known_by_their_names(suffix: str) -> None:
    name = f"x/a.b{suffix}"
    assert (is_archive(name), strip_archive_suffix(name)) == (True, "x/a.b")
    assert is_compressed_tar(name) == (suffix.lower() not in (".tar", ".zip"))
    assert not any(map(is_archive, ("a.gz", "tar", f"a{suffix}/1.jpg")))


@pytest.mark.parametrize("suffix", ["tar", "tar.gz", "tgz", "tar.bz2", "tbz2", "tar.xz", "txz"])
def test_tar_members_lie_where_they_are_said_to(tmp_path: Path, suffix: str) -> None:
    mode = {"tar": "w", "gz": "w:gz", "tgz": "w:gz", "bz2": "w:bz2", "tbz2": "w:bz2", "xz": "w:xz", "txz": "w:xz"}
    path = write_tar(tmp_path / f"a.{suffix}", FILES, mode[suffix.removeprefix("tar.")])
    plain = path.read_bytes()
    if suffix != "tar":
        out = io.BytesIO()
        unpack_tar(str(path), out)
        plain = out.getvalue()
    files = list_members(path)
    assert [(file.path, file.size, file.location.file) for file in files] == [
        (name, len(data), "where") for name, data in FILES.items()
    ]
    assert [plain[file.location.offset : file.location.offset + file.size] for file in files] == [*FILES.values()]


def test_all_of_many_members_are_listed(tmp_path: Path) -> None:
    files = {f"cat/{i}.jpg": b"%d" % i for i in range(2500)}
    for mode, name in (("w", "a.tar"), ("w:gz", "a.tar.gz")):
        assert [file.path for file in list_members(write_tar(tmp_path / name, files, mode))] == [*files]


def test_tar_files_in_a_tar_file_are_listed(tmp_path: Path) -> None:
    inner = {"n01/cat.tar": make_tar({"1.jpg": b"one", "x/2.jpg": b"two"}), "DOG.TAR": make_tar({"3.jpg": b"three"})}
    expected = {"n01/cat/1.jpg": b"one", "n01/cat/x/2.jpg": b"two", "DOG/3.jpg": b"three"}
    path = write_tar(tmp_path / "all.tar", inner)
    files = list_members(path)
    plain = path.read_bytes()
    assert {file.path: plain[file.location.offset : file.location.offset + file.size] for file in files} == expected
    packed = list_members(write_tar(tmp_path / "all.tar.gz", inner, "w:gz"))
    assert [(file.path, file.location.offset, file.size) for file in packed] == [
        (file.path, file.location.offset, file.size) for file in files
    ]


def test_links_inside_a_tar_name_their_targets(tmp_path: Path) -> None:
    links = [
        make_link("dog/soft.jpg", "../cat/1.jpg"),
        make_link("dog/hard.jpg", "cat/1.jpg", tarfile.LNKTYPE),
        make_link("dog/later.jpg", "never.jpg"),
    ]
    path = tmp_path / "a.tar"
    path.write_bytes(make_tar({"cat/1.jpg": b"one"}, extra=links))
    first, soft, hard, later = list_members(path)
    assert soft == first._replace(path="dog/soft.jpg")
    assert hard == first._replace(path="dog/hard.jpg")
    assert later == ListedFile("dog/later.jpg", 0, skip="link without a target before it")
    inner = make_tar({"1.jpg": b"one"}, extra=[make_link("2.jpg", "1.jpg"), make_link("3.jpg", "gone.jpg")])
    files = list_members(write_tar(tmp_path / "all.tar", {"cat.tar": inner}))
    assert [(file.path, file.size, file.skip) for file in files] == [
        ("cat/1.jpg", 3, ""),
        ("cat/2.jpg", 3, ""),
        ("cat/3.jpg", 0, "link without a target before it"),
    ]


def test_special_members_and_links_in_a_zip_are_passed_over(tmp_path: Path) -> None:
    fifo, folder = tarfile.TarInfo("pipe.jpg"), tarfile.TarInfo("cat")
    fifo.type, folder.type = tarfile.FIFOTYPE, tarfile.DIRTYPE
    path = tmp_path / "a.tar"
    path.write_bytes(make_tar({}, extra=[fifo, folder]))
    assert list_members(path) == [ListedFile("pipe.jpg", 0, skip="not a regular file")]
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        info = zipfile.ZipInfo("cat/1.jpg")
        info.external_attr = 0o120777 << 16
        archive.writestr(info, "../../etc/passwd")
        archive.writestr(zipfile.ZipInfo("cat/"), "")
    assert list_members(path) == [ListedFile("cat/1.jpg", 0, skip="link in a zip archive")]


def test_what_cannot_be_read_in_place_is_refused(tmp_path: Path) -> None:
    info = tarfile.TarInfo("hole.jpg")
    info.type = tarfile.GNUTYPE_SPARSE
    path = tmp_path / "a.tar"
    path.write_bytes(info.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    assert refused(path) == f"{path} holds the sparse file 'hole.jpg', which cannot be read in place; unpack it."
    path = write_zip(tmp_path / "lzma.zip", {"1.jpg": b"one"}, zipfile.ZIP_LZMA)
    assert refused(path) == f"{path} holds '1.jpg' compressed by lzma; deflate and store can be read."
    path = write_zip(tmp_path / "encrypted.zip", {"1.jpg": b"one"})
    data = bytearray(path.read_bytes())
    data[6] |= 1
    data[data.index(b"PK\1\2") + 8] |= 1
    path.write_bytes(data)
    assert refused(path) == f"{path} is encrypted; unpack it first."
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("cat/1.jpg", b"x")
        archive.infolist()[0].file_size = 2**64 - 1  # more than a plan's numbers hold
    message = f"{path} is damaged or is not a valid archive of its kind (cat/1.jpg would have {2**64 - 1} bytes)."
    assert refused(path) == message


def test_a_zip_may_begin_later_in_its_file(tmp_path: Path) -> None:
    """Checks an archive with bytes before it, as a self-extracting one has."""
    whole = write_zip(tmp_path / "a.zip", FILES).read_bytes()
    path = tmp_path / "b.zip"
    path.write_bytes(b"#!/bin/sh\n" + whole)
    assert [file.location.offset for file in list_members(path)] == [
        file.location.offset + 10 for file in list_members(tmp_path / "a.zip")
    ]


def write_raw_zip(path: Path, names: list[bytes], *, flags: int = 0, extra: bytes = b"") -> None:
    """Writes empty members whose names are these bytes, as programs do that know nothing of the flag of UTF-8."""
    body, directory = b"", b""
    for name in names:
        common = struct.pack("<HHHIIIHH", 0, 0, 0x5421, 0, 0, 0, len(name), len(extra))
        place = struct.pack("<HHHII", 0, 0, 0, 0o100644 << 16, len(body))
        directory += struct.pack("<IHHH", 0x02014B50, 3 << 8 | 20, 20, flags) + common + place + name + extra
        body += struct.pack("<IHH", 0x04034B50, 20, flags) + common + name + extra
    count = len(names)
    end = struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, count, count, len(directory), len(body), 0)
    path.write_bytes(body + directory + end)


@pytest.mark.parametrize(
    ("encoding", "names", "warned"),
    [
        ("utf-8", ["café/1.jpg", "猫/2.jpg", "ねこ/3.jpg", "😀/4.jpg", "plain/5.jpg"], None),
        ("gbk", ["鸢尾花/1.jpg", "猫/2.jpg", "plain/5.jpg"], "GBK: '鸢尾花/1.jpg'"),
        ("cp437", ["café/1.jpg", "hôtel/2.jpg", "plain/5.jpg"], "CP437: 'café/1.jpg'"),
    ],
)
def test_names_of_a_zip_that_does_not_say_its_encoding(tmp_path, caplog, encoding, names, warned):
    path = tmp_path / "a.zip"
    write_raw_zip(path, [name.encode(encoding) for name in names])
    assert [member.path for member in list_members(path)] == names
    said = [] if warned is None else [f"{path} has names without an encoding. They are read as {warned}."]
    assert caplog.messages == said


def test_names_that_a_zip_says_to_be_utf_8(tmp_path: Path, caplog) -> None:
    path = tmp_path / "a.zip"
    write_raw_zip(path, ["café.jpg".encode()], flags=0x800)
    assert [member.path for member in list_members(path)] == ["café.jpg"]
    raw = "caf\x82.jpg".encode("latin-1")
    field = b"\x01" + zlib.crc32(raw).to_bytes(4, "little") + "猫.jpg".encode()
    write_raw_zip(path, [raw], extra=struct.pack("<HH", 0x7075, len(field)) + field)
    assert [member.path for member in list_members(path)] == ["猫.jpg"]
    assert caplog.messages == []
    other = b"\x01" + zlib.crc32(b"other").to_bytes(4, "little") + "猫.jpg".encode()  # of a name that was changed
    write_raw_zip(path, [raw], extra=struct.pack("<HH", 0x7075, len(other)) + other)
    assert [member.path for member in list_members(path)] == ["café.jpg"]


HOSTILE = [
    *("../evil.jpg", "cat/../../evil.jpg", "/etc/evil.jpg", "C:\\evil.jpg", "c:evil.jpg"),
    *("..\\evil.jpg", "\\\\host\\evil.jpg"),
]


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("kind", ["tar", "tar.gz", "zip", "inner"])
def test_hostile_names_are_refused(tmp_path: Path, name: str, kind: str) -> None:
    files = {"cat/1.jpg": b"one", name: b"evil"}
    if kind == "zip":
        path = write_zip(tmp_path / "a.zip", files)
    elif kind == "inner":
        path = write_tar(tmp_path / "a.tar", {"in.tar": make_tar(files)})
    else:
        path = write_tar(tmp_path / f"a.{kind}", files, "w:gz" if kind == "tar.gz" else "w")
    assert refused(path) == f"{path} holds the member {name!r}, which points outside of it; such an archive is refused."


def test_a_link_that_points_outside_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    for kind, target, named in (
        (tarfile.SYMTYPE, "../../etc/passwd", "cat/../../etc/passwd"),
        (tarfile.SYMTYPE, "/etc/passwd", "/etc/passwd"),
        (tarfile.LNKTYPE, "../passwd", "../passwd"),
        (tarfile.LNKTYPE, "/etc/passwd", "/etc/passwd"),
    ):
        path.write_bytes(make_tar({}, extra=[make_link("cat/1.jpg", target, kind)]))
        assert refused(path) == (
            f"{path} holds the link 'cat/1.jpg' to {named!r}, which points outside of it; such an archive is refused."
        )


def test_backslashes_are_folders(tmp_path: Path) -> None:
    assert [file.path for file in list_members(write_zip(tmp_path / "a.zip", {"cat\\1.jpg": b""}))] == ["cat/1.jpg"]
    assert [file.path for file in list_members(write_tar(tmp_path / "a.tar", {"./cat//1.jpg": b""}))] == ["cat/1.jpg"]
    path = tmp_path / "a.zip"
    write_raw_zip(path, [b"pets\\", b"pets\\cat\\", b"pets\\cat\\1.jpg", b"dog/"])
    assert [member.path for member in list_members(path)] == ["pets/cat/1.jpg"]


def test_a_tar_is_unpacked_by_its_first_bytes(tmp_path: Path) -> None:
    plain, renamed = tmp_path / "a.tar", tmp_path / "a.tar.gz"
    write_tar(plain, FILES)
    renamed.write_bytes(plain.read_bytes())
    assert list_members(renamed) == list_members(plain)
    out = io.BytesIO()
    unpack_tar(str(renamed), out)
    assert out.getvalue() == plain.read_bytes()
    plain.write_bytes(gzip.compress(plain.read_bytes()))
    assert refused(plain) == f"{plain} is compressed as a whole. Let its name end in .tar.gz, .tar.bz2 or .tar.xz."


@pytest.mark.parametrize("name", ["a.tar", "a.zip", "a.tar.gz", "a.tar.xz", "a.tar.bz2"])
def test_what_is_cut_or_is_no_archive_is_refused(tmp_path: Path, caplog, name: str) -> None:
    path, files = tmp_path / name, {"1.jpg": bytes(range(256)) * 20, "2.jpg": bytes(range(255)) * 20}
    pack = {"gz": gzip.compress, "xz": lzma.compress, "bz2": bz2.compress}.get(name.rpartition(".")[2], bytes)
    whole = write_zip(path, files).read_bytes() if name == "a.zip" else pack(make_tar(files))
    damage = f"{path} is damaged or is not a valid archive of its kind ("
    for data in (b"", b"no archive at all" * 100, bytes(100), whole[: 8000 if name == "a.tar" else len(whole) // 2]):
        path.write_bytes(data)
        assert refused(path).startswith(damage)
    if name != "a.zip":
        tar = make_tar(files)
        for data in (tar[:5700], tar[:5640] + b"9" + tar[5641:]):  # a header that is cut, or damaged
            path.write_bytes(pack(data))
            assert refused(path) in (f"{damage}truncated header).", f"{damage}bad checksum).")
        path.write_bytes(pack(tar[:11264]))
        assert [member.path for member in list_members(path)] == ["1.jpg", "2.jpg"]
        (said,) = caplog.messages
        assert said == f"{path} lacks a tar's end mark. If it was cut off, images are missing: copy it again."
    if is_compressed_tar(name):  # all members are there, and the end of the compressed file is not
        path.write_bytes(whole[:-4])
        assert refusal(DataError, unpack_tar, str(path), io.BytesIO()).startswith(damage)


def make_mixed_tar(form: int) -> bytes:
    """Makes a tar file of plain members, long names, names that are not ASCII, links and folders."""
    longest = 90 if form == tarfile.USTAR_FORMAT else 150
    names = [
        *("a.jpg", "x" * 90 + ".jpg", "y/" * 70 + "b.jpg", "größe.jpg", "folder", "a.cls"),
        *("z" * longest + ".txt", "c.jpg"),
    ]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        for number, name in enumerate(names):
            info = tarfile.TarInfo(name)
            info.size = 700 * number % 1300
            if name == "folder":
                info.type, info.size = tarfile.DIRTYPE, 0
            tar.addfile(info, io.BytesIO(bytes([number]) * info.size))
        tar.addfile(make_link("link.jpg", "a.jpg"))
    return buffer.getvalue()


def list_by_both(path: Path, data: bytes, monkeypatch) -> tuple[object, object]:
    """Lists an archive, and lists it by tarfile alone: the members or the error of each."""
    path.write_bytes(data)
    results: list[object] = []
    for by_tarfile in (False, True):
        with monkeypatch.context() as patch:
            if by_tarfile:
                patch.setattr(archive, "_read_plain_header", lambda _: None)
            try:
                results.append(list(list_archive(str(path), "where", lambda name, _: name.endswith((".cls", ".txt")))))
            except DataError as error:
                results.append(str(error))
    return results[0], results[1]


@pytest.mark.parametrize("size", [2**63, 2**62])
@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_size_above_all_memory_is_damage(tmp_path: Path, kind: bytes, size: int) -> None:
    info = tarfile.TarInfo("a.txt")
    info.type, info.size = kind, size
    (tmp_path / "a.tar").write_bytes(info.tobuf(tarfile.GNU_FORMAT) + bytes(2048))
    with pytest.raises(DataError, match=r"a.tar is damaged or is not a valid archive of its kind \("):
        list(list_archive(str(tmp_path / "a.tar"), "where", lambda *_: True))


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_headers_that_are_read_quickly_say_what_tarfile_says(
    rng: Random, tmp_path: Path, form: int, monkeypatch
) -> None:
    whole = make_mixed_tar(form)
    listed, expected = list_by_both(tmp_path / "a.tar", whole, monkeypatch)
    assert listed == expected
    assert [len(file.content) for file in listed if file.content is not None] == [900, 300]
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(rng.choice([1, 1, 2, 5])):
            at = rng.randrange(len(data)) // 512 * 512 + rng.choice([rng.randrange(512), 124, 148, 156, 257, 345])
            data[min(at, len(data) - 1)] = rng.choice([0, 0x20, 0x30, 0x31, 0x37, 0x80, 0xFF, rng.randrange(256)])
        cut = rng.choice([len(data), len(data), rng.randrange(len(data))])
        listed, expected = list_by_both(tmp_path / "a.tar", bytes(data[:cut]), monkeypatch)
        assert listed == expected


@pytest.mark.parametrize("ending", [".tar.gz", ".tar.bz2", ".tar.xz"])
def test_a_compressed_tar_that_unpacks_to_very_much_is_refused(tmp_path: Path, monkeypatch, ending: str) -> None:
    monkeypatch.setattr("beam_jobs.inputs.archive.UNPACKED", Budget(bytes=100_000))
    path = str(tmp_path / f"a{ending}")
    with tarfile.open(path, f"w:{ending[5:]}") as tar:
        info = tarfile.TarInfo("cat/zero.png")
        info.size = 4 << 20
        tar.addfile(info, io.BytesIO(bytes(info.size)))
    size = os.path.getsize(path)
    message = (
        f"{path} unpacks to more than 200 times its {size:,} bytes, as if it were made to fill a disk. Unpack it, if "
        "it is meant so."
    )
    assert size * 200 + 100_000 < 4 << 20
    for read in (lambda: list(list_archive(path, "a")), lambda: unpack_tar(path, io.BytesIO())):
        assert refusal(DataError, read) == message
    monkeypatch.setattr("beam_jobs.inputs.archive.UNPACKED", Budget(bytes=5 << 20))
    assert [(file.path, file.size) for file in list_archive(path, "a")] == [("cat/zero.png", 4 << 20)]


def list_refs(path: Path) -> dict[str, ImageRef]:
    return {file.path: ImageRef(file.path, file.size, file.location) for file in list_archive(str(path), path.name)}


def unreadable(root: Path, ref: ImageRef) -> str:
    with pytest.raises(UnreadableError) as caught:
        read_image(str(root), ref)
    return str(caught.value)


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
    ref = list_refs(path)["cat/1.jpg"]
    os.truncate(path, ref.location.offset + 100)
    assert unreadable(tmp_path, ref) == "the archive holds 100 of its 1000 bytes"


def write_and_list_zip(tmp_path: Path, method: int = zipfile.ZIP_DEFLATED) -> tuple[Path, bytearray, ImageRef]:
    path = write_zip(tmp_path / "x.zip", {"cat/1.jpg": bytes(range(256)) * 4}, method)
    return path, bytearray(path.read_bytes()), list_refs(path)["cat/1.jpg"]


CHANGED = "the archive has changed or is damaged here"


@pytest.mark.parametrize(
    ("at", "value", "reason"),
    [
        (0, 0, CHANGED),
        (None, 0, CHANGED),
        (39, 0xFF, "the archive is damaged here (Error -3 while decompressing data: invalid block type)"),
    ],
    ids=["another header", "empty", "damaged deflate"],
)
def test_a_zip_that_changed_is_unreadable(tmp_path: Path, at: int | None, value: int, reason: str) -> None:
    path, data, ref = write_and_list_zip(tmp_path)
    if at is not None:
        data[at] = value
    path.write_bytes(b"" if at is None else data)
    assert unreadable(tmp_path, ref) == f"cannot be read: {reason}"
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        _, _, ref = write_and_list_zip(tmp_path, method)
        ref = ref._replace(location=ref.location._replace(crc=ref.location.crc ^ 1))
        assert unreadable(tmp_path, ref) == "cannot be read: the archive is damaged here (wrong CRC-32)"


def test_a_zip_bomb_costs_no_memory(tmp_path: Path) -> None:
    """Reads 100 MB of zeros that promise to be 1000 bytes."""
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("cat/1.jpg", "w") as member:
        for _ in range(100):
            member.write(bytes(10**6))
    _, _, ref = write_and_list_zip(tmp_path / "small")
    more = "cannot be read: the archive is damaged here (more than the 1023 bytes that it promises)"
    assert unreadable(tmp_path / "small", ref._replace(size=1023)) == more
    ref = list_refs(path)["cat/1.jpg"]._replace(size=1000)
    with peak_memory() as peak:
        assert unreadable(tmp_path, ref).endswith("(more than the 1000 bytes that it promises)")
        assert peak() < 5_000_000
