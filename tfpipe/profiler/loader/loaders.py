"""Recognizes the loader that a function returns, and makes it with other options.

    source = LoaderSource(make_loader)
    loader = source.make()                       # Loader(kind, options, batches of an epoch, ...)
    source.make({"num_workers": 4})              # the same code, another option of the DataLoader in it

No framework is loaded here: a loader of a framework exists only where its user has loaded that.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tfpipe.errors import ConfigError
from tfpipe.profiler.loader.types import BatchFacts

Changes = Mapping[str, Any]

_TORCH = ("num_workers", "prefetch_factor", "persistent_workers", "pin_memory", "in_order", "batch_size")
_KERAS = ("workers", "use_multiprocessing", "max_queue_size")
_NEED_WORKERS = ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout")


@dataclass(frozen=True)
class Loader:
    """A loader as its user's function made it.

    Attributes:
        kind: The kind in plain words.
        open_epoch: A function that begins an epoch and returns its batches.
        options: The options that `LoaderSource.make` can change, with their values.
        dataset: The dataset of PyTorch in it; None if there is none.
        collate: The name of the user's function that makes a batch of records; empty if it is not theirs.
        length: The batches of an epoch; None if the loader does not say.
    """

    kind: str
    open_epoch: Callable[[], Iterator[Any]]
    options: Changes = field(default_factory=dict)
    dataset: Any = None
    collate: str = ""
    length: int | None = None


class LoaderSource:
    """A user's function that returns a loader.

    Args:
        make: The function, without arguments.
        name: Its name, for messages.
    """

    def __init__(self, make: Callable[[], Any], name: str) -> None:
        self._make, self._name = make, name

    def make(self, changes: Changes | None = None) -> Loader:
        """Makes the loader.

        Args:
            changes: Options of the DataLoader, PyDataset or Grain loader in it that get other values.

        Raises:
            ConfigError: The function raises an error, or returns something else; or nothing in it has these options.
        """
        made: list[Any] = []
        with _overriding(changes or {}, made):
            try:
                result = self._make()
            except Exception as error:
                raise ConfigError(f"--loader: {self._name} raises {type(error).__name__}: {error}") from error
        if changes and not made:
            if not _is_keras(result):
                raise ConfigError(
                    f"--apply makes the loader with other options, and {self._name} returns one that was made before. "
                    "Make the DataLoader inside of the function."
                )
            for name, value in changes.items():
                setattr(result, name, value)
        return self._describe(result, made)

    def _describe(self, loader: Any, made: Sequence[Any]) -> Loader:
        inner = next((one for one in (loader, *reversed(made)) if _is_torch(one)), None)
        again = _open_epochs(loader, self._make)
        if inner is not None:
            collate = getattr(inner.collate_fn, "__qualname__", type(inner.collate_fn).__qualname__)
            own = not getattr(inner.collate_fn, "__module__", "").startswith("torch.")
            options = {name: getattr(inner, name) for name in _TORCH if hasattr(inner, name)}
            kind = "PyTorch DataLoader" if inner is loader else f"{_name_type(loader)} around a PyTorch DataLoader"
            return Loader(kind, again, options, inner.dataset, collate if own else "", _get_length(loader))
        if _is_keras(loader):
            options = {name: getattr(loader, name) for name in _KERAS}
            return Loader("Keras PyDataset", lambda: _iterate_keras(loader), options, None, "", loader.num_batches)
        if not hasattr(loader, "__iter__"):
            raise ConfigError(
                f"--loader: {self._name} must return a loader or an iterable of batches, got {_name_type(loader)}."
            )
        if type(loader).__module__.startswith("grain."):
            workers = next((one for one in made if isinstance(one, int)), None)
            options = {} if workers is None else {"num_workers": workers}
            return Loader("Grain loader", again, options, None, "", _get_length(loader))
        return Loader(_name_type(loader), again, {}, None, "", _get_length(loader))


def describe_batch(batch: Any) -> BatchFacts:
    """Returns the facts about a batch: arrays in dictionaries, tuples and lists at any depth."""
    arrays: list[Any] = []
    objects = _collect(batch, arrays)
    largest = max(arrays, key=_count_bytes, default=None)
    if largest is None:
        return BatchFacts(_count_entries(batch), 0, objects=objects)
    first = next((array for array in arrays if len(array.shape)), largest)
    images = len(batch) if _is_list_of_records(batch) else int(first.shape[0]) if len(first.shape) else 1
    shape = tuple(int(side) for side in largest.shape)
    return BatchFacts(images, sum(map(_count_bytes, arrays)), _name_dtype(largest), shape, objects)


def _is_list_of_records(batch: Any) -> bool:
    """Returns whether a batch is a list of equal records, not a list such as `[images, labels]`."""
    if not isinstance(batch, (list, tuple)) or len(batch) < 2:
        return False
    shapes = [tuple(getattr(one, "shape", ())) for one in batch[:2]]
    return type(batch[0]) is type(batch[1]) and shapes[0] == shapes[1]


def _collect(value: Any, arrays: list[Any]) -> int:
    """Appends the arrays in a value to a list, and returns the number of other objects."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        arrays.append(value)
        return 0
    if isinstance(value, Mapping):
        return sum(_collect(one, arrays) for one in value.values())
    if isinstance(value, (list, tuple)):
        return (type(value) is list) + sum(_collect(one, arrays) for one in value)
    return 1


def _count_entries(batch: Any) -> int:
    if isinstance(batch, Mapping):
        return next(map(_count_entries, batch.values()), 1)
    return len(batch) if isinstance(batch, (list, tuple)) else 1


def _count_bytes(array: Any) -> int:
    return int(getattr(array, "nbytes", 0) or 0)


def _name_dtype(array: Any) -> str:
    return str(array.dtype).rpartition(".")[2]


def _name_type(value: Any) -> str:
    kind = type(value)
    return (
        kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__.split('.')[0]} {kind.__qualname__}"
    )


def _get_length(loader: Any) -> int | None:
    with contextlib.suppress(TypeError, NotImplementedError, ValueError):
        return len(loader)
    return None


def _open_epochs(loader: Any, make: Callable[[], Any]) -> Callable[[], Iterator[Any]]:
    """Returns a function that begins an epoch. An iterator gives one only; the user's function makes the next one."""
    unused = [loader]

    def open_epoch() -> Iterator[Any]:
        one = unused.pop() if unused else make()
        batches: Iterator[Any] = iter(one)
        if batches is not one:
            unused.append(one)
        return batches

    return open_epoch


def _iterate_keras(dataset: Any) -> Iterator[Any]:
    module: Any = sys.modules.get("keras.src.trainers.data_adapters.py_dataset_adapter")
    if module is None:
        return (dataset[number] for number in range(dataset.num_batches))
    batches: Iterator[Any] = iter(module.PyDatasetAdapter(dataset, shuffle=False).get_numpy_iterator())
    return batches


def _is_torch(loader: Any) -> bool:
    module: Any = sys.modules.get("torch.utils.data")
    return module is not None and isinstance(loader, module.DataLoader)


def _is_keras(loader: Any) -> bool:
    module: Any = sys.modules.get("keras.utils")
    return module is not None and isinstance(loader, module.PyDataset)


@contextlib.contextmanager
def _overriding(changes: Changes, made: list[Any]) -> Iterator[None]:
    """Gives options other values in every loader that is made meanwhile, and lists those loaders in `made`."""
    with contextlib.ExitStack() as stack:
        torch: Any = sys.modules.get("torch.utils.data")
        if torch is not None:
            stack.enter_context(
                _patching(torch.DataLoader, "__init__", functools.partial(_change_torch, changes, made))
            )
        grain: Any = sys.modules.get("grain")
        if grain is not None:
            change = functools.partial(_change_grain, changes, made, grain)
            stack.enter_context(_patching(grain.IterDataset, "mp_prefetch", change))
            stack.enter_context(_patching(grain.DataLoader, "__init__", change))
        yield


@contextlib.contextmanager
def _patching(kind: Any, name: str, change: Callable[[inspect.BoundArguments], None]) -> Iterator[None]:
    """Changes the arguments of a method until the block ends."""
    method = getattr(kind, name)
    signature = inspect.signature(method)

    @functools.wraps(method)
    def changed(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        change(bound)
        return method(*bound.args, **bound.kwargs)

    setattr(kind, name, changed)
    try:
        yield
    finally:
        setattr(kind, name, method)


def _change_torch(changes: Changes, made: list[Any], bound: inspect.BoundArguments) -> None:
    made.append(bound.arguments["self"])
    parameters = bound.signature.parameters
    bound.arguments.update({name: value for name, value in changes.items() if name in parameters})
    if not bound.arguments.get("num_workers"):
        for name in _NEED_WORKERS:
            bound.arguments.pop(name, None)


def _change_grain(changes: Changes, made: list[Any], grain: Any, bound: inspect.BoundArguments) -> None:
    arguments = bound.arguments
    if "num_workers" in changes:
        if "worker_count" in bound.signature.parameters:
            arguments["worker_count"] = changes["num_workers"]
        else:
            arguments["options"] = grain.MultiprocessingOptions(num_workers=changes["num_workers"])
    options = arguments.get("options")
    made.append(
        getattr(options, "num_workers", 10)
        if "worker_count" not in bound.signature.parameters
        else arguments.get("worker_count")
    )
