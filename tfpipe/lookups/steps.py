"""The records of a step, with their crops, and the steps at which a record is read."""

from dataclasses import dataclass, replace

import numpy as np

from tfpipe.engine.batch import BatchMaker
from tfpipe.engine.epoch_weights import RECORD_MASK
from tfpipe.engine.open_maker import locate_split
from tfpipe.engine.plan import BatchPlan
from tfpipe.engine.record_reader import RecordReader
from tfpipe.errors import ConfigError
from tfpipe.readers.data_source import RecordLookup
from tfpipe.system.arguments import check_count

Box = tuple[int, int, int, int]


@dataclass(frozen=True)
class StepRow:
    """A row of a batch."""

    row: int
    number: int  # of the record in the split, counted through all shards, also in a view
    name: str  # the file of the image; empty if unknown
    label: int | None  # from 0
    label_name: str | None
    box: Box | None  # y, x, height and width in the stored image; None without images, or with several
    flip: bool
    deleted: bool = False  # deleted since the training read it; then only the number is known


@dataclass(frozen=True)
class Seen:
    """The epoch, step and row at which a training reads a record."""

    epoch: int
    step: int  # since the start of the run
    row: int


def look_up_step(plan: BatchPlan, step: int) -> list[StepRow]:
    """Looks up the records of a step of a training, counted since the start of the run."""
    check_count("step", step)
    needed = tuple(filter(None, (plan.source.schema.name_key,)))
    plan = replace(plan, config=replace(plan.config, extra_features=needed, as_supervised=False))
    manifest, split = locate_split(plan)
    maker = BatchMaker(plan, manifest, split)
    stored = maker.read(*plan.order.locate(step))
    source = plan.source
    numbers = stored.numbers if source.chosen is None else source.chosen.numbers[stored.numbers]
    name_key = source.schema.name_key
    names = [""] * len(numbers)
    if name_key is not None:
        column = stored.columns[name_key]
        texts, firsts = column.list_bytes(), column.firsts
        for row in np.flatnonzero(column.counts).tolist():
            names[row] = texts[firsts[row]].decode("utf-8", "surrogateescape")
    labels = np.full(len(numbers), -1)
    if source.label_key is not None:
        column = stored.columns[source.label_key]
        labels[column.counts == 1] = column.values[column.firsts[column.counts == 1]] - source.label_base
    boxes, flips = None, np.zeros(len(numbers), np.bool_)
    if source.has_images and plan.num_images is None:
        with maker.naming(stored.numbers):
            images = maker.choose_images(stored)
        boxes, flips = images.boxes, images.flips
    withheld = set(manifest.withheld.get(split, np.empty(0, np.int64)).tolist())
    rows = []
    for row, (number, label) in enumerate(zip(numbers.tolist(), labels.tolist(), strict=True)):
        if number in withheld:
            rows.append(StepRow(row, number, "", None, None, None, False, deleted=True))
            continue
        label_name = manifest.label_names[label] if 0 <= label < len(manifest.label_names) else None
        box = None if boxes is None else tuple(boxes[row].tolist())
        rows.append(StepRow(row, number, names[row], label if label >= 0 else None, label_name, box, bool(flips[row])))
    return rows


def find_steps(plan: BatchPlan, number: int, epochs: range) -> list[Seen]:
    """Finds the steps at which a training reads a record, numbered through all shards, whatever the view."""
    chosen = plan.source.chosen
    records = plan.source.num_records if chosen is None else chosen.stored_records
    if not 0 <= number < (records or 0):
        raise ConfigError(
            f"A record of {plan.source.name} must have a number from 0 to {(records or 0) - 1}, got {number}."
        )
    if chosen is not None:
        place = int(np.searchsorted(chosen.numbers, number))
        if place == chosen.records or chosen.numbers[place] != number:
            what = "is not in the view" if plan.source.manifest and plan.source.manifest.view else "was deleted from"
            raise ConfigError(f"Record {number} {what} {plan.source.name}.")
        number = place
    seen = []
    for epoch in epochs:
        entries = [number]
        if plan.weights is not None:
            every = plan.weights.list_asked(epoch, np.arange(plan.order.num_records))
            entries = np.flatnonzero((every & RECORD_MASK) == number).tolist()
        places = filter(None, (plan.order.find_step(epoch, entry) for entry in entries))
        seen += [Seen(epoch, epoch * plan.steps_per_epoch + step, row) for step, row in sorted(places)]
    return seen


def find_number(plan: BatchPlan, name: str) -> int:
    """Returns the number of the first record of the split with a name, which reads the whole split once."""
    manifest, split = locate_split(plan)
    reader = RecordReader(manifest.directory, manifest.choose(split, None), split)
    numbers = RecordLookup(reader, manifest.schema.name_key).find_name(name)
    if not numbers:
        raise ConfigError(f"No record of {split!r} of {manifest.directory} has the name {name!r}.")
    return numbers[0]
