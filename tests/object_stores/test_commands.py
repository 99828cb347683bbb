"""verify, repair, index, export and reshard in buckets: the files and the words that they give on this disk."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from beam_jobs import job_stores
from tests.beam_jobs.datasets import join_datasets, read_tree
from tests.flipped_bit import flip_bit
from tests.integrity.made import payload, write_dataset
from tests.object_stores.conftest import Cloud
from tests.refusals import refusal
from tfpipe.dataset.load import load_manifest
from tfpipe.errors import ConfigError, DataError
from tfpipe.export.run import ExportConfig, Format, export
from tfpipe.format import file_names
from tfpipe.integrity.foreign.index import IndexConfig, index
from tfpipe.integrity.repair import repair
from tfpipe.integrity.verify import VerifyConfig, verify
from tfpipe.storage import stores
from tfpipe.storage.buckets import StoreOptions
from tfpipe.storage.failures import RetryConfig
from tfpipe.storage.store import Store

ONCE = RetryConfig(first_attempts=1, attempts=1)
ALONE = VerifyConfig(workers=0)
NAMES = [f"train-0000{k}-of-00003.tfrecord" for k in range(3)]


@pytest.fixture(autouse=True)
def as_any_program(cloud: Cloud) -> None:
    """These commands find buckets without the options of a pipeline."""
    stores.configure()


@pytest.fixture
def local(tmp_path: Path) -> Path:
    shards = {f"train:{k}": [payload(3 * k + number) for number in range(3)] for k in range(3)}
    return write_dataset(tmp_path / "in", shards)


@pytest.fixture
def damaged(local: Path) -> Path:
    """A dataset with a wrong payload, a shard that is gone, and a file that nobody knows."""
    flip_bit(local / NAMES[0], 40)
    (local / NAMES[1]).unlink()
    (local / file_names.INDEX_DIR / "other.idx").write_bytes(b"")
    return local


def put(cloud: Cloud, folder: Path) -> str:
    return cloud.put(f"{cloud.new()}/in", read_tree(folder))


def translate(value: object, source: str, folder: Path) -> str:
    """Returns a result as text, as it would be for a folder of this disk."""
    return json.dumps(value, default=str).replace(source, str(folder))


def test_an_intact_dataset_is_verified(cloud: Cloud, local: Path) -> None:
    source = put(cloud, local)
    cloud.proxy.log.clear()
    assert verify(source, ALONE) == verify(str(local), ALONE)
    asked = [(seen.method, unquote(seen.path)) for seen in cloud.proxy.log]
    listings = [path for method, path in asked if "list-type" in path or "?prefix" in path or path.endswith("/o")]
    assert len(listings) == 2  # whether the bucket is there, and what is in it
    assert sum(method == "GET" and NAMES[0] in path and "idx" not in path for method, path in asked) == 1


def test_damage_is_found_and_repaired_as_on_a_disk(cloud: Cloud, damaged: Path, tmp_path: Path) -> None:
    source = put(cloud, damaged)
    found, expected = verify(source, ALONE), verify(str(damaged), ALONE)
    assert [damage.to_json() for damage in found.damaged] == [damage.to_json() for damage in expected.damaged]
    assert {damage.kind for damage in found.damaged} == {"payload_crc", "missing", "extra"}
    output = f"{cloud.new()}/out"
    here, there = repair(str(damaged), str(tmp_path / "out"), workers=0), repair(source, output, workers=0)
    assert there == here
    written, repaired = read_tree(tmp_path / "out"), cloud.tree(output)
    assert written.keys() == repaired.keys()
    for name in written:
        if name not in (file_names.REPAIR, file_names.MANIFEST):  # which name the source
            assert written[name] == repaired[name]
    assert not verify(output, ALONE).damaged
    assert repair(source, output, workers=0) == there  # it is done
    with pytest.raises(ConfigError, match=r"out holds the result of another repair; choose another name\.$"):
        repair(source, output, workers=0, quick=True)


def test_a_repair_here_of_what_is_there(cloud: Cloud, damaged: Path, tmp_path: Path) -> None:
    repair(put(cloud, damaged), str(tmp_path / "one"), workers=0)
    repair(str(damaged), f"{cloud.new()}/two", workers=0)
    assert load_manifest(str(tmp_path / "one")).splits["train"].records == 5


@pytest.mark.parametrize("target", ["", "/train-*"])
def test_foreign_files_are_indexed_where_they_are(cloud: Cloud, local: Path, tmp_path: Path, target: str) -> None:
    for name in ("manifest.json", "dataset_info.json", "features.json", *(f"index/{name}.idx" for name in NAMES)):
        (local / name).unlink(missing_ok=True)
    source = put(cloud, local)
    found, expected = index(IndexConfig(f"{source}{target}")), index(IndexConfig(f"{local}{target}"))
    assert translate(asdict(found), source, local) == translate(asdict(expected), source, local)
    assert cloud.tree(source) == read_tree(local)
    assert not verify(source, ALONE).damaged
    index(IndexConfig(f"{source}/train-*", output=str(tmp_path / "beside")))
    assert load_manifest(str(tmp_path / "beside")).shard_directory("") == source
    assert not verify(str(tmp_path / "beside"), ALONE).damaged
    job_stores.configure(())
    assert join_datasets([source], f"{cloud.new()}/out", num_shards=1).splits["train"].records == 9


@pytest.mark.parametrize("to", ["webdataset", "parquet", "arrayrecord"])
def test_exports(cloud: Cloud, local: Path, tmp_path: Path, to: Format) -> None:
    source, output = put(cloud, local), f"{cloud.new()}/out"
    config = ExportConfig(str(local), str(tmp_path / "out"), to, workers=0)
    assert export(replace(config, dataset=source, output=output)) == export(config)
    written, exported = read_tree(tmp_path / "out"), cloud.tree(output)
    assert exported.keys() == written.keys()
    if to != "arrayrecord":  # whose library writes other bytes each time
        assert exported == written
    assert export(replace(config, output=output)).to == to  # it is done, whoever reads
    with pytest.raises(ConfigError, match=r"out holds the result of another export; choose another name\.$"):
        export(replace(config, to="webdataset" if to != "webdataset" else "parquet", output=output))


def test_what_is_not_there_is_a_sentence(cloud: Cloud, local: Path) -> None:
    none = f"{cloud.scheme}://none/in"
    calls: list[Callable[[], object]] = [
        lambda: verify(none, ALONE),
        lambda: repair(none, f"{cloud.new()}/out"),
        lambda: repair(str(local), none),
        lambda: index(IndexConfig(none)),
        lambda: export(ExportConfig(none, f"{cloud.new()}/out", "parquet")),
    ]
    for call in calls:
        assert refusal(DataError, call).startswith(f"There is no bucket {cloud.scheme}://none. Create it, or check")
    nothing = cloud.new()
    with pytest.raises(DataError, match=rf"^There is no {nothing}\. Give the directory of a dataset, a file, or"):
        verify(nothing, ALONE)
    with pytest.raises(DataError, match=rf"^{nothing} must be the directory of a dataset\."):
        repair(nothing, f"{nothing}/out")
    with pytest.raises(DataError, match=rf"^There is no {nothing}\. Check the path and the pattern\."):
        index(IndexConfig(nothing))
    taken = cloud.put(cloud.new(), {"mine": b""})
    with pytest.raises(ConfigError, match=rf"^{taken} must be empty or not exist yet, and holds mine\. "):
        repair(put(cloud, local), taken)


RUNS: dict[str, Callable[[str, str], Any]] = {
    "repair": lambda source, output: repair(source, output, workers=0),
    "export": lambda source, output: export(ExportConfig(source, output, "parquet", workers=0)),
    "index": lambda source, output: index(IndexConfig(f"{source}/train-*", output=output)),
    "reshard": lambda source, output: (job_stores.configure(()), join_datasets([source], output, num_shards=2)),
}


@pytest.mark.parametrize(
    ("name", "every"),
    [
        *((name, 37) for name in ("repair", "export", "index")),
        *(pytest.param(name, 1, marks=pytest.mark.slow) for name in ("repair", "export", "index")),
        pytest.param("reshard", 5, marks=pytest.mark.slow),
    ],
)
def test_a_store_that_dies_at_any_request(cloud, tmp_path, monkeypatch, name: str, every: int):
    """From request n on nothing is answered; the same call then makes the files of a run without a fault."""
    monkeypatch.setattr(Store.__init__, "__defaults__", (StoreOptions(), ONCE))
    small = write_dataset(tmp_path / "small", {f"train:{k}": [payload(k)] for k in range(2)})
    run, source, output = RUNS[name], put(cloud, small), f"{cloud.new()}/out"
    cloud.proxy.reset()
    run(source, output)
    expected, count = _comparable(cloud.tree(output), output), len(cloud.proxy.log)
    finished = "export.json" if name == "export" else file_names.MANIFEST
    for number in range(0, count, every):
        output = f"{cloud.new()}/out"
        cloud.proxy.reset()
        cloud.proxy.harm = lambda seen, number=number: 503 if seen.number >= number else None
        with pytest.raises(DataError, match=rf"^({cloud.scheme}://data |Could not)"):
            run(source, output)
        left = _comparable(cloud.tree(output), output)
        assert finished not in left or expected.items() <= left.items()  # only the working folder was still there
        cloud.proxy.reset()
        run(source, output)
        assert _comparable(cloud.tree(output), output) == expected, number


def _comparable(tree: Mapping[str, bytes], output: str) -> dict[str, bytes]:
    return {name: data.replace(output.encode(), b"OUT") for name, data in tree.items()}
