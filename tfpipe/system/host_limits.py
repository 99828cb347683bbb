"""What this process may use of its machine: memory, cores, disk.

In a container the kernel's totals are the host's, and what goes beyond a control group's limit is killed (memory)
or stopped for the rest of each tenth of a second (cores). So the process's own group counts too, and every group
around it, in both versions that Linux knows: cgroups(7). Without them, as on macOS, the machine's totals hold.

`root` is where the file system begins: another one in tests.
"""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/")


def memory_limit_bytes(root: Path = _ROOT) -> int:
    """The machine's memory, or the limit of the process's control groups where that is smaller."""
    limits = (_memory_limit(folder) for folder in _group_folders("memory", root))
    return min([_total_memory(root), *(limit for limit in limits if limit is not None)])


def available_memory_bytes(root: Path = _ROOT) -> int:
    """What can be taken now without swapping and without being killed.

    What Linux calls available of the machine, or what the control groups' limits leave, if that is less. Cached
    files that nobody touched lately count as free: the kernel drops them first.
    """
    room = [_meminfo(root).get("MemAvailable", memory_limit_bytes(root))]
    for folder in _group_folders("memory", root):
        if (limit := _memory_limit(folder)) is not None:
            room.append(limit - _memory_in_use(folder))
    return max(0, min(room))


def usable_cpus(root: Path = _ROOT) -> int:
    """Cores that this process may use, at least 1.

    Those it may run on, or the whole cores of its control groups' quota if those are fewer: one thread more, and all
    of them are stopped at times.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = (_cpu_quota(folder) for folder in _group_folders("cpu", root))
    return max(1, min([cores, *(int(quota) for quota in quotas if quota is not None)]))


def free_disk_bytes(path: str | Path) -> int:
    """What an ordinary user may still write at a local path, which need not exist yet."""
    wanted = Path(path).resolve()
    for folder in (wanted, *wanted.parents):
        try:
            return shutil.disk_usage(folder).free
        except OSError:  # not there yet, or not to be looked into
            continue
    return 0


# Memory


def _total_memory(root: Path) -> int:
    total = _meminfo(root).get("MemTotal")
    return total if total is not None else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _meminfo(root: Path) -> dict[str, int]:
    """Bytes by name; its unit, kB, is 1024 bytes."""
    found = re.findall(r"^(\w+): +(\d+) kB$", _text(root / "proc/meminfo"), re.MULTILINE)
    return {name: int(kilobytes) * 1024 for name, kilobytes in found}


def _memory_limit(folder: Path) -> int | None:
    """None: no limit. Version 1 says so with a number beyond all memory, which harms no minimum."""
    return _number(folder / "memory.max", folder / "memory.limit_in_bytes")


def _memory_in_use(folder: Path) -> int:
    used = _number(folder / "memory.current", folder / "memory.usage_in_bytes") or 0
    lines = re.findall(r"^(\w+) (\d+)$", _text(folder / "memory.stat"), re.MULTILINE)
    stat = {name: int(value) for name, value in lines}
    # In version 1 only `total_` has the groups below in it, as the usage has.
    return used - stat.get("total_inactive_file", stat.get("inactive_file", 0))


# Cores


def _cpu_quota(folder: Path) -> float | None:
    """Cores, and parts of one; None: as many as there are."""
    quota, _, period = _text(folder / "cpu.max").strip().partition(" ")
    if not quota:
        quota, period = (_text(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else None  # max, -1: none


# Control groups


def _group_folders(controller: str, root: Path) -> Iterator[Path]:
    """Folders of the process's group and the groups around it, the outermost first, of both versions.

    A mount shows the hierarchy from some group on. In a container that may be the process's own one, while
    `/proc/self/cgroup` gives the path on the host: then the mount itself is all there is to see.
    """
    groups = _own_groups(root)
    for line in _text(root / "proc/self/mountinfo").splitlines():  # proc_pid_mountinfo(5)
        left, _, right = line.partition(" - ")
        if len(place := left.split()) < 5 or len(kind := right.split()) < 3:
            continue
        version_2 = kind[0] == "cgroup2"
        if not version_2 and (kind[0] != "cgroup" or controller not in kind[2].split(",")):
            continue
        group, top, mount = groups.get("" if version_2 else controller), *map(_unescaped, place[3:5])
        if group is None:
            continue
        folder = root / mount.lstrip("/")
        yield folder
        inside = group.parts[len(Path(top).parts) :] if group.is_relative_to(top) else ()
        for part in () if ".." in inside else inside:
            folder = folder / part
            yield folder


def _own_groups(root: Path) -> dict[str, Path]:
    """The path of the process's group for each controller of version 1; for version 2 under the empty name."""
    groups = {}
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        groups.update(dict.fromkeys(controllers.split(","), Path(path)))
    return groups


def _unescaped(path: str) -> str:
    """Mounts have spaces and the like as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), path)


def _number(*files: Path) -> int | None:
    """The number in the first of the files that holds one."""
    return next((int(text) for file in files if (text := _text(file).strip()).isdigit()), None)


def _text(file: Path) -> str:
    """Empty where the file is missing or not to be read: not every kernel and container has every one."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
