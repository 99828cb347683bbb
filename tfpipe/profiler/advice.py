"""What to change, and what it would give: each measured demand is changed as the fix changes it, and the asymptotic
bounds of `analysis` are asked again. Pure.

A prediction is `efficiency x bound`, where the efficiency is how near this pipeline came to its bound while it was
measured (above 1 where a demand was overestimated), and never more than the accelerator consumes. Factors that a
profile cannot show, such as what a smaller image costs, were measured on ImageNet photographs (468 x 395 on average,
JPEG, 2 cores) and stand below as constants.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tfpipe.profiler.analysis import (
    NO_IDLE,
    SLOW_FIRST_BATCH_S,
    Model,
    idle_fraction,
    model_of,
    required_images_per_second,
)
from tfpipe.profiler.model import Bottleneck, Fix, Profile
from tfpipe.quantities import human_bytes

MIN_GAIN = 0.02
"""A fix that gives less is not worth a line."""
FLOAT_SHARE = 0.15
"""Of `augment` with floats, `batch` included, that normalising and copying four bytes instead of one takes."""
WHOLE_DECODE, WHOLE_RESIZE = 1.65, 0.55
"""Decoding a whole photograph, against `decode` of just a random crop of it; squeezing it to one size and copying it
into a batch, against `augment`. Fits 468 x 395 and a short side of 256."""
SQUARE_DECODE = 1.05
"""The same where images are stored squared: all that is left is to decode them."""
CACHED_CROP_US, FETCH_US = 50.0, 75.0
"""Cutting a crop out of a cached 256 x 256 image, and fetching that; both grow with the image."""
DECODE_FLOOR = 0.05
"""Of decoding that a smaller stored image does not save."""
FIXED_OTHER = 0.3
"""Of the processor time that no stage accounts for, what stays however little the stages do: handing over images and
batches. The rest, allocations above all, falls with the stages' own time."""
FUSED = 0.9
"""Of `parse`, `decode` and `augment` that is left where they are one function."""
_MAPPED = ("parse", "decode", "augment")
_MEMORY_SHARE = 0.8
_MAX_CYCLE = 64
_SHORT_SIDE = 8 / 7  # of the model's side, as for `decoded_size`
_CACHED_SIDE = 256


@dataclass(frozen=True)
class _Proposal:
    """A fix before it is known what it gives."""

    effort: int
    """0: an option that changes nothing the trainer sees; 1: one that the trainer or its memory feels; 2: other
    shards; 3: more machines."""
    reason: str
    model: Model
    changes: Mapping[str, Any] = field(default_factory=dict)
    action: str = ""
    efficiency: float | None = None


def find_fixes(profile: Profile, bottleneck: Bottleneck) -> tuple[Fix, ...]:
    """What to change, best first: options before new shards before more machines, and of those the greatest gain.

    None where the accelerator is the limit: then no input pipeline makes it faster.
    """
    if bottleneck.stage == "accelerator":
        return ()
    model = model_of(profile)
    required = required_images_per_second(profile.step)
    if idle_fraction(profile.step) <= NO_IDLE:
        return tuple(_starting_sooner(profile, bottleneck))
    efficiency = profile.images_per_second / model.limit if model.limit > 0 else 1.0
    found = []
    for one in _proposals(profile, model, bottleneck):
        rate = min((one.efficiency or efficiency) * _with_less_other(one.model, model).limit, required)
        if rate >= profile.images_per_second * (1 + MIN_GAIN):
            found.append((one, Fix(dict(one.changes), one.reason, rate, 1 - rate / required, action=one.action)))
    found.sort(key=_rank)
    return (*(fix for _, fix in found), *_starting_sooner(profile, bottleneck))


def _proposals(profile: Profile, model: Model, bottleneck: Bottleneck) -> Iterator[_Proposal]:
    yield from _overlap(profile, model)
    yield from _threads(profile, model)
    yield from _reading(profile, model, bottleneck)
    yield from _less_work(profile, model)
    yield from _caches(profile, model)
    yield from _smaller_images(profile, model)
    yield from _workers(profile, model)


def _with_less_other(changed: Model, model: Model) -> Model:
    """The changed model, with what no stage accounts for in proportion."""
    before, after = (sum(one.cpu_s.values()) - one.cpu_s["other"] for one in (model, changed))
    if before <= 0:
        return changed
    other = model.cpu_s["other"] * (FIXED_OTHER + (1 - FIXED_OTHER) * after / before)
    return replace(changed, cpu_s={**changed.cpu_s, "other": other})


def _rank(pair: tuple[_Proposal, Fix]) -> tuple[int, float, int]:
    proposal, fix = pair
    # What an option gives is compared in steps of a tenth: less than that decides nothing, the effort does.
    gain = round(math.log(max(fix.predicted_images_per_second, 1e-9), 1.1))
    return max(proposal.effort, 1), -gain, proposal.effort


def _overlap(profile: Profile, model: Model) -> Iterator[_Proposal]:
    config = profile.config
    if config.get("prefetch_batches") == 0:
        reason = "The next batch is made while the accelerator works, instead of after."
        yield _Proposal(0, reason, model, {"prefetch_batches": None}, efficiency=0.95)
    if config.get("autotune") is False:
        reason = "tf.data finds the number of threads and the size of buffers itself."
        freed = replace(model, threads={name: max(count, model.cores) for name, count in model.threads.items()})
        yield _Proposal(0, reason, freed, {"autotune": True}, efficiency=0.9)


def _threads(profile: Profile, model: Model) -> Iterator[_Proposal]:
    config, cores = profile.config, profile.host.cores
    calls = config.get("num_parallel_calls")
    if calls and calls < cores:
        mapped = {name: cores for name in _MAPPED if name in model.threads}
        reason = f"All {cores} cores decode, not {calls}."
        wider = replace(model, threads={**model.threads, **mapped})
        yield _Proposal(0, reason, wider, {"num_parallel_calls": None}, efficiency=0.9)


def _reading(profile: Profile, model: Model, bottleneck: Bottleneck) -> Iterator[_Proposal]:
    config, service = profile.config, model.cpu_s.get("read", 0.0) + model.wait_s.get("read", 0.0)
    if bottleneck.stage != "read" or "read" not in model.threads:
        return
    files, exact = profile.dataset.get("files", 1), bool(profile.dataset.get("exact"))
    wanted = 1.25 * required_images_per_second(profile.step) * service
    now = config.get("cycle_length") or 1
    cycle = min(2 ** math.ceil(math.log2(max(wanted, 1))), _MAX_CYCLE)
    most = cycle if exact else min(cycle, files)
    if config.get("read_parallel_calls") is not None and config["read_parallel_calls"] < now:
        reason = f"{now} files are read at once, not {config['read_parallel_calls']}."
        wider = replace(model, threads={**model.threads, "read": min(now, files)})
        yield _Proposal(0, reason, wider, {"read_parallel_calls": None})
    if most > model.threads["read"]:
        reason = f"{most} reads at once wait for the storage together, not {model.threads['read']:,.0f}."
        changes = {"cycle_length": cycle, "read_parallel_calls": None}
        yield _Proposal(0, reason, replace(model, threads={**model.threads, "read": most}), changes)
    if files < min(cycle, now) and not exact:
        reason = f"{files} files cannot be read more than {files} at a time."
        action = f"tfpipe shard INPUT OUTPUT --num-shards {max(cycle, 16)}"
        yield _Proposal(2, reason, replace(model, threads={**model.threads, "read": cycle}), action=action)


def _less_work(profile: Profile, model: Model) -> Iterator[_Proposal]:
    config, demand = profile.config, model.cpu_s
    where, dtype = config.get("augment", "host"), config.get("image_dtype", "uint8")
    if dtype != "uint8" and where != "device":
        lighter = {**demand, "augment": demand.get("augment", 0.0) * (1 - FLOAT_SHARE)}
        reason = f"A byte for each value instead of {'four' if dtype == 'float32' else 'two'}: the device normalises."
        yield _Proposal(1, reason, replace(model, cpu_s=lighter), {"image_dtype": "uint8"})
    if where == "host" and config.get("training", True) and config.get("cache", "none") == "none":
        squared = profile.dataset.get("stored_size") is not None
        decode, augment = demand.get("decode", 0.0), demand.get("augment", 0.0)
        whole = SQUARE_DECODE * decode if squared else WHOLE_DECODE * decode + WHOLE_RESIZE * augment
        moved = {**demand, "augment": 0.0, "decode": whole}
        reason = "The device crops, flips and normalises."
        yield _Proposal(1, reason, replace(model, cpu_s=moved), {"augment": "device", "image_dtype": "uint8"})
    if config.get("map_fusion") is False:
        fused = {name: seconds * (FUSED if name in _MAPPED else 1.0) for name, seconds in demand.items()}
        yield _Proposal(0, "One call for parse, decode and augment.", replace(model, cpu_s=fused), {"map_fusion": True})


def _caches(profile: Profile, model: Model) -> Iterator[_Proposal]:
    config, facts, host = profile.config, profile.dataset, profile.host
    records, demand = facts.get("records"), model.cpu_s
    if config.get("cache", "none") != "none" or config.get("service") or not records:
        return
    room = _MEMORY_SHARE * (host.memory_limit_bytes - host.peak_memory_bytes)
    num_bytes = records * facts.get("record_bytes", 0.0)
    if num_bytes <= room:
        kept = {**demand, "read": min(demand.get("read", 0.0), FETCH_US / 1e6), "shuffle": 0.0}
        unread = replace(model, cpu_s=kept, wait_s={}, storage_limit=None)
        reason = f"From the second epoch on nothing is read: {human_bytes(num_bytes)} of memory."
        yield _Proposal(1, reason, unread, {"cache": "bytes"})
    height, width = facts.get("decoded_size") or (0, 0)
    num_bytes = records * height * width * 3
    if not num_bytes or num_bytes > room or config.get("on_bad_record") == "skip":
        return
    larger = height * width / _CACHED_SIDE**2
    crop = 0.0 if config.get("augment") == "device" else CACHED_CROP_US * larger / 1e6
    kept = {
        **demand,
        **dict.fromkeys(("list", "read", "shuffle", "parse", "decode"), 0.0),
        "repeat": FETCH_US * larger / 1e6,
        "augment": demand.get("augment", 0.0) + crop,
    }
    decoded = replace(model, cpu_s=kept, wait_s={}, storage_limit=None)
    reason = f"From the second epoch on nothing is decoded: {human_bytes(num_bytes)} of memory."
    yield _Proposal(1, reason, decoded, {"cache": "decoded"})


def _smaller_images(profile: Profile, model: Model) -> Iterator[_Proposal]:
    size, demand = profile.dataset.get("mean_size"), model.cpu_s
    if not size or profile.config.get("cache") == "decoded":
        return
    side = profile.config.get("image_size", 224)
    target = round((max(side) if isinstance(side, list | tuple) else side) * _SHORT_SIDE)
    ratio = (target / min(size)) ** 2
    if ratio > 0.8:
        return
    decode = demand.get("decode", 0.0) * (DECODE_FLOOR + (1 - DECODE_FLOOR) * ratio)
    read = demand.get("read", 0.0) * (0.5 + 0.5 * ratio)
    limit = None if model.storage_limit is None else model.storage_limit / ratio
    smaller = replace(model, cpu_s={**demand, "decode": decode, "read": read}, storage_limit=limit)
    height, width = size
    reason = f"Images of {width:,.0f} x {height:,.0f} on average are stored for a model that sees {target * 7 // 8}."
    yield _Proposal(2, reason, smaller, action=f"tfpipe shard INPUT OUTPUT --resize-short {target}")


def _workers(profile: Profile, model: Model) -> Iterator[_Proposal]:
    """Hosts like this one, each of which makes whole images; what the network carries is not known here."""
    required, config = required_images_per_second(profile.step), profile.config
    if config.get("service") or config.get("cache", "none") != "none":
        return
    each = profile.images_per_second
    number = math.ceil(required / each)
    if number < 2:
        return
    action = f"Run `tfpipe serve` on {number} machines like this one, and set `service` to the dispatcher's address."
    limits = {name: count * number for name, count in model.threads.items()}
    more = replace(model, cores=model.cores * number, threads=limits)
    yield _Proposal(3, f"{number} machines make what one cannot.", more, action=action)


def _starting_sooner(profile: Profile, bottleneck: Bottleneck) -> Iterator[Fix]:
    """Nothing in steady state, but the first step comes earlier."""
    if profile.first_batch_s <= SLOW_FIRST_BATCH_S or bottleneck.stage == "memory":
        return
    rate, idle = profile.images_per_second, idle_fraction(profile.step)
    names = [stage.name for stage in profile.stages]
    buffer = profile.dataset.get("exact") is False and "shuffle" in names
    changes: dict[str, Any] = {"shuffle_buffer_size": "32MiB"} if buffer else {"window_records": 128}
    reason = f"Less is read before the first batch, which took {profile.first_batch_s:.1f} s; it mixes less."
    yield Fix(changes, reason, rate, idle)
