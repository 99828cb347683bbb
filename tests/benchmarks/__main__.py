"""`python -m tests.benchmarks NAME ...` runs a benchmark of this folder; without NAME it lists them."""

import runpy
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
PATHS = {path.stem: path for path in sorted(FOLDER.glob("[a-z]*.py")) if not path.stem.startswith("test_")}
PATHS |= {"cedar": FOLDER / "cedar" / "compare.py", "dlio": FOLDER / "dlio" / "judge.py"}
PROGRAMS = {name: path for name, path in PATHS.items() if "\nif __name__ ==" in path.read_text(encoding="utf-8")}

if __name__ == "__main__":
    name = "".join(sys.argv[1:2])
    if name not in PROGRAMS:
        for known, path in PROGRAMS.items():
            print(f"{known:20} {path.read_text(encoding='utf-8').splitlines()[0][3:]}")
        sys.exit(2 if name else 0)
    sys.argv[:2] = [str(PROGRAMS[name])]
    sys.path.insert(0, str(PROGRAMS[name].parent))
    runpy.run_path(str(PROGRAMS[name]), run_name="__main__")
