"""The strategy that trains: on a TPU, several workers, GPUs or the CPU.

A TPU that the user named and that cannot be used is an error: nobody should learn from the bill that a CPU trained.
"""

from __future__ import annotations

import importlib.util
import logging
import socket
from collections.abc import Callable
from concurrent.futures import wait
from itertools import chain
from json import JSONDecodeError
from pathlib import Path
from typing import Any, Literal, TypeAlias

import tensorflow as tf

from tfpipe.errors import ConfigError
from tfpipe.system.aside import run_aside
from tfpipe.system.units import human_count

logger = logging.getLogger(__name__)

# TensorFlow itself waits forever, both for a name that does not resolve and for an address that refuses.
_RESOLVE_S = 10.0
_PORT_S = 3.0
_CONNECT_S = 60.0
Precision: TypeAlias = Literal["auto", "float32", "bfloat16"]

_BFLOAT16_CAPABILITY = (8, 0)
"""The compute capability of Ampere, the first GPUs that multiply bfloat16 faster than float32."""


def resolve_strategy(tpu: str | None = None) -> tf.distribute.Strategy:
    """Chooses the devices that this process trains on: a TPU, else the workers of `TF_CONFIG`, else GPUs, else the CPU.

    Call it before anything else touches TensorFlow: a TPU and a cluster of workers must be set up first.

    Args:
        tpu: The TPU: "local" for the one of this machine, the name of a TPU node, or "grpc://address:port". The default
            is the TPU that `TPU_NAME` or another variable of TensorFlow's resolver names, else the one that TensorFlow
            sees on this machine. The search takes no longer than a list of TensorFlow's devices.

    Returns:
        `TPUStrategy`, `MultiWorkerMirroredStrategy`, `MirroredStrategy` over all GPUs or all logical CPU devices, or
        `OneDeviceStrategy`.

    Raises:
        ConfigError: A TPU was named or found and does not answer, or `TF_CONFIG` cannot be used.
    """
    strategy = _connect_tpu(tpu) or _make_workers_strategy()
    if strategy is None:  # one of all GPUs, else of all logical CPU devices; one device needs no replicas
        kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
        devices = [f"/{kind}:{i}" for i in range(len(tf.config.list_logical_devices(kind)))]
        several = len(devices) > 1
        strategy = tf.distribute.MirroredStrategy(devices) if several else tf.distribute.OneDeviceStrategy(devices[0])
    logger.info("%s", describe_strategy(strategy))
    return strategy


def describe_strategy(strategy: tf.distribute.Strategy) -> str:
    """Describes a strategy in one line: the devices, the replicas and processes, and the reason for these.

    For example "CPU: 4 replicas in 1 process (MirroredStrategy); no TPU and no GPU were found".
    """
    kind, cluster = get_device_kind(strategy), list_workers(strategy)
    processes = len(cluster) or 1
    gpus = len(tf.config.list_physical_devices("GPU"))
    if kind == "TPU":
        reason = "a TPU answered"
    elif cluster:
        resolver = strategy.cluster_resolver
        reason = f"TF_CONFIG names {processes} workers, and this is {resolver.task_type} {resolver.task_id}"
    elif kind == "GPU":
        reason = f"no TPU was found, and {human_count(gpus, 'GPU')}"
    else:
        reason = f"{human_count(gpus, 'GPU')} not used" if gpus else "no TPU and no GPU were found"
    # Some classes have another name inside TensorFlow than in public.
    public = ("TPUStrategy", "MultiWorkerMirroredStrategy")
    named = (name for name in public if isinstance(strategy, getattr(tf.distribute, name)))
    replicas, spread = strategy.num_replicas_in_sync, human_count(processes, "process", "processes")
    kinds = f"{kind}: {human_count(replicas, 'replica')} in {spread} ({next(named, type(strategy).__name__)})"
    return f"{kinds}; {reason}"


def _make_workers_strategy() -> tf.distribute.Strategy | None:
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    try:
        cluster = resolver.cluster_spec().as_dict()
        task_type, task_id = resolver.task_type, resolver.task_id
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"TF_CONFIG in the environment cannot be read ({error}); mend or unset it.") from error
    if "ps" in cluster:
        raise ConfigError("TF_CONFIG must name workers only, got parameter servers; remove `ps` from its cluster.")
    workers = _list_cluster_workers(cluster)
    if len(workers) < 2 or task_type == "evaluator":  # an evaluator is not part of the cluster
        return None
    if task_type not in cluster or task_id is None or task_id >= len(cluster[task_type]):
        must = f"TF_CONFIG must say which of its {len(workers)} workers this process is"
        advice = 'set `task` to {"type": "worker", "index": 0} for the first.'
        raise ConfigError(f"{must}, got task {task_type} {task_id}; {advice}")
    logger.info("TF_CONFIG names %d workers; waiting for all of them.", len(workers))
    return tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)


def _connect_tpu(tpu: str | None) -> tf.distribute.Strategy | None:
    """Connects to the TPU that `tpu` or the environment names or that this machine has; returns None without one."""
    if tpu:
        return _connect(tpu, tpu, f"the TPU {tpu!r} that was asked for")
    try:
        # A project and a zone, never used, keep the resolver from asking the metadata server for them.
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(project="-", zone="-")
    except (JSONDecodeError, AttributeError) as error:
        must = "TPU_CONFIG in the environment must be JSON with `tpu_node_name`; mend or unset it."
        raise ConfigError(must) from error
    except ValueError:  # neither `TPU_NAME`, `TPU_CONFIG` nor Kubernetes names one
        resolver = None
    # No public attribute has the name without a call to the Cloud API.
    if resolver is not None and (name := resolver._tpu):
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


def _connect(name: str, tpu: str | None, description: str) -> tf.distribute.Strategy:
    """Connects to a TPU, starts its system, and returns its strategy."""
    logger.info("Connecting to %s.", description)
    chosen = "local" if name == "local" else tpu
    make_resolver = tf.distribute.cluster_resolver.TPUClusterResolver
    try:
        resolver = _run_within(_RESOLVE_S, "finding its address", lambda: make_resolver(chosen))
        if name != "local":
            cluster = _run_within(_RESOLVE_S, "finding its address", lambda: resolver.cluster_spec().as_dict())
            for address in chain.from_iterable(cluster.values()):
                host, _, port = address.rpartition(":")
                socket.create_connection((host.strip("[]"), int(port)), timeout=_PORT_S).close()
        _run_within(_CONNECT_S, "connecting", lambda: tf.config.experimental_connect_to_cluster(resolver))
        # Without a limit: a large slice takes minutes, and a TPU that answered up to here is alive.
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)
    # The resolver, sockets, Cloud API and runtime each raise different errors.
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        cause = lines[0].partition(" Failed in initialization")[0][:200].rstrip(". ")
        fault = f"{description[0].upper()}{description[1:]} does not answer ({cause})"
        raise ConfigError(f"{fault}; check that it is up and not in use by another process.") from error


def _run_within(seconds: float, action: str, function: Callable[[], Any]) -> Any:
    """Calls `function` in a thread, or raises TimeoutError. A hanging thread does not delay the program's exit."""
    answer = run_aside(function, "tfpipe-tpu")
    if not wait((answer,), seconds).done:
        raise TimeoutError(f"{action} took more than {seconds:g} s")
    return answer.result()


def set_precision(precision: Precision = "auto", strategy: tf.distribute.Strategy | None = None) -> str:
    """Sets the Keras dtype policy for all layers made after this call. Call it after `resolve_strategy`.

    Args:
        precision: The number format. "auto" takes bfloat16 if the device is built for it: a TPU, or GPUs of compute
            capability 8.0 and above. On others it is slower than float32.
        strategy: The strategy that trains; by default the one in scope, else the devices that TensorFlow sees.

    Returns:
        The name of the policy, "mixed_bfloat16" (bfloat16 sums, float32 weights) or "float32".

    Raises:
        ConfigError: `precision` is not one of the three.
    """
    if precision not in ("auto", "float32", "bfloat16"):
        raise ConfigError(f"`precision` must be auto, float32 or bfloat16, got {precision!r}.")
    if precision == "auto":
        kind = get_device_kind(strategy or tf.distribute.get_strategy())
        gpus = tf.config.get_visible_devices("GPU") if kind == "GPU" else []
        details = map(tf.config.experimental.get_device_details, gpus)
        are_new = all(gpu.get("compute_capability", (0, 0)) >= _BFLOAT16_CAPABILITY for gpu in details)
        precision = "bfloat16" if kind != "CPU" and are_new else "float32"
    policy = "mixed_bfloat16" if precision == "bfloat16" else "float32"
    # `tf.keras` and not `keras`: it is the Keras this TensorFlow trains with, be it 3 or the legacy one.
    tf.keras.mixed_precision.set_global_policy(policy)
    logger.info("Keras computes in %s.", policy)
    return policy


def get_device_kind(strategy: tf.distribute.Strategy) -> str:
    """Returns the kind of device that trains: TPU, GPU or CPU."""
    if isinstance(strategy, tf.distribute.TPUStrategy):
        return "TPU"
    try:
        kinds = {tf.DeviceSpec.from_string(device).device_type for device in strategy.extended.worker_devices}
    except RuntimeError:  # TensorFlow's default strategy names no device: it takes the best one
        kinds = {device.device_type for device in tf.config.list_logical_devices()}
    return next((kind for kind in ("TPU", "GPU") if kind in kinds), "CPU")


def list_workers(strategy: tf.distribute.Strategy) -> list[str]:
    """Lists the addresses of the processes that share the strategy; none if it uses this process alone."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return []
    return _list_cluster_workers(strategy.cluster_resolver.cluster_spec().as_dict())


def _list_cluster_workers(cluster: dict[str, list[str]]) -> list[str]:
    """Lists the addresses of a cluster's workers in the order of their numbers; the chief is the first."""
    return [address for job in ("chief", "worker") for address in cluster.get(job, [])]


def count_hosts(strategy: tf.distribute.Strategy) -> int:
    """Counts the hosts that read for the strategy: an input pipeline runs on each."""
    if isinstance(strategy, tf.distribute.TPUStrategy):
        return int(strategy.extended.num_hosts)
    return len(list_workers(strategy)) or 1


def get_host_index(strategy: tf.distribute.Strategy) -> int:
    """Returns the number of this process among those that share the strategy, from 0; the chief is the first."""
    if len(list_workers(strategy)) < 2:
        return 0
    resolver = strategy.cluster_resolver
    has_chief = "chief" in resolver.cluster_spec().as_dict()
    return int(resolver.task_id) + (1 if has_chief and resolver.task_type != "chief" else 0)


def is_remote_tpu(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether the strategy is a TPU at the other end of a network, whose hosts open the files themselves."""
    if not isinstance(strategy, tf.distribute.TPUStrategy):
        return False
    jobs = {tf.DeviceSpec.from_string(device).job for device in strategy.extended.worker_devices}
    return not jobs <= {"localhost", None}
