"""`tfpipe profile --host` and `--hosts`, as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Tfpipe
from tests.profiler.hosts.records import make_records
from tfpipe.profiler.hosts.read import encode_record, name_record

OPTIONS = ("--step-ms", "2", "--batch-size", "4", "--seconds", "0.5")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Returns the folder of a run of 2 hosts, the second of which is late."""
    folder = tmp_path / "run" / "hosts"
    folder.mkdir(parents=True)
    for record in make_records([0.0] * 5, [0.1] * 5):
        (folder / name_record(record.index)).write_bytes(encode_record(record))
    return folder.parent


def test_a_run_is_compared_as_text_as_json_and_as_a_page(run: Path, tmp_path: Path, tfpipe: Tfpipe) -> None:
    done = tfpipe("profile", "--hosts", run)
    assert (done.code, done.err) == (0, "")
    assert done.lines[0].startswith("Host 1 is late: all others wait for it 50 % of the time.")
    page = tmp_path / "hosts.html"
    done = tfpipe("profile", "--hosts", run, "--json", "--html", page)
    assert (done.code, done.err, done.json["late"]) == (0, f"Wrote {page}.\n", [1])
    assert page.read_text().endswith("</html>")


def test_a_limit_of_idle_time_holds_for_all_hosts(run: Path, tfpipe: Tfpipe) -> None:
    done = tfpipe("profile", "--hosts", run, "--max-idle", "10%")
    assert (done.code, done.err) == (1, "The accelerator is idle for 50.0%, more than 10.0%.\n")


def test_options_for_measuring_are_refused_beside_it(run: Path, tfpipe: Tfpipe) -> None:
    done = tfpipe("profile", "data", "--hosts", run, "--step-ms", 5)
    assert (done.code, done.err) == (
        2,
        "Error: --hosts reads an earlier measurement. Leave out DATASET, --step-ms.\n",
    )


def test_a_profile_reads_the_share_of_its_host(small_dataset: Path, tmp_path: Path, tfpipe: Tfpipe) -> None:
    done = tfpipe("profile", small_dataset, *OPTIONS, "--host", "1/2", "--json")
    assert done.code == 0
    assert (done.json["host_index"], done.json["num_hosts"], done.json["images_per_step"]) == (1, 2, 2)
    files: list[object] = []
    for index in (0, 1):  # one measurement is enough for both
        (tmp_path / f"{index}.json").write_text(json.dumps({**done.json, "host_index": index}))
        files += ["--hosts", tmp_path / f"{index}.json"]
    done = tfpipe("profile", *files, "--json")
    assert (done.json["method"], [host["index"] for host in done.json["hosts"]]) == ("simulated", [0, 1])


@pytest.mark.parametrize("host", ["2", "2/2", "-1/2", "a/b"])
def test_a_host_that_is_not_there_is_refused(host: str, tfpipe: Tfpipe) -> None:
    done = tfpipe("profile", "data", *OPTIONS, "--host", host)
    assert done.code == 2
    assert f"must be the host's number, from 0, and the number of hosts, as in 2/16, got {host!r}." in done.err


def test_fixes_are_not_tried_with_a_part_of_the_records(tmp_path: Path, tfpipe: Tfpipe) -> None:
    done = tfpipe("profile", "data", *OPTIONS, "--host", "0/2", "--apply", tmp_path / "a.toml")
    assert (done.code, done.err) == (
        2,
        "Error: --apply tries the fixes with all records, got --host too. Leave one of them out.\n",
    )
