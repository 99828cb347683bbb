"""The processes of a pool: what they import."""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import tfpipe
from tfpipe.system.process_pool import Workers

def main():
    workers = Workers(["tfpipe.format.manifest"], "A worker died.")
    print(sorted(workers.map_unordered(find, range(4), 2)), tfpipe.__file__)

def find(item):
    import tfpipe
    return item, tfpipe.__file__

if __name__ == "__main__":
    main()
"""


def test_workers_import_nothing_of_the_current_folder(tmp_path: Path) -> None:
    """In a checkout, the sources there would take the place of the installed package."""
    script, folder = tmp_path / "elsewhere" / "job.py", tmp_path / "checkout"
    script.parent.mkdir()
    script.write_text(SCRIPT)
    (folder / "tfpipe").mkdir(parents=True)
    (folder / "tfpipe" / "__init__.py").write_text("raise RuntimeError('of the current folder')\n")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    done = subprocess.run(
        [sys.executable, str(script)], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    import tfpipe

    assert done.stderr == ""
    assert done.stdout == f"{[(item, tfpipe.__file__) for item in range(4)]} {tfpipe.__file__}\n"
