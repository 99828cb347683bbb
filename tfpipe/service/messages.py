"""The messages of the service: the ticket that requests the batch of a step, and the answer that holds the batch.

Messages are untrusted: sizes are checked before memory is allocated, nothing in them is run, and no worker writes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tfpipe._version import __version__
from tfpipe.dataset.load import load_manifest
from tfpipe.engine.batch import Batch, Maker
from tfpipe.engine.buffers import allocate
from tfpipe.engine.config import toml_json
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.host import Host
from tfpipe.engine.mixture import Mixture
from tfpipe.engine.open_maker import open_maker, open_mixture
from tfpipe.engine.order import ORDER_VERSION
from tfpipe.engine.plan import AnyPlan, BatchPlan, MixedPlan, estimate_row_bytes, plan_batches
from tfpipe.engine.position import number_data
from tfpipe.engine.source import Source
from tfpipe.errors import ConfigError, DataError
from tfpipe.storage.file_io import join, lies_below, make_absolute, resolve_links

RELEASE = f"tfpipe {__version__}, order {ORDER_VERSION}"  # must be that of the trainer and of all its workers
MOST_BYTES = 2_000_000_000  # the largest batch
SCHEMA = pa.schema([("data", pa.uint8())])  # of each message; the metadata of the first one describes all the bytes

_PIECE_BYTES = 1 << 19  # the size of a message: gRPC copies each one, and a copy of this size stays in the core's cache
_DTYPES = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split()
_NOTHING = np.zeros(0, np.uint8)
_MOST_ROWS, _MOST_SOURCES, _MOST_HOSTS, _MOST_TICKET_BYTES = 1 << 17, 64, 1 << 16, 1 << 16

# The options that change the content of a batch. All others concern the trainer alone, such as threads and caches.
_OPTIONS = (
    *("batch_size", "image_size", "training", "images", "augment", "augment_options", "decoded_size", "image_dtype"),
    *("one_hot", "extra_features", "pad_to", "multi_hot", "max_boxes", "seed", "block_records"),
)
_SOURCE = {"address": str, "records": int, "columns": dict}
_PLAN = {"sources": [_SOURCE], "split": str, "options": dict, "shares": [int], "host": [int]}
_TICKET = {"release": str, "plan": _PLAN, "epoch": int, "step": int, "rows": [int]}


class BrokenAnswer(Exception):
    """An error: the answer of a worker is not a valid batch."""


def describe_plan(plan: AnyPlan) -> dict[str, Any]:
    """Returns a plan as the JSON values of a ticket, from which a worker makes batches with the rows of all hosts."""
    host = plan.host if isinstance(plan, BatchPlan) and not plan.config.training else Host()
    options = asdict(plan.config)
    return {
        "sources": [_describe_source(each.source) for each in plan.plans],
        "split": plan.plans[0].source.split,
        "options": {name: options[name] for name in _OPTIONS if options[name] is not None},
        "shares": [each.config.batch_size for each in plan.plans] if isinstance(plan, MixedPlan) else [],
        "host": [host.index, host.num_hosts],
    }


class Ticket:
    """A trainer's request for the batch of a step, parsed and checked without opening a file."""

    def __init__(self, text: bytes) -> None:
        if len(text) > _MOST_TICKET_BYTES:
            raise ConfigError(f"A ticket must have at most {_MOST_TICKET_BYTES:,} bytes, got {len(text):,}.")
        try:
            ticket = json.loads(text)
            if not _fits(ticket, _TICKET) or ticket["release"] != RELEASE:
                raise ValueError
            plan, self.epoch, self.step = ticket["plan"], ticket["epoch"], ticket["step"]
            (first, count), shares, (index, hosts) = ticket["rows"], plan["shares"], plan["host"]
            if not plan["options"].keys() <= set(_OPTIONS) or len(plan["sources"]) != max(len(shares), 1):
                raise ValueError
            self.config = toml_json.build(PipelineConfig, plan["options"], "The plan of a trainer")
            size = self.config.batch_size
            if 0 in shares or sum(shares or [size]) != size:
                raise ValueError
            self.plan, self.host = plan, Host(index, hosts, hosts)
        except ConfigError:
            raise
        except (TypeError, ValueError, RecursionError):
            got = f"got {text[:100]!r}. Install the same release on the trainer and its workers"
            raise ConfigError(f"A ticket must be that of a trainer of this release, {RELEASE}, {got}.") from None
        if size > _MOST_ROWS or len(plan["sources"]) > _MOST_SOURCES or hosts > _MOST_HOSTS:
            most = f"at most {_MOST_ROWS:,} rows, of {_MOST_SOURCES} datasets, for {_MOST_HOSTS:,} hosts"
            got = f"{size:,}, {len(plan['sources'])} and {hosts:,}"
            raise ConfigError(f"A service makes batches of {most}, got {got}.")
        if not 0 < count <= size - first or size % count:
            raise ConfigError(f"Rows must be an equal share of a batch, got {count} from {first} on.")
        self.rows = range(first, first + count)
        self.num_bytes = check_bytes(count, estimate_row_bytes(self.config))

    def open(self, roots: Sequence[str]) -> Maker:
        """Opens a maker of batches with all rows of the plan; its datasets must lie below one of the roots."""
        split, shares = self.plan["split"], tuple(self.plan["shares"])
        sources = [_open_source(each, split, roots) for each in self.plan["sources"]]
        if not shares:
            plan = plan_batches(sources[0], self.config, self.host)
            return open_maker(replace(plan, rows=range(self.config.batch_size)))
        manifests = tuple(source.manifest for source in sources if source.manifest is not None)
        return open_mixture(Mixture(manifests, shares), split, self.config, self.host)


def check_bytes(rows: int, row_bytes: int) -> int:
    """Returns the bytes of a batch, and refuses one over `MOST_BYTES`."""
    if rows * row_bytes > MOST_BYTES:
        most, got = f"at most {MOST_BYTES:,} bytes of a batch at once", f"{rows:,} rows of {row_bytes:,} bytes"
        raise ConfigError(f"A service makes {most}, got {got}. Take smaller batches or images, or `image_dtype` uint8.")
    return rows * row_bytes


def _fits(value: Any, form: Any) -> bool:
    """Tests whether a JSON value has the structure and types of `form`, numbers in range and texts without NUL."""
    if isinstance(form, dict):
        same = isinstance(value, dict) and value.keys() == form.keys()
        return same and all(_fits(value[name], form[name]) for name in form)
    if isinstance(form, list):
        return isinstance(value, list) and all(_fits(each, form[0]) for each in value)
    return type(value) is form and (0 <= value < 2**62 if form is int else form is dict or "\0" not in value)


def _describe_source(source: Source) -> dict[str, Any]:
    """Returns the address of a split with fingerprints of its records and of the values of each added column."""
    manifest, split = source.manifest, source.split
    if manifest is None or split is None or not source.is_split:
        raise ConfigError(f"A `service` needs a split of a dataset with a manifest, got {source.name}.")
    return {
        "address": make_absolute(manifest.address),
        "records": number_data([(manifest, split)]),
        "columns": {each.name: number_data([(each, split)]) for each in manifest.columns},
    }


def _open_source(description: Mapping[str, Any], split: str, roots: Sequence[str]) -> Source:
    address, columns = description["address"], description["columns"]
    _check_below(address, address, roots)
    try:
        manifest = load_manifest(address)
        kept = tuple(each for each in manifest.columns if each.name in columns)  # without columns added meanwhile
        source = Source.from_manifest(replace(manifest, columns=kept), split)
    except DataError as error:
        raise DataError(f"Workers must reach the dataset under the trainer's path {address}: {error}") from None
    for path in (manifest.directory, *source.files, *(column.directory for column in kept)):
        _check_below(path, address, roots)
    if {**_describe_source(source), "address": address} != description:
        advice = "It was changed, or is another copy. Begin the training anew, or copy the dataset again."
        raise DataError(f"{source.name} must have the trainer's records and columns, and has others here. {advice}")
    return source


def _check_below(path: str, address: str, roots: Sequence[str]) -> None:
    """Refuses a path that lies, with its links followed, below no root. The message does not tell whether it exists."""
    inside = join(resolve_links(path), "x")  # a root may itself be a dataset
    if "%2e" in path.lower() or not any(lies_below(inside, root) for root in roots):
        fault = f"{address} lies elsewhere, or a file of it does. Start it with --root and a folder that holds them"
        raise DataError(f"A worker opens only datasets below the paths that it was given, and {fault}.")


def send(info: Mapping[str, Any], batch: Batch | None = None) -> Iterator[Any]:
    """Yields the messages of an answer: first the info and the layout of the batch as JSON, then the batch's bytes."""
    layout, data = {}, []
    for name, values in (batch or {}).items():
        arrays: list[NDArray[np.uint8]] = []
        layout[name] = _describe(values, arrays)
        data.append(arrays[0] if len(arrays) == 1 else np.concatenate([_NOTHING, *arrays]))
    yield pa.RecordBatch.from_arrays([[]], schema=SCHEMA), json.dumps({**info, "layout": layout}).encode()
    for values in data:
        for begin in range(0, len(values), _PIECE_BYTES):
            piece = values[begin : begin + _PIECE_BYTES]
            array = pa.Array.from_buffers(pa.uint8(), len(piece), [None, pa.py_buffer(piece)])  # copies nothing
            yield pa.RecordBatch.from_arrays([array], schema=SCHEMA)


def _describe(values: Any, arrays: list[NDArray[np.uint8]]) -> Any:
    """Returns the layout of a batch's value: dtype and shape, text length, or a list; adds its bytes to `arrays`."""
    if isinstance(values, list):
        return [_describe(each, arrays) for each in values]
    is_text = isinstance(values, bytes)
    arrays.append(np.frombuffer(values, np.uint8) if is_text else np.ascontiguousarray(values).reshape(-1).view("u1"))
    return len(values) if is_text else {"dtype": values.dtype.name, "shape": values.shape}


def receive(stream: Iterable[Any]) -> tuple[dict[str, Any], Batch]:
    """Receives the messages of an answer, and returns its info and its batch."""
    chunks, total, rest = iter(stream), 0, _NOTHING

    def build(layout: Any) -> Any:
        """Builds a value of the batch from the next bytes of the stream."""
        nonlocal total, rest
        if isinstance(layout, list):
            return [build(each) for each in layout]
        is_text = type(layout) is int
        dtype, shape = ("uint8", [layout]) if is_text else (layout["dtype"], layout["shape"])
        if dtype not in _DTYPES or not all(type(size) is int and size >= 0 for size in shape):
            raise ValueError(layout)
        total += prod(shape) * np.dtype(dtype).itemsize
        if total > MOST_BYTES:
            raise ValueError(f"{total:,} bytes")
        array = allocate(shape, dtype)
        memory = array.reshape(-1).view(np.uint8)
        while len(memory):
            rest = rest if len(rest) else np.frombuffer(next(chunks).data.column(0).buffers()[1], np.uint8)
            count = min(len(memory), len(rest))
            memory[:count] = rest[:count]
            memory, rest = memory[count:], rest[count:]
        return array.tobytes() if is_text else array

    try:
        info = json.loads(next(chunks).app_metadata.to_pybytes())
        batch = {str(name): build(layout) for name, layout in info.pop("layout").items()}
        if len(rest) or next(chunks, None) is not None:
            raise ValueError("more bytes")
    except (TypeError, AttributeError, LookupError, ValueError, OverflowError, RecursionError, StopIteration) as error:
        raise BrokenAnswer(f"it sent something that is no batch ({error!r:.100})") from None
    return info, batch
