"""The result of `tfpipe advise`, for a person and as JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import click

from beam_jobs.config import ShardConfig
from tfpipe.cli.advise_run import Measured
from tfpipe.cli.shared.command_line import format_command
from tfpipe.cli.shared.progress import format_duration
from tfpipe.native import library
from tfpipe.system.host_limits import usable_cpus
from tfpipe.system.units import human_bytes, human_count, human_rate
from tfpipe.tuning.candidates import describe_changes
from tfpipe.tuning.form_advice import Advice, FormFigures, choose_forms
from tfpipe.tuning.stored_forms import ROUNDS

_TITLES = ("form", "crop", "images/CPU-s", "cores", "reads", "bytes", "write time")
_PRICE_TITLE = "price a month"
_GAP = "  "


def print_advice(measured: Measured, config: ShardConfig, beam_args: Sequence[str]) -> None:
    """Prints the table of all forms, and the commands for the best ones."""
    rate = f"{human_rate(measured.images_per_second)} images/s"
    sampled = f"{measured.sampled:,} of {human_count(measured.images, 'image')}"
    cores = human_count(usable_cpus(), "core")
    click.echo(f"Sample: {sampled}, read as {measured.image_size} px uint8 in {ROUNDS} turns of each form on {cores}.")
    click.echo(f"Cores and reads are for {rate}; bytes and write time are for all images.\n")
    for line in format_table(measured.forms):
        click.echo(line)
    click.echo()
    for line in _list_notes(measured.forms):
        click.echo(line)
    advice = choose_forms(measured.forms)
    click.echo(
        f"The fastest form gives {advice.fastest_to_slowest:.1f} times the images per CPU-second of the slowest."
    )
    for sentence, form in list_advice(advice, rate):
        click.echo(f"\n{sentence}")
        click.echo(f"  {_format_command(form, config, beam_args)}")
        if form.candidate.changes:
            click.echo(f"  and in the pipeline {describe_changes(form.candidate.changes)}")


def print_json(measured: Measured, config: ShardConfig, beam_args: Sequence[str]) -> None:
    """Prints everything as one JSON object; arguments as `print_advice`."""
    advice = choose_forms(measured.forms)
    best = {"keeping_crops": advice.keeping_crops, "of_all": advice.of_all}
    document = {
        "images": measured.images,
        "bytes": measured.source_bytes,
        "sampled": measured.sampled,
        "images_per_second": measured.images_per_second,
        "image_size": measured.image_size,
        "host_cores": usable_cpus(),
        "forms": [_form_json(form) for form in measured.forms],
        "best": {
            name: None
            if form is None
            else {
                "form": form.candidate.name,
                "crop": form.candidate.crop,
                "command": _format_command(form, config, beam_args),
                "pipeline": dict(form.candidate.changes),
            }
            for name, form in best.items()
        },
        "by_price": advice.by_price,
        "fastest_to_slowest": advice.fastest_to_slowest,
    }
    click.echo(json.dumps(document, allow_nan=False))


def format_table(forms: Sequence[FormFigures]) -> list[str]:
    """Formats the figures as a table with a row for each form. A star marks the forms with other pixels."""
    has_price = any(form.storage_price is not None or form.cores_price is not None for form in forms)
    rows = [(*_TITLES, _PRICE_TITLE)] + [_format_row(form) for form in forms]
    if not has_price:
        rows = [row[:-1] for row in rows]
    columns = []
    for number, column in enumerate(zip(*rows, strict=True)):
        width = max(map(len, column))
        columns.append([cell.ljust(width) if number < 2 else cell.rjust(width) for cell in column])
    return [_GAP.join(row).rstrip() for row in zip(*columns, strict=True)]


def _format_row(form: FormFigures) -> tuple[str, ...]:
    candidate = form.candidate
    prices = [price for price in (form.storage_price, form.cores_price) if price is not None]
    return (
        candidate.name + ("" if candidate.keeps_crops else " *"),
        candidate.crop,
        human_rate(form.speed.images_per_cpu_second.ratio),
        f"{form.cores:,.2f}" if form.cores < 10 else f"{form.cores:,.0f}",
        "memory" if form.memory_bytes else f"{human_bytes(form.read_bytes_per_second)}/s",
        human_bytes(form.stored_bytes),
        format_duration(form.write_s),
        f"{sum(prices):,.2f}" if prices else "",
    )


def _list_notes(forms: Sequence[FormFigures]) -> list[str]:
    notes = []
    if not all(form.candidate.keeps_crops for form in forms):
        notes.append("* The images are reduced before they are cropped: the model sees other pixels.")
    if any(form.candidate.crop == "device" for form in forms):
        notes.append("The work of the device for a crop is not counted.")
    cached = next((form for form in forms if form.memory_bytes), None)
    if cached is not None:
        fits = "" if cached.fits_memory else ", which do not fit here, so it is not advised"
        notes.append(
            f"The cache takes {human_bytes(cached.memory_bytes)} of memory on each host{fits}. It was full; the first "
            "epoch fills it."
        )
    if (reason := library.explain_missing()) is not None:
        notes.append(f"Forms with restart markers were not measured: they need the native library, and {reason}.")
    given = (forms[0].storage_price, forms[0].cores_price)
    if any(price is not None for price in given) and None in given:
        part = "storage" if given[1] is None else "cores"
        notes.append(f"The price is that of {part} alone; give both prices, and the price decides.")
    return notes


def list_advice(advice: Advice, rate: str) -> list[tuple[str, FormFigures]]:
    """Lists the best forms, each with a sentence that says why it is best.

    Args:
        advice: The best forms.
        rate: The images per second that the training needs, in words.
    """
    virtue = "costs least" if advice.by_price else "needs the fewest cores"
    kept, best = advice.keeping_crops, advice.of_all
    if kept is None:
        return [(f"Of the forms with the crop on the device, {best.candidate.name} {virtue} for {rate}:", best)]
    if kept is best:
        return [(f"{_describe(kept)} {virtue} for {rate}, and keeps the pixels of the originals:", kept)]
    return [
        (f"If the model is to see the pixels of the originals, {_describe(kept)} {virtue} for {rate}:", kept),
        (f"If it may see others, {_describe(best)} {virtue}:", best),
    ]


def _describe(form: FormFigures) -> str:
    return f"{form.candidate.name} with the crop on the {form.candidate.crop}"


def _format_command(form: FormFigures, config: ShardConfig, beam_args: Sequence[str]) -> str:
    return format_command(replace(config, form=form.candidate.form), beam_args, ["tfpipe"])


def _form_json(form: FormFigures) -> dict[str, Any]:
    candidate = form.candidate
    figures = asdict(form)
    del figures["candidate"]
    return {
        "form": candidate.name,
        "crop": candidate.crop,
        "keeps_crops": candidate.keeps_crops,
        "options": candidate.form.to_json(),
        "pipeline": dict(candidate.changes),
        **figures,
        "price": form.price,
    }
