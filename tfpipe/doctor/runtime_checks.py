"""The checks of versions, the machine and the batch. Pure: plain values in, a `Check` out."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tfpipe.doctor.result import Check, Status, TargetConfig
from tfpipe.engine.cache import MAX_CACHE_SHARE
from tfpipe.storage.file_io import is_url
from tfpipe.system.units import human_bytes, human_count

OLDEST_TENSORFLOW = (2, 18)

_ORDINARY = ("tensorflow", "tensorflow-cpu", "tf-nightly")
_TPU_SUBLANES = 8
_TPU_DTYPES = ("uint8", "int32", "int64", "uint32", "float32", "bfloat16", "bool")
_MEMORY_SHARE = 0.5  # the share of free memory; a larger pipeline may leave the trainer too little
_HEADROOM = 1.2  # the host's rate by the rate that the accelerator consumes


class TensorFact(NamedTuple):
    """One tensor of a batch.

    Attributes:
        name: Name of the feature.
        dtype: Name of the dtype.
        shape: The shape; None if not even the rank is known.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...] | None


class BatchFacts(NamedTuple):
    """The shares of a global batch.

    Attributes:
        global_batch_size: Images of one step.
        batch_size: Images of one replica.
        num_replicas: Replicas of all hosts together.
        num_hosts: Hosts that read.
        block_records: Adjacent records that exact order reads at once; None for the throughput order.
        steps_per_epoch: Steps of an epoch; None if the records were never counted.
        replicas_known: Whether `num_replicas` is certain.
    """

    global_batch_size: int
    batch_size: int
    num_replicas: int
    num_hosts: int
    block_records: int | None
    steps_per_epoch: int | None
    replicas_known: bool = True


class CacheFacts(NamedTuple):
    """The space that a cache needs, and the free space.

    Attributes:
        kind: none, bytes or decoded.
        folder: Folder of a cache in files; None for one in memory.
        needed_bytes: Size of the full cache; None if the records were never counted.
        free_bytes: Free bytes in the folder or in memory.
        filled: Whether the folder holds a cache of this split.
        may_keep_part: Whether a cache in memory may keep a part of the records, or move into files: `cache_bytes` and
            `cache_dir` are options of batches by their steps.
    """

    kind: str
    folder: str | None
    needed_bytes: int | None
    free_bytes: int
    filled: bool = False
    may_keep_part: bool = False


def check_versions(tensorflow: str, installed: Mapping[str, str], target: TargetConfig) -> Check:
    """Checks that TensorFlow, Keras and the TPU's library fit together.

    Args:
        tensorflow: Version of TensorFlow that was imported.
        installed: Versions of the installed packages by name.
        target: The accelerator of the run.
    """
    name, keras, libtpu = "versions", installed.get("keras"), installed.get("libtpu")
    tpu_package = installed.get("tensorflow-tpu")
    finding = f"TensorFlow {tensorflow}, Keras {keras}" + (f", libtpu {libtpu}" if libtpu else "")
    both = [f"{package} {installed[package]}" for package in _ORDINARY if package in installed]
    if tpu_package and both:
        return Check(
            name,
            "failure",
            f"{both[0]} and tensorflow-tpu {tpu_package} are both installed, each over files of the other.",
            f"pip uninstall -y {both[0].split()[0]} tensorflow-tpu; then install one: tensorflow-tpu for a TPU.",
        )
    if _parse_version(tensorflow) < OLDEST_TENSORFLOW:
        return Check(name, "failure", f"TensorFlow must be 2.18 or newer, got {tensorflow}.", "Install a newer one.")
    if keras is None or _parse_version(keras) < (3,):
        return Check(name, "failure", f"Keras must be 3 or newer, got {keras or 'none'}.", "pip install -U keras.")
    if target.tpu is None:
        return Check(name, "ok", f"{finding}.")
    if target.tpu_elsewhere:
        status: Status = "ok" if libtpu else "warning"
        advice = f"It must be TensorFlow {tensorflow} on {target.tpu!r} too, which cannot be seen from here."
        return Check(name, status, f"{finding}{'' if libtpu else ', no libtpu on this machine'}.", advice)
    if libtpu is None:
        advice = "pip install tensorflow-tpu, which brings it, in place of tensorflow."
        return Check(name, "failure", f"{finding}, but no libtpu, without which no TPU can be used.", advice)
    if tpu_package is None:
        advice = "If the TPU is not found, install tensorflow-tpu in place of tensorflow."
        return Check(name, "warning", f"{finding}, but a TensorFlow that may have no TPU in it.", advice)
    return Check(name, "ok", f"{finding}.")


def check_file_access(path: str, target: TargetConfig, lacks_client: bool = False) -> Check:
    """Checks that every host can read the files.

    Args:
        path: The directory or the pattern of the files.
        target: The machines that train.
        lacks_client: Whether the order is not exact only because nothing but TensorFlow can read the files.
    """
    name, hosts = "file access", target.num_hosts or 1
    if lacks_client:
        finding = f"{path} can be read from any host, but here by TensorFlow alone, in throughput order."
        return Check(name, "warning", finding, "Install tfpipe[cloud] for the exact order.")
    if is_url(path):
        return Check(name, "ok", f"{path} can be read from any host.")
    if target.tpu_elsewhere:
        return Check(
            name,
            "failure",
            f"The TPU {target.tpu!r} reads on its own hosts, which cannot see {path} of this machine.",
            "Copy the dataset to an object store the TPU can read, such as gs://, or run on the TPU's own machine "
            "with `tpu` local.",
        )
    if hosts > 1:
        advice = "Mount it on all of them under this path, or use an object store."
        return Check(name, "warning", f"Each of {hosts} hosts must see {path}, which is a local path.", advice)
    return Check(name, "ok", f"{path} is on this machine.")


def check_batch(facts: BatchFacts, target: TargetConfig) -> Check:
    """Describes the shares of the batch. `check_shares` has refused a batch that cannot be shared."""
    replicas, hosts = human_count(facts.num_replicas, "replica"), human_count(facts.num_hosts, "host")
    finding = f"{facts.global_batch_size:,} images: {facts.batch_size:,} for each of {replicas} on {hosts}"
    if facts.block_records is not None:
        blocks = f"in blocks of {facts.block_records:,} records" if facts.block_records > 1 else "record by record"
        finding += f", read {blocks}"
    if facts.steps_per_epoch is not None:
        finding += f"; {human_count(facts.steps_per_epoch, 'step')} an epoch"
    if not facts.replicas_known:
        advice = "Say how many there are with `num_replicas` and `num_hosts`."
        return Check("batch", "warning", f"{finding}. How many replicas {target.tpu!r} has is not known here.", advice)
    if target.tpu is not None and facts.batch_size % _TPU_SUBLANES:
        below = facts.batch_size // _TPU_SUBLANES * _TPU_SUBLANES
        advice = f"Use {f'{below} or ' if below else ''}{below + _TPU_SUBLANES} for each replica."
        return Check("batch", "warning", f"{finding}. A TPU fills up each replica's batch to a multiple of 8.", advice)
    return Check("batch", "ok", f"{finding}.")


def check_shapes(tensors: Sequence[TensorFact], target: TargetConfig) -> Check:
    """Checks that shapes are static, and that a device takes the dtypes."""
    name = "shapes"
    open_shapes = [tensor.name for tensor in tensors if tensor.shape is None or None in tensor.shape]
    if open_shapes:
        advice = (
            "XLA compiles for one shape: give the feature a size in `pad_to` or in the schema, or leave it out of "
            "`extra_features`."
        )
        return Check(name, "failure", f"The shape must be static, and that of {', '.join(open_shapes)} is not.", advice)
    finding = ", ".join(f"{tensor.name} {tensor.dtype} {_format_shape(tensor.shape or ())}" for tensor in tensors)
    if strings := [tensor.name for tensor in tensors if tensor.dtype == "string"]:
        status: Status = "warning" if target.tpu is None else "failure"
        advice = (
            "Leave it out of `extra_features` for training: strings stay on the host, and no compiled step takes them."
        )
        return Check(name, status, f"The batch has text in it: {', '.join(strings)}.", advice)
    if target.tpu is not None and (refused := [tensor for tensor in tensors if tensor.dtype not in _TPU_DTYPES]):
        listed = ", ".join(f"{tensor.name} {tensor.dtype}" for tensor in refused)
        return Check(name, "failure", f"A TPU does not take {listed}.", "Cast it on the host, or leave it out.")
    return Check(name, "ok", f"{finding}.")


def check_xla(error: str | None, seconds: float, batch_size: int) -> Check:
    """Checks that a step on a real batch compiled and ran; `error` is the first line of the compiler's error."""
    if error is not None:
        advice = "A TPU runs only what XLA compiles: look for strings and open shapes in the batch, above."
        return Check("xla", "failure", f"XLA does not compile a step on this batch: {error}.", advice)
    finding = f"A step on a batch of {batch_size:,} images compiled and ran in {seconds:.1f} s."
    return Check("xla", "ok", finding)


def check_memory(held: str, needed_bytes: float, program_bytes: int, available_bytes: int, advice: str) -> Check:
    """Checks that what the pipeline holds fits into memory.

    Args:
        held: A phrase such as "9 records that are read ahead and finished batches".
        needed_bytes: Bytes of all that on one host.
        program_bytes: Bytes that the process takes without a pipeline: Python and TensorFlow.
        available_bytes: Free memory of this machine.
        advice: A sentence that says how to hold less.
    """
    finding = (
        f"{held[0].upper()}{held[1:]} take about {human_bytes(needed_bytes)}, with the program "
        f"{human_bytes(needed_bytes + program_bytes)}. {human_bytes(available_bytes)} are free."
    )
    if needed_bytes <= _MEMORY_SHARE * available_bytes:
        return Check("memory", "ok", finding)
    status: Status = "warning" if needed_bytes <= available_bytes else "failure"
    return Check("memory", status, finding, advice)


def check_cache(facts: CacheFacts) -> Check:
    """Checks that there is room for the cache."""
    if facts.kind == "none":
        return Check("cache", "ok", "No cache was asked for.")
    cache = f"The cache of {'records' if facts.kind == 'bytes' else 'decoded images'}"
    if facts.filled:
        return Check("cache", "ok", f"{facts.folder} has a cache of this split already.")
    if facts.needed_bytes is None:
        return Check(
            "cache",
            "warning",
            f"How much {cache[0].lower()}{cache[1:]} takes is not known: its records were never counted.",
            "Watch the memory in the first epoch, or write the data as a tfpipe dataset.",
        )
    where = f"in {facts.folder}" if facts.folder is not None else "of memory"
    finding = f"{cache} takes {human_bytes(facts.needed_bytes)} {where}, and {human_bytes(facts.free_bytes)} are free"
    if facts.needed_bytes <= facts.free_bytes * (MAX_CACHE_SHARE if facts.folder is None else 1):
        return Check("cache", "ok", f"{finding}.")
    rule = " there" if facts.folder is not None else ", of which a cache may take 90 %"
    use = "Set `cache_bytes` to keep what fits, use " if facts.may_keep_part else "Use "
    smaller = "a smaller `decoded_size`, " if facts.kind == "decoded" else ""
    other = "another `cache_dir`, " if facts.folder is not None else "a `cache_dir`, " * facts.may_keep_part
    no_cache = "or no cache" if smaller or other else "no cache"
    return Check("cache", "failure", f"{finding}{rule}.", f"{use}{smaller}{other}{no_cache}.")


def check_tuned(tuned: Mapping[str, object], here: Mapping[str, object]) -> Check:
    """Checks that the options were tuned on this host and these data.

    Args:
        tuned: The table that the tuner wrote beside the options.
        here: The table that the tuner would write for this host and these data.
    """
    name, when = "tuned", str(tuned.get("at", ""))[:10]
    if tuned.get("key") == here["key"]:
        return Check(name, "ok", f"The options were tuned on this host and these data, on {when}.")
    differs = []
    if (tuned.get("processor"), tuned.get("cores")) != (here["processor"], here["cores"]):
        differs.append(f"another host ({tuned.get('processor')}, {tuned.get('cores')} cores)")
    if (tuned.get("split"), tuned.get("fingerprint")) != (here["split"], here["fingerprint"]):
        differs.append(f"other data ({tuned.get('dataset')})")
    where = " and ".join(differs) or "another host or other data"
    return Check(name, "warning", f"The options were tuned on {where}.", "Run `tfpipe tune` here, for this data.")


def check_cpu(rate: float | None, cores: int, num_hosts: int, target: TargetConfig, unit: str = "images") -> Check:
    """Checks that the hosts make as many images per second as the accelerators consume.

    Args:
        rate: Images per second of this host; None if it was not measured.
        cores: Cores of this host.
        num_hosts: Hosts that share the work.
        target: The accelerators, with the rate that they consume.
        unit: The word for what is counted, as in `Source.unit`.
    """
    name, target_rate = "cpu", target.images_per_second
    if target_rate is None or rate is None:
        return Check(name, "skipped", "Not asked.", "Give `images_per_second` to learn whether the hosts keep up.")
    share = target_rate / num_hosts
    whose = "are wanted" if num_hosts == 1 else f"are wanted of each of {num_hosts} hosts"
    finding = f"This host makes {rate:,.0f} {unit}/s with {human_count(cores, 'core')}; {share:,.0f} {whose}."
    if rate >= _HEADROOM * share:
        return Check(name, "ok", finding)
    needed = math.ceil(_HEADROOM * share * cores / rate)
    advice = f"Use hosts with {needed:,} such cores, a cache, augment='device', or images stored smaller."
    enough = rate >= share
    status: Status = "warning" if enough or target.elsewhere else "failure"
    if not enough:
        finding += f" The accelerator would wait {1 - rate / share:.0%} of the time."
    return Check(name, status, finding, advice)


def _parse_version(text: str) -> tuple[int, ...]:
    """Parses `2.18.0rc1` to (2, 18)."""
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])


def _format_shape(shape: tuple[int | None, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"
