"""`tfpipe help`: pages of the documentation, without a browser or a network."""

import re
from pathlib import Path

import click

from tfpipe.errors import ConfigError

_ROOT = Path(__file__).parents[1]


@click.command(name="help", short_help="Print a page of the documentation.")
@click.argument("topic", required=False)
def help_(topic: str | None) -> None:
    """Print the page TOPIC of the documentation, or a section of it, as in `tfpipe help symptoms#memory-grows`.

    Without TOPIC it lists the pages.
    """
    pages = _find_pages()
    if topic is None:
        click.echo("\n".join(sorted(pages)))
        return
    name, _, anchor = topic.partition("#")
    if name not in pages:
        raise ConfigError(f"TOPIC must be one of the pages that `tfpipe help` lists, got {name!r}.")
    text = pages[name].read_text(encoding="utf-8")
    click.echo(re.sub(r"^%.*\n", "", _find_section(text, anchor), flags=re.MULTILINE).strip())


def _find_pages() -> dict[str, Path]:
    """Returns the path of each page by its name: in an installation, else in the checkout."""
    folder = next((path for path in (_ROOT / "pages", _ROOT.parent / "docs") if path.is_dir()), _ROOT)
    paths = [*folder.glob("howto/*.md"), folder / "symptoms.md", folder / "faq.md", folder / "start" / "install.md"]
    return {path.stem: path for path in paths if path.stem != "index" and path.is_file()}


def _find_section(text: str, anchor: str) -> str:
    """Returns a page from the heading with an anchor up to the next one of its level, else all of it."""
    for heading in re.finditer(r"^(#+) (.*)\n", text, re.MULTILINE):
        if re.sub(r"[^\w\- ]", "", heading[2].lower()).strip().replace(" ", "-") == anchor:
            end = re.compile(rf"^#{{1,{len(heading[1])}}} ", re.MULTILINE).search(text, heading.end())
            return text[heading.start() : end.start() if end else None]
    return text
