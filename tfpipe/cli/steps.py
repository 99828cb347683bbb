"""`tfpipe steps`: which records a step has, and at which steps a record is read."""

import os
import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import click

from tfpipe.cli.shared.command import command, show
from tfpipe.cli.shared.config_option import batch_option, config_file_option, config_option, split_option
from tfpipe.cli.shared.inputs import read_config
from tfpipe.cli.shared.outputs import write_file
from tfpipe.dataset.load import load_manifest
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.open_maker import locate_split
from tfpipe.engine.plan import BatchPlan
from tfpipe.errors import ConfigError
from tfpipe.lookups.data_lock import DataLock, lock_data, read_lock
from tfpipe.lookups.steps import StepRow, find_number, find_steps, look_up_step
from tfpipe.system.units import human_count

_SHOWN_ROWS, _TILE_PX = 16, 160
_EPOCHS = "For --record: look through so many epochs."


@command(example="tfpipe steps runs/flowers --step 340 --show step340.png")
@click.argument("target", metavar="RUN|DATASET")
@click.option("--step", type=int, metavar="N", help="Show the records of this step, counted from the start of the run.")
@click.option("--record", metavar="NAME", help="Show when a record is read: its name, or its number such as train:17.")
@click.option("--epochs", type=click.IntRange(min=1), default=10, show_default=True, metavar="N", help=_EPOCHS)
@click.option("--show", metavar="FILE.png", help="Draw the images of the step, cropped as they are trained on.")
@split_option
@batch_option
@config_option(PipelineConfig, "seed")
@config_file_option
def steps(
    target: str, epochs: int, as_json: bool, step: int | None = None, record: str | None = None, **options: Any
) -> None:
    """Show which records step N of a training has, past or to come.

    RUN is the folder of `tfpipe train`. For a DATASET, or a view of it, say the options of the training: the batch, the
    seed, or all of them with --config.
    """
    sheet: str | None = options.pop("show", None)
    if step is None and record is None:
        raise ConfigError("Say what to look up: --step N or --record NAME.")
    if sheet is not None and (step is None or not sheet.lower().endswith(".png")):
        raise ConfigError(f"--show draws the images of --step N into a file whose name ends in .png, got {sheet!r}.")
    run = os.path.join(target, "run.json")
    if os.path.isfile(run):
        if options:
            shown = next(iter(options)).replace("_", "-")
            raise ConfigError(f"{target} says itself how it was trained, got --{shown}. Leave it out.")
        lock = read_lock(run, step)
    else:
        manifest, split = load_manifest(target), options.pop("split", "train")
        lock = lock_data(manifest, split, read_config(options.pop("config", None), options))
    plan = lock.open()
    result: dict[str, Any] = {"data": lock.data, "split": lock.split}
    lines: list[str] = []
    if step is not None:
        rows = look_up_step(plan, step)
        result |= {"step": step, "rows": [asdict(row) for row in rows]}
        lines += _format_step(lock, plan, step, rows)
        if sheet is not None:
            _draw(plan, step, rows, sheet)
            lines.append(f"Wrote {sheet}: {human_count(len(rows), 'image')}.")
    if record is not None:
        match = re.fullmatch(rf"{re.escape(plan.source.split or '')}:([0-9]{{1,18}})", record)
        number = int(match[1]) if match else find_number(plan, record)
        seen = find_steps(plan, number, range(epochs))
        result |= {"record": number, "seen": [asdict(row) for row in seen]}
        lines.append(f"{record} is record {number:,} of {lock.split!r} in {lock.data}")
        for epoch in range(epochs):
            text = ", ".join(f"step {row.step:,} in row {row.row}" for row in seen if row.epoch == epoch)
            lines.append(f"epoch {epoch}: {text or 'left out'}")
    show(result, lines, as_json)


def _format_step(lock: DataLock, plan: BatchPlan, step: int, rows: list[StepRow]) -> Iterator[str]:
    epoch, index = plan.order.locate(step)
    position = f"epoch {epoch:,}, step {index + 1:,} of {plan.steps_per_epoch:,}"
    yield f"Step {step:,} of {lock.split!r} in {lock.data}: {position}, {human_count(len(rows), 'record')}"
    yield "row  record      class             crop: y x height width     name"
    for row in rows[:_SHOWN_ROWS]:
        box = "" if row.box is None else " ".join(map(str, row.box)) + (" mirrored" if row.flip else "")
        label = row.label_name or ("" if row.label is None else str(row.label))
        name = "deleted since" if row.deleted else row.name
        yield f"{row.row:<4} {row.number:<11,} {label[:16]:<17} {box:<27} {name}"
    if len(rows) > _SHOWN_ROWS:
        yield f"and {len(rows) - _SHOWN_ROWS:,} more (--json lists all)"


def _draw(plan: BatchPlan, step: int, rows: list[StepRow], path: str) -> None:
    """Draws the images of a step as the trainer gets them."""
    from tfpipe.images.contact_sheet import MAX_TILES, Tile, draw_contact_sheet, encode_png
    from tfpipe.images.decode import make_image
    from tfpipe.readers.numpy import NumpyBatches

    manifest, split = locate_split(plan)
    config = replace(plan.config, image_dtype="uint8", as_supervised=False, extra_features=())
    images = NumpyBatches(manifest, split, config).read(step)["image"]
    tiles = [
        Tile(make_image(image), row.label_name or row.name, f"row {row.row}, record {row.number}")
        for row, image in zip(rows[:MAX_TILES], images, strict=False)
        if not row.deleted
    ]
    write_file(path, encode_png(draw_contact_sheet(tiles, tile_px=_TILE_PX)))
