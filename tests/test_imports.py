"""Starts the entry points, and lists the heavy libraries that they loaded."""

import ast
import json
from pathlib import Path

import pytest

import tfpipe
from tests.beam_jobs.commands import ROOT, Ran, run_python

HEAVY = (
    *("tensorflow", "keras", "apache_beam", "torch", "jax", "PIL", "numpy", "pyarrow", "rich", "matplotlib", "jinja2"),
)


def run_cli_without(library: str, *commands: tuple[str, ...]) -> Ran:
    """Runs command lines one after the other, up to one that succeeds, as if a library were not installed."""
    code = f"""
import sys
sys.modules[{library!r}] = None
from tfpipe.cli.main import main
for args in {commands!r}:
    sys.argv = ["tfpipe", *args]
    try:
        main()
    except SystemExit as stop:
        code = stop.code
        if not code:
            break
sys.exit(code)
"""
    return run_python("-c", code)


IMAGES, JOBS = {"numpy", "PIL"}, {"numpy", "PIL", "pyarrow"}

# What is loaded of the heavy libraries after each of these statements, one after the other in one process.
STEPS: dict[str, set[str]] = {
    "import tfpipe, beam_jobs": set(),
    "from tfpipe import Manifest, TfpipeError": {"numpy"},
    "import tfpipe.readers.numpy": {"numpy"},  # Pillow is for images that the native library leaves
    "import tfpipe.integrity.verify, tfpipe.integrity.repair, tfpipe.integrity.foreign.index": IMAGES,
    "import beam_jobs.__main__, beam_jobs.config, beam_jobs.runners.base": IMAGES,
    "import beam_jobs.shard_job, beam_jobs.shards.job": JOBS,  # whose plan is a table of Arrow's
    "import beam_jobs.graph, beam_jobs.shards.write_shard": {*JOBS, "apache_beam"},
    "import beam_jobs.read_records, beam_jobs.write_records": {*JOBS, "apache_beam"},
}


def test_modules_load_no_library_that_they_do_without() -> None:
    code = f"""
import json, sys
for step in {[*STEPS]!r}:
    exec(step)
    print(json.dumps([step, [name for name in {HEAVY!r} if name in sys.modules]]))
"""
    result = run_python("-c", code)
    assert result.returncode == 0, result.stderr
    assert {step: set(loaded) for step, loaded in map(json.loads, result.stdout.splitlines())} == STEPS


def test_an_inspection_loads_neither_pillow_nor_the_jobs(small_dataset: Path) -> None:
    code = f"""
import contextlib, sys
from tfpipe.cli.main import main
sys.argv = ["tfpipe", "inspect", {str(small_dataset)!r}]
with contextlib.suppress(SystemExit):
    main()
print(sorted({{"beam_jobs", *{HEAVY}}} & set(sys.modules)))
"""
    assert run_python("-c", code).stdout.splitlines()[-1] == "['numpy', 'rich']"


def test_readers_name_the_extra() -> None:
    # The readers' own tests check that they load no TensorFlow.
    code = """
import importlib, sys
sys.modules.update(torch=None, jax=None)
for module in ("tfpipe.readers.torch", "tfpipe.readers.jax"):
    try:
        importlib.import_module(module)
    except ImportError as error:
        print(f"{type(error).__name__}: {error}")
"""
    result = run_python("-c", code)
    assert result.stdout.splitlines() == [
        f"MissingDependencyError: `tfpipe.readers.{library}` needs {name}. Install it with: pip install '.[{library}]' "
        "in a checkout of tfpipe."
        for library, name in (("torch", "PyTorch"), ("jax", "JAX"))
    ]


COMMANDS = (
    *("shard", "reshard", "merge", "delete", "inspect", "index", "doctor", "serve", "profile", "train", "verify"),
    *("repair", "predict"),
)


def test_help_loads_nothing_heavy() -> None:
    """Runs all commands in one process, which stops at the first that loads a heavy library."""
    commands = [["--help"], ["--version"], *([command, "--help"] for command in COMMANDS)]
    heavy = set(HEAVY) - {"PIL", "numpy", "rich"}
    code = f"""
import sys
from tfpipe.cli.main import main
for args in {commands!r}:
    sys.argv = ["tfpipe", *args]
    try:
        main()
    except SystemExit as stop:
        assert not stop.code, args
    loaded = {heavy!r} & set(sys.modules)
    assert not loaded, (args, loaded)
print("none")
"""
    result = run_python("-c", code)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "none"
    assert result.stdout.count("Usage: tfpipe") == 1 + len(COMMANDS)


def test_help_is_quick() -> None:
    """Calls are counted, since a busy machine makes time longer: 154,000 of them take 0.1 s, and TensorFlow's 3 s."""
    code = """
import sys
calls = 0

def count(*_):
    global calls
    calls += 1

sys.setprofile(count)
from tfpipe.cli.main import main
sys.argv = ["tfpipe", "--help"]
try:
    main()
finally:
    sys.setprofile(None)
    print(calls)
"""
    result = run_python("-c", code)
    assert result.returncode == 0, result.stderr
    assert "shard" in result.stdout
    assert int(result.stdout.splitlines()[-1]) < 400_000  # NumPy alone would be over this


def test_a_runner_of_beam_without_beam_names_the_extra() -> None:
    jobs = [("shard", "a", "b"), ("reshard", "a", "b"), ("merge", "a", "b", "c")]
    result = run_cli_without("apache_beam", *((*job, "--runner", "direct") for job in jobs))
    expected = (
        "A runner other than `local` needs Apache Beam. Install it with: pip install '.[beam]' in a checkout of tfpipe."
    )
    assert (result.returncode, result.stderr) == (1, len(jobs) * f"Error: {expected}\n")


def test_this_machine_shards_without_beam(tmp_path: Path) -> None:
    images = str(ROOT / "sample_data" / "square")
    result = run_cli_without("apache_beam", ("shard", images, str(tmp_path / "out"), "--workers", "1"))
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "out" / "manifest.json").exists()


def test_public_names_load_and_are_listed_and_an_unknown_one_is_an_attribute_error() -> None:
    stub = ast.parse(Path(tfpipe.__file__).with_suffix(".pyi").read_text())
    typed = {alias.asname for node in ast.walk(stub) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert typed == set(tfpipe.__all__)  # what type checkers see is what is loaded
    assert [name for name in dir(tfpipe) if not name.startswith("__")] == sorted(set(tfpipe.__all__) - {"__version__"})
    for name in tfpipe.__all__:
        assert getattr(tfpipe, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Manifesto'"):
        _ = tfpipe.Manifesto


def test_a_small_job_loads_neither_masked_arrays_nor_what_starts_processes(tmp_path: Path) -> None:
    """NumPy's masked arrays cost a twentieth of the command, and a fork server more than half of it."""
    code = """
import sys
from beam_jobs import shard_job
from beam_jobs.config import ShardConfig
shard_job.run(ShardConfig("sample_data", sys.argv[1]))
print([name for name in ("numpy.ma", "multiprocessing") if name in sys.modules])
"""
    result = run_python("-c", code, str(tmp_path / "out"))
    assert (result.stdout, result.stderr) == ("[]\n", "")
