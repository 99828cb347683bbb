"""150 damaged files: verify places every damaged record and no other, repair returns exactly the rest."""

import io
import json
import random
from pathlib import Path

import numpy as np

from tests.integrity.damaged import KINDS, DamagedFile, damage, framed
from tests.integrity.made import payload, read_all, write_dataset
from tfpipe.format import file_names
from tfpipe.format.recovery.hashed_reader import HashedReader
from tfpipe.format.recovery.resync import Gap
from tfpipe.format.recovery.scan import Intact, scan
from tfpipe.integrity.repair import repair
from tfpipe.integrity.verify import VerifyConfig, verify

FILES = 150


def random_file(rng: random.Random, nested: bool) -> DamagedFile:
    """Some payloads are empty, some of one size, and some hold records themselves.

    A record inside a payload has a size that no record of the file has. Else nobody could say which of the two is left
    where a file ends inside the payload.
    """
    inner_sizes: set[int] = set()

    def one() -> bytes:
        kind = rng.random()
        if nested and kind < 0.15:
            inner = [rng.randbytes(rng.randrange(80)) for _ in range(rng.randrange(1, 4))]
            inner_sizes.update(map(len, inner))
            return rng.randbytes(rng.choice((0, 7))) + framed(inner) + rng.randbytes(rng.choice((0, 9)))
        return rng.randbytes(64 if kind < 0.25 else rng.randrange(1, 900))

    payloads = [one() for _ in range(rng.randrange(1, 16))]
    if inner_sizes.isdisjoint(map(len, payloads)):
        return DamagedFile(payloads)
    return random_file(rng, nested)


def test_with_an_index_every_record_is_placed(seed: int) -> None:
    for k in range(FILES):
        rng = random.Random(f"{seed}-{k}")
        file = random_file(rng, nested=True)
        damage(file, KINDS[k % len(KINDS)], rng)
        places = np.array([file.begins, file.sizes], np.int64).T.copy()
        found = list(scan(HashedReader(io.BytesIO(bytes(file.data))), places))
        what = f"file {k}: {file.edits} of {len(file.original)}"
        assert {one.number: one.offset for one in found if isinstance(one, Intact)} == file.intact(), what
        damaged = [one for one in found if isinstance(one, Gap)]
        lost = [one for one in damaged if one.kind != "garbage"]
        assert [one.number for one in lost] == sorted(file.damaged()), what
        assert [one for one in lost if not _is_at_its_place(file, one)] == [], what
        stray = [range(one.offset, one.offset + one.size) for one in damaged if one.kind == "garbage"]
        assert stray == file.stray(), what


def _is_at_its_place(file: DamagedFile, one: Gap) -> bool:
    """Where the record's first byte stands now; where that was removed, anywhere between its intact neighbors."""
    begin = file.begins[one.number]
    if begin in file.origin:
        return one.offset == file.origin.index(begin)
    intact = file.intact()
    low = max((at + file.sizes[n] for n, at in intact.items() if n < one.number), default=0)
    return low <= one.offset <= min((at for n, at in intact.items() if n > one.number), default=len(file.data))


def test_without_an_index_reading_goes_on_at_the_next_header(seed: int) -> None:
    for k in range(FILES):
        rng = random.Random(f"{seed}-{k}")
        kind = KINDS[k % len(KINDS)]
        # What the payload of a record holds looks like the next records where its header is lost.
        file = random_file(rng, nested=kind in ("payload", "payload_crc"))
        damage(file, kind, rng)
        found = list(scan(HashedReader(io.BytesIO(bytes(file.data)))))
        what = f"file {k}: {file.edits} of {len(file.original)}"
        intact = {(one.offset, one.size) for one in found if isinstance(one, Intact)}
        expected = {(at, file.sizes[number]) for number, at in file.intact().items()}
        if kind == "remove":  # by chance a later record now stands where the damaged one claims its end
            first = min(file.damaged(), default=len(file.payloads))
            assert {(file.begins[number], file.sizes[number]) for number in range(first)} <= intact <= expected, what
        else:
            assert intact == expected, what
        damaged = [one for one in found if isinstance(one, Gap)]
        covered = [range(one.offset, one.offset + one.size) for one in damaged]
        for number in file.damaged():
            left = [at for at, origin in enumerate(file.origin) if origin == file.begins[number]]
            assert not left or any(left[0] in part for part in covered), what
        left = b"".join(file.original[file.begins[n] : file.begins[n] + file.sizes[n]] for n in sorted(file.intact()))
        assert bool(damaged) == (bytes(file.data) != left), what  # records removed whole leave no trace


def test_several_places_of_damage(seed: int) -> None:
    for k in range(FILES // 5):
        rng = random.Random(f"{seed}-{k}")
        file = DamagedFile([rng.randbytes(200 + 7 * n) for n in rng.sample(range(200), 12)])
        for number in rng.sample(range(0, 12, 3), 3):  # never two in neighbors
            at = file.origin.index(file.begins[number])
            edit = rng.randrange(4)
            if edit == 0:
                file.flip(at + rng.randrange(file.sizes[number]), rng.randrange(8))
            elif edit == 1:
                file.zero(at + rng.randrange(file.sizes[number] - 40), 40)
            elif edit == 2:
                file.insert(at + 1 + rng.randrange(file.sizes[number] - 1), rng.randbytes(30))
            else:
                file.remove(at + rng.randrange(file.sizes[number] - 50), 50)
        for places in (None, np.array([file.begins, file.sizes], np.int64).T.copy()):
            found = list(scan(HashedReader(io.BytesIO(bytes(file.data))), places))
            intact = [one.offset for one in found if isinstance(one, Intact)]
            assert intact == sorted(file.intact().values()), f"file {k}: {file.edits}"


def test_whole_datasets(seed: int, tmp_path: Path) -> None:
    """The same through verify and repair: the payloads that come out are the undamaged ones, byte for byte."""
    for k in range(12):
        rng = random.Random(f"{seed}-{k}")
        source = tmp_path / str(k)
        payloads = [payload(100 * k + n) for n in range(6)]
        write_dataset(source, {"train": payloads, "train:1": [payload(100 * k + 90)]})
        file = DamagedFile(payloads)
        damage(file, KINDS[k % len(KINDS)], rng)
        name = file_names.shard_name("train", 0, 2)
        (source / name).write_bytes(file.data)
        before = {path: path.read_bytes() for path in source.rglob("*") if path.is_file()}
        report = verify(str(source), VerifyConfig(workers=0))
        records = {one.record for one in report.damaged if one.kind != "garbage"}
        assert records == file.damaged(), (file.edits, report.damaged)
        assert all(one.file == name for one in report.damaged)
        result = repair(str(source), str(tmp_path / f"{k}-clean"), workers=0)
        assert [one.record for one in result.lost] == [one.record for one in report.damaged]
        assert read_all(tmp_path / f"{k}-clean") == [
            *(payloads[n] for n in sorted(file.intact())),
            payload(100 * k + 90),
        ]
        assert verify(str(tmp_path / f"{k}-clean"), VerifyConfig(workers=0)).damaged == []
        assert {path: path.read_bytes() for path in source.rglob("*") if path.is_file()} == before
        listed = json.loads((tmp_path / f"{k}-clean" / "repair.json").read_text())["lost"]
        assert listed == [one.to_json() for one in result.lost]
