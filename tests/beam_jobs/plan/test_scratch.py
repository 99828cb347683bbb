"""The files between the tasks: what was written comes back, from the whole range of hashes or from a part of it."""

from pathlib import Path

import numpy as np
import pytest

from beam_jobs.plan.image_ref import ImageLocation, ImageRef
from beam_jobs.plan.image_table import ImageTable
from beam_jobs.plan.scratch import Scratch, get_leading_bits
from tfpipe.storage import file_io


def make_refs(count: int) -> list[ImageRef]:
    return [
        ImageRef(
            f"{i}.jpg", i, ImageLocation("a.tar", 512 * i), "train", "ab"[i % 2] if i % 5 else None, extra=(i, "x")
        )
        for i in range(count)
    ]


@pytest.mark.parametrize("count", [0, 1, 300, 1000])
def test_a_range_of_hashes_comes_back(count: int, tmp_path: Path) -> None:
    refs = make_refs(count)
    hashes = np.random.default_rng(count).integers(0, 2**64, count, np.uint64)
    scratch = Scratch(str(tmp_path))
    run = scratch.write_run(3, 7, ImageTable.from_refs(refs), hashes)
    assert (run.name, run.num_images, (tmp_path / "runs" / run.name).exists()) == ("000003-0007", count, True)
    assert run.slice_bits == {0: 0, 1: 0, 300: 1, 1000: 2}[count]
    order = np.argsort(hashes, kind="stable")
    whole = scratch.read_run(run)
    assert list(whole.images) == [refs[i] for i in order]
    assert whole.hashes.tolist() == hashes[order].tolist()
    for begin, end in ((0, 1), (2**62, 2**63), (2**63 + 5, 2**64), (7, 8)):
        part = scratch.read_run(run, begin, end)
        rows = slice(part.first, part.first + len(part.hashes))
        assert list(part.images) == list(whole.images)[rows]
        assert part.hashes.tolist() == whole.hashes[rows].tolist()
        assert {int(value) for value in hashes if begin <= value < end} <= set(part.hashes.tolist())


def test_runs_in_a_store_come_in_their_order(tmp_path: Path, monkeypatch) -> None:
    scratch = Scratch(str(tmp_path))
    runs = [
        scratch.write_run(k, 0, ImageTable.from_refs(make_refs(k)), np.arange(k, dtype=np.uint64)) for k in range(9)
    ]
    monkeypatch.setattr("beam_jobs.plan.scratch._RUNS_AT_ONCE", 4)
    monkeypatch.setattr(
        file_io, "is_url", lambda path: path.startswith(str(tmp_path))
    )  # as if the folder were in a store
    monkeypatch.setattr(file_io, "read_range", lambda path, at, size: Path(path).read_bytes()[at : at + size])
    assert [len(part.images) for part in scratch.read_runs(runs, 0, 2**64)] == list(range(9))


def test_each_bucket_comes_back(tmp_path: Path) -> None:
    scratch = Scratch(str(tmp_path))
    buckets = [[], ["a"], np.arange(3), {"b": 1}]
    scratch.write_buckets("x/buckets", buckets)
    assert [str(scratch.read_bucket("x/buckets", k, 4)) for k in range(4)] == list(map(str, buckets))


def test_leading_bits() -> None:
    hashes = np.array([0, 2**62, 2**63, 2**64 - 1], np.uint64)
    assert get_leading_bits(hashes, 2).tolist() == [0, 1, 2, 3]
    assert get_leading_bits(hashes, 0).tolist() == [0, 0, 0, 0]
