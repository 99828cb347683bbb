"""Limits as the kernel writes them: a file system made of a few files."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tfpipe.system import host_limits
from tfpipe.system.host_limits import available_memory_bytes, free_disk_bytes, memory_limit_bytes, usable_cpus

GIB = 2**30
NONE_V1 = "9223372036854771712"  # how version 1 says "no limit"
MEMINFO = (
    f"MemTotal:       {16 * 2**20} kB\nMemFree:        10 kB\nMemAvailable:   {12 * 2**20} kB\nHugePages_Total:  0\n"
)
V2_MOUNT = "34 25 0:30 {top} /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNTS = (
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 / /sys/fs/cgroup/a\\040memory rw,relatime - cgroup cgroup rw,memory\n"
    "36 31 0:33 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n"
)


def make(root: Path, files: dict[str, object]) -> Path:
    for name, text in {"proc/meminfo": MEMINFO, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


def version_2(group: str = "/", top: str = "/", **files: object) -> dict[str, object]:
    """`a__memory_max=1` is what `a/memory.max` holds."""
    named = {f"sys/fs/cgroup/{key.replace('__', '/').replace('_', '.', 1)}": value for key, value in files.items()}
    return {"proc/self/cgroup": f"0::{group}", "proc/self/mountinfo": V2_MOUNT.format(top=top), **named}


OWN = {"memory_max": 2 * GIB, "memory_current": GIB, "cpu_max": "200000 100000"}
AROUND = {
    **{"memory_max": "max", "a__memory_max": 4 * GIB, "a__memory_current": 3 * GIB, "a__b__memory_max": 6 * GIB},
    **{"a__memory_stat": f"anon 1\nfile 2\ninactive_file {GIB}", "a__b__memory_stat": "anon 1"},
    **{"a__b__memory_current": GIB, "a__cpu_max": "350000 100000", "a__b__cpu_max": "max 100000"},
}


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)


def test_a_machine_without_control_groups(tmp_path: Path) -> None:
    root = make(tmp_path, {})
    assert memory_limit_bytes(root) == 16 * GIB
    assert available_memory_bytes(root) == 12 * GIB
    assert usable_cpus(root) == 8


def test_a_system_without_proc(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1000}.__getitem__)
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert memory_limit_bytes(tmp_path) == available_memory_bytes(tmp_path) == 4096 * 1000
    assert usable_cpus(tmp_path) == 6


@pytest.mark.parametrize(
    ("group", "top", "files", "memory", "available", "cores"),
    [
        ("/a", "/", {"a__memory_max": "max", "a__memory_current": GIB, "a__cpu_max": "max 100000"}, 16, 12, 8),
        ("/a/b", "/", AROUND, 4, 2, 3),  # 4 less 3, and the idle cached files
        ("/a", "/", {"a__memory_max": 15 * GIB, "a__memory_current": GIB}, 15, 12, 8),  # the machine has less left
        ("/a", "/", {"a__memory_max": GIB, "a__memory_current": GIB + 5, "a__cpu_max": "5000 100000"}, 1, 0, 1),
        ("/docker/1f", "/docker/1f", OWN, 2, 1, 2),  # the mount is the group
        ("/docker/1f", "/elsewhere", OWN, 2, 1, 2),  # the path is another namespace's
        ("/../..", "/", OWN, 2, 1, 2),  # the process was moved out of the namespace's root
        ("/", "/", OWN, 2, 1, 2),
        ("/docker/1f/job", "/docker/1f", {"job__memory_max": GIB, "memory_max": 2 * GIB}, 1, 1, 8),
    ],
)
def test_version_2(
    tmp_path: Path, group: str, top: str, files: dict[str, Any], memory: int, available: int, cores: int
) -> None:
    root = make(tmp_path, version_2(group, top, **files))
    found = memory_limit_bytes(root), available_memory_bytes(root), usable_cpus(root)
    assert found == (memory * GIB, available * GIB, cores)


def test_version_1(tmp_path: Path) -> None:
    memory, cpu = "sys/fs/cgroup/a memory", "sys/fs/cgroup/cpu,cpuacct"
    files = {
        "proc/self/cgroup": "9:name=systemd:/\n4:memory:/a/b\n1:cpu,cpuacct:/a/b\n0::/",
        "proc/self/mountinfo": V1_MOUNTS,
        f"{memory}/memory.limit_in_bytes": NONE_V1,
        f"{memory}/memory.usage_in_bytes": 9 * GIB,
        f"{memory}/a/memory.limit_in_bytes": 3 * GIB,
        f"{memory}/a/memory.usage_in_bytes": 2 * GIB,
        f"{memory}/a/memory.stat": f"inactive_file 7\ntotal_inactive_file {GIB}",
        f"{memory}/a/b/memory.limit_in_bytes": NONE_V1,
        f"{cpu}/cpu.cfs_quota_us": -1,
        f"{cpu}/cpu.cfs_period_us": 100000,
        f"{cpu}/a/cpu.cfs_quota_us": 250000,
        f"{cpu}/a/cpu.cfs_period_us": 100000,
    }
    root = make(tmp_path, files)
    assert (memory_limit_bytes(root), available_memory_bytes(root), usable_cpus(root)) == (3 * GIB, 2 * GIB, 2)


def test_affinity_may_be_less_than_the_quota(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5}, raising=False)
    assert usable_cpus(make(tmp_path, version_2(cpu_max="400000 100000"))) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what a process holds now")
def test_what_was_held_before_a_moment_does_not_count() -> None:
    passed = b"\1" * (200 * 2**20)
    del passed
    peak = host_limits.peak_memory_bytes()
    assert 2**20 < host_limits.peak_memory_bytes_since(peak) < peak - 100 * 2**20
    assert host_limits.peak_memory_bytes_since(peak - 1) == peak


def test_without_a_figure_of_now_the_earlier_peak_counts(tmp_path: Path) -> None:
    peak = host_limits.peak_memory_bytes()
    assert host_limits.peak_memory_bytes_since(peak, tmp_path) == host_limits.peak_memory_bytes()


def test_free_disk(tmp_path: Path, monkeypatch) -> None:
    asked: list[Path] = []
    real = host_limits.shutil.disk_usage
    monkeypatch.setattr(host_limits.shutil, "disk_usage", lambda path: (asked.append(path), real(path))[1])
    assert free_disk_bytes(tmp_path) > 0
    (tmp_path / "file").write_text("")
    assert free_disk_bytes(str(tmp_path / "file" / "b" / "c")) > 0
    folder = tmp_path.resolve()
    assert asked == [folder, folder / "file" / "b" / "c", folder / "file" / "b", folder / "file"]
