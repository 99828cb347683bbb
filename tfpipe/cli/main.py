"""`tfpipe`: the group of commands, and the one place where errors become messages and exit codes.

Exit codes: 0 done; 1 the data or the machine does not allow it; 2 a wrong option; 130 interrupted.
"""

import io
import json
import logging
import os
import platform
import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

import click

from tfpipe._version import __version__
from tfpipe.cli.shared.command import debug_option, name_options
from tfpipe.cli.shared.console import clean_text, echo
from tfpipe.errors import DataError, TfpipeError, hide_secrets
from tfpipe.service import config as service
from tfpipe.system import extras, host_limits
from tfpipe.system.interrupts import keep_interrupts, restore_interrupts

INTERRUPTED = 130
_DEVICES = {"NVIDIA GPU": "nvidia[0-9]*", "TPU": "accel[0-9]*"}
CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


Sections: TypeAlias = Mapping[str, Sequence[tuple[str, str, str]]]

SECTIONS: Sections = {
    "Make a dataset": [
        ("shard", "shard", "Write images as TFRecord shards."),
        ("index", "index", "Make a dataset of TFRecords that another tool wrote."),
        ("merge", "shard", "Join datasets into one."),
        ("reshard", "shard", "Rewrite a dataset with other shards or another form of images."),
    ],
    "Change it": [
        ("append", "shard", "Add more images to a finished dataset."),
        ("delete", "delete", "Hide records of a dataset by their names."),
        ("add", "add", "Add columns of a table to the records of a dataset."),
    ],
    "Look at it": [
        ("inspect", "inspect", "Show what a dataset holds."),
        ("view", "view", "Name a part of a dataset, or weigh its records."),
        ("verify", "verify", "Check every record, image, index and checksum."),
        ("repair", "verify", "Write the undamaged records as a clean dataset."),
        ("export", "export", "Write a dataset as WebDataset, Parquet or ArrayRecord."),
    ],
    "Read it fast, and train": [
        ("doctor", "doctor", "Check data, options and machine before a run."),
        ("profile", "profile", "Say why the accelerator waits, and what to change."),
        ("train", "train", "Train a classifier on a dataset, and export it."),
        ("predict", "predict", "Classify image files with a trained model."),
        ("steps", "steps", "Show the records of a step, or the steps of a record."),
        ("serve", "serve", "Run workers that make batches for trainers."),
        ("serve-check", "serve", "Check running workers from the trainer's machine."),
        ("help", "help", "Print a page of the documentation."),
    ],
}
"""The commands under their headings: the name, the module of `tfpipe.cli` that has it, and what it does."""


class Commands(click.Group):
    """The group of commands. A command is imported only when it is used, so the help loads no large library.

    An error of tfpipe that leaves a command is changed to name the command's options in place of config fields.
    """

    def __init__(self, *names: Any, sections: Sections, **arguments: Any) -> None:
        super().__init__(*names, **arguments)
        self.sections = sections
        self.modules = {name: module for entries in sections.values() for name, module, _ in entries}
        self.commands = {name: click.Command(name) for name in self.modules}  # click suggests these for an unknown name

    def list_commands(self, ctx: click.Context | None = None) -> list[str]:
        """Lists the names of the commands; click calls it."""
        return list(self.modules)

    def get_command(self, ctx: click.Context | None, cmd_name: str) -> click.Command | None:
        """Returns a command after importing its module; None for an unknown name. click calls it."""
        if cmd_name not in self.modules:
            return None
        module = import_module(f"tfpipe.cli.{self.modules[cmd_name]}")
        return next(one for one in vars(module).values() if isinstance(one, click.Command) and one.name == cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the commands under their headings; click calls it."""
        width = max(map(len, self.modules))
        for heading, entries in self.sections.items():
            with formatter.section(heading):
                formatter.write_dl((f"{name:{width}}", sentence) for name, _, sentence in entries)

    def invoke(self, ctx: click.Context) -> Any:
        """Runs a command; click calls it."""
        try:
            return super().invoke(ctx)
        except EOFError as error:  # click would take it for the end of the terminal's input, and say nothing
            raise DataError(f"The data ends before its end ({error}). Look whether a file was cut.") from error
        except FileNotFoundError as error:
            if "No usable temporary directory" not in str(error):
                raise
            raise DataError(f"{error.strerror}. Set TMPDIR to a folder that can be written and has space.") from error
        except TfpipeError as error:
            command = self.get_command(ctx, ctx.invoked_subcommand or "")
            if command is not None:
                error.args = (name_options(str(error), command),)
            raise


def print_versions(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    """Prints the versions and exits, if the user asked; click calls it."""
    if not asked:
        return
    installation = describe_installation()
    if ctx.params["as_json"]:
        click.echo(json.dumps(installation))
    else:
        own = {"tfpipe": installation["tfpipe"], "Python": installation["python"]}
        for name, version in {**own, **installation["libraries"]}.items():
            click.echo(f"{name} {version}")
    ctx.exit()


def describe_installation(root: Path = Path("/")) -> dict[str, Any]:
    """Collects the versions and the facts about this machine, with `root` as the root of its file system.

    It is made to be published, so it names no path, host, person or dataset; a broken TensorFlow is not loaded.
    """
    devices = {name: len(list((root / "dev").glob(pattern))) for name, pattern in _DEVICES.items()}
    return {
        "tfpipe": __version__,
        "python": platform.python_version(),
        "libraries": extras.get_versions(extras.LIBRARIES),
        "system": ", ".join(filter(None, [f"{platform.system()} {platform.machine()}", " ".join(platform.libc_ver())])),
        "processor": host_limits.read_processor_name(root),
        "cores": host_limits.usable_cpus(root),
        "all_cores": os.cpu_count() or 1,
        "memory_bytes": host_limits.memory_limit_bytes(root),
        "available_bytes": host_limits.available_memory_bytes(root),
        "devices": {name: count for name, count in devices.items() if count},
    }


@click.group(
    cls=Commands,
    sections=SECTIONS,
    context_settings=CONTEXT_SETTINGS,
    epilog="Begin with: tfpipe shard photos flowers, then tfpipe inspect flowers. "
    "The help of a command: tfpipe shard --help",
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    callback=print_versions,
    help="Show the versions of tfpipe and its libraries, and exit.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    is_eager=True,  # so it is known when --version is looked at
    help="With --version: print one JSON object, for a bug report.",
)
@debug_option
def tfpipe(as_json: bool) -> None:
    """Images in, TFRecord shards out, and a tuned input pipeline to read them."""
    if as_json:
        raise click.UsageError("--json goes behind the command, or beside --version.")


def main(command: click.Command = tfpipe, name: str = "tfpipe") -> None:
    """Runs the command line of this process and exits."""
    debug = "--debug" in sys.argv[1:]  # before click has read anything, so that its own errors count too
    _configure_logging(debug)
    service.token = os.environ.get("TFPIPE_SERVICE_TOKEN", "")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without Unicode shows ? for other characters
            stream.reconfigure(errors="replace")
    try:
        with keep_interrupts(), restore_interrupts():
            code = command.main(prog_name=name, standalone_mode=False)
    except click.ClickException as error:
        said = io.StringIO()
        error.show(said)
        echo(said.getvalue().rstrip("\n"), err=True)
        code = error.exit_code
    except (KeyboardInterrupt, click.Abort):
        code = INTERRUPTED
    except TfpipeError as error:
        if debug:
            raise
        echo(f"Error: {error}", err=True)
        if error.page:
            echo(f"More: tfpipe help {error.page}", err=True)
        code = error.exit_code
    except OSError as error:
        try:
            click.echo()  # fails again, if it was standard output
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # to which Python writes the rest as it ends
            echo(f"Error: The standard output cannot be written: {error.strerror}.", err=True)
            code = 1
        else:
            raise
    sys.exit(code)


class _SafeFormatter(logging.Formatter):
    """A log formatter that makes messages safe to print: they may hold secrets, or names from files."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the message without secrets and control characters; logging calls it."""
        return clean_text(hide_secrets(super().format(record)))


def _configure_logging(debug: bool) -> None:
    """Shows tfpipe's own warnings as sentences; the libraries' log is shown only with --debug."""
    # Before any library installs a handler: Beam's import calls `basicConfig`.
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.DEBUG if debug else logging.CRITICAL)
    logging.basicConfig(handlers=[handler], level=logging.INFO if debug else logging.WARNING)
    if not debug:
        sentence = logging.StreamHandler(sys.stderr)
        sentence.setFormatter(_SafeFormatter("%(levelname)s: %(message)s"))
        logging.getLogger("tfpipe").addHandler(sentence)
        # Beam loads Google's clients, and each of them warns of Python 3.10 once more.
        warnings.filterwarnings("ignore", message="You are using a .*Python version", category=FutureWarning)
