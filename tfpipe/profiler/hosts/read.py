"""Reads and writes the files of hosts: the records of monitors, and the JSON of `tfpipe profile`."""

from __future__ import annotations

import glob
import json
from collections.abc import Sequence
from dataclasses import asdict

from tfpipe.errors import DataError, FormatError
from tfpipe.format.json_reader import Node, parse_json
from tfpipe.profiler.hosts.types import HostCall, HostFix, HostProfile, HostRecord, HostUsage
from tfpipe.storage import file_io

HOSTS = "hosts"
"""The folder inside a run's folder in which each host has its record."""

_RECORD_VERSION = 1
_PROFILE_VERSION = 3
_MAX_BYTES = 1 << 26
_MAX_HOSTS = 100_000


def name_record(index: int) -> str:
    """Returns the file name of a host's record."""
    return f"host-{index:05d}.json"


def encode_record(record: HostRecord) -> bytes:
    """Returns a record as JSON."""
    calls = [
        [call.step, call.steps, call.images, round(call.wall_s, 6), round(call.wait_s, 6)] for call in record.calls
    ]
    fields = {
        "version": _RECORD_VERSION,
        "host_index": record.index,
        "num_hosts": record.num_hosts,
        "name": record.name,
        "compute_s": record.compute_s,
        "host": asdict(record.usage),
        "calls": calls,
    }
    return json.dumps(fields, allow_nan=False).encode() + b"\n"


def read_hosts(paths: Sequence[str]) -> tuple[list[HostRecord], list[HostProfile]]:
    """Reads the files of hosts, each kind sorted by the host's number.

    Args:
        paths: Files, the folder of a run, or a folder of files. Folders may be URLs.

    Raises:
        DataError: There are no files, two files of one kind are of the same host, or hosts of several runs are mixed.
        FormatError: A file is neither the record of a monitor nor the JSON of `tfpipe profile` on a host.
    """
    records: dict[int, HostRecord] = {}
    profiles: dict[int, HostProfile] = {}
    for file in _list_files(paths):
        host = parse_host(file_io.read_bytes(file, _MAX_BYTES), file)
        known: dict[int, HostRecord] | dict[int, HostProfile] = records if isinstance(host, HostRecord) else profiles
        if host.index in known:
            raise DataError(f"Each host must have one file of a kind, got two of host {host.index}, one is {file}.")
        known[host.index] = host  # type: ignore[assignment]
    counts = {record.num_hosts for record in records.values()} | {profile.num_hosts for profile in profiles.values()}
    if len(counts) > 1:
        numbers = " and ".join(map(str, sorted(counts)))
        raise DataError(f"The files must be of one training, got some of {numbers} hosts. Name those of one run.")
    return [records[index] for index in sorted(records)], [profiles[index] for index in sorted(profiles)]


def parse_host(data: bytes, where: str) -> HostRecord | HostProfile:
    """Parses one file.

    Raises:
        FormatError: It is neither the record of a monitor nor the JSON of `tfpipe profile` on a host.
    """
    try:
        node = parse_json(data.decode(), where)
    except UnicodeDecodeError:
        raise FormatError(f"{where} is not JSON: it is not text.") from None
    names = {name for name, _ in node.items()}
    if "calls" in names:
        return _parse_record(node)
    if "bottleneck" not in names:
        raise FormatError(
            f"{where} must be the record of a host's monitor or the JSON of `tfpipe profile`, and is neither."
        )
    return _parse_profile(node)


def _list_files(paths: Sequence[str]) -> list[str]:
    """Returns all files that are meant: those named, and the JSON files of folders."""
    files: list[str] = []
    for path in paths:
        if path.endswith(".json"):
            files.append(path)
            continue
        folder = path if file_io.is_url(path) else glob.escape(path)
        inside = file_io.find(file_io.join(folder, HOSTS, "*.json")) or file_io.find(file_io.join(folder, "*.json"))
        if not inside:
            raise DataError(
                f"There are no records of hosts in {path}. `tfpipe train` writes them where several hosts train; "
                "`IdleMonitor` does with `hosts_dir`."
            )
        files += inside
    for file in files:
        if not file_io.is_url(file) and file_io.get_size(file) < 0:
            raise DataError(f"There is no file {file}.")
    return list(dict.fromkeys(files))


def _check_version(node: Node, version: int) -> None:
    if node.field("version").count() != version:
        raise FormatError(
            f"{node.where} has version {node.field('version').count()}, and this tfpipe reads {version}. "
            "Measure with this tfpipe."
        )


def _parse_record(node: Node) -> HostRecord:
    _check_version(node, _RECORD_VERSION)
    compute_s = node.field("compute_s")
    calls = []
    for element in node.field("calls").elements():
        parts = element.elements()
        if len(parts) != 5:
            raise element.error("a list of 5 numbers")
        step, steps, images = (part.count() for part in parts[:3])
        calls.append(HostCall(step, steps, images, parts[3].number(), parts[4].number()))
    index, num_hosts = _parse_place(node)
    return HostRecord(
        index,
        num_hosts,
        node.field("name").text(),
        tuple(calls),
        None if compute_s.value is None else compute_s.number(),
        _parse_usage(node.field("host")),
    )


def _parse_profile(node: Node) -> HostProfile:
    _check_version(node, _PROFILE_VERSION)
    names = {name for name, _ in node.items()}
    if "host_index" not in names or node.field("host_index").value is None:
        raise FormatError(
            f"{node.where} does not say of which host it is. Run `tfpipe profile ... --host INDEX/COUNT --json` there."
        )
    index, num_hosts = _parse_place(node)
    bottleneck = node.field("bottleneck")
    fixes = node.field("fixes").elements()
    return HostProfile(
        index=index,
        num_hosts=num_hosts,
        images_per_step=node.field("images_per_step").count(1),
        images_per_second=node.field("images_per_second").number(),
        idle_fraction=node.field("idle_fraction").number(),
        input_wait_fraction=node.field("input_wait_fraction").number(),
        stage=bottleneck.field("stage").text(),
        reason=bottleneck.field("reason").text(),
        fix=_parse_fix(fixes[0]) if fixes else None,
        usage=_parse_usage(node.field("host")),
    )


def _parse_place(node: Node) -> tuple[int, int]:
    num_hosts = node.field("num_hosts").count(1, _MAX_HOSTS)
    return node.field("host_index").count(0, num_hosts - 1), num_hosts


def _parse_usage(node: Node) -> HostUsage:
    return HostUsage(
        node.field("cores").count(1), node.field("cpu_fraction").number(), node.field("other_cpu_fraction").number()
    )


def _parse_fix(node: Node) -> HostFix:
    changes = ", ".join(f"{name} = {json.dumps(value.value)}" for name, value in node.field("changes").items())
    return HostFix(
        node.field("instruction").text() or changes,
        node.field("reason").text(),
        node.field("predicted_images_per_second").number(),
    )
