"""What a strategy runs on: the kind of its devices, and the processes and hosts that share it."""

from __future__ import annotations

import tensorflow as tf


def device_kind(strategy: tf.distribute.Strategy) -> str:
    """TPU, GPU or CPU."""
    if isinstance(strategy, tf.distribute.TPUStrategy):
        return "TPU"
    try:
        kinds = {tf.DeviceSpec.from_string(device).device_type for device in strategy.extended.worker_devices}
    except RuntimeError:  # TensorFlow's default strategy names no device: it takes the best there is
        kinds = {device.device_type for device in tf.config.list_logical_devices()}
    return next((kind for kind in ("TPU", "GPU") if kind in kinds), "CPU")


def workers(strategy: tf.distribute.Strategy) -> list[str]:
    """The addresses of the processes that share the strategy, none where it lives in this one alone."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return []
    return worker_addresses(strategy.cluster_resolver.cluster_spec().as_dict())


def worker_addresses(cluster: dict[str, list[str]]) -> list[str]:
    """The workers of a cluster, in the order of their numbers; the chief is the first."""
    return [address for job in ("chief", "worker") for address in cluster.get(job, [])]


def num_hosts(strategy: tf.distribute.Strategy) -> int:
    """Hosts that read for the strategy: an input pipeline runs on each."""
    if isinstance(strategy, tf.distribute.TPUStrategy):
        return int(strategy.extended.num_hosts)
    return len(workers(strategy)) or 1


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Whether this process is the one among those that share the strategy that writes what all of them have."""
    if len(workers(strategy)) < 2:
        return True
    resolver = strategy.cluster_resolver
    has_chief = "chief" in resolver.cluster_spec().as_dict()
    return bool(resolver.task_type == "chief" if has_chief else resolver.task_id == 0)


def is_remote_tpu(strategy: tf.distribute.Strategy) -> bool:
    """Whether it is a TPU whose hosts are reached through the network: they open the files, not this machine."""
    if not isinstance(strategy, tf.distribute.TPUStrategy):
        return False
    jobs = {tf.DeviceSpec.from_string(device).job for device in strategy.extended.worker_devices}
    return not jobs <= {"localhost", None}
