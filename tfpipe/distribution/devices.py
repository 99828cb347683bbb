"""The devices of a strategy, and the processes and hosts that share it."""

from __future__ import annotations

import tensorflow as tf


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
    return list_cluster_workers(strategy.cluster_resolver.cluster_spec().as_dict())


def list_cluster_workers(cluster: dict[str, list[str]]) -> list[str]:
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


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether this process writes for all processes that share the strategy."""
    return get_host_index(strategy) == 0


def is_remote_tpu(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether the strategy is a TPU at the other end of a network, whose hosts open the files themselves."""
    if not isinstance(strategy, tf.distribute.TPUStrategy):
        return False
    jobs = {tf.DeviceSpec.from_string(device).job for device in strategy.extended.worker_devices}
    return not jobs <= {"localhost", None}
