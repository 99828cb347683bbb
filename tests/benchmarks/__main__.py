"""`python -m tests.benchmarks NAME ...` runs a benchmark of this folder; without NAME it lists them."""

import ast
import runpy
import sys
from pathlib import Path

FOLDER = Path(__file__).parent


def find_benchmarks() -> dict[str, Path]:
    """Returns the programs by their names."""
    paths = [*FOLDER.glob("*.py"), FOLDER / "dlio" / "judge.py", FOLDER / "cedar" / "compare.py"]
    names = {path: path.stem if path.parent == FOLDER else path.parent.name for path in sorted(paths)}
    return {
        name: path
        for path, name in names.items()
        if not name.startswith(("test_", "__")) and 'if __name__ == "__main__"' in path.read_text(encoding="utf-8")
    }


def main() -> None:
    benchmarks = find_benchmarks()
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name in benchmarks:
        sys.argv = [str(benchmarks[name]), *sys.argv[2:]]
        sys.path.insert(0, str(benchmarks[name].parent))
        runpy.run_path(str(benchmarks[name]), run_name="__main__")
        return
    for known, path in benchmarks.items():
        print(f"{known:20} {(ast.get_docstring(ast.parse(path.read_text(encoding='utf-8'))) or '').splitlines()[0]}")
    sys.exit(2 if name else 0)


if __name__ == "__main__":
    main()
