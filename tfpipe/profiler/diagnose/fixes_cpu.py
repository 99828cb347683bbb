"""Proposals that leave the processor less to do: what is handed over, what is stored, what is kept; more machines.

What the changes from `parse` to `batch` save was tried with a few of the records (`what_if.py`). Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from tfpipe.profiler.diagnose.bottleneck import Model, required_images_per_second
from tfpipe.profiler.diagnose.proposal import Proposal
from tfpipe.profiler.types import Profile
from tfpipe.system.units import human_bytes

MADE = ("parse", "decode", "augment", "batch")
FUSED = 0.9
"""Of `parse`, `decode` and `augment` that is left where they are one function."""
UNCROWDED = 0.72
"""Of `read` and `shuffle` that is left where the device augments: crops pass through the processor's caches as floats,
600 kB each at 224 px, and push out what is read. 0.71 of raw images, 0.58 of JPEG (2 cores, floats handed over)."""
FETCH_US = 75.0
"""Fetching a record from a cache in memory."""
RECORD_US = 100.0
"""Of reading a record, however small it is: 110 us for 40 kB, 480 us for 780 kB (2 cores, from memory)."""
_MEMORY_SHARE = 0.8


def propose(profile: Profile, model: Model) -> Iterator[Proposal]:
    """All that is worth a try here, in no order."""
    yield from _options(profile, model)
    yield from _caches(profile, model)
    yield from _smaller_images(profile, model)
    yield from _workers(profile, model)


def made_otherwise(profile: Profile, model: Model, name: str) -> dict[str, float]:
    """Processor time by stage with a change that was tried: as much less as it was then; empty if it was not tried."""
    tried = profile.what_if
    if not tried.get("now") or name not in tried:
        return {}
    if not any(model.cpu_s.get(stage) for stage in ("parse", "decode")):  # made once, and kept
        return {}
    ratio = tried[name] / tried["now"]
    changed = {stage: seconds * (ratio if stage in MADE else 1.0) for stage, seconds in model.cpu_s.items()}
    if "batch" in changed:
        changed["batch"] += model.taking_s * (1 - ratio)
    return changed


def _options(profile: Profile, model: Model) -> Iterator[Proposal]:
    config = profile.config
    dtype = config.get("image_dtype", "uint8")
    if cpu_s := made_otherwise(profile, model, "uint8"):
        reason = f"A byte for each value instead of {'four' if dtype == 'float32' else 'two'}: the device normalizes."
        yield Proposal(1, reason, replace(model, cpu_s=cpu_s), {"image_dtype": "uint8"})
    if cpu_s := made_otherwise(profile, model, "device"):
        cpu_s |= {stage: cpu_s[stage] * UNCROWDED for stage in ("read", "shuffle") if stage in cpu_s}
        changes = {"augment": "device", "image_dtype": "uint8"}
        yield Proposal(1, "The device crops, flips and normalizes.", replace(model, cpu_s=cpu_s), changes)
    if cpu_s := made_otherwise(profile, model, "dct_scaling"):
        reason = "Where a crop is twice as large as needed, libjpeg decodes half of each side."
        yield Proposal(0, reason, replace(model, cpu_s=cpu_s), {"dct_scaling": True})
    if config.get("map_fusion") is False:
        fused = {name: seconds * (FUSED if name in MADE else 1.0) for name, seconds in model.cpu_s.items()}
        yield Proposal(0, "One call for parse, decode and augment.", replace(model, cpu_s=fused), {"map_fusion": True})


def _caches(profile: Profile, model: Model) -> Iterator[Proposal]:
    config, facts, host = profile.config, profile.dataset, profile.host
    records, demand = facts.get("records"), model.cpu_s
    if config.get("cache", "none") != "none" or config.get("service") or not records:
        return
    room = _MEMORY_SHARE * (host.memory_limit_bytes - host.peak_memory_bytes)
    num_bytes = records * facts.get("record_bytes", 0.0)
    if num_bytes <= room:
        kept = {**demand, "read": min(demand.get("read", 0.0), FETCH_US / 1e6), "shuffle": 0.0}
        unread = _unread(model, kept)
        reason = f"From the second epoch on nothing is read: {human_bytes(num_bytes)} of memory."
        yield Proposal(1, reason, unread, {"cache": "bytes"})
    height, width = facts.get("decoded_size") or (0, 0)
    num_bytes = records * height * width * 3
    if not num_bytes or num_bytes > room or config.get("on_bad_record") == "skip":
        return
    reason = f"From the second epoch on nothing is decoded: {human_bytes(num_bytes)} of memory."
    if late := facts.get("late_caches"):
        yield from _cache_moved(profile, model, late[0], reason)
    elif cpu_s := made_otherwise(profile, model, "cached"):
        cpu_s |= dict.fromkeys(("list", "read", "shuffle", "repeat"), 0.0)
        yield Proposal(1, reason, _unread(model, cpu_s), {"cache": "decoded"})


def _unread(model: Model, cpu_s: Mapping[str, float]) -> Model:
    threads = {name: count for name, count in model.threads.items() if cpu_s.get(name)}
    return replace(model, cpu_s=cpu_s, wait_s={}, storage_limit=None, threads=threads)


def _cache_moved(profile: Profile, model: Model, name: str, reason: str) -> Iterator[Proposal]:
    """Without a cache behind `augment`: each image is fetched whole, and cropped here or on the device."""
    reason = f"Kept before they are augmented, images are a byte a value, and every crop is a new one. {reason}"
    device = {"augment": "device", "image_dtype": "uint8"}
    for tried, more in (("cached", {}), ("cached_device", device)):
        if tried in profile.what_if:
            unmade = dict.fromkeys(("list", "read", "shuffle", "repeat", *MADE, name), 0.0)
            cpu_s = {**model.cpu_s, **unmade, "augment": profile.what_if[tried] / 1e6}
            changes = {"cache": "decoded", **more}
            given = ", ".join(f"{option} = {value!r}" for option, value in changes.items())
            action = f"Take the cache out of the stage {name}, and set {given}."
            yield Proposal(1, reason, _unread(model, cpu_s), changes, action=action)


def _smaller_images(profile: Profile, model: Model) -> Iterator[Proposal]:
    short, size = profile.dataset.get("short_side"), profile.dataset.get("mean_size")
    cpu_s = made_otherwise(profile, model, "smaller")
    if not short or not size or not cpu_s:
        return
    ratio = (short / min(size)) ** 2
    read = cpu_s.get("read", 0.0)
    cpu_s["read"] = min(RECORD_US / 1e6 + read * ratio, read)
    # Bytes fall a little less than pixels do, since a smaller photograph has more detail in each.
    wait_s = {**model.wait_s, "read": model.wait_s.get("read", 0.0) * min(1.5 * ratio, 1.0)}
    limit = None if model.storage_limit is None else model.storage_limit / ratio
    smaller = replace(model, cpu_s=cpu_s, wait_s=wait_s, storage_limit=limit)
    height, width = size
    reason = f"Images of {width:,.0f} x {height:,.0f} on average are stored for a model that sees {short * 7 // 8}."
    yield Proposal(2, reason, smaller, action=f"tfpipe shard INPUT OUTPUT --resize-short {short}")


def _workers(profile: Profile, model: Model) -> Iterator[Proposal]:
    """Hosts like this one, each of which makes whole images; what the network carries is not known here."""
    required, config = required_images_per_second(profile.step), profile.config
    if config.get("service") or config.get("cache", "none") != "none":
        return
    number = math.ceil(required / profile.images_per_second)
    if number < 2:
        return
    action = f"Run `tfpipe serve` on {number} machines like this one, and set `service` to the dispatcher's address."
    limits = {name: count * number for name, count in model.threads.items()}
    more = replace(model, cores=model.cores * number, threads=limits)
    yield Proposal(3, f"{number} machines make what one cannot.", more, action=action)
