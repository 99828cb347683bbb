"""The rules of CONTRIBUTING.md for docstrings, checked by reading the source.

`python tests/test_docstrings.py tfpipe/images` prints the places below a folder that break them.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent

# The first word of a function's docstring. Plurals of the project's nouns (Records, Shards, Names) are left out.
VERBS = """
    Adds Answers Appends Asks Augments Batches Begins Blends Brings Builds Calls Changes Checks Chooses Closes
    Collects Compares Compiles Completes Composites Computes Configures Connects Converts Copies Counts Creates
    Crops Cuts Deals Decides Decodes Decompresses Describes Divides Does Draws Drives Drops Encodes Ends Estimates
    Exchanges Feeds Fills Finds Fits Forgets Formats Gets Gives Goes Groups Hashes Hides Holds Implements Infers
    Inflates Inverts Joins Keeps Kills Lays Leaves Lets Lists Loads Locates Looks Makes Maps Measures Merges Mixes
    Moves Names Opens Pads Parses Passes Pastes Pauses Prepares Prints Profiles Puts Raises Reads Receives
    Recognizes Reduces Refuses Removes Renders Repeats Replaces Reports Resizes Restores Returns Rewrites Runs
    Samples Saves Says Scales Searches Selects Sends Serves Sets Shifts Shows Slices Splits Spreads Squeezes Stacks
    Starts Stores Submits Subtracts Sums Swaps Takes Tells Tests Trains Transcodes Tries Turns Unpacks Waits Warns
    Wraps Writes Yields
""".split()

# The first word of a class's or a property's docstring.
ARTICLES = "A All An Any Both Each Every No One Several Some The Three Two Whether".split()

# No docstring begins with these, and no entry of its sections does.
BANNED = "As|How|Likewise|Of|So|The same|Those|What|Where|Who|Whose"

Function = ast.FunctionDef | ast.AsyncFunctionDef
Fault = tuple[int, str]


def find_faults(source: str) -> list[Fault]:
    """Returns the line and the sentence of each broken rule."""
    faults = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            faults += list(check_fields(node))
        if isinstance(node, ast.Module | ast.ClassDef | Function) and (text := ast.get_docstring(node)):
            line = node.body[0].lineno
            if sentence := check_start(node, text):
                faults.append((line, sentence))
            if banned := re.match(rf"({BANNED})\b", text):
                faults.append((line, f"The docstring begins with {banned[0]!r}: begin with a verb or a noun phrase."))
            faults += [(line + offset, sentence) for offset, sentence in check_sections(text)]
    return sorted(set(faults))


def check_start(node: ast.Module | ast.ClassDef | Function, text: str) -> str | None:
    """Returns the sentence for a function that begins without a verb, or another docstring without an article."""
    first, second, *_ = *re.split(r"[\s,.:;]+", text, maxsplit=2), "", ""
    decorators = {get_last_name(decorator) for decorator in getattr(node, "decorator_list", ())}
    if isinstance(node, ast.Module) or decorators & {"command", "group"}:
        return None
    if isinstance(node, ast.ClassDef) or decorators & {"abstractproperty", "cached_property", "property"}:
        kind = "class" if isinstance(node, ast.ClassDef) else "property"
        advice = f"begin with an article, one of {', '.join(ARTICLES)}."
        return None if first in ARTICLES else f"{node.name}, a {kind}, begins with {first!r}: {advice}"
    if first not in VERBS:
        return f"{node.name} begins with {first!r}, which is not in VERBS: begin with a verb; if it is one, add it."
    return (
        f"{node.name} begins with '{first} of', where {first!r} is a noun: begin with a verb."
        if second == "of"
        else None
    )


def check_sections(text: str) -> Iterator[Fault]:
    """Yields the faults of Args, Attributes, Raises, Returns and Yields; lines count from the docstring's first."""
    entry = re.compile(rf"(\*{{0,2}}\w+)[^:]*: ({BANNED})\b")
    section, indent, first = "", 0, False
    for number, line in enumerate(text.splitlines()):
        here = len(line) - len(line.lstrip())
        if line.strip() in ("Args:", "Attributes:", "Raises:", "Returns:", "Yields:"):
            section, indent = line.strip(), here
            first = True
        elif section and line.strip():
            if here <= indent:
                section = ""
                continue
            if here < indent + 4 or (first and here > indent + 4):
                yield number, f"`{section}` indents its entries by {here - indent}: indent by 4."
            elif here == indent + 4 and section in ("Args:", "Attributes:") and (start := entry.match(line.strip())):
                yield number, f"The entry of {start[1]} begins with {start[2]!r}: begin with a noun phrase."
            first = False


def check_fields(node: ast.ClassDef) -> Iterator[Fault]:
    """Yields strings below fields, and wrong entries of a dataclass that documents its fields, as options must."""
    for field, below in zip(node.body, node.body[1:], strict=False):
        is_text = isinstance(below, ast.Expr) and isinstance(getattr(below.value, "value", None), str)
        if isinstance(field, ast.AnnAssign) and is_text:
            yield below.lineno, f"A string below a field of {node.name}: use its `Attributes:` section."
    if node.name.startswith("_") or "dataclass" not in {get_last_name(item) for item in node.decorator_list}:
        return
    fields = [
        item.target.id
        for item in node.body
        if isinstance(item, ast.AnnAssign)
        and isinstance(item.target, ast.Name)
        and not item.target.id.startswith("_")
        and "ClassVar" not in ast.unparse(item.annotation)
    ]
    entries = get_attributes(ast.get_docstring(node) or "")
    if not entries and not node.name.endswith(("Config", "Options")):
        return
    for name, entry in entries.items():
        first = re.split(r"[\s,.:;]", entry, maxsplit=1)[0]
        if first not in ARTICLES:
            yield node.lineno, f"The entry of {node.name}.{name} begins with {first!r}: begin with an article."
    for name in fields:
        if name not in entries:
            yield node.lineno, f"{node.name}.{name} has no entry in `Attributes:`."
    for name in entries:
        if name not in fields:
            yield node.lineno, f"{node.name} has an entry for {name} in `Attributes:`, which is not a field."
    if sorted(fields) == sorted(entries) and fields != list(entries):
        yield node.lineno, f"{node.name} has its entries in `Attributes:` in another order than its fields."


def get_attributes(text: str) -> dict[str, str]:
    """Returns the entries of a class's `Attributes:` section, each as one line of text by its name."""
    section = re.split(r"\n(?=\S)", f"\n{text}".partition("\nAttributes:\n")[2], maxsplit=1)[0]
    entries = re.findall(r"^(?: {2}| {4})(\w+)(?: \([^)]*\))?: ?(.*(?:\n {5,}.*)*)", section, re.MULTILINE)
    return {name: " ".join(entry.split()) for name, entry in entries}


def get_last_name(decorator: ast.expr) -> str:
    """Returns `command` for `@click.command(...)`."""
    return ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator).rpartition(".")[2]


def find_all_faults(root: Path, paths: list[Path]) -> list[str]:
    """Returns `file:line: sentence` for each broken rule in the files and below the folders."""
    files = [file for path in paths for file in ([path] if path.is_file() else sorted(path.rglob("*.py")))]
    return [
        f"{file.relative_to(root)}:{line}: {sentence}"
        for file in files
        for line, sentence in find_faults(file.read_text(encoding="utf-8"))
    ]


def test_every_docstring_keeps_the_rules() -> None:
    faults = find_all_faults(REPOSITORY, [REPOSITORY / package for package in ("tfpipe", "beam_jobs")])
    assert not faults, "\n" + "\n".join(faults)


def test_the_lists_are_sorted_and_without_repetition() -> None:
    for words in (VERBS, ARTICLES, BANNED.split("|")):
        assert words == sorted(set(words))


CLEAN = '''
"""A module."""

from dataclasses import dataclass

SIZE = 3
"""The note on a constant."""


@dataclass
class Shard:
    """A file of records.

    Attributes:
        name: The file's name:
            without its folder.
        size (int): The number of bytes.

    Raises:
        ConfigError: The name is empty.
    """

    name: str
    size: int = 0
    _cache: int = 0
    kinds: ClassVar[int] = 0

    @property
    def path(self) -> str:
        """The whole path."""

    def read(self) -> bytes:
        """Reads the file.

        Args:
            name: The name.

        Returns:
            The bytes.
        """
        def work() -> None:
            """Runs in a thread."""


@click.command(short_help="a")
def shard() -> None:
    """Write shards."""


def no_docstring() -> None: ...
'''

PLANTED = [
    ('"""A module."""', '"""What the module is."""', "The docstring begins with 'What'"),
    ('"""A module."""', '"""The same module."""', "The docstring begins with 'The same'"),
    ('"""A file of records.', '"""Rows of records.', "Shard, a class, begins with 'Rows'"),
    ('"""The whole path."""', '"""Path of it."""', "path, a property, begins with 'Path'"),
    ('"""Reads the file.', '"""The file\'s bytes.', "read begins with 'The', which is not in VERBS"),
    ('"""Reads the file.', '"""Batches of an epoch.', "read begins with 'Batches of', where 'Batches' is a noun"),
    ('"""Runs in', '"""Rows in', "work begins with 'Rows', which is not in VERBS"),
    ('@click.command(short_help="a")\n', "", "shard begins with 'Write'"),
    ("            name: The name.", "          name: The name.", "`Args:` indents its entries by 2"),
    ("            The bytes.", "              The bytes.", "`Returns:` indents its entries by 6"),
    ("        size (int): The number", "        size (int): Number", "The entry of Shard.size begins with 'Number'"),
    ("            name: The name.", "            name: Of the file.", "The entry of name begins with 'Of'"),
    ("    size: int = 0\n", '    size: int = 0\n    """The bytes."""\n', "A string below a field of Shard"),
    ("    size: int = 0\n", "    size: int = 0\n    seed: int = 0\n", "Shard.seed has no entry"),
    ("    size: int = 0\n", "", "Shard has an entry for size"),
    ("    name: str\n    size: int = 0\n", "    size: int\n    name: str\n", "in another order"),
]


def test_clean_source_has_no_faults() -> None:
    assert find_faults(CLEAN) == []


@pytest.mark.parametrize(("clean", "planted", "sentence"), PLANTED, ids=[sentence for *_, sentence in PLANTED])
def test_a_planted_fault_is_found(clean: str, planted: str, sentence: str) -> None:
    assert CLEAN.count(clean) == 1
    (fault,) = find_faults(CLEAN.replace(clean, planted))
    assert sentence in fault[1]


def test_the_line_of_a_fault_is_its_own() -> None:
    source = '\ndef f():\n    """Reads.\n\n    Args:\n      a: The letter.\n    """\n'
    assert [line for line, _ in find_faults(source)] == [6]


if __name__ == "__main__":
    places = find_all_faults(REPOSITORY, [Path(path).resolve() for path in sys.argv[1:]])
    print("\n".join(places))
    print(f"{len(places)} places")
    sys.exit(bool(places))
