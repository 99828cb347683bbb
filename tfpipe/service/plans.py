"""The plan of batches in a ticket: which records, and what makes arrays of them. Nothing in it makes a worker write."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from math import prod
from typing import Any

from tfpipe._version import __version__
from tfpipe.dataset.load import load_manifest
from tfpipe.engine.config import toml_json
from tfpipe.engine.config.augment_config import AugmentOptions
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.host import Host
from tfpipe.engine.mixed_batch import AnyMaker, AnyPlan, MixedPlan
from tfpipe.engine.mixture import Mixture
from tfpipe.engine.open_maker import open_maker, open_mixture
from tfpipe.engine.order import ORDER_VERSION
from tfpipe.engine.plan import BatchPlan, plan_batches
from tfpipe.engine.position import number_data
from tfpipe.engine.source import Source
from tfpipe.errors import ConfigError, DataError
from tfpipe.format.manifest import Manifest
from tfpipe.storage.file_io import is_url

Plan = dict[str, Any]
MOST_ROWS, MOST_SOURCES, MOST_HOSTS = 1 << 17, 64, 1 << 16

_OPTIONS = (
    *("batch_size", "image_size", "training", "images", "augment", "decoded_size", "image_dtype"),
    *("one_hot", "extra_features", "pad_to", "multi_hot", "max_boxes", "seed", "block_records"),
)
"""The options that decide what a batch holds. The others are the trainer's own: threads, caches, pairs."""
_ENTRIES = {"sources", "split", "options", "augment", "shares", "host"}
_ITEM_BYTES = {"uint8": 1, "bfloat16": 2, "float32": 4}


def name_release() -> str:
    """Returns all that must be the same at a trainer and its workers, so that their batches are equal."""
    return f"tfpipe {__version__}, order {ORDER_VERSION}"


def describe_plan(plan: AnyPlan) -> Plan:
    """Returns the plan by which a worker makes the batches of all rows."""
    parts = plan.parts if isinstance(plan, MixedPlan) else (plan,)
    host = plan.host if isinstance(plan, BatchPlan) and not plan.config.training else Host()
    options = {name: getattr(plan.config, name) for name in _OPTIONS if getattr(plan.config, name) is not None}
    return {
        "sources": [_describe_source(part.source) for part in parts],
        "split": parts[0].source.split,
        "options": {**options, "pad_to": dict(plan.config.pad_to)},
        "augment": asdict(plan.config.augment_options),
        "shares": [part.config.batch_size for part in parts] if isinstance(plan, MixedPlan) else [],
        "host": [host.index, host.num_hosts],
    }


def read_plan(plan: Plan) -> tuple[PipelineConfig, Host, tuple[int, ...]]:
    """Returns the options of a plan from a network, the host and the shares of its datasets; nothing is opened."""
    try:
        options, sources, shares, (index, hosts) = dict(plan["options"]), plan["sources"], plan["shares"], plan["host"]
        if not set(options) <= set(_OPTIONS) or set(plan) != _ENTRIES or type(plan["split"]) is not str:
            raise ValueError
        augment = toml_json.build(AugmentOptions, plan["augment"], "The plan of a trainer")
        config = toml_json.build(PipelineConfig, {**options, "augment_options": augment}, "The plan of a trainer")
        sizes = map(prod, map(_as_tuple, config.pad_to.values()))
        if not all(type(number) is int for number in (config.batch_size, index, hosts, *shares, *sizes)):
            raise ValueError
        if len(sources) != max(len(shares), 1) or (shares and (min(shares) < 1 or sum(shares) != config.batch_size)):
            raise ValueError
        for source in sources:
            if type(address := source["address"]) is not str or "\0" in address or type(source["columns"]) is not dict:
                raise ValueError
        host = Host(index, hosts, hosts)
    except ConfigError:
        raise
    except (TypeError, LookupError, ValueError, AttributeError):
        raise ConfigError(f"A ticket must hold the plan of a trainer of this release, got {plan!r:.100}.") from None
    if config.batch_size > MOST_ROWS or len(sources) > MOST_SOURCES or hosts > MOST_HOSTS:
        raise ConfigError(
            f"A service makes batches of at most {MOST_ROWS:,} rows, of {MOST_SOURCES} datasets, for {MOST_HOSTS:,} "
            f"hosts, got {config.batch_size:,}, {len(sources)} and {hosts:,}."
        )
    return config, host, tuple(shares)


def count_bytes(config: PipelineConfig, plan: BatchPlan | None = None) -> int:
    """Returns the bytes of a row of a batch: those that the options tell, and with a plan those of its records too."""
    device = config.augment == "device"
    height, width = config.size if not device else config.resolve_decoded_size() if plan is None else plan.decoded_size
    images = config.images if isinstance(config.images, int) else 1
    padded = 8 * sum(prod(_as_tuple(size)) for size in config.pad_to.values())
    boxes = 64 * config.max_boxes
    if plan is None:
        return height * width * 3 * _ITEM_BYTES[config.image_dtype] * images + padded + boxes
    images = (plan.num_images or 1) if plan.source.has_images else 0
    values = height * width * images * (3 * _ITEM_BYTES[config.image_dtype] + len(plan.masks))
    classes = 4 * (plan.source.num_classes or 0) * (config.one_hot + len(config.multi_hot))
    return values + padded + boxes + classes + int(plan.source.record_bytes)


def open_plan(plan: Plan, roots: Sequence[str]) -> AnyMaker:
    """Opens the maker of the batches of all rows of a plan, whose datasets lie below real paths or URLs."""
    (config, host, shares), split = read_plan(plan), plan["split"]
    sources = [_open_source(each, split, roots) for each in plan["sources"]]
    if not shares:
        return open_maker(replace(plan_batches(sources[0], config, host), rows=range(config.batch_size)))
    manifests = tuple(source.manifest for source in sources if source.manifest is not None)
    return open_mixture(Mixture(manifests, shares), split, config, host)


def _as_tuple(size: int | tuple[int, ...]) -> tuple[int, ...]:
    return (size,) if isinstance(size, int) else size


def _describe_source(source: Source) -> dict[str, Any]:
    manifest = source.manifest
    if manifest is None or not source.is_split:
        raise ConfigError(f"A `service` needs a split of a dataset with a manifest, got {source.name}.")
    address = manifest.address
    return {
        "address": address if is_url(address) else os.path.abspath(address),
        **_number_parts(manifest, str(source.split), [column.name for column in manifest.columns]),
    }


def _number_parts(manifest: Manifest, split: str, columns: Collection[str]) -> dict[str, Any]:
    """Returns the numbers that stand for the records of a split, and for the values of some columns."""
    numbers = {each.name: number_data([(each, split)]) for each in manifest.columns if each.name in columns}
    return {"records": number_data([(manifest, split)]), "columns": numbers}


def _open_source(description: Mapping[str, Any], split: str, roots: Sequence[str]) -> Source:
    address = description["address"]
    _check_below(address, address, roots)
    try:
        manifest = load_manifest(address)
        source = Source.from_manifest(manifest, split)
    except DataError as error:
        raise DataError(f"Workers must reach the dataset under the trainer's path {address}: {error}") from None
    for path in (manifest.directory, *source.files, *(column.directory for column in manifest.columns)):
        _check_below(path, address, roots)
    manifest = replace(
        manifest, columns=tuple(each for each in manifest.columns if each.name in description["columns"])
    )
    if {**description, **_number_parts(manifest, split, description["columns"])} != description:
        raise DataError(
            f"{source.name} must have the trainer's records and columns, and has others here: it was changed since the "
            "trainer opened it, or is another copy. Begin the training anew, or copy the dataset again."
        )
    return Source.from_manifest(manifest, split)  # without columns that were added later


def _check_below(path: str, address: str, roots: Sequence[str]) -> None:
    """Refuses what lies below none of the roots, links followed. Messages do not say what else is on the disk."""
    path = path if is_url(path) else os.path.realpath(path)
    if ".." in path.lower().replace("%2e", ".").split("/") or not any(
        f"{path}/".startswith(f"{root.rstrip('/')}/") for root in roots
    ):
        raise DataError(
            f"A worker opens only datasets below the paths that it was given, and {address} lies elsewhere, or a file "
            "of it does. Start it with --root and a folder that holds them."
        )
