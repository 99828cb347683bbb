"""Appends records to a finished dataset: a shard job writes them as a new layer, which the catalog then lists."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from beam_jobs.config import ShardConfig
from beam_jobs.plan.plan import DEFAULT_SPLIT, Plan
from beam_jobs.shard_job import ShardResult
from beam_jobs.shards.output_dir import make_plan_header
from tfpipe._version import __version__
from tfpipe.dataset.dataset_files import list_fingerprints
from tfpipe.errors import ConfigError, DataError
from tfpipe.format.catalog import Entry
from tfpipe.format.image_form import ImageForm
from tfpipe.format.join_manifests import explain_misfit
from tfpipe.format.manifest import Manifest
from tfpipe.storage import file_io
from tfpipe.system.units import human_count
from tfpipe.writer.changes import Change, open_layers
from tfpipe.writer.working_folder import hash_values


@dataclass(frozen=True)
class Appended:
    """The result of appending."""

    appended_to: str
    layer: int  # the number of the dataset's newest layer
    new_classes: tuple[str, ...]


class AppendedBefore(Exception):
    """An exception for images that the same command has appended before: it was repeated, or killed at its very end."""

    def __init__(self, result: Appended, deleted: int) -> None:
        less, again = "", "To have them twice, give another `seed`."
        if deleted:
            less = f", less {human_count(deleted, 'record')} deleted since"
            again = "`drop_duplicates` appends the deleted ones again, and another `seed` all of them."
        super().__init__(
            f"These images are layer {result.layer} of {result.appended_to} already, from the same command{less}, so "
            f"nothing is appended. {again}"
        )
        self.result = result


@dataclass(frozen=True)
class Append:
    """One job that appends records to a dataset."""

    dataset: str  # as the user named it
    change: Change  # with the layers as they are before the job
    before: Manifest  # of all these layers
    entry: Entry  # the new layer's in the catalog, without the number of its records
    config: ShardConfig

    def check(self, plan: Plan) -> None:
        """Refuses images whose records do not fit the dataset, or are in it already, before anything is written."""
        for layer in self.change.history.list_layers("append", self.change.history.newest):
            made = self.change.history.load_appended(layer)
            lists = {spec.name: spec.names for spec in made.schema.class_lists}  # without the classes that came since
            extra = tuple(replace(spec, names=lists.get(spec.name, spec.names)) for spec in plan.listing.extra)
            then = replace(plan, listing=replace(plan.listing, label_names=made.label_names, extra=extra))
            if made.fingerprint != make_plan_header(self.config, then).fingerprint:
                continue
            deleted = self._count_deleted(layer)
            if deleted < sum(split.records for split in made.splits.values()):
                known = len(self.change.history.join_shards(layer - 1).label_names)
                raise AppendedBefore(Appended(self.dataset, layer, made.label_names[known:]), deleted)
        listing = plan.listing
        if listing.box_names and self.config.labels is None:
            raise ConfigError(
                f"The manifest of {self.dataset} does not say in which order the classes of its boxes are numbered. "
                "Give a file with their names in this order as `labels`."
            )
        made = Manifest(
            name=listing.name,
            splits={},
            label_names=listing.label_names,
            schema=listing.make_schema(),
            image=self.config.form.to_json(),
            tool_version=__version__,
        )
        if (reason := explain_misfit(replace(self.before, directory=self.dataset), made)) is not None:
            raise DataError(f"{self.config.input} cannot be appended. {reason}")

    def _count_deleted(self, layer: int) -> int:
        """Returns how many of the records that a layer appended were deleted since."""
        deleted = 0
        later = self.change.history.catalog.layers[layer - 1 :]
        below, above = (self.change.history.join_shards(number).splits for number in (layer - 1, layer))
        for name in self.change.history.load_appended(layer).splits:
            first, end = below[name].stored_records if name in below else 0, above[name].stored_records
            numbers = (entry.hidden[name]["number"] for entry in later if name in entry.hidden)
            deleted += sum(int(np.count_nonzero((first <= hidden) & (hidden < end))) for hidden in numbers)
        return deleted

    def find_left_out(self, plan: Plan) -> dict[str, float]:
        """Returns each split's share of the present records, if by default all new images would go to `train`."""
        records = {name: split.records for name, split in self.before.splits.items()}
        is_chosen = self.config.split or self.config.splits or {shard.split for shard in plan.shards} != {DEFAULT_SPLIT}
        if is_chosen or len(records) < 2 or DEFAULT_SPLIT not in records:
            return {}
        shares = {name: round(count / sum(records.values()), 3) for name, count in records.items()}
        return {**shares, DEFAULT_SPLIT: round(1 - sum(shares.values()) + shares[DEFAULT_SPLIT], 3)}

    def finish(self, result: ShardResult) -> Appended:
        """Adds the layer to the catalog: from then on its records belong to the dataset."""
        made = result.manifest
        records = {name: split.records for name, split in made.splits.items()}
        self.change.commit([replace(self.entry, records=records, made=list_fingerprints(made))])
        return Appended(self.dataset, self.entry.number, made.label_names[len(self.before.label_names) :])


@contextlib.contextmanager
def open_append(dataset: str, config: ShardConfig) -> Iterator[Append]:
    """Yields the job that appends images to a dataset. On a disk a lock keeps other processes from changing it."""
    with open_layers(dataset) as change:
        history = change.history
        entry = change.make_layer("append", hash_values("append", history.newest, repr(replace(config, output=""))))
        before = history.join_shards(history.newest)
        named = next((spec.names for spec in before.schema.class_lists), ())
        config = replace(
            config,
            output=file_io.join(history.base.directory, entry.path),
            form=ImageForm.recorded(before.image),
            known_labels=before.label_names or named,
            known_images=history.base.directory,
            overwrite=True,
        )
        yield Append(dataset, change, before, entry, config)
