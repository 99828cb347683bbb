"""`tfpipe export` as a user runs it."""

from pathlib import Path

from tests.conftest import Tfpipe
from tests.integrity.made import payload, write_dataset
from tfpipe.system.units import human_bytes


def test_what_was_written_in_words_and_as_json(tmp_path: Path, tfpipe: Tfpipe) -> None:
    made = write_dataset(tmp_path / "made", {"train": [payload(0), payload(1)], "test": [payload(2)]})
    out = tmp_path / "out"
    done = tfpipe("export", made, out, "--to", "webdataset", "--workers", 0)
    assert (done.code, done.err) == (0, "")
    sizes = [(out / f"{split}-00000-of-00001.tar").stat().st_size for split in ("test", "train")]
    assert done.out.splitlines() == [
        f"test: 1 record, 1 file, {human_bytes(sizes[0])}",
        f"train: 2 records, 1 file, {human_bytes(sizes[1])}",
        f"{out} is complete",
    ]
    one = tmp_path / "one"
    done = tfpipe("export", made, one, "--to", "webdataset", "--split", "test", "--workers", 0, "--json")
    size = (one / "test-00000-of-00001.tar").stat().st_size
    splits = {"test": {"records": 1, "files": 1, "bytes": size}}
    told = {"dataset": str(made), "output": str(one), "to": "webdataset", "splits": splits, "notes": []}
    assert done.json == told
