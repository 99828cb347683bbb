"""Datasets made to do harm end in one clear error, within a second of CPU and 200 MB, wherever they are opened."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.conftest import ROOT
from tests.integrity.made import payload, write_dataset
from tfpipe.format.file_names import index_name
from tfpipe.format.record_index import encode_index
from tfpipe.format.tfrecord import FRAME_BYTES, record_footer, record_header
from tfpipe.storage.local import hash_stream

SHARD = "train-00000-of-00002.tfrecord"
INDEX = index_name(SHARD)
HOLE_BYTES = 256 << 20  # it is read once, as it could hold a photograph: half a second


class Case(NamedTuple):
    """A change to a good dataset, and what must be said of it where it is found first."""

    change: Callable[[Path], object]
    message: str
    quick: bool = True
    """`tfpipe verify` reads it in a second too; it reads holes as it reads everything."""


def _manifest(edit: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        document = json.loads((folder / "manifest.json").read_text())
        edit(document)
        (folder / "manifest.json").write_text(json.dumps(document))

    return change


def _shard(**fields: object) -> Callable[[Path], object]:
    return _manifest(lambda document: document["splits"]["train"]["shards"][0].update(fields))


def _foreign(name: str, root: str = ".") -> Callable[[Path], object]:
    def edit(document: dict[str, Any]) -> None:
        key = {"image_key": "image/encoded", "label_key": None, "label_base": 0, "compression": ""}
        document.update(foreign={"root": root, **key})
        document["splits"]["train"]["shards"][0]["file"] = name

    return _manifest(edit)


def _text(text: str | bytes) -> Callable[[Path], object]:
    data = text.encode() if isinstance(text, str) else text
    return lambda folder: (folder / "manifest.json").write_bytes(data)


def _huge_counts(document: dict[str, Any]) -> None:
    split = document["splits"]["train"]
    split["shards"][0].update(records=2**58, bytes=2**62)
    split["formats"] = {"PNG": 2**58 + 3}


def _many_shards(one: str, count: int) -> Callable[[Path], object]:
    """Written by hand: as Python's objects it would take the gigabytes that it must not."""

    def change(folder: Path) -> None:
        text = json.dumps({**json.loads((folder / "manifest.json").read_text()), "splits": "HERE"})
        shards = "[" + ",".join([one] * count) + "]"
        (folder / "manifest.json").write_text(text.replace('"HERE"', f'{{"train": {{"shards": {shards}}}}}'))

    return change


def _sparse(name: str, size: int) -> Callable[[Path], object]:
    return lambda folder: os.truncate(_new(folder / name), size)


def _new(path: Path) -> Path:
    path.write_bytes(b"")
    return path


MANIFESTS = {
    "negative records": Case(_shard(records=-1), "shards[0].records must be a whole number of at least 0, got -1."),
    "negative bytes": Case(_shard(bytes=-(2**63)), "shards[0].bytes must be a whole number of at least 0"),
    "more records than bytes": Case(_shard(bytes=10), "since a record takes 16 bytes or more"),
    "400 digits": Case(_shard(records=10**400), "shards[0].records must be a whole number of at least 0"),
    "1e999": Case(_text('{"format_version": 1e999}'), "format_version must be a whole number of at least 1, got inf."),
    "a name that leads out": Case(_shard(file=f"../{SHARD}"), f"shards[0].file must be '{SHARD}'"),
    "an absolute name": Case(_shard(file="/etc/passwd"), f"shards[0].file must be '{SHARD}', got '/etc/passwd'."),
    "a NUL byte": Case(_shard(file=f"{SHARD}\0"), f"shards[0].file must be '{SHARD}'"),
    "foreign, leads out": Case(_foreign("a/../../x"), "must be a relative path without . and .., got 'a/../../x'."),
    "foreign, absolute": Case(_foreign("/etc/passwd"), "must be a relative path without . and .., got '/etc/passwd'."),
    "foreign, NUL": Case(_foreign("a\0b"), "must be a relative path without . and .., got 'a\\x00b'."),
    "foreign, a root with ..": Case(_foreign("a", "/data/../etc"), "foreign.root must be '.' or an absolute path"),
    "foreign, a root with NUL": Case(_foreign("a", "/data\0"), "foreign.root must be a path that a file can have"),
    "foreign, a lone surrogate": Case(_foreign("a", "/\ud800"), "foreign.root must be a path that a file can have"),
    "a split that leads out": Case(
        _manifest(lambda document: document["splits"].update({"../x": document["splits"].pop("train")})),
        "splits.['../x']: A split's name must be letters, digits and underscores",
    ),
    "deep lists": Case(_text("[" * 10**6), "is nested too deeply."),
    "deep objects": Case(_text('{"a":' * 900_000), "is nested too deeply."),
    "10 million shards": Case(_many_shards("{}", 10**7), "must have at most 1,000,000 lists, objects and commas."),
    "10 million numbers": Case(_many_shards("0", 10**7), "must have at most 1,000,000 lists, objects and commas."),
    "one shard too many": Case(_many_shards("{}", 100_001), "at most 100,000 shards in all, got 100,001."),
    "not UTF-8": Case(_text(b'{"name": "\xff"}'), "is not UTF-8: the byte at 10 does not belong there."),
    "a long text": Case(
        _manifest(lambda document: document.update(name="x" * 10**7)), "name must be text of at most 10,000 characters"
    ),
    "empty": Case(_text(""), "is not JSON"),
    "a manifest of a terabyte": Case(_sparse("manifest.json", 2**40), "must have at most 33,554,432 bytes"),
}


def _gone(path: Path) -> Path:
    path.unlink()
    return path


PLACES = {
    f"{name} is {what}": Case(lambda folder, put=put, name=name: put(folder / name), message)
    for name in ("manifest.json", SHARD, INDEX)
    for what, put, message in (
        ("a symlink loop", lambda path: _gone(path).symlink_to(path.name), "read: Too many levels of symbolic links."),
        ("a FIFO", lambda path: os.mkfifo(_gone(path)), "must be a regular file."),
        ("a directory", lambda path: _gone(path).mkdir(), "must be a regular file."),
        ("a device", lambda path: _gone(path).symlink_to("/dev/zero"), "must be a regular file."),
    )
}


def _index(edit: Callable[[list[bytes]], bytes]) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        path = folder / INDEX
        path.write_bytes(edit(path.read_bytes().splitlines(keepends=True)))

    return change


def _replace_shard(folder: Path, records: int, size: int, index: bytes | None) -> None:
    """The manifest and the index follow a shard that was written anew."""
    os.truncate(folder / SHARD, size)

    def edit(document: dict[str, Any]) -> None:
        split = document["splits"]["train"]
        split["shards"][0].update(records=records, bytes=size)
        split["formats"], split["class_counts"] = {"PNG": records + 3}, []

    _manifest(edit)(folder)
    if index is not None:
        (folder / INDEX).write_bytes(index)


def _payload(data: bytes) -> Callable[[Path], object]:
    """A first record with right checksums around this."""

    def change(folder: Path) -> None:
        frame = record_header(len(data)) + data + record_footer(data)
        (folder / SHARD).write_bytes(frame)
        _replace_shard(folder, 1, len(frame), encode_index([len(frame)]))

    return change


def _hole(length: int) -> Callable[[Path], object]:
    """A record that promises more than anybody wrote."""

    def change(folder: Path) -> None:
        (folder / SHARD).write_bytes(record_header(length))
        _replace_shard(folder, 1, length + FRAME_BYTES, encode_index([length + FRAME_BYTES]))

    return change


def _header(length: int) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        with (folder / SHARD).open("r+b") as file:
            file.write(record_header(length))

    return change


def _long_index(folder: Path) -> None:
    _replace_shard(folder, 2**22, 2**30, None)
    os.truncate(_new(folder / INDEX), 2**22 * 22)


def _field(number: int, body: bytes) -> bytes:
    size, head = len(body), b""
    while True:
        head += bytes([size & 127 | (128 if size > 127 else 0)])
        size >>= 7
        if not size:
            return bytes([number << 3 | 2]) + head + body


INDEXES = {
    "counts of a billion billion": Case(_manifest(_huge_counts), "must have at most 4,194,304 records"),
    "a negative size": Case(_index(lambda lines: b"0 -5\n" + b"".join(lines[1:])), "two whole numbers"),
    "records that overlap": Case(
        _index(lambda lines: lines[0] + lines[0] + lines[2]), "Line 2 of the index must begin at byte"
    ),
    "an index backwards": Case(_index(lambda lines: b"".join(lines[::-1])), "Line 1 of the index must begin"),
    "beyond int64": Case(
        _index(lambda lines: b"0 9999999999999999999\n" + b"0 1\n" * 2), "holds a number beyond int64"
    ),
    "a billion lines": Case(_sparse(INDEX, 20 * 10**9), "must have at most"),
    "a long index of nothing": Case(_long_index, "must have 4194304 whole lines, got 0", quick=False),
}
RECORDS = {
    "a length of 2**63": Case(_header(2**63), "has 9223372036854775808 bytes, but the index says"),
    "a hole of a quarter of a gigabyte": Case(_hole(HOLE_BYTES), "the checksum of its 268435456 bytes", quick=False),
    "a hole of a terabyte": Case(_hole(2**40), "at most 2,147,483,648 bytes of payload", quick=False),
    "groups in groups": Case(_payload(b"\x4b" * 10**6), "wire type 3, which no Example has"),
    "a length beyond the end": Case(_payload(b"\n\xff\xff\xff\xff\x07abc"), "says it has 2147483647 bytes"),
    "an integer without end": Case(_payload(b"\x08" + b"\xff" * 10**6), "is longer than 10 bytes"),
    "packed floats cut off": Case(
        _payload(_field(1, _field(1, _field(2, _field(2, _field(1, b"abcde")))))), "multiple of 4 bytes, got 5"
    ),
    "10 million features": Case(_payload(_field(1, b"\n\x00" * 10**7)), "it has more than 100,000 fields"),
    "10 million values": Case(
        _payload(_field(1, _field(1, _field(2, _field(1, b"\n\x00" * 10**7))))), "more than 100,000 fields"
    ),
    "10 million unknown fields": Case(_payload(b"\x10\x00" * 10**7), "more than 100,000 fields"),
}


MAX_BYTES = 200 * 10**6
CASES = {**MANIFESTS, **PLACES, **INDEXES, **RECORDS}
BAD_MANIFESTS = {*MANIFESTS, *(name for name in PLACES if name.startswith("manifest.json"))}

# What each entry point is given. `tfpipe verify` would read the holes for long; a first record needs a shard.
GIVEN = {
    **{entry: list(CASES) for entry in ("load", "open", "source", "inspect", "record")},
    **{entry: [name for name, case in CASES.items() if case.quick] for entry in ("verify", "export")},
    "foreign": [name for name in CASES if name in RECORDS or name.startswith("train-")],
}

Said = Mapping[str, Mapping[str, str]]


@pytest.fixture(
    scope="module", params=[pytest.param(1, id="all", marks=pytest.mark.slow), pytest.param(6, id="a sixth")]
)
def said(request, tmp_path_factory) -> Said:
    """What each entry point said of each case, or an empty text if it read it; in one process without TensorFlow.

    The quick run gives an entry point every sixth case, each another sixth than the one before it.
    """
    given = {entry: names[k % request.param :: request.param] for k, (entry, names) in enumerate(GIVEN.items())}
    folder = tmp_path_factory.mktemp("hostile")
    payloads = [payload(k) for k in range(6)]
    good = write_dataset(folder / "good", {"train": payloads[:3], "train:1": payloads[3:]})
    folders = {name: folder / str(k) for k, name in enumerate(CASES)}
    for name, case in CASES.items():
        case.change(shutil.copytree(good, folders[name]))
    # The kernel makes pages of a hole when it is read first. That takes up to a second, and is none of tfpipe's time.
    with open(folders["a hole of a quarter of a gigabyte"] / SHARD, "rb", buffering=0) as file:
        hash_stream(file)
    words = [word for entry, names in given.items() for word in (entry, *(str(folders[name]) for name in names))]
    command = [sys.executable, "-m", "tests.hostile.measure", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    pairs = [(entry, name) for entry, names in given.items() for name in names]
    found: dict[str, dict[str, str]] = {entry: {} for entry in given}
    for (entry, name), line in zip(pairs, done.stdout.splitlines(), strict=True):
        one = json.loads(line)
        assert one["kind"] != "failed", (entry, name, one)
        assert one["cpu_s"] < 1.0, (entry, name, one)
        assert one["bytes"] < MAX_BYTES, (entry, name, one)
        found[entry][name] = one["said"] if one["kind"] == "refused" else ""
    return found


def check_messages(said: Mapping[str, str]) -> None:
    for name, message in said.items():
        assert CASES[name].message in message, (name, message)
        assert len(message) < 1000
        assert "Traceback" not in message


def test_manifests_are_refused(said: Said) -> None:
    check_messages({name: message for name, message in said["load"].items() if name in BAD_MANIFESTS})
    assert {message for name, message in said["load"].items() if name not in BAD_MANIFESTS} == {""}


def test_records_are_refused(said: Said) -> None:
    check_messages(said["open"])


@pytest.mark.parametrize("entry", ["inspect", "record"])
def test_inspect_says_so_in_one_sentence(said: Said, entry: str) -> None:
    for name, message in said[entry].items():
        if entry == "record" or name in BAD_MANIFESTS:
            words = " ".join(message.split())
            assert words.startswith("Error: "), (name, words)
            assert CASES[name].message in words, (name, words)


def test_a_pipeline_does_not_begin_with_them(said: Said) -> None:
    """Files and indexes are looked at; what is in a record shows when it is read."""
    assert [name for name, message in said["source"].items() if name not in RECORDS and not message] == []


def test_verify_finds_them(said: Said) -> None:
    assert [name for name, message in said["verify"].items() if not message] == []


def test_an_export_refuses_what_it_reads(said: Said) -> None:
    """It reads no index."""
    of_index = [name for name in said["export"] if name in INDEXES or name.startswith("index/")]
    assert [name for name, message in said["export"].items() if name not in of_index and not message] == []


def test_foreign_files_end_within_the_limits(said: Said) -> None:
    """A first record may be read, with or without an error."""
    assert len(said["foreign"]) in (len(GIVEN["foreign"]), len(GIVEN["foreign"][1::6]))
