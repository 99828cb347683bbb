"""The memory, cores and disk of the machine that this process may use.

In a container the kernel reports the host's totals, so the limits of the process's control groups are read as well, of
version 1 or 2: cgroups(7). `root` is the root directory of the file system; tests pass another one.
"""

import os
import platform
import re
import resource
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/")


def memory_limit_bytes(root: Path = _ROOT) -> int:
    """Returns the machine's memory, or the limit of the process's control groups if that is smaller."""
    total = _read_sizes(root / "proc/meminfo").get("MemTotal")
    total = total or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = (_memory_limit(folder) for folder in _group_folders("memory", root))
    return min([total, *(limit for limit in limits if limit is not None)])


def available_memory_bytes(root: Path = _ROOT) -> int:
    """Returns the memory that can be taken now without swapping and without being killed.

    This is what Linux calls available, or what the limits of the control groups leave, if that is less. Cached
    files that were not used lately count as free: the kernel drops them first.
    """
    room = [_read_sizes(root / "proc/meminfo").get("MemAvailable", memory_limit_bytes(root))]
    for folder in _group_folders("memory", root):
        if (limit := _memory_limit(folder)) is not None:
            used = _number(folder / "memory.current", folder / "memory.usage_in_bytes") or 0
            stat = dict(re.findall(r"^(\w+) (\d+)$", _text(folder / "memory.stat"), re.MULTILINE))
            # The usage includes the groups below this one. In version 1 only the entries named `total_` do so too.
            room.append(limit - used + int(stat.get("total_inactive_file") or stat.get("inactive_file") or 0))
    return max(0, min(room))


def peak_memory_bytes() -> int:
    """Returns the peak memory of this process so far."""
    if peak := _read_sizes(_ROOT / "proc/self/status").get("VmHWM"):
        return peak
    # Second choice: on Linux it also counts the memory that the parent had when it started this process.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def peak_memory_bytes_since(earlier_peak: int, root: Path = _ROOT) -> int:
    """Returns the peak memory of this process since the time when its peak was `earlier_peak` bytes.

    The system keeps only one peak. If that has not grown since, the result is the memory in use now, or the earlier
    peak where the system does not report the memory in use.
    """
    peak = peak_memory_bytes()
    return peak if peak > earlier_peak else _read_sizes(root / "proc/self/status").get("VmRSS", peak)


def usable_cpus(root: Path = _ROOT) -> int:
    """Returns the number of cores that this process may use, at least 1.

    These are the cores that it may run on, or the whole cores in the quota of its control groups if those are fewer.
    With more busy threads than the quota allows, the kernel stops all of them at times.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for folder in _group_folders("cpu", root):
        quota, _, period = _text(folder / "cpu.max").strip().partition(" ")
        if not quota:
            quota, period = (_text(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
        if quota.isdigit() and period.isdigit() and int(period):  # "max" or -1: no quota
            cores = min(cores, int(quota) // int(period))
    return max(1, cores)


def read_processor_name(root: Path = _ROOT) -> str:
    """Returns the processor's model name from the kernel, or the architecture."""
    match = re.search(r"^model name\s*: (.+)$", _text(root / "proc/cpuinfo"), re.MULTILINE)
    return match[1] if match else platform.machine()


def free_disk_bytes(path: str | Path) -> int:
    """Returns the bytes that an ordinary user may still write at a local path, which need not exist yet."""
    target = Path(path).resolve()
    for folder in (target, *target.parents):
        try:
            return shutil.disk_usage(folder).free
        except OSError:  # the folder does not exist yet, or it may not be read
            continue
    return 0


# Memory


def _read_sizes(file: Path) -> dict[str, int]:
    """Returns the bytes of each entry of /proc/meminfo or /proc/self/status, whose unit kB is 1024 bytes."""
    lines = re.findall(r"^(\w+):\s+(\d+) kB$", _text(file), re.MULTILINE)
    return {name: int(kilobytes) * 1024 for name, kilobytes in lines}


def _memory_limit(folder: Path) -> int | None:
    """Returns the memory limit of a control group. No limit is None, or in version 1 a huge number."""
    return _number(folder / "memory.max", folder / "memory.limit_in_bytes")


# Control groups


def _group_folders(controller: str, root: Path) -> Iterator[Path]:
    """Yields the folders of the process's group and of the groups around it, outermost first, for both versions.

    A mount shows the hierarchy from some group downwards. In a container this may be the process's own group, while
    `/proc/self/cgroup` gives the path on the host. Then only the mount itself can be seen.
    """
    groups: dict[str, Path] = {}  # by controller in version 1; the one of version 2 under ""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        groups |= dict.fromkeys(controllers.split(","), Path(path))
    for line in _text(root / "proc/self/mountinfo").splitlines():  # proc_pid_mountinfo(5)
        left, _, right = line.partition(" - ")
        if len(mounted := left.split()) < 5 or len(kind := right.split()) < 3:
            continue
        version_2 = kind[0] == "cgroup2"
        if not version_2 and (kind[0] != "cgroup" or controller not in kind[2].split(",")):
            continue
        # Spaces and the like are escaped as octal numbers.
        top, mount = (re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), path) for path in mounted[3:5])
        group = groups.get("" if version_2 else controller)
        if group is None:
            continue
        folder = root / mount.lstrip("/")
        yield folder
        inside = group.parts[len(Path(top).parts) :] if group.is_relative_to(top) else ()
        for name in () if ".." in inside else inside:
            folder = folder / name
            yield folder


def _number(*files: Path) -> int | None:
    """Returns the number in the first of the files that holds one."""
    return next((int(text) for file in files if (text := _text(file).strip()).isdigit()), None)


def _text(file: Path) -> str:
    """Reads a file, or returns "" if it cannot be read: not every kernel and container has every file."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
