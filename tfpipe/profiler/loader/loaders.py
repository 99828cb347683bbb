"""Recognizes the loader that a function returns, and makes it with other options."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from tfpipe.errors import ConfigError
from tfpipe.profiler.types import BatchFacts

Changes = Mapping[str, Any]

_TORCH = ("num_workers", "prefetch_factor", "persistent_workers", "pin_memory", "in_order", "batch_size")
_KERAS = ("workers", "use_multiprocessing", "max_queue_size")
_NEED_WORKERS = ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout")


@dataclass(frozen=True)
class Loader:
    """A loader as its user's function made it."""

    kind: str
    open_epoch: Callable[[], Iterator[Any]]
    options: Changes = field(default_factory=dict)  # those that `LoaderSource.make` can change
    dataset: Any = None  # of PyTorch
    collate: str = ""  # the user's function that makes a batch of records; empty if it is not theirs
    length: int | None = None  # batches of an epoch, if it says so
    strangers: Collection[threading.Thread] = ()  # threads that were there before the code of the loader


class LoaderSource:
    """A user's function that returns a loader. `strangers` are the threads that were there before its module."""

    def __init__(self, make: Callable[[], Any], name: str, strangers: Collection[threading.Thread] = ()) -> None:
        self._make, self._name, self._strangers = make, name, strangers

    def make(self, changes: Changes | None = None) -> Loader:
        """Makes the loader, with other values for options of the DataLoader, PyDataset or Grain loader in it."""
        changes, made = changes or {}, list[Any]()
        with _overriding(changes, made):
            try:
                loader = self._make()
            except Exception as error:
                raise ConfigError(f"--loader: {self._name} raises {type(error).__name__}: {error}") from error
        if changes and not made:
            if not _is_a(loader, "keras.utils", "PyDataset"):
                raise ConfigError(
                    f"--apply makes the loader with other options, and {self._name} returns one that was made before. "
                    "Make the DataLoader inside of the function."
                )
            for name, value in changes.items():
                setattr(loader, name, value)
        return replace(self._describe(loader, made), strangers=self._strangers)

    def _describe(self, loader: Any, made: list[Any]) -> Loader:
        length = None
        with contextlib.suppress(TypeError, NotImplementedError, ValueError):
            length = len(loader)
        open_epoch = _open_epochs(loader, self._make)
        name = _name_type(loader)
        inner = next((one for one in (loader, *made) if _is_a(one, "torch.utils.data", "DataLoader")), None)
        if inner is not None:
            function = getattr(inner.collate_fn, "func", inner.collate_fn)  # of a partial one
            own = not (function.__module__ or "").startswith("torch.")
            collate = getattr(function, "__name__", "__call__") if own else ""
            options = {option: getattr(inner, option) for option in _TORCH if hasattr(inner, option)}
            kind = "PyTorch DataLoader" if inner is loader else f"{name} around a PyTorch DataLoader"
            return Loader(kind, open_epoch, options, inner.dataset, collate, length)
        if _is_a(loader, "keras.utils", "PyDataset"):
            options = {option: getattr(loader, option) for option in _KERAS}
            return Loader("Keras PyDataset", lambda: _iterate_keras(loader), options, length=loader.num_batches)
        if not hasattr(loader, "__iter__"):
            raise ConfigError(f"--loader: {self._name} must return a loader or an iterable of batches, got {name}.")
        options = {"num_workers": made[-1]} if made and isinstance(made[-1], int) else {}
        if "grain" in sys.modules and "absl.flags" in sys.modules:
            sys.modules["absl.flags"].FLAGS.mark_as_parsed()  # as a program of Grain's users does; its workers need it
        return Loader("Grain loader" if name.startswith("grain ") else name, open_epoch, options, length=length)


class _Array(NamedTuple):
    shape: tuple[int, ...]
    dtype: str
    bytes: int


def describe_batch(batch: Any) -> BatchFacts:
    """Returns the facts about a batch: arrays in dictionaries, tuples and lists at any depth."""
    arrays: list[_Array] = []
    objects = _collect(batch, arrays)
    first = next((array for array in arrays if array.shape), None)
    if first is None or _is_list_of_records(batch):
        entries = next(iter(batch.values())) if isinstance(batch, Mapping) and batch else batch
        if isinstance(entries, tuple) and not _is_list_of_records(entries) and entries:
            entries = entries[0]
        images = len(entries) if isinstance(entries, (list, tuple)) else 1
    else:
        images = first.shape[0]
    if not arrays:
        return BatchFacts(images, 0, objects=objects)
    largest = max(arrays, key=lambda array: array.bytes)
    return BatchFacts(images, sum(array.bytes for array in arrays), largest.dtype, largest.shape, objects)


def _is_list_of_records(batch: Any) -> bool:
    """Returns whether a batch is a list of equal records, not a list such as `[images, labels]`."""
    if not isinstance(batch, (list, tuple)) or len(batch) < 2 or isinstance(batch[0], list):
        return False
    first, second = (tuple(getattr(one, "shape", ())) for one in batch[:2])
    are_images = len(first) == len(second) == 3  # of any sizes
    return type(batch[0]) is type(batch[1]) and (first == second or are_images)


def _collect(value: Any, arrays: list[_Array]) -> int:
    """Appends the arrays in a value to a list, and returns the number of other objects."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        shape = tuple(int(side) for side in value.shape)
        arrays.append(_Array(shape, str(value.dtype).rpartition(".")[2], int(getattr(value, "nbytes", 0) or 0)))
        return 0
    if not isinstance(value, (Mapping, list, tuple)):
        return 1
    inner: list[_Array] = []
    objects = 1 + sum(_collect(one, inner) for one in (value.values() if isinstance(value, Mapping) else value))
    if inner and len(inner) == len(value) and _is_list_of_records(value):
        shape = inner[0].shape if len({array.shape for array in inner}) == 1 else ()
        inner = [_Array((len(value), *shape), inner[0].dtype, sum(array.bytes for array in inner))]
    arrays += inner
    return objects


def _name_type(value: Any) -> str:
    kind = type(value)
    return (
        kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__.split('.')[0]} {kind.__qualname__}"
    )


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
    module: Any = sys.modules["keras.src.trainers.data_adapters.py_dataset_adapter"]
    batches: Iterator[Any] = iter(module.PyDatasetAdapter(dataset, shuffle=False).get_numpy_iterator())
    return batches


def _is_a(loader: Any, module: str, name: str) -> bool:
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(loader, kind)


@contextlib.contextmanager
def _overriding(changes: Changes, made: list[Any]) -> Iterator[None]:
    """Gives options other values in every loader made meanwhile; `made` gets each DataLoader, and workers of Grain."""

    def change_torch(bound: inspect.BoundArguments) -> None:
        made.append(bound.arguments["self"])
        bound.arguments.update({name: value for name, value in changes.items() if name in bound.signature.parameters})
        if not bound.arguments.get("num_workers"):
            for name in _NEED_WORKERS:
                bound.arguments.pop(name, None)

    def change_grain(bound: inspect.BoundArguments) -> None:
        if "num_workers" in changes:
            bound.arguments["options"] = grain.MultiprocessingOptions(num_workers=changes["num_workers"])
        made.append(bound.arguments.get("options", grain.MultiprocessingOptions(10)).num_workers)

    with contextlib.ExitStack() as stack:
        torch: Any = sys.modules.get("torch.utils.data")
        if torch is not None:
            stack.enter_context(_patching(torch.DataLoader, "__init__", change_torch))
        grain: Any = sys.modules.get("grain")
        if grain is not None:
            stack.enter_context(_patching(grain.IterDataset, "mp_prefetch", change_grain))
        yield


@contextlib.contextmanager
def _patching(kind: Any, name: str, change: Callable[[inspect.BoundArguments], None]) -> Iterator[None]:
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
