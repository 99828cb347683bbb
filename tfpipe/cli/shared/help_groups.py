"""The help of a command in groups: the options of every day first, all others with --help-all.

```
Input:
  --input-format ...
Running:
  --workers N ...
  -h, --help          Show this message and exit.
  --help-all          Show all 55 options and exit.
```

A command is made with it by `@click.command(cls=GroupedCommand)`. A new option needs its name in `GROUPS`.
"""

from __future__ import annotations

from typing import NamedTuple

import click

_ASKED_FOR_ALL = "tfpipe.help_all"
_MAX_WIDTH = 30  # of the column of options; click puts the text of a longer one on the next line


class Group(NamedTuple):
    """The options under one heading. Names stand without their dashes, with spaces between them.

    Attributes:
        heading: The heading, in plain words.
        first: The options that --help shows.
        more: The options that only --help-all shows.
    """

    heading: str
    first: str
    more: str = ""


_REMOTE = "project region max-workers machine-type service-account network subnetwork temp-location"
_CLOUDS = Group("Clouds", "runner", f"{_REMOTE} print-command")
_FORM = "encoding resize-short square quality"

_INPUT = (
    Group(
        "Input",
        "image-column label-column split-column labels",
        "input-format caption-column target-column mask-column box-label-column label-separator annotations "
        "segmentation-masks tensor",
    ),
    Group("Splits", "splits split", "group-by"),
)

GROUPS: dict[str, tuple[Group, ...]] = {
    "shard": (
        *_INPUT,
        Group("Images", _FORM, "reencode-progressive seekable"),
        Group(
            "Bad and equal images", "max-bad drop-duplicates", "allow-missing keep-quarantined max-pixels refuse-nan"
        ),
        Group("Output", "num-shards shard-size shuffle overwrite", "seed"),
        _CLOUDS,
        Group("Running", "workers dry-run json", "debug"),
    ),
    "append": (
        *_INPUT,
        Group("Bad and equal images", "max-bad drop-duplicates", "allow-missing keep-quarantined refuse-nan"),
        Group("Output", "num-shards shard-size shuffle", "seed"),
        Group("Clouds", "runner", _REMOTE),
        Group("Running", "workers dry-run json", "debug"),
    ),
    "reshard": (
        Group("Images", f"{_FORM} seekable", "reencode-progressive"),
        Group("Records", "drop-feature max-bad", "refuse-nan"),
        Group("Output", "num-shards shard-size shuffle overwrite", "seed"),
        _CLOUDS,
        Group("Running", "workers dry-run json", "debug"),
    ),
    "merge": (
        Group("Records", "drop-duplicates drop-feature max-bad", "refuse-nan"),
        Group("Output", "num-shards shard-size shuffle overwrite", "seed"),
        _CLOUDS,
        Group("Running", "workers dry-run json", "debug"),
    ),
    "view": (
        Group("Records", "sample seed without weights"),
        Group("Output", "name overwrite json", "debug"),
    ),
    "steps": (
        Group("Look up", "step record epochs show json"),
        Group("Training", "split batch-size seed config", "debug"),
    ),
    "doctor": (
        Group("Data", "split batch-size image-size config stages"),
        Group("Machines", "tpu num-replicas num-hosts"),
        Group("Output", "json debug"),
    ),
    "profile": (
        Group("Data", "split config stages transform batch-transform batch-size image-size cpu-budget"),
        Group("A loader of your own", "loader train"),
        Group("Accelerator", "step-ms images-per-second trainer price-per-hour"),
        Group("Measuring", "seconds apply max-idle"),
        Group("Output", "html json debug"),
    ),
    "train": (
        Group("Data", "split batch-size image-size config"),
        Group(
            "Training",
            "model epochs learning-rate precision seed",
            "weight-decay label-smoothing deterministic",
        ),
        Group("Output", "output checkpoint-every-steps tflite"),
        Group("Running", "tpu json debug"),
    ),
}
"""The groups of each command with more options than one list shows well, in the order of its help."""


EXAMPLES = {
    "shard": "tfpipe shard photos flowers --splits train=0.9,validation=0.1",
    "index": 'tfpipe index "/data/train-*"',
    "merge": "tfpipe merge flowers more-flowers all-flowers",
    "reshard": "tfpipe reshard flowers small-flowers --resize-short 256",
    "append": "tfpipe append flowers more-photos",
    "delete": "tfpipe delete flowers names.txt",
    "add": "tfpipe add flowers captions.parquet",
    "inspect": "tfpipe inspect flowers --show 12 sheet.png",
    "view": 'tfpipe view flowers "width >= 300 and not duplicate" --name large',
    "verify": "tfpipe verify flowers --quick",
    "repair": "tfpipe repair flowers clean-flowers",
    "export": "tfpipe export flowers flowers-wds --to webdataset",
    "doctor": "tfpipe doctor flowers --batch-size 256",
    "profile": "tfpipe profile flowers --step-ms 30 --batch-size 256",
    "train": "tfpipe train flowers --model resnet50 --epochs 90",
    "predict": 'tfpipe predict runs/flowers "photos/*.jpg"',
    "steps": "tfpipe steps runs/flowers --step 340 --show step340.png",
    "serve": "tfpipe serve --workers 2 --port 5050",
    "serve-check": "tfpipe serve-check 10.0.0.6:5050 10.0.0.7:5050 --dataset /data/flowers",
    "help": "tfpipe help symptoms",
}
"""An example of each command, which stands below its help."""

_MEANT = {
    "global-batch-size": "batch-size",
    "image-size": "resize-short square",
    "num-workers": "workers",
    "resize": "resize-short square",
    "size": "resize-short square image-size",
}
"""The options that people mean by names which a command lacks."""


class GroupedCommand(click.Command):
    """A command whose help shows its options in groups. Options without a group stand under "Options"."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses the arguments; click calls it. Errors name what is meant, and what an option takes."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            names = _MEANT.get(error.option_name.removeprefix("--"), "").split()
            own = {_get_name(option) for option in self.params if isinstance(option, click.Option)}
            meant = " or ".join(f"--{name}" for name in names if name in own)
            if not meant:
                raise
            raise click.NoSuchOption(error.option_name, f"{error.message} Use {meant}.", None, ctx) from None
        except click.BadOptionUsage as error:
            option = next((one for one in self.params if error.option_name in one.opts), None)
            takes = f" Give {error.option_name} {option.metavar}." if option is not None and option.nargs > 1 else ""
            raise click.BadOptionUsage(error.option_name, error.message + takes, ctx) from None

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Returns the arguments and options, with --help-all; click calls it."""
        return [*super().get_params(ctx), _HELP_ALL]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the options; click calls it."""
        records = self._get_records(ctx)
        groups = [*GROUPS.get(self.name or "", ()), Group("Options", " ".join(self.list_ungrouped()))]
        shown = [_list_names(group, bool(ctx.meta.get(_ASKED_FOR_ALL))) for group in groups]
        last = max(number for number, names in enumerate(shown) if names or number == 0)
        shown[last] += ["help", *(["help-all"] if any(group.more for group in groups) else [])]
        width = min(_MAX_WIDTH, max(len(records[name][0]) for names in shown for name in names))
        for group, names in zip(groups, shown, strict=True):
            if names:
                with formatter.section(group.heading):
                    formatter.write_dl((f"{records[name][0]:{width}}", records[name][1]) for name in names)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the example; click calls it."""
        if self.name in EXAMPLES:
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(f"Example: {EXAMPLES[self.name]}")
        super().format_epilog(ctx, formatter)

    def list_ungrouped(self) -> list[str]:
        """Returns the names of the options that stand in no group."""
        grouped = {name for group in GROUPS.get(self.name or "", ()) for name in _list_names(group, True)}
        options = [_get_name(option) for option in self.params if isinstance(option, click.Option)]
        return [name for name in options if name not in grouped]

    def _get_records(self, ctx: click.Context) -> dict[str, tuple[str, str]]:
        """Returns the line of each option, in two parts, by its name."""
        options = [option for option in self.get_params(ctx) if isinstance(option, click.Option)]
        records = {_get_name(option): option.get_help_record(ctx) or ("", "") for option in options}
        records["help-all"] = ("--help-all", f"Show all {len(options) - 2} options and exit.")
        return records


def _list_names(group: Group, shows_all: bool) -> list[str]:
    return f"{group.first} {group.more if shows_all else ''}".split()


def _get_name(option: click.Option) -> str:
    return max(option.opts, key=len).removeprefix("--")


def _show_all(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    """Prints the help with all options, and exits."""
    if asked and not ctx.resilient_parsing:
        ctx.meta[_ASKED_FOR_ALL] = True
        click.echo(ctx.get_help())
        ctx.exit()


_HELP_ALL = click.Option(["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=_show_all)
