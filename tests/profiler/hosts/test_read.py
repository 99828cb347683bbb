"""Files of hosts: what a monitor writes and what `tfpipe profile --json` prints, whole and damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.profiler.hosts.records import make_records
from tests.profiler.profiles import make_profile
from tfpipe.errors import DataError, FormatError
from tfpipe.profiler.diagnose.diagnosis import make_report
from tfpipe.profiler.hosts.read import encode_record, name_record, parse_host, read_hosts
from tfpipe.profiler.hosts.types import HostFix, HostProfile
from tfpipe.profiler.report.text_json import to_json


def write_profile(path: Path, host: tuple[int, int] | None = (1, 2), **changes: Any) -> None:
    report = make_report(make_profile(host_place=host, dataset={"records": 1000}))
    path.write_text(json.dumps({**to_json(report), **changes}))


def write_records(folder: Path) -> None:
    folder.mkdir(parents=True)
    for record in make_records([0.0, 0.0], [0.1, 0.1]):
        (folder / name_record(record.index)).write_bytes(encode_record(record))


@pytest.mark.parametrize("compute_s", [None, 0.125])
def test_a_record_is_read_as_it_was_written(compute_s: float | None) -> None:
    record = make_records([0.0, 0.25], [0.125, 0.0], compute_s=compute_s, step_s=0.5)[1]
    assert parse_host(encode_record(record), "host.json") == record


def test_the_json_of_a_profile_is_read(tmp_path: Path) -> None:
    write_profile(tmp_path / "profile.json")
    profile = parse_host((tmp_path / "profile.json").read_bytes(), "profile.json")
    assert isinstance(profile, HostProfile)
    assert (profile.index, profile.num_hosts, profile.images_per_step) == (1, 2, 100)
    assert (profile.images_per_second, profile.idle_fraction, profile.stage) == (1000, 0.75, "decode")
    assert profile.usage.cores == 4
    report = make_report(make_profile(dataset={"records": 1000}))
    assert profile.reason == report.bottleneck.reason
    rate = report.fixes[0].predicted_images_per_second
    assert profile.fix == HostFix('cache = "decoded"', report.fixes[0].reason, rate)


def test_a_run_a_folder_and_files_name_the_same_hosts(tmp_path: Path) -> None:
    write_records(tmp_path / "run" / "hosts")
    (tmp_path / "run" / "run.json").write_text("{}")
    folder = tmp_path / "run" / "hosts"
    expected = (make_records([0.0, 0.0], [0.1, 0.1]), [])
    assert read_hosts([str(tmp_path / "run")]) == expected
    assert read_hosts([str(folder)]) == expected
    assert read_hosts([str(folder / "host-00001.json"), str(folder / "host-00000.json")]) == expected
    write_profile(folder / "profile-1.json")
    records, (profile,) = read_hosts([str(tmp_path / "run"), str(folder / "host-00001.json")])
    assert (records, profile.index) == (expected[0], 1)


def test_a_folder_without_records_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        read_hosts([str(tmp_path)])
    assert str(error.value) == (
        f"There are no records of hosts in {tmp_path}. `tfpipe train` writes them where several hosts train; "
        "`IdleMonitor` does with `hosts_dir`."
    )
    with pytest.raises(DataError, match=r"^There is no file .*none\.json\.$"):
        read_hosts([str(tmp_path / "none.json")])


def test_two_files_of_one_host_are_refused(tmp_path: Path) -> None:
    write_records(tmp_path / "hosts")
    copy = tmp_path / "copy.json"
    copy.write_bytes((tmp_path / "hosts" / "host-00001.json").read_bytes())
    with pytest.raises(DataError) as error:
        read_hosts([str(tmp_path), str(copy)])
    assert str(error.value) == f"Each host must have one file of a kind, got two of host 1, one is {copy}."


def test_hosts_of_two_trainings_are_refused(tmp_path: Path) -> None:
    write_records(tmp_path / "hosts")
    write_profile(tmp_path / "hosts" / "profile.json", (1, 3))
    with pytest.raises(DataError) as error:
        read_hosts([str(tmp_path)])
    assert str(error.value) == ("The files must be of one training, got some of 2 and 3 hosts. Name those of one run.")


def test_a_profile_of_no_host_says_how_to_make_one(tmp_path: Path) -> None:
    write_profile(tmp_path / "profile.json", None)
    with pytest.raises(FormatError) as error:
        read_hosts([str(tmp_path)])
    assert str(error.value) == (
        f"{tmp_path}/profile.json does not say of which host it is. Run `tfpipe profile ... --host INDEX/COUNT --json` "
        "there."
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "a.json is not JSON: Expecting value: line 1 column 1 (char 0)."),
        (b"\xff", "a.json is not JSON: it is not text."),
        (b"[]", "a.json: the document must be an object, got []."),
        (b"{}", "a.json must be the record of a host's monitor or the JSON of `tfpipe profile`, and is neither."),
        (b'{"calls": [], "version": 2}', "a.json has version 2, and this tfpipe reads 1. Measure with this tfpipe."),
        (
            b'{"calls": [[1, 1]], "version": 1, "compute_s": null}',
            "a.json: calls[0] must be a list of 5 numbers, got [1, 1].",
        ),
        (
            b'{"calls": [], "version": 1, "compute_s": null, "num_hosts": 2, "host_index": 2}',
            "a.json: host_index must be a whole number of at least 0 and at most 1, got 2.",
        ),
    ],
)
def test_another_file_is_refused_with_a_sentence(data: bytes, message: str) -> None:
    with pytest.raises(FormatError) as error:
        parse_host(data, "a.json")
    assert str(error.value) == message
