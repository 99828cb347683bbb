"""`tfpipe help`: pages of the documentation and the options of commands, without a browser or a network."""

import re
from pathlib import Path

import click

from tfpipe.cli.shared.command import GroupedCommand
from tfpipe.errors import ConfigError


@click.command(cls=GroupedCommand, name="help", example="tfpipe help symptoms")
@click.argument("topic", default="")
@click.pass_context
def help_(ctx: click.Context, topic: str) -> None:
    """Print the page TOPIC of the documentation, or a section of it, as in `tfpipe help symptoms#memory-grows`.

    Where there is no such page, but such a command, it prints the options of the command. Without TOPIC it lists the
    pages.
    """
    package = Path(__file__).parents[1]
    folder = next((path for path in (package / "pages", package.parent / "docs") if path.is_dir()), package)
    found = [*folder.glob("howto/*.md"), folder / "symptoms.md", folder / "start" / "install.md"]
    pages = {
        path.stem: path for path in sorted(found, key=lambda path: path.stem) if path.is_file() and path.stem != "index"
    }
    name, _, anchor = topic.partition("#")
    if name and name not in pages:
        group = ctx.find_root()
        command = group.command.get_command(ctx, name) if isinstance(group.command, click.Group) else None
        if command is None:
            raise ConfigError(f"TOPIC must be a command, or one of the pages that `tfpipe help` lists, got {name!r}.")
        click.echo(command.get_help(click.Context(command, group, name)))
        return
    text = _find_section(pages[name].read_text(encoding="utf-8"), anchor) if name else "\n".join(pages)
    click.echo(re.sub(r"^%.*\n", "", text, flags=re.MULTILINE).strip())


def _find_section(text: str, anchor: str) -> str:
    """Returns the section of a page whose heading has an anchor; without such a heading, the whole page."""
    for heading in re.finditer(r"^(#+) (.*)\n", text, re.MULTILINE):
        if re.sub(r"[^\w\- ]", "", heading[2].lower()).replace(" ", "-") == anchor:
            end = re.compile(rf"^#{{1,{len(heading[1])}}} ", re.MULTILINE).search(text, heading.end())
            return text[heading.start() : end.start() if end else None]
    return text
