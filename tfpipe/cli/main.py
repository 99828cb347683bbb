"""`tfpipe`: the group of commands, and the one place where errors become sentences and exit codes.

Exit codes: 0 done; 1 the data or the machine does not allow it; 2 a wrong option; 130 interrupted.
"""

import logging
import sys

import click

from tfpipe._version import __version__
from tfpipe.cli.inspect import inspect
from tfpipe.cli.shard import shard
from tfpipe.errors import TfpipeError

INTERRUPTED = 130


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="tfpipe")
@click.option("--debug", is_flag=True, help="Show tracebacks and what the libraries below log.")
def tfpipe(debug: bool) -> None:
    """Images in, TFRecord shards out, and a tuned input pipeline to read them."""
    # A handler of ours before any library installs one: Beam's import calls `basicConfig` by the way.
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.DEBUG if debug else logging.CRITICAL)
    logging.basicConfig(handlers=[handler], level=logging.INFO if debug else logging.WARNING)
    ours = logging.getLogger("tfpipe")
    if not debug:  # our own warnings are sentences for the user
        sentence = logging.StreamHandler(sys.stderr)
        sentence.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
        ours.addHandler(sentence)


tfpipe.add_command(shard)
tfpipe.add_command(inspect)


def main() -> None:
    """The entry point: runs a command and exits."""
    debug = "--debug" in sys.argv[1:]
    try:
        code = tfpipe.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (KeyboardInterrupt, click.Abort):
        code = INTERRUPTED
    except TfpipeError as error:
        if debug:
            raise
        click.echo(f"Error: {error}", err=True)
        code = error.exit_code
    sys.exit(code)
