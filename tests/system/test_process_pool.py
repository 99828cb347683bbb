"""The processes of a pool: what they import and run."""

from pathlib import Path

from tests.beam_jobs.commands import run_python
from tests.conftest import DrawImages

SCRIPT = """
import tfpipe
from tfpipe.system.process_pool import WorkerPool

def main():
    workers = WorkerPool(["tfpipe.format.manifest"], "A worker died.", runs_script=True)
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
    done = run_python(script, cwd=folder, PYTHONSAFEPATH="")
    import tfpipe

    assert done.stderr == ""
    assert done.stdout == f"{[(item, tfpipe.__file__) for item in range(4)]} {tfpipe.__file__}\n"


def test_a_script_without_a_guard_runs_once(tmp_path: Path, draw_images: DrawImages) -> None:
    draw_images(tmp_path / "images")
    (tmp_path / "job.py").write_text(
        "from beam_jobs.config import ShardConfig\nfrom beam_jobs import shard_job\nprint('begun')\n"
        "result = shard_job.run(ShardConfig('images', 'pets', num_shards=2, workers=2, max_bad=1))\n"
        "print(result.manifest.splits['train'].records)\n"
    )
    done = run_python("job.py", cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("begun\n12\n", "")


def test_a_function_of_a_script_needs_the_guard(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(
        "import numpy as np\nimport tfpipe\n\n"
        "def make(shard):\n    yield {'x': np.zeros(2, np.float32)}\n\n"
        "tfpipe.write(make, 'out', {'x': tfpipe.fields.Tensor('float32', (2,))}, num_shards=2, workers=2)\n"
    )
    done = run_python("job.py", cwd=tmp_path)
    assert done.stderr.splitlines()[-1] == (
        "tfpipe.errors.DataError: A worker process died: it was killed, memory ran out, or a library crashed. Make the "
        "same call again: what is written is kept. A script that starts workers must do so below "
        '`if __name__ == "__main__":`, because each of them loads it.'
    )
