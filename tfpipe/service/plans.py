"""The plan of batches as text that a worker can read: where the data lies, and the options.

```
trainer: text = describe_plan(maker.plan)       the same for all hosts of a training
worker:  whole = open_plan(text)                a maker of the batches of all hosts together
         whole.for_rows(128, 256).read(epoch, step)
```
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from dataclasses import asdict, replace
from typing import Any

from tfpipe._version import __version__
from tfpipe.dataset.load import load_manifest
from tfpipe.engine.config import toml_json
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.config.service_options import ServiceOptions
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


def name_release() -> str:
    """Returns all that must be the same at a trainer and its workers, so that their batches are equal."""
    return f"tfpipe {__version__}, order {ORDER_VERSION}"


def describe_plan(plan: AnyPlan) -> bytes:
    """Returns the text by which a worker makes the batches of a plan, of all rows.

    Raises:
        ConfigError: The records are not a whole split of a dataset.
    """
    parts = plan.parts if isinstance(plan, MixedPlan) else (plan,)
    host = plan.host if isinstance(plan, BatchPlan) and not plan.config.training else Host()
    config = asdict(replace(plan.config, service=ServiceOptions()))
    description = {
        "sources": [_describe_source(part.source) for part in parts],
        "split": parts[0].source.split,
        "config": {name: value for name, value in config.items() if value is not None},
        "shares": [part.config.batch_size for part in parts] if isinstance(plan, MixedPlan) else None,
        "host": [host.index, host.num_hosts],
    }
    return json.dumps(description, sort_keys=True).encode()


def open_plan(text: bytes) -> AnyMaker:
    """Opens the maker of the batches of all rows that a text describes.

    Raises:
        ConfigError: The text cannot be used, or its options do not fit the data.
        DataError: The dataset is not here, or is another one than the trainer's.
        FormatError: A file is missing, or has another size than the manifest says.
    """
    try:
        table = json.loads(text)
        config = toml_json.build(PipelineConfig, table["config"], "The options of the trainer")
        split, index, num_hosts = str(table["split"]), *map(int, table["host"])
        host = Host(index, num_hosts, num_hosts)
        sources = [_open_source(each, split) for each in table["sources"]]
        shares = None if table["shares"] is None else tuple(map(int, table["shares"]))
    except (TypeError, KeyError, ValueError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"A plan must be one of a trainer of this release, got {text[:100]!r}.") from None
    if shares is None:
        plan = plan_batches(sources[0], config, host)
        return open_maker(replace(plan, rows=range(plan.config.batch_size)))
    mixture = Mixture(tuple(source.manifest for source in sources if source.manifest is not None), shares)
    return open_mixture(mixture, split, config, host)


def _describe_source(source: Source) -> dict[str, Any]:
    manifest = source.manifest
    if manifest is None or not source.is_split:
        raise ConfigError(f"A `service` needs a split of a dataset with a manifest, got {source.name}.")
    address = manifest.address
    return {
        "directory": address if is_url(address) else os.path.abspath(address),
        **_number_parts(manifest, str(source.split), [column.name for column in manifest.columns]),
    }


def _number_parts(manifest: Manifest, split: str, columns: Collection[str]) -> dict[str, Any]:
    """Returns the numbers that stand for the records of a split, and for the values of some columns."""
    numbers = {each.name: number_data([(each, split)]) for each in manifest.columns if each.name in columns}
    return {"records": number_data([(manifest, split)]), "columns": numbers}


def _open_source(description: dict[str, Any], split: str) -> Source:
    directory = description["directory"]
    try:
        manifest = load_manifest(directory)
        source = Source.from_manifest(manifest, split)
    except DataError as error:
        raise DataError(f"Workers must reach the dataset under the trainer's path {directory}: {error}") from None
    if {**description, **_number_parts(manifest, split, description["columns"])} != description:
        raise DataError(
            f"{source.name} must have the trainer's records and columns, and has others here: it was changed since the "
            "trainer opened it, or is another copy. Begin the training anew, or copy the dataset again."
        )
    return source
