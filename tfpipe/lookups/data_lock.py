"""The lock of a run: the records, their order and the options that decide its batches, saved in its `run.json`."""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfpipe.dataset.dataset_files import load_view
from tfpipe.dataset.history import load_history
from tfpipe.dataset.load import load_manifest, split_address
from tfpipe.engine.config import toml_json
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.order import ORDER_VERSION, check_version
from tfpipe.engine.plan import BatchPlan, plan_batches
from tfpipe.engine.source import Source
from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.format.manifest import Manifest
from tfpipe.storage import file_io
from tfpipe.system.budget import BESIDE
from tfpipe.system.units import human_count

_logger = logging.getLogger(__name__)

RUN_KEY, EARLIER_KEY = "lock", "earlier_locks"
"""The keys in a run's `run.json`: of the lock, which is None if the run was not in exact order; and of the locks of its
earlier steps, if records were deleted meanwhile, each with the step `until_step` at which the next lock takes over."""

_HOST_OPTIONS = ("service", "tf_data", "cache", "cache_dir", "cache_bytes")  # options that do not change the batches


@dataclass(frozen=True)
class BegunLayer:
    """The layer of a dataset that a run began with, and from which it goes on reading."""

    begun: Manifest  # the layer as the run began with it; records deleted since are withheld
    manifest: Manifest  # the layer as the run reads it from now on
    note: str  # a sentence that tells the user


@dataclass(frozen=True)
class DataLock:
    """The data and the options that decide the batches of a training."""

    data: str  # a path or URL, with the view after an `@`
    split: str
    fingerprint: str  # `SplitInfo.fingerprint`
    config: PipelineConfig
    order: int = ORDER_VERSION
    columns: Mapping[str, str] = field(default_factory=dict)  # fingerprints of the columns whose features batches hold

    def to_json(self) -> dict[str, Any]:
        """Returns the lock as a table of plain values."""
        config = {name: value for name, value in asdict(self.config).items() if value is not None}
        config = {name: value for name, value in config.items() if name not in _HOST_OPTIONS}
        values = {name: getattr(self, name) for name in ("data", "split", "fingerprint")}
        return values | {"columns": dict(self.columns), "order": self.order, "config": config}

    def open(self) -> BatchPlan:
        """Opens the dataset, and returns the plan of one host for all rows of each batch.

        If the dataset has grown, the plan is of the layer that had the lock's records, and a warning says so. A warning
        also names a column whose values have changed; the steps still have the same records.
        """
        check_version(self.order, f"The lock of {self.data}")
        manifest = load_manifest(self.data)
        found = manifest.get_split(self.split).fingerprint
        if found != self.fingerprint and (old := find_begun(self.data, self._fits)) is not None:
            _logger.warning("%s", old.note)
            manifest = old.begun
        elif found != self.fingerprint:
            raise DataError(
                f"{self.split!r} of {self.data} must have the records of the lock, {self.fingerprint[:16]}, and has "
                f"others, {found[:16]}. Give the dataset that the run was made with."
            )
        plan = plan_batches(Source.from_manifest(manifest, self.split), self.config)
        for name, fingerprint in _list_columns(plan, manifest, self.split).items():
            if self.columns.get(name, fingerprint) != fingerprint:
                _logger.warning(
                    "The column %r of %s has other values than those of the lock. The steps have the same records.",
                    *(name, manifest.directory),
                )
        return plan

    def _fits(self, manifest: Manifest) -> bool:
        return self.split in manifest.splits and manifest.splits[self.split].fingerprint == self.fingerprint


def lock_data(manifest: Manifest, split: str, config: PipelineConfig) -> DataLock:
    """Makes the lock of a training."""
    if not config.training or config.order == "throughput":
        raise ConfigError("Steps are looked up in a training in exact order. Leave `order` and `training` out.")
    if not manifest.random_access:
        raise ConfigError(
            f"{manifest.directory} is compressed, so its records have no exact order. Write it anew by `tfpipe reshard "
            "--opaque`."
        )
    manifest.get_split(split)
    plan = plan_batches(Source.from_manifest(manifest, split), config)
    exact = replace(config, block_records=plan.order.block_records)
    columns = _list_columns(plan, manifest, split)
    return DataLock(manifest.address, split, manifest.splits[split].fingerprint, exact, columns=columns)


def _list_columns(plan: BatchPlan, manifest: Manifest, split: str) -> dict[str, str]:
    """Returns the fingerprint of the values of each column that the batches of a plan need."""
    every = () if plan.source.has_images else plan.source.schema.names
    kept = manifest.keep_columns(plan.config.extra_features or every)
    return {column.name: column.splits[split].fingerprint for column in kept.columns}


def read_lock(path: str, step: int | None = None) -> DataLock:
    """Reads the lock of a run from its `run.json`: the one that held at a step, or with None the newest."""
    try:
        run = json.loads(file_io.read_bytes(path, BESIDE.bytes))
    except FileNotFoundError:
        raise DataError(f"There is no file {path}.") from None
    except (ValueError, RecursionError):
        run = None
    if not isinstance(run, dict) or RUN_KEY not in run:
        raise FormatError(f"{path} is damaged: the lock of the run is missing.")
    if run[RUN_KEY] is None:
        raise DataError(f"The run of {path} was not in exact order, so nobody knows the records of its steps.")
    earlier = run.get(EARLIER_KEY, []) if step is not None else []
    table = next((old[RUN_KEY] for old in earlier if step < old["until_step"]), run[RUN_KEY])
    try:
        data, split, fingerprint = (str(table[name]) for name in ("data", "split", "fingerprint"))
        order, columns, config = int(table["order"]), dict(table["columns"]), dict(table["config"])
    except (KeyError, TypeError, ValueError):
        raise FormatError(f"{path} is damaged: the lock of the run is not whole.") from None
    return DataLock(data, split, fingerprint, toml_json.build(PipelineConfig, config, path), order, columns)


def find_begun(address: str, fits: Callable[[Manifest], bool]) -> BegunLayer | None:
    """Finds the layer of a dataset that a run began with; None if no layer fits, or if `address` names a layer."""
    directory, name = split_address(address)
    if name.isdecimal():
        return None
    history = load_history(directory)
    view = load_view(history.join_shards(history.newest), history.catalog, name) if name else None
    found = history.find_state(fits, view) if history.newest > 1 else None
    if found is None:
        return None
    number, hidden_at = found
    begun, now = (history.load_state(number, each, view) for each in (hidden_at, history.newest))
    withheld = {name: np.setdiff1d(_list_numbers(begun, name), _list_numbers(now, name)) for name in begun.splits}
    notes = []
    if history.list_layers("append", number) != history.list_layers("append", history.newest):
        notes.append(
            f"The run holds layer {number} of {directory}, which it began with; the newest is {history.newest}."
        )
    if count := sum(map(len, withheld.values())):
        notes.append(
            f"{human_count(count, 'record')} of those it began with were deleted since, so it reads them no more."
        )
    return BegunLayer(replace(begun, withheld=withheld), now, " ".join(notes))


def _list_numbers(manifest: Manifest, split: str) -> NDArray[np.int64]:
    info = manifest.splits[split]
    return np.arange(info.records) if info.chosen is None else info.chosen.numbers
