"""Datasets on Hugging Face, against a small server on loopback that speaks as the real one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from beam_jobs import job_stores
from tests.beam_jobs.datasets import make_dataset, read_tree
from tests.beam_jobs.images import make_jpeg, make_photos, make_tar, write_files
from tests.beam_jobs.inputs.parquet_files import write_parquet
from tests.object_stores.hub_server import HubServer
from tests.refusals import refusal
from tfpipe.errors import DataError, MissingDependencyError
from tfpipe.export.run import ExportConfig, export
from tfpipe.integrity.verify import VerifyConfig, verify
from tfpipe.storage import file_io, hugging_face, stores

URL = "hf://datasets/me/photos"


@pytest.fixture
def hub(monkeypatch, tmp_path: Path) -> Iterator[HubServer]:
    constants = pytest.importorskip("huggingface_hub.constants")
    server = HubServer()
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    files = server.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", files)
    monkeypatch.setattr(hugging_face, "_UNFINISHED", tmp_path / "unfinished")
    stores.configure()
    yield server
    stores.configure()
    server.stop()


def test_files(hub: HubServer) -> None:
    hub.files |= {"a": b"0123456789", "x/b": b"bb", "x/y/c": b""}
    assert file_io.read_whole(f"{URL}/a") == b"0123456789"
    assert file_io.read_range(f"{URL}/a", 3, 4) == b"3456"
    assert file_io.read_range(f"{URL}/a", 8, 4) == b"89"
    with file_io.open_file(f"{URL}/a") as file:
        assert (file.seek(-4, 2), file.read(2), file.tell()) == (6, b"67", 8)
    assert dict(file_io.list_tree(URL)) == {"a": 10, "x/b": 2, "x/y/c": 0}
    assert dict(file_io.list_children(URL)) == {"a": 10, "x/": -1}
    assert [*file_io.list_tree(f"{URL}/none")] == []
    assert file_io.get_sizes([f"{URL}/a", f"{URL}/x", f"{URL}/z"]) == [10, -1, -1]
    assert file_io.find(f"{URL}/x/*") == [f"{URL}/x/b"]
    file_io.write_file(f"{URL}/x/d", b"new")
    file_io.rename(f"{URL}/x/d", f"{URL}/e")
    file_io.remove(f"{URL}/x/d")
    assert hub.files["e"] == b"new"
    assert "x/d" not in hub.files
    with pytest.raises(KeyboardInterrupt), file_io.create(f"{URL}/f") as file:
        raise KeyboardInterrupt
    assert hub.commits == ["Add x/d", "Add e", "Remove x/d"]
    for name in ("x", "y"):
        file_io.write_file(f"{URL}/.tfpipe/rows/{name}", b"row")
    assert file_io.list_names(f"{URL}/.tfpipe/rows") == ["x", "y"]
    assert file_io.list_names(f"{URL}/.tfpipe") == ["rows"]
    file_io.remove_tree(f"{URL}/.tfpipe")
    assert file_io.list_names(f"{URL}/.tfpipe") == []
    assert len(hub.commits) == 3  # a job's own files stay here


def test_what_is_not_there_is_a_sentence(hub: HubServer, monkeypatch) -> None:
    with pytest.raises(FileNotFoundError):
        file_io.read_whole(f"{URL}/none")
    message = r"^There is no dataset hf://datasets/me/none, or these credentials may not see"
    with pytest.raises(DataError, match=message):
        verify("hf://datasets/me/none", VerifyConfig(workers=0))
    stores.configure()
    with pytest.raises(DataError, match=r"^A dataset on Hugging Face is named hf://datasets/OWNER/NAME, got hf://me/x"):
        verify("hf://me/x", VerifyConfig(workers=0))


def test_without_the_package(monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    message = "hf:// needs huggingface_hub. Install it with: pip install '.[hf]' in a checkout of tfpipe."
    assert refusal(MissingDependencyError, hugging_face.HuggingFaceStore, URL) == message


def test_images_are_sharded_where_they_are(hub: HubServer, tmp_path: Path) -> None:
    photos = make_photos({"cat": 3, "dog": 2})
    table = write_parquet(tmp_path / "table.parquet", [make_jpeg(k) for k in range(4)], label=["x"] * 4)
    pairs = {k: v for i in range(3) for k, v in ((f"{i}.jpg", make_jpeg(i)), (f"{i}.txt", b"caption %d" % i))}
    inputs = {
        **{f"folder/train/{name}": data for name, data in photos.items()},
        "table/train-00000.parquet": table.read_bytes(),
        "tars/train/0.tar": make_tar(pairs),
    }
    hub.files |= inputs
    write_files(tmp_path / "in", inputs)
    for name in ("folder", "table/train-00000.parquet", "tars"):
        make_dataset(tmp_path / "in" / name, tmp_path / "out" / name, num_shards=1)
        make_dataset(f"{URL}/{name}", tmp_path / "there" / name, num_shards=1)
        assert read_tree(tmp_path / "there" / name) == read_tree(tmp_path / "out" / name), name


def test_a_dataset_is_written(hub: HubServer, tmp_path: Path) -> None:
    photos = write_files(tmp_path / "photos", make_photos({"cat": 3, "dog": 2}))
    make_dataset(photos, tmp_path / "out", num_shards=2)
    make_dataset(photos, f"{URL}/records", num_shards=2)
    written = {name[8:]: data for name, data in hub.files.items() if name.startswith("records/")}
    assert written == read_tree(tmp_path / "out")
    job_stores.configure(())
    report = export(ExportConfig(str(tmp_path / "out"), str(tmp_path / "parquet"), "parquet", workers=0))
    hub.files.clear()
    hub.files["README.md"] = b""
    assert export(ExportConfig(str(tmp_path / "out"), URL, "parquet", workers=0)) == report
    assert hub.files == {"README.md": b"", **read_tree(tmp_path / "parquet")}
    assert not (tmp_path / "unfinished").exists()
