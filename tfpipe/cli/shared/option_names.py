"""The names of fields in a library's message become the options of the running command: `max_bad` is --max-bad.

The library knows no command line, so its messages name the field in backquotes.
"""

import re

import click

_FIELD = re.compile(r"`(\w+)`")
_OF_A_FILE = re.compile(r"[^`]*\.(toml|json): ")  # such a message speaks of the fields in that file


def name_options(message: str, command: click.Command) -> str:
    """Returns the message with each field that the command has as an option under the option's name."""
    if _OF_A_FILE.match(message):
        return message
    options = {option.name: max(option.opts, key=len) for option in command.params if isinstance(option, click.Option)}
    return _FIELD.sub(lambda match: options.get(match[1], match[0]), message)
