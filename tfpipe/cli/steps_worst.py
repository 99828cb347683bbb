"""For `tfpipe steps --worst`: the records of a training with the largest losses."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tfpipe.cli.shared.outputs import check_target, write_file
from tfpipe.errors import ConfigError
from tfpipe.lookups.losses import LOSSES, RankedRecord, rank_by_loss
from tfpipe.system.units import human_count

if TYPE_CHECKING:
    from tfpipe.engine.plan import BatchPlan

_TILE_PX = 160


def find_worst(
    plan: BatchPlan, target: str, count: int, losses: str | None, show: str | None, save: str | None
) -> tuple[dict[str, Any], list[str]]:
    """Finds the records, and writes their images and their names where that is asked for.

    Args:
        plan: The training.
        target: The folder of the run, a lock or a dataset.
        count: The number of records.
        losses: The file of losses. None: that of the run.
        show: The file for the images.
        save: The file for the names.

    Returns:
        The facts for `--json`, and the lines of text.
    """
    if losses is None:
        if not os.path.isdir(target) or not os.path.exists(os.path.join(target, "run.json")):
            raise ConfigError(f"{target} is not the folder of a run, so --worst needs --losses FILE.")
        losses = os.path.join(target, LOSSES)
    for path in (show, save):
        if path is not None:
            check_target(path)
    ranked = rank_by_loss(plan, losses, count)
    if save is not None and not all(one.record.name for one in ranked):
        raise ConfigError("--save writes the names of records, and these have none. Leave it out.")
    facts: dict[str, Any] = {"worst": [_describe(one) for one in ranked]}
    lines = ["loss     of mean  times  record           class             name"]
    for one in ranked:
        record = one.record
        place, label = f"{record.split}:{record.index}", record.label_name or ""
        lines.append(f"{one.loss:<8.4f} {one.relative:<8.2f} {one.times:<6} {place:<16} {label[:16]:<17} {record.name}")
    for name, path, make in (("sheet", show, _draw), ("names", save, _list_names)):
        if path is not None:
            write_file(path, make(plan, ranked))
            facts[name] = path
            lines.append(f"Wrote {path}: {human_count(len(ranked), 'record')}.")
    return facts, lines


def _describe(one: RankedRecord) -> dict[str, Any]:
    record = one.record
    place = {"split": record.split, "number": record.index, "name": record.name}
    losses = {"loss": one.loss, "relative": one.relative, "times": one.times}
    return {**place, "label": record.label, "label_name": record.label_name, **losses}


def _draw(plan: BatchPlan, ranked: list[RankedRecord]) -> bytes:
    """Returns the whole images as a PNG."""
    from tfpipe.images.contact_sheet import draw_contact_sheet, encode_png
    from tfpipe.readers.thumbnails import make_tiles

    manifest = plan.source.manifest
    assert manifest is not None
    tiles = [
        replace(tile, size=f"loss {one.loss:.3f}")
        for one in ranked
        for tile in make_tiles(manifest, one.record, _TILE_PX)[:1]
    ]
    return encode_png(draw_contact_sheet(tiles, tile_px=_TILE_PX))


def _list_names(_: BatchPlan, ranked: list[RankedRecord]) -> bytes:
    return "".join(f"{one.record.name}\n" for one in ranked).encode("utf-8", "surrogateescape")
