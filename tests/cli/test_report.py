"""`tfpipe report` as a user runs it."""

from pathlib import Path

from tests.conftest import Tfpipe


def test_a_report_needs_no_dataset(tfpipe: Tfpipe, tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text(f'batch_size = 64\ncache = "bytes"\ncache_dir = "{tmp_path}"\n')
    done = tfpipe("report", "--config", file)
    assert (done.code, done.err) == (0, "")
    assert done.lines[-2:] == [
        "config        batch_size 64, cache bytes, cache_dir (given)",
        "dataset       none",
    ]


def test_a_dataset_is_described_without_its_name(tfpipe: Tfpipe, small_dataset: Path) -> None:
    document = tfpipe("report", small_dataset, "--json").json
    assert list(document) == ["tfpipe", "libraries", "machine", "settings", "config", "dataset"]
    assert (document["config"], document["dataset"]["splits"]) == ({}, 2)
    assert str(small_dataset) not in str(document)
