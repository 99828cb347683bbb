"""Which devices train: one strategy for a TPU, several workers, GPUs or the CPU, and what fits it.

A TPU that somebody named is either used or an error: nobody should learn from the bill that a run meant for a
TPU took place on a CPU.
"""

from __future__ import annotations

import importlib.util
import logging
import queue
import socket
import threading
from collections.abc import Callable
from json import JSONDecodeError
from pathlib import Path
from typing import Any, Literal, TypeAlias

import tensorflow as tf

from tfpipe.errors import ConfigError

logger = logging.getLogger(__name__)

Precision: TypeAlias = Literal["auto", "float32", "bfloat16"]

# TensorFlow itself waits for ever, for a name that does not resolve as for an address that refuses.
_RESOLVE_S = 10.0
_PORT_S = 3.0
_CONNECT_S = 60.0

_BFLOAT16_CAPABILITY = (8, 0)
"""Ampere: the first GPUs that multiply bfloat16 faster than float32."""


def resolve_strategy(tpu: str | None = None) -> tf.distribute.Strategy:
    """Chooses what this process trains on: a TPU, else the workers of `TF_CONFIG`, else GPUs, else the CPU.

    Call it before anything else touches TensorFlow: a TPU and a cluster of workers must be set up first.

    Args:
        tpu: "local" for the TPU of this machine, the name of a TPU node, or "grpc://address:port". By default the
            one that `TPU_NAME` (or what else TensorFlow's resolver reads) names, else the one TensorFlow sees on
            this machine; looking for that takes no time beyond what TensorFlow needs to list its devices.

    Returns:
        `TPUStrategy`, `MultiWorkerMirroredStrategy`, `MirroredStrategy` over all GPUs or all logical CPU devices, or
        `OneDeviceStrategy`.

    Raises:
        ConfigError: A TPU was asked for or found and does not answer, or `TF_CONFIG` cannot be used.
    """
    strategy = _tpu_strategy(tpu) or _workers_strategy() or _local_strategy()
    logger.info("%s", describe_strategy(strategy))
    return strategy


def describe_strategy(strategy: tf.distribute.Strategy) -> str:
    """One line: the devices, how many replicas in how many processes, and why these.

    For example "CPU: 4 replicas in 1 process (MirroredStrategy); no TPU and no GPU were found".
    """
    kind, cluster = _device_kind(strategy), _workers(strategy)
    processes = len(cluster) or 1
    replicas = strategy.num_replicas_in_sync
    gpus = len(tf.config.list_physical_devices("GPU"))
    if kind == "TPU":
        reason = "a TPU answered"
    elif cluster:
        resolver = strategy.cluster_resolver
        reason = f"TF_CONFIG names {processes} workers, and this is {resolver.task_type} {resolver.task_id}"
    elif kind == "GPU":
        reason = f"no TPU was found, and {_count(gpus, 'GPU')}"
    else:
        reason = f"{_count(gpus, 'GPU')} not used" if gpus else "no TPU and no GPU were found"
    # Some classes bear another name inside TensorFlow than the one they are known by.
    public = ("TPUStrategy", "MultiWorkerMirroredStrategy")
    name = next(
        (name for name in public if isinstance(strategy, getattr(tf.distribute, name))), type(strategy).__name__
    )
    return f"{kind}: {_count(replicas, 'replica')} in {_count(processes, 'process', 'processes')} ({name}); {reason}"


def set_precision(precision: Precision = "auto", strategy: tf.distribute.Strategy | None = None) -> str:
    """Sets the Keras dtype policy for the layers made from now on. Call it after `resolve_strategy`.

    Args:
        precision: "auto" takes bfloat16 where the device is built for it, a TPU or GPUs of compute capability 8.0
            and above; elsewhere it is slower than float32. "float32" and "bfloat16" decide by hand.
        strategy: What trains; by default the one in scope, else whatever TensorFlow sees.

    Returns:
        The name of the policy, "mixed_bfloat16" (bfloat16 sums, float32 weights) or "float32".

    Raises:
        ConfigError: `precision` is none of the three.
    """
    if precision not in ("auto", "float32", "bfloat16"):
        raise ConfigError(f"`precision` must be auto, float32 or bfloat16, got {precision!r}.")
    wanted = precision == "bfloat16" or (
        precision == "auto" and _has_bfloat16(strategy or tf.distribute.get_strategy())
    )
    policy = "mixed_bfloat16" if wanted else "float32"
    # `tf.keras` and not `keras`: it is the Keras this TensorFlow trains with, be it 3 or the legacy one.
    tf.keras.mixed_precision.set_global_policy(policy)
    logger.info("Keras computes in %s.", policy)
    return policy


def replica_batch_size(
    strategy: tf.distribute.Strategy, *, global_batch_size: int | None = None, per_replica_batch_size: int | None = None
) -> tuple[int, int]:
    """The batch of all replicas together and of each, from exactly one of the two.

    Returns:
        The global batch size and the batch size per replica, in images.

    Raises:
        ConfigError: Both are given or neither, one is below 1, or the replicas cannot share the batch equally.
    """
    replicas = strategy.num_replicas_in_sync
    if (global_batch_size is None) == (per_replica_batch_size is None):
        got = "neither" if global_batch_size is None else f"{global_batch_size} and {per_replica_batch_size}"
        raise ConfigError(f"Exactly one of `global_batch_size` and `per_replica_batch_size` must be given, got {got}.")
    if per_replica_batch_size is not None:
        _check_positive("per_replica_batch_size", per_replica_batch_size)
        return per_replica_batch_size * replicas, per_replica_batch_size
    assert global_batch_size is not None
    _check_positive("global_batch_size", global_batch_size)
    share, rest = divmod(global_batch_size, replicas)
    if rest:
        fitting = [str(shares * replicas) for shares in (share, share + 1) if shares]
        raise ConfigError(
            f"Global batch size {global_batch_size} must be divisible by {replicas} replicas; "
            f"use {' or '.join(fitting)}."
        )
    return global_batch_size, share


# TPU


def _tpu_strategy(tpu: str | None) -> tf.distribute.Strategy | None:
    if tpu:
        return _connect(tpu, tpu, f"the TPU {tpu!r} that was asked for")
    if name := _tpu_of_environment():
        # The resolver reads the rest (project, zone) from the environment too, so it is not given the name.
        return _connect(name, None, f"the TPU {name!r} that the environment names")
    if tf.config.list_physical_devices("TPU") or tf.config.list_physical_devices("TPU_SYSTEM"):
        return _connect("local", None, "the TPU that TensorFlow sees on this machine")
    if any(Path("/dev").glob("accel[0-9]*")) or importlib.util.find_spec("libtpu") is not None:
        # The plain `tensorflow` package has no TPU in it, whatever the machine.
        logger.warning(
            "This machine seems made for a TPU, but TensorFlow sees none. If there is one, install tensorflow-tpu."
        )
    return None


def _tpu_of_environment() -> str | None:
    """What `TPU_NAME`, `TPU_CONFIG` or Kubernetes names, as TensorFlow's resolver reads it."""
    try:
        # A project and a zone, never used, keep the resolver from asking the metadata server for them.
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(project="-", zone="-")
    except (JSONDecodeError, AttributeError) as error:
        raise ConfigError(
            "TPU_CONFIG in the environment must be JSON with `tpu_node_name`; mend or unset it."
        ) from error
    except ValueError:  # nothing is named
        return None
    name: str = resolver._tpu  # no public attribute has it without a call to the Cloud API
    return name or None


def _connect(name: str, tpu: str | None, which: str) -> tf.distribute.Strategy:
    """Starts the TPU system.

    Args:
        name: "local", or what else the TPU is called.
        tpu: The resolver's argument where `name` is not "local"; None lets it read the environment.
        which: The TPU and who wants it, for the sentence that says it does not answer.

    Raises:
        ConfigError: It does not answer in time, or has no TPU.
    """
    logger.info("Connecting to %s.", which)
    try:
        resolver = _within(_RESOLVE_S, "finding its address", lambda: _resolver(name, tpu))
        if name != "local":
            addresses = _within(_RESOLVE_S, "finding its address", lambda: _addresses(resolver))
            for address in addresses:
                host, _, port = address.rpartition(":")
                socket.create_connection((host.strip("[]"), int(port)), timeout=_PORT_S).close()
        _within(_CONNECT_S, "connecting", lambda: tf.config.experimental_connect_to_cluster(resolver))
        # No limit: a large slice takes minutes, and whoever answered up to here is alive.
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)
    # The resolver, sockets, Cloud API and runtime each have errors of their own.
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        cause = lines[0].partition(" Failed in initialization")[0][:200].rstrip(". ")
        raise ConfigError(
            f"{which[0].upper()}{which[1:]} does not answer ({cause}); "
            "check that it is up and not in use by another process."
        ) from error


def _resolver(name: str, tpu: str | None) -> Any:
    return tf.distribute.cluster_resolver.TPUClusterResolver("local" if name == "local" else tpu)


def _addresses(resolver: Any) -> list[str]:
    return [address for addresses in resolver.cluster_spec().as_dict().values() for address in addresses]


def _within(seconds: float, doing: str, function: Callable[[], Any]) -> Any:
    """What `function` returns or raises, or a TimeoutError; the thread it is stuck in does not hold up the exit."""
    answers: queue.Queue[tuple[Any, Exception | None]] = queue.Queue()

    def run() -> None:
        try:
            answers.put((function(), None))
        except Exception as error:
            answers.put((None, error))

    threading.Thread(target=run, name="tfpipe-tpu", daemon=True).start()
    try:
        value, error = answers.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"{doing} took more than {seconds:g} s") from None
    if error is not None:
        raise error
    return value


# Workers, GPUs, CPU


def _workers_strategy() -> tf.distribute.Strategy | None:
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    try:
        cluster = resolver.cluster_spec().as_dict()
        task_type, task_id = resolver.task_type, resolver.task_id
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"TF_CONFIG in the environment cannot be read ({error}); mend or unset it.") from error
    if "ps" in cluster:
        raise ConfigError("TF_CONFIG must name workers only, got parameter servers; remove `ps` from its cluster.")
    workers = _worker_addresses(cluster)
    if len(workers) < 2 or task_type == "evaluator":  # an evaluator stands beside the cluster
        return None
    if task_type not in cluster or task_id is None or task_id >= len(cluster[task_type]):
        raise ConfigError(
            f"TF_CONFIG must say which of its {len(workers)} workers this process is, got task {task_type} {task_id}; "
            'set `task` to {"type": "worker", "index": 0} for the first.'
        )
    logger.info("TF_CONFIG names %d workers; waiting for all of them.", len(workers))
    return tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)


def _local_strategy() -> tf.distribute.Strategy:
    """All GPUs, else all logical CPU devices; no replicas to keep alike where there is one device."""
    kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
    devices = [f"/{kind}:{i}" for i in range(len(tf.config.list_logical_devices(kind)))]
    return tf.distribute.MirroredStrategy(devices) if len(devices) > 1 else tf.distribute.OneDeviceStrategy(devices[0])


# Facts


def _device_kind(strategy: tf.distribute.Strategy) -> str:
    """TPU, GPU or CPU."""
    if isinstance(strategy, tf.distribute.TPUStrategy):
        return "TPU"
    try:
        kinds = {tf.DeviceSpec.from_string(device).device_type for device in strategy.extended.worker_devices}
    except RuntimeError:  # TensorFlow's default strategy names no device: it takes the best there is
        kinds = {device.device_type for device in tf.config.list_logical_devices()}
    return next((kind for kind in ("TPU", "GPU") if kind in kinds), "CPU")


def _has_bfloat16(strategy: tf.distribute.Strategy) -> bool:
    kind = _device_kind(strategy)
    if kind != "GPU":
        return kind == "TPU"
    details = [tf.config.experimental.get_device_details(gpu) for gpu in tf.config.get_visible_devices("GPU")]
    return all(one.get("compute_capability", (0, 0)) >= _BFLOAT16_CAPABILITY for one in details)


def _workers(strategy: tf.distribute.Strategy) -> list[str]:
    """The addresses of the processes that share the strategy, none where it lives in this one alone."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return []
    return _worker_addresses(strategy.cluster_resolver.cluster_spec().as_dict())


def _worker_addresses(cluster: dict[str, list[str]]) -> list[str]:
    return [address for job in ("chief", "worker") for address in cluster.get(job, [])]


def _check_positive(name: str, value: int) -> None:
    if value < 1:
        raise ConfigError(f"`{name}` must be at least 1, got {value}.")


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
