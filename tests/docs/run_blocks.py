"""`python run_blocks.py BLOCKS.json`: runs the blocks of one page one after another, as a reader would, in this folder.

Python blocks share their names, and a shell block ends at its first error. In a cell of a notebook a line that begins
with `!` is a command, and a cell that begins with `%%writefile` is a file.
"""

import ast
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any


def run_shell(code: str) -> None:
    subprocess.run(["bash", "-eu", "-c", code], check=True)


def run_cell(code: str, names: dict[str, Any]) -> None:
    """Runs a cell of a notebook: commands, or Python without what only Jupyter knows."""
    if code.startswith("!"):
        run_shell("\n".join(line.removeprefix("!") for line in code.splitlines()))
    elif code.startswith("%%writefile "):
        name, _, text = code.removeprefix("%%writefile ").partition("\n")
        Path(name).write_text(text, encoding="utf-8")
    elif "get_ipython" not in code and "IPython" not in code:
        run_python(code, names)


def run_python(code: str, names: dict[str, Any]) -> None:
    exec(compile(ast.parse(code), "block", "exec"), names)  # noqa: S102 (the project's own pages)


def main() -> None:
    page = ModuleType("__main__")
    sys.modules["__main__"] = page  # what a block defines can be pickled
    with open(sys.argv[1], encoding="utf-8") as file:
        blocks = json.load(file)
    for block in blocks:
        print(f"--- {block['place']}", flush=True)
        if block["kind"] == "shell":
            run_shell(block["code"])
        elif block["kind"] == "cell":
            run_cell(block["code"], vars(page))
        else:
            run_python(block["code"], vars(page))


if __name__ == "__main__":
    main()
