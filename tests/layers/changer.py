"""Changes of a dataset in processes of their own, which may be killed, and a model of what it holds then."""

import contextlib
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, permutations

from beam_jobs.append_job import AppendedBefore
from tests.layers.growth import add_view, append
from tfpipe.columns.add import add_column
from tfpipe.dataset.history import load_history
from tfpipe.dataset.load import load_manifest
from tfpipe.errors import TfpipeError
from tfpipe.fields import Values
from tfpipe.layers.delete import delete_records
from tfpipe.readers.data_source import Record, data_source

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.layers.changer"])

DONE, REFUSED, FAILED = 0, 3, 4

Step = tuple[str, str]
"""A change: "append" and a folder, "delete" and a name, "add" and a column, or "view" and a condition."""


def get_length(record: Record) -> int:
    return len(record.name)


def get_bytes(record: Record) -> int:
    return len(record.encoded or b"")


COLUMNS = {"length": get_length, "bytes": get_bytes}


def change(dataset: str, step: Step) -> None:
    """Makes a change, as its command does."""
    kind, what = step
    if kind == "append":
        with contextlib.suppress(AppendedBefore):
            append(dataset, what, num_shards=1)
    elif kind == "delete":
        delete_records(dataset, [what])
    elif kind == "add":
        add_column(dataset, what, COLUMNS[what], Values("int64"))
    else:
        add_view(dataset, "view", what)


def change_and_exit(dataset: str, step: Step, environment: Mapping[str, str]) -> None:
    """Makes a change, and ends with a code that says what came."""
    os.environ.update(environment)
    try:
        change(dataset, step)
    except TfpipeError as error:
        # A column may have been added before its process was killed.
        code = DONE if "has a feature" in str(error) else REFUSED if "Another process" in str(error) else FAILED
        print(f"{step}: {error}", file=sys.stderr)
        raise SystemExit(code) from None


def run_at_once(
    dataset: str, steps: Sequence[Step], kills_s: Sequence[float | None], environment: Mapping[str, str]
) -> list[int]:
    """Makes changes at once, and kills each after some seconds if it runs so long. Returns their exit codes."""
    begun = time.monotonic()
    running = [PROCESSES.Process(target=change_and_exit, args=(dataset, step, dict(environment))) for step in steps]
    for process in running:
        process.start()
    timed = [(at, process) for at, process in zip(kills_s, running, strict=True) if at is not None]
    for at, process in sorted(timed, key=lambda pair: pair[0]):
        process.join(max(0.0, begun + at - time.monotonic()))
        process.kill()
    for process in running:
        process.join(120)
    return [FAILED if process.exitcode is None else process.exitcode for process in running]


@dataclass(frozen=True)
class Model:
    """What a dataset must hold.

    Attributes:
        layers: The names of the records of each layer that has some.
        hidden: The names of hidden records.
        columns: The columns, each with the number of a layer whose records have values.
        view: The names of the records that the view was made of; None without one.
    """

    layers: tuple[frozenset[str], ...]
    hidden: frozenset[str] = frozenset()
    columns: frozenset[tuple[str, int]] = frozenset()
    view: frozenset[str] | None = None

    @property
    def shown(self) -> frozenset[str]:
        return frozenset().union(*self.layers) - self.hidden

    def change(self, step: Step, images: Mapping[str, frozenset[str]]) -> "Model":
        """Returns what it must hold after a change."""
        kind, what = step
        if kind == "append":
            names = images[what]
            if names in self.layers and not names <= self.hidden:
                return self
            view = None if self.view is None else self.view - names
            return replace(self, layers=(*self.layers, names), hidden=self.hidden - names, view=view)
        if kind == "delete":
            return replace(self, hidden=self.hidden | {what})
        if kind == "add":
            return replace(self, columns=self.columns | {(what, layer) for layer in range(len(self.layers))})
        return replace(self, view=frozenset(name for name in self.shown if "/cat/" in name))

    def describe(self) -> tuple[object, ...]:
        """Returns what a reader must see, in the form of `read_state`."""
        columns = {
            name for name, _ in self.columns if all((name, layer) in self.columns for layer in range(len(self.layers)))
        }
        return self.shown, columns, None if self.view is None else self.view - self.hidden


def read_state(dataset: str) -> tuple[object, ...]:
    """Reads all that a reader sees, and checks every value of every column."""
    manifest = load_manifest(dataset)
    columns, names = {column.name for column in manifest.columns}, []
    for split in manifest.splits:
        with data_source(dataset, split) as records:
            for record in records:
                names.append(record.name)
                for column in columns:
                    (value,) = record.features[column]
                    assert int(value) == COLUMNS[column](record), (column, record.name)
    assert len(set(names)) == len(names), "a record came twice"
    shown = None
    if "view" in load_history(dataset).catalog.list_names("view"):
        view = load_manifest(f"{dataset}@view")
        shown = {record.name for split in view.splits for record in data_source(view, split)}
    return set(names), columns, shown


def check_rounds(
    dataset: str,
    model: Model,
    images: Mapping[str, frozenset[str]],
    draw: random.Random,
    rounds: int,
    environment: Mapping[str, str],
) -> None:
    """Makes pairs of changes at once, some of them killed; then what was not made. Checks what is there after both."""
    folders = list(images)
    for number in range(rounds):
        kinds = ("append", "add") if "://" in dataset else ("append", "add", "delete", "view")
        steps: list[Step] = []
        while len(steps) < 2:
            kind = draw.choice(kinds)
            choices = {"append": folders[:2], "add": list(COLUMNS), "delete": sorted(model.shown), "view": [VIEW]}[kind]
            step = (kind, draw.choice(choices)) if choices else None
            if step and ("://" not in dataset or step not in steps):  # where no lock keeps two of one job apart
                steps.append(step)
        kills_s = [draw.choice((None, draw.uniform(0.0, 0.5))) for _ in steps]
        codes = run_at_once(dataset, steps, kills_s, environment)
        print(number, steps, kills_s, codes)
        said = f"round {number}: {steps}, killed after {kills_s}: {codes}"
        assert FAILED not in codes, said
        made = [step for step, code in zip(steps, codes, strict=True) if code == DONE]
        perhaps = [step for step, code in zip(steps, codes, strict=True) if code < 0]
        sets = [[*made, *some] for count in range(len(perhaps) + 1) for some in combinations(perhaps, count)]
        allowed = [order(model, each, images) for one in sets for each in permutations(one)]
        now = read_state(dataset)
        allowed = [one for one in allowed if one.describe() == now]
        assert allowed, f"{said}; got {now}"
        rest = [step for step, code in zip(steps, codes, strict=True) if code != DONE]
        for step in rest:
            assert run_at_once(dataset, [step], [None], environment) == [DONE], f"{said}; again {step}"
        allowed = [order(one, rest, images) for one in allowed]
        now = read_state(dataset)
        model = next((one for one in allowed if one.describe() == now), model)
        assert model.describe() == now, f"{said}; got {now} after both"
        folders = [folder for folder in folders if images[folder] not in model.layers] or folders


VIEW = "name LIKE '%/cat/%'"


def order(model: Model, steps: Sequence[Step], images: Mapping[str, frozenset[str]]) -> Model:
    """Returns what a dataset must hold after changes one by one."""
    for step in steps:
        model = model.change(step, images)
    return model
