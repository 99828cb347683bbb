"""Whatever writes a dataset goes on after a kill at any moment, and keeps a second process off."""

import contextlib
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tfpipe
from tests.beam_jobs.datasets import join_datasets, make_dataset, read_tree
from tests.beam_jobs.images import make_photos, write_files
from tests.columns.values import get_index
from tests.conftest import ROOT
from tests.integrity.made import payload, write_dataset
from tests.layers.growth import add_view, append, draw_more, list_names, read_parts
from tests.refusals import refusal
from tfpipe import fields
from tfpipe.columns.config import TableConfig
from tfpipe.columns.join_table import join_table
from tfpipe.dataset.history import load_history
from tfpipe.errors import ConfigError, DataError
from tfpipe.export.run import ExportConfig, export
from tfpipe.format.example import encode_example
from tfpipe.integrity.foreign.index import IndexConfig, index
from tfpipe.integrity.repair import repair
from tfpipe.integrity.verify import VerifyConfig, verify
from tfpipe.layers.delete import delete_records
from tfpipe.system.file_lock import lock_file
from tfpipe.views.choose import find_info
from tfpipe.writer.record_form import RecordForm
from tfpipe.writer.write import hash_key

SCHEMA = {"id": fields.Values("int64")}

Write = Callable[[Path, Path], Any]


def write_shards(inputs: Path, output: Path) -> None:
    tfpipe.write(make_records, output, SCHEMA, num_shards=2, workers=0)


def make_records(shard: int) -> list[dict[str, int]]:
    return [{"id": 10 * shard + number} for number in range(3)]


def write_beam_records(inputs: Path, output: Path) -> None:
    from beam_jobs.write_records import RecordsJob, write_record_shard

    job = RecordsJob(str(output), RecordForm(SCHEMA), "id", refuse_nan=False, num_shards=2)
    files = [f"train-{number:05d}-of-00002.tfrecord" for number in range(2)]
    job.prepare(files)
    elements = [[(hash_key(row["id"]), encode_example(row)) for row in make_records(shard)] for shard in range(2)]
    job.finish(files, [write_record_shard(job, *each) for each in zip(files, elements, strict=True)])


JOB, WRITE = ("/.tfpipe", "writes to"), (".tfpipe-write", "writes to")
WRITERS: dict[str, tuple[Write, str, str]] = {
    "shard": (lambda inputs, output: make_dataset(inputs / "a", output), *JOB),
    "reshard": (lambda inputs, output: join_datasets([inputs / "made-a"], output, num_shards=3), *JOB),
    "merge": (lambda inputs, output: join_datasets([inputs / "made-a", inputs / "made-b"], output), *JOB),
    "write": (write_shards, *WRITE),
    "write all": (
        lambda inputs, output: tfpipe.write(iter(make_records(0)), output, SCHEMA, num_shards=2, workers=2, key="id"),
        *WRITE,
    ),
    "repair": (
        lambda inputs, output: repair(str(inputs / "made-a"), str(output), workers=0),
        *(".tfpipe-repair", "repairs into"),
    ),
    "export": (
        lambda inputs, output: export(ExportConfig(str(inputs / "made-a"), str(output), "webdataset", workers=0)),
        *(".tfpipe-export", "exports into"),
    ),
}


# These have no lock, or that of another writer.
OTHERS: dict[str, Write] = {
    "WriteRecords": write_beam_records,
    "index": lambda inputs, output: index(IndexConfig(f"{inputs}/made-a/train-*", output=str(output))),
}
EVERY: dict[str, Write] = {name: write for name, (write, *_) in WRITERS.items()} | OTHERS


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    for number, name in enumerate("ab"):
        photos = make_photos({"cat": 4}, seed=number)
        write_files(folder / name, photos | {"cat/copy.jpg": photos["cat/000.jpg"], "cat/bad.jpg": b"bad"})
        make_dataset(folder / name, folder / f"made-{name}", num_shards=2)
    return folder


@pytest.mark.parametrize("name", EVERY)
def test_it_goes_on_after_a_kill_at_every_name(inputs: Path, tmp_path: Path, name: str) -> None:
    """The process vanishes between writing a file or folder and naming it. The next run goes on and leaves no trace."""
    write = EVERY[name]
    write(inputs, tmp_path / "straight" / "out")
    expected = read_tree(tmp_path / "straight" / "out")
    assert (name != "shard") or {"duplicates.jsonl", "quarantine/quarantined.jsonl"} <= expected.keys()
    for moment in range(0, 100, 1 if name == "shard" else 5):  # a shard takes three names, so each kind has its turn
        output = tmp_path / str(moment) / "out"
        output.parent.mkdir()
        is_done = write_and_vanish(write, inputs, output, moment)
        if name.lower().startswith("write") and (output / "manifest.json").exists():
            assert read_tree(output).items() >= expected.items()
            break  # these refuse a whole dataset
        write(inputs, output)
        assert read_tree(output) == expected, moment
        assert [path.name for path in output.parent.iterdir()] == ["out"], moment
        if is_done:
            break
    assert 0 < moment < 95


def write_and_vanish(write: Write, inputs: Path, output: Path, moment: int) -> bool:
    """Writes in a child process that ends before it names its `moment`-th file; returns whether it came to its end."""
    child = os.fork()
    if child == 0:
        left = [moment]

        def vanishing(real: Callable[..., None]) -> Callable[..., None]:
            def name_or_vanish(*args: Any) -> None:
                left[0] -= 1
                if left[0] < 0:
                    os._exit(9)
                real(*args)

            return name_or_vanish

        os.replace, os.rename = vanishing(os.replace), vanishing(os.rename)
        try:
            write(inputs, output)
            os._exit(0)
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 9)
    return code == 0


@pytest.mark.slow
@pytest.mark.parametrize("words", ["repair", *(f"export --to {to}" for to in ("webdataset", "parquet", "arrayrecord"))])
def test_it_goes_on_after_it_was_killed_with_its_workers(rng: random.Random, tmp_path: Path, words: str) -> None:
    pool, output = [payload(number) for number in range(40)], tmp_path / "out"
    source = write_dataset(tmp_path / "in", {f"train:{k}": rng.choices(pool, k=200) for k in range(24)})
    (source / "train-00008-of-00024.tfrecord").write_bytes(b"") if words == "repair" else None
    command = [sys.executable, "-m", "tfpipe", *words.split(), "--workers", "2", str(source)]
    subprocess.run([*command, str(tmp_path / "straight")], cwd=ROOT, check=True, capture_output=True)
    expected = read_tree(tmp_path / "straight")
    for _ in range(20):
        child = subprocess.Popen([*command, str(output)], cwd=ROOT, stdout=subprocess.DEVNULL, start_new_session=True)
        time.sleep(rng.uniform(0.2, 1.5))
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        assert not output.exists() or read_tree(output) == expected
    subprocess.run([*command, str(output)], cwd=ROOT, check=True, capture_output=True)
    assert read_tree(output) == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out", "straight"]


@pytest.mark.parametrize("name", ["shard", "reshard", "merge", "write", "repair", "WriteRecords"])
def test_it_leaves_the_info_that_a_view_would_make(inputs: Path, tmp_path: Path, name: str) -> None:
    EVERY[name](inputs, tmp_path / "out")
    written = {path.name: path.read_bytes() for path in tmp_path.glob("out/index/*.parquet")}
    manifest = tfpipe.load_manifest(str(tmp_path / "out"))
    for path in tmp_path.glob("out/index/*.parquet"):
        path.unlink()
    made = [Path(file) for split in manifest.splits for file in find_info(manifest, split, str(tmp_path))]
    assert made
    assert written == {path.name: path.read_bytes() for path in made}


def test_without_pyarrow_no_info_are_written(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("tfpipe.writer.record_info.importlib.util.find_spec", lambda name: None)
    write_shards(tmp_path, tmp_path / "out")
    assert sorted(os.listdir(tmp_path / "out/index")) == [f"train-{k:05}-of-00002.idx" for k in range(2)]


@pytest.mark.parametrize("name", WRITERS)
def test_a_second_process_is_refused(inputs: Path, tmp_path: Path, name: str) -> None:
    write, place, work = WRITERS[name]
    output = tmp_path / "out"
    with lock_file(f"{output}{place}/lock", pytest.fail):
        message = refusal(DataError, write, inputs, output)
    assert message == f"Another process {work} {output}; wait until it is done."
    write(inputs, output)  # the lock that was left behind holds nobody up


@pytest.mark.parametrize("name", [*WRITERS, "WriteRecords"])
def test_an_output_that_holds_something_else_or_lies_in_the_input_is_refused(
    inputs: Path, tmp_path: Path, name: str
) -> None:
    output = write_files(tmp_path / "out", {"mine": b"precious"})
    message = f"{output} must be empty or not exist yet, and holds mine. Choose another directory."
    assert refusal(ConfigError, EVERY[name], inputs, output) == message
    assert read_tree(output) == {"mine": b"precious"}
    if name.lower().startswith("write"):  # these have no input
        return
    source = inputs / ("a" if name == "shard" else "made-a")
    before = read_tree(inputs)
    message = f"The output must not lie inside the input, got {source}/out in {source}. Choose another directory."
    assert refusal(ConfigError, EVERY[name], inputs, source / "out") == message
    assert read_tree(inputs) == before


@contextlib.contextmanager
def limit_files(num_bytes: int) -> Iterator[None]:
    """Lets no file grow beyond so many bytes, as on a disk that becomes full."""
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


@pytest.mark.parametrize("num_bytes", [0, 300])
@pytest.mark.parametrize("name", WRITERS)
def test_on_a_full_disk_it_says_so_and_goes_on_once_there_is_room(
    inputs: Path, tmp_path: Path, name: str, num_bytes: int
) -> None:
    write, output = WRITERS[name][0], tmp_path / "out"
    write(inputs, tmp_path / "straight" / "out")
    with limit_files(num_bytes), pytest.raises(DataError, match=rf"^Could not .*{output}.*: File too large"):
        write(inputs, output)
    write(inputs, output)
    assert read_tree(output) == read_tree(tmp_path / "straight" / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "straight"]


@pytest.fixture(scope="module")
def given(small_dataset: Path, tmp_path_factory) -> Path:
    """A dataset of two layers with the column `scores`, and the images and the table that a change takes."""
    folder = tmp_path_factory.mktemp("given")
    dataset = shutil.copytree(small_dataset, folder / "pets")
    append(dataset, draw_more(folder / "first"))
    draw_more(folder / "more", 600)
    names = [name for split in ("train", "validation") for name in list_names(dataset, split)]
    for first in (0, 100):
        pq.write_table(pa.table({"name": names, f"score_{first}": range(len(names))}), folder / f"{first}.parquet")
    join_table(str(dataset), str(folder / "0.parquet"), TableConfig("scores"))
    return folder


def join_scores(given: Path, dataset: Path, config: TableConfig) -> None:
    join_table(str(dataset), str(given / "100.parquet"), config)


CHANGES: dict[str, Write] = {
    "append": lambda given, dataset: append(dataset, given / "more"),
    "delete": lambda given, dataset: delete_records(str(dataset), ["train/cat/0.jpg"]),
    "add": lambda given, dataset: join_scores(given, dataset, TableConfig("other")),
    "replace": lambda given, dataset: join_scores(given, dataset, TableConfig("scores", replace=True)),
    "function": lambda given, dataset: tfpipe.add_column(dataset, "scores", get_index, SCHEMA["id"], replace=True),
    "view": lambda given, dataset: add_view(dataset, "wide", "width > 24"),
}


def describe(dataset: Path) -> tuple[list[tuple[str, str]], list[str]]:
    """Returns what readers see: the changes that were made, and the records with all values."""
    splits = [tfpipe.data_source(dataset, split) for split in tfpipe.load_manifest(dataset).splits]
    records = [f"{record} {record.features}" for records in splits for record in records]
    return [(entry.kind, entry.name) for entry in load_history(str(dataset)).catalog.entries], records


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_made_as_a_whole_or_not_at_all(given: Path, tmp_path: Path, name: str) -> None:
    change, old = CHANGES[name], describe(given / "pets")
    straight = shutil.copytree(given / "pets", tmp_path / "straight")
    change(given, straight)
    new, expected, is_done = describe(straight), read_parts(straight), False
    for moment in range(0, 200, 1 if name in ("delete", "view") else 9):  # a shard takes four names
        dataset = shutil.copytree(given / "pets", tmp_path / str(moment) / "out")
        is_done = write_and_vanish(change, given, dataset, moment)
        assert describe(dataset) in ((new,) if is_done else (old, new)), moment
        if describe(dataset) == old:
            change(given, dataset)
        assert read_parts(dataset) == expected, moment
        assert [path.name for path in dataset.parent.iterdir()] == ["out"], moment
        if is_done:
            break
    assert is_done
    assert moment > 0


@pytest.mark.parametrize("num_bytes", [0, 300])
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_on_a_full_disk_changes_nothing(given: Path, tmp_path: Path, name: str, num_bytes: int) -> None:
    dataset = shutil.copytree(given / "pets", tmp_path / "pets")
    before = read_tree(dataset)
    with limit_files(num_bytes), pytest.raises(DataError, match=r"^Could not write .*File too large"):
        CHANGES[name](given, dataset)
    left = {name: data for name, data in read_tree(dataset).items() if ".tfpipe-write/" not in name}
    assert left == before  # but for what the next run of a column goes on with
    CHANGES[name](given, dataset)
    assert read_tree(dataset) != before
    assert list(dataset.rglob("*.tfpipe-write")) == []
    assert verify(str(dataset), VerifyConfig(workers=0)).damaged == []
