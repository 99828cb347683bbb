"""An export appears whole or not at all, goes on where it was stopped, and refuses in one sentence."""

from pathlib import Path
from unittest.mock import DEFAULT, Mock

import pytest

from tests.beam_jobs.datasets import read_tree
from tests.flipped_bit import flip_bit
from tests.integrity.made import payload, write_dataset
from tests.observers import Recorder
from tests.refusals import refusal
from tfpipe.errors import ConfigError, DataError, FormatError, MissingDependencyError, TfpipeError
from tfpipe.export import run
from tfpipe.export.run import ExportConfig, Format, export

FORMATS: tuple[Format, ...] = ("webdataset", "parquet", "arrayrecord")


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """5 shards of 3 records. Not to be changed: copy it."""
    shards = {f"train:{k}": [payload(3 * k + n) for n in range(3)] for k in range(4)}
    return write_dataset(tmp_path_factory.mktemp("made") / "made", {**shards, "test": [payload(90)]})


def write(dataset: Path, output: Path, to: Format = "webdataset", *splits: str, workers: int = 0) -> None:
    export(ExportConfig(str(dataset), str(output), to, splits, workers))


def get_error(kind: type[TfpipeError], dataset: Path, output: Path, to: Format = "webdataset", *splits: str) -> str:
    found = refusal(kind, write, dataset, output, to, *splits)
    assert not output.exists() or not (output / "export.json").exists()
    return found


@pytest.mark.parametrize("to", FORMATS)
def test_an_interrupted_run_goes_on(made: Path, tmp_path: Path, monkeypatch, to: Format) -> None:
    write(made, tmp_path / "expected", to)
    written = Mock(wraps=run._write, side_effect=[DEFAULT, DEFAULT, KeyboardInterrupt, *[DEFAULT] * 3])
    monkeypatch.setattr(run, "_write", written)
    with pytest.raises(KeyboardInterrupt):
        write(made, tmp_path / "out", to)
    assert not (tmp_path / "out").exists()
    write(made, tmp_path / "out", to)
    names = [call.args[-1].name for call in written.mock_calls]
    assert sorted([*names[:2], *names[3:]]) == ["test-00000-of-00001", *(f"train-{k:05d}-of-00004" for k in range(4))]
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "expected")
    assert not (tmp_path / "out.tfpipe-export").exists()


def test_processes_write_the_same_bytes(made: Path, tmp_path: Path) -> None:
    write(made, tmp_path / "one", "webdataset", workers=0)
    write(made, tmp_path / "two", "webdataset", workers=2)
    assert read_tree(tmp_path / "one") == read_tree(tmp_path / "two")


def test_again_says_the_same_and_writes_nothing(made: Path, tmp_path: Path) -> None:
    config = ExportConfig(str(made), str(tmp_path / "out"), "parquet", workers=0)
    report = export(config)
    (file, *_) = (tmp_path / "out").glob("train-*")
    before = file.stat().st_ino
    assert export(config) == report
    assert file.stat().st_ino == before
    counts = {name: (sums["records"], sums["files"]) for name, sums in report.splits.items()}
    assert counts == {"train": (12, 4), "test": (1, 1)}
    observer = Recorder()
    export(ExportConfig(str(made), str(tmp_path / "other"), "webdataset", workers=0), observer)
    total = sum(path.stat().st_size for path in made.glob("*.tfrecord"))
    last = observer.progresses[-1]
    assert (last.done, last.total, last.records, last.unit) == (total, total, 13, "bytes")
    with pytest.raises(ConfigError, match=r"out holds the result of another export; choose another name\.$"):
        write(made, tmp_path / "out", "webdataset")


def test_options_that_cannot_be(made: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^`to` must be webdataset, parquet or arrayrecord, got 'lmdb'\.$"):
        ExportConfig("a", "b", "lmdb")
    assert get_error(DataError, tmp_path / "nothing", tmp_path / "out") == f"{tmp_path}/nothing does not exist."


@pytest.mark.parametrize(("to", "package"), [("parquet", "pyarrow"), ("arrayrecord", "array_record")])
def test_a_missing_package_is_named_with_its_extra(made: Path, tmp_path: Path, monkeypatch, to: Format, package: str):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == package else object())
    message = f"An export to {to} needs {package}. Install it with: pip install '.[export]' in a checkout of tfpipe."
    assert get_error(MissingDependencyError, made, tmp_path / "out", to) == message


def test_damage_ends_the_export(tmp_path: Path) -> None:
    advice = "Copy the dataset again, or save the undamaged records with `tfpipe repair`."
    records = [payload(k) for k in range(3)]
    dataset = write_dataset(tmp_path / "made", {"train": [*records[:2], payload(2, encoded=b"GIF?")]})
    message = f"Record 2 of 'train': its image cannot be used, not an image: it begins like text. {advice}"
    assert get_error(FormatError, dataset, tmp_path / "out") == message
    shard = dataset / "train-00000-of-00001.tfrecord"
    flip_bit(shard, 20)
    message = get_error(FormatError, dataset, tmp_path / "out")
    assert message.startswith(f"{shard}: Record at byte 0 is damaged: the checksum of its ")
    shard.write_bytes(b"")
    assert get_error(FormatError, dataset, tmp_path / "out").endswith(f" bytes, as manifest.json says, got 0. {advice}")
    shard.unlink()
    assert get_error(FormatError, dataset, tmp_path / "out") == f"{shard} is missing. {advice}"
