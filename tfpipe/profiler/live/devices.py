"""Waits for devices, whatever framework trains on them, by a value that a step computed; loads none."""

from __future__ import annotations

import sys
from typing import Any

_FRAMEWORKS = {"tensorflow": "tensorflow", "torch": "torch", "jax": "jax", "jaxlib": "jax"}
"""The framework of a value, by the package of its type."""


def find_framework(result: Any) -> str:
    """Finds the framework that computed a value, or without a value the only one that is loaded; else an empty text."""
    values = list_values(result)
    found = [_FRAMEWORKS.get(type(value).__module__.partition(".")[0], "") for value in values]
    if not values:
        found = [name for name in ("tensorflow", "torch") if sys.modules.get(name) is not None]
        return found[0] if len(found) == 1 else ""
    return next(filter(None, found), "")


def is_synchronous(framework: str, result: Any) -> bool:
    """Returns whether a step has ended when its call returns."""
    library: Any = sys.modules.get(framework)
    if framework == "torch":
        devices = {value.device.type for value in list_values(result) if isinstance(value, library.Tensor)}
        return devices <= {"cpu"} if devices else not library.cuda.is_initialized()
    if framework == "tensorflow":
        return not any(library.config.list_logical_devices(kind) for kind in ("GPU", "TPU"))
    return framework != "jax"


def block_until_done(framework: str, result: Any) -> None:
    """Waits until the devices have computed `result`. Without it nobody can wait for a TPU."""
    library: Any = sys.modules.get(framework)
    if framework == "jax":
        library.block_until_ready(result)
    elif framework == "torch":
        if library.cuda.is_initialized():
            library.cuda.synchronize()
        for value in list_values(result):
            if isinstance(value, library.Tensor) and value.numel():
                value.detach().reshape(-1)[:1].cpu()
    elif framework == "tensorflow":
        library.test.experimental.sync_devices()
        for value in library.nest.flatten(result, expand_composites=True):
            if isinstance(value, library.Tensor | library.Variable) and value.shape.num_elements() != 0:
                library.reshape(value, [-1])[:1].numpy()


def count_images(batch: Any) -> int:
    """Returns the length of a batch's first array in this process; 1 for a scalar."""
    first = next((value for value in list_values(batch) if hasattr(value, "shape") or hasattr(value, "values")), None)
    parts = getattr(first, "values", None)  # a per-replica value of TensorFlow has one for each replica
    parts = parts if isinstance(parts, tuple) else (first,)
    count = sum(int(part.shape[0] or 0) if len(part.shape) else 1 for part in parts if hasattr(part, "shape"))
    if getattr(first, "is_fully_addressable", True):
        return count
    return count // int(sys.modules["jax"].process_count())  # the array is that of all processes


def list_values(structure: Any) -> list[Any]:
    """Returns all values in a structure of dictionaries, lists and tuples but None."""
    if isinstance(structure, dict):
        structure = list(structure.values())
    if isinstance(structure, list | tuple):
        return [value for part in structure for value in list_values(part)]
    return [] if structure is None else [structure]
