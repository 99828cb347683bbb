"""The rules that keep the house in order, checked by reading the source.

What may import what stands in the tables below. A new module needs a line in `FLOORS`, unless its package
has one.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
PACKAGES = ("tfpipe", "beam_jobs")

# A module's floor is that of the longest name here that it is, or that it lies in; the lines `tfpipe` and
# `beam_jobs` are for their `__init__` alone. Imports run downwards, or sideways inside a package.
FLOORS = {
    "tfpipe": 4,
    "tfpipe.__main__": 4,
    "tfpipe.cli": 4,
    "beam_jobs.__main__": 4,
    "tfpipe.training": 3,
    "tfpipe.tuning": 3,
    "tfpipe.profiler": 3,
    "tfpipe.data_service": 3,
    "tfpipe.distribution": 3,
    "tfpipe.doctor": 3,
    "beam_jobs.shard_job": 3,
    "beam_jobs.transforms": 3,
    "beam_jobs.runners": 3,
    "tfpipe.pipeline": 2,
    "tfpipe.readers": 2,
    "tfpipe.integrity": 2,
    "beam_jobs.estimate": 2,
    "beam_jobs.list_and_plan": 2,
    "beam_jobs.run_in_process": 2,
    "beam_jobs.inputs": 2,
    "beam_jobs.shards": 2,
    "tfpipe.pipeline.config": 1,
    "tfpipe.pipeline.plan": 1,
    "tfpipe.images": 1,
    "tfpipe.open_dataset": 1,
    "tfpipe.order": 1,
    "beam_jobs": 1,
    "beam_jobs.config": 1,
    "beam_jobs.prices": 1,
    "beam_jobs.process_pool": 1,
    "beam_jobs.plan": 1,
    "beam_jobs.storage": 1,
    "tfpipe._version": 0,
    "tfpipe.errors": 0,
    "tfpipe.format": 0,
    "tfpipe.system": 0,
}

# Neighbours on one floor that may meet all the same, the left one knowing the right one.
NEIGHBOURS = {
    ("tfpipe.format", "tfpipe.errors"),
    ("tfpipe.system", "tfpipe.errors"),
    ("tfpipe.format", "tfpipe.system"),  # its options
    ("tfpipe.__main__", "tfpipe.cli"),
    ("beam_jobs.__main__", "tfpipe.cli"),
    ("tfpipe.pipeline.plan", "tfpipe.order"),
    ("tfpipe.pipeline.plan", "tfpipe.open_dataset"),
    ("tfpipe.tuning", "tfpipe.profiler"),  # it tries the profiler's fixes
    ("tfpipe.training", "tfpipe.distribution"),  # the trainer runs under a strategy
    ("tfpipe.training", "tfpipe.profiler"),  # and watches its own idle time
}

# The rooms of the house that never meet, whatever their floors.
APART = [
    ("tfpipe.pipeline", "beam_jobs"),
    ("beam_jobs", "tfpipe.pipeline"),
    ("beam_jobs", "tfpipe.readers"),
    ("beam_jobs", "tfpipe.integrity"),
]
NAMES_BEAM_JOBS = ("tfpipe.cli", "beam_jobs")  # and nobody else does

# Libraries that cost seconds or hundreds of megabytes, or are extras, and who may name them: in a function
# where the command line or a Beam worker could do without; tests/test_imports.py measures that.
HEAVY = {
    "tensorflow": (
        "tfpipe.data_service",
        "tfpipe.distribution",
        "tfpipe.doctor",
        "tfpipe.pipeline.build",
        "tfpipe.pipeline.device",
        "tfpipe.pipeline.file_cache",
        "tfpipe.pipeline.service_client",
        "tfpipe.pipeline.stage",
        "tfpipe.pipeline.stages",
        "tfpipe.profiler.live",
        "tfpipe.profiler.measure",
        "tfpipe.system.file_io",  # object stores, by the client that reads the shards too
        "tfpipe.training",
        "tfpipe.tuning.bench",
    ),
    "keras": ("tfpipe.training",),
    "apache_beam": ("beam_jobs.runners", "beam_jobs.shard_job", "beam_jobs.storage", "beam_jobs.transforms"),
    "torch": ("tfpipe.readers.torch",),
    "jax": ("tfpipe.readers.jax",),
    "PIL": ("tfpipe.images", "tfpipe.cli"),
    "pyarrow": ("beam_jobs.inputs.table", "beam_jobs.plan.image_table"),
    "dask": ("beam_jobs.runners.dask",),
    "matplotlib": ("tfpipe.profiler.report.charts",),
    "jinja2": ("tfpipe.profiler.report.html",),
    "tensorflow_datasets": (),
}


@dataclass(frozen=True)
class Import:
    """One imported module.

    Attributes:
        name: In full.
        line: Where.
        at_load: It runs when the module loads: not in a function, not for type checkers only.
    """

    name: str
    line: int
    at_load: bool


@dataclass(frozen=True)
class Module:
    name: str
    path: Path

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, str(self.path))

    @cached_property
    def package(self) -> str:
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]


class House:
    """All modules of a source tree, and what is wrong with them."""

    def __init__(self, root: Path) -> None:
        self.modules: dict[str, Module] = {}
        for package in PACKAGES:
            for path in sorted((root / package).rglob("*.py")):
                parts = path.relative_to(root).with_suffix("").parts
                name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
                self.modules[name] = Module(name, path)

    def imports(self, module: Module) -> list[Import]:
        return list(self._walk(module, module.tree.body, at_load=True))

    def _walk(self, module: Module, nodes: list[ast.stmt] | list[ast.AST], at_load: bool) -> Iterator[Import]:
        for node in nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield Import(alias.name, node.lineno, at_load)
            elif isinstance(node, ast.ImportFrom):
                for name in self._from(module, node):
                    yield Import(name, node.lineno, at_load)
            elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                yield from self._walk(module, node.body, at_load=False)
                yield from self._walk(module, node.orelse, at_load)
            else:
                within = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                yield from self._walk(module, list(ast.iter_child_nodes(node)), at_load and not within)
                if loaded := _loaded_by_name(node):
                    yield Import(loaded, node.lineno, at_load)  # type: ignore[attr-defined]

    def _from(self, module: Module, node: ast.ImportFrom) -> Iterator[str]:
        """`from a import b` is about a.b where that is a module of ours, else about a."""
        base = node.module or ""
        if node.level:
            above = module.package.split(".")
            base = ".".join(above[: len(above) - node.level + 1] + ([base] if base else []))
        for alias in node.names:
            full = f"{base}.{alias.name}"
            yield full if full in self.modules or (base in PACKAGES and full in FLOORS) else base

    def all_imports(self) -> Iterator[tuple[Module, Import]]:
        for module in self.modules.values():
            for one in self.imports(module):
                yield module, one

    # Each check returns sentences; none is good.

    def homeless(self) -> list[str]:
        return [
            f"{name} has no floor: give it a line in FLOORS at the top of {Path(__file__).name}."
            for name in self.modules
            if floor_of(name) is None
        ]

    def upward(self) -> list[str]:
        found = []
        for module, one in self.all_imports():
            here, there = floor_of(module.name), floor_of(one.name)
            if here is None or there is None or there < here:
                continue
            if there > here or (
                room_of(module.name) != room_of(one.name) and not are_neighbours(module.name, one.name)
            ):
                found.append(f"{at(module, one.line)} {module.name} (floor {here}) imports {one.name} (floor {there}).")
        return found

    def meetings(self) -> list[str]:
        found = []
        for module, one in self.all_imports():
            for left, right in APART:
                if lies_in(module.name, left) and lies_in(one.name, right):
                    found.append(f"{at(module, one.line)} {left} and {right} meet in what lies below them only.")
            if lies_in(one.name, "beam_jobs") and not any(lies_in(module.name, name) for name in NAMES_BEAM_JOBS):
                found.append(f"{at(module, one.line)} only tfpipe.cli names beam_jobs.")
        return found

    def heavy(self) -> list[str]:
        found = []
        for module, one in self.all_imports():
            library = one.name.split(".")[0]
            if library in HEAVY and not any(lies_in(module.name, allowed) for allowed in HEAVY[library]):
                found.append(f"{at(module, one.line)} {module.name} may not import {library}.")
        return found

    def cycles(self) -> list[str]:
        """Depth first; a module met again while it is still open closes a circle."""
        edges = {
            name: sorted({one.name for one in self.imports(module) if one.at_load and one.name in self.modules})
            for name, module in self.modules.items()
        }
        found: list[str] = []
        path: list[str] = []
        done: set[str] = set()

        def visit(name: str) -> None:
            if name in path:
                found.append(" -> ".join([*path[path.index(name) :], name]))
            elif name not in done:
                path.append(name)
                for target in edges[name]:
                    visit(target)
                done.add(path.pop())

        for name in edges:
            visit(name)
        return found

    def prints(self) -> list[str]:
        return [
            f"{at(module, node.lineno)} no print in the library: log, or let the command line render."
            for module in self.modules.values()
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
        ]

    def environment(self) -> list[str]:
        names = {"environ", "environb", "getenv", "getenvb"}
        found = []
        for module in self.modules.values():
            if lies_in(module.name, "tfpipe.cli"):
                continue
            for node in ast.walk(module.tree):
                by_attribute = isinstance(node, ast.Attribute) and node.attr in names
                by_import = isinstance(node, ast.ImportFrom) and node.module == "os"
                if by_attribute or (by_import and names & {alias.name for alias in node.names}):  # type: ignore[attr-defined]
                    found.append(f"{at(module, node.lineno)} the environment is read in tfpipe.cli only.")  # type: ignore[attr-defined]
        return found

    def drawers(self) -> list[str]:
        return [
            f"{module.path}: say what is in it; `utils` says nothing."
            for module in self.modules.values()
            if module.path.stem in {"util", "utils"}
        ]


CHECKS = (
    House.homeless,
    House.upward,
    House.meetings,
    House.heavy,
    House.cycles,
    House.prints,
    House.environment,
    House.drawers,
)


def lies_in(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def floor_of(name: str) -> int | None:
    """The floor of a module of ours, or of what it imports; None for the rest of the world."""
    if name in FLOORS:
        return FLOORS[name]
    known = [entry for entry in FLOORS if "." in entry and lies_in(name, entry)]
    return FLOORS[max(known, key=len)] if known else None


def room_of(name: str) -> str:
    """The package inside which imports may run sideways: `beam_jobs` as a whole, or one below `tfpipe`."""
    parts = name.split(".")
    return "beam_jobs" if parts[0] == "beam_jobs" else ".".join(parts[:2])


def are_neighbours(left: str, right: str) -> bool:
    return any(lies_in(left, a) and lies_in(right, b) for a, b in NEIGHBOURS)


def at(module: Module, line: int) -> str:
    return f"{module.path}:{line}:"


def _loaded_by_name(node: ast.AST) -> str | None:
    """`import_module("tensorflow")` and `__import__("tensorflow")` are imports too."""
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        function = ast.unparse(node.func).rpartition(".")[2]
        if function in {"import_module", "__import__"} and isinstance(node.args[0].value, str):
            return node.args[0].value
    return None


@pytest.fixture(scope="module")
def house() -> House:
    return House(REPOSITORY)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_source_keeps_the_rule(house: House, check) -> None:
    assert len(house.modules) > 20
    found = check(house)
    assert not found, "\n" + "\n".join(found)


def test_every_line_of_the_tables_has_a_floor() -> None:
    named = {name for pair in (*APART, *NEIGHBOURS) for name in pair}
    named |= {name for allowed in HEAVY.values() for name in allowed}
    assert not [name for name in named if floor_of(name) is None]


CLEAN = {
    "tfpipe/__init__.py": "from tfpipe._version import __version__\n",
    "tfpipe/_version.py": "__version__ = '0'\n",
    "tfpipe/__main__.py": "from tfpipe.cli.main import main\n",
    "tfpipe/cli/main.py": "import os\nfrom beam_jobs.config import A\nHOME = os.environ['HOME']\n",
    "tfpipe/errors.py": "",
    "tfpipe/format/__init__.py": "from tfpipe.format.tfrecord import scan\n",
    "tfpipe/format/tfrecord.py": "from tfpipe.errors import FormatError\n\ndef scan(): ...\n",
    "tfpipe/images/jpeg.py": "from PIL import Image\nfrom tfpipe.images import png\n",
    "tfpipe/images/png.py": "",
    "tfpipe/pipeline/config/pipeline_config.py": "",
    "tfpipe/pipeline/stage.py": "import tensorflow as tf\nfrom tfpipe.pipeline.config.pipeline_config import A\n",
    "tfpipe/profiler/measure/profile.py": "import tensorflow as tf\nfrom tfpipe.pipeline import stage\n",
    "beam_jobs/config.py": "from tfpipe.errors import ConfigError\n",
    "beam_jobs/storage/filesystem.py": "def f():\n    import apache_beam\n",
    "beam_jobs/shard_job.py": "import apache_beam as beam\nfrom beam_jobs.storage import filesystem\n",
}

PLANTED = [
    ("homeless", {"tfpipe/new.py": ""}, "tfpipe.new has no floor"),
    ("homeless", {"beam_jobs/new.py": ""}, "beam_jobs.new has no floor"),
    ("upward", {"tfpipe/errors.py": "from tfpipe.images.png import a\n"}, "tfpipe.images.png (floor 1)"),
    (
        "upward",
        {"tfpipe/images/png.py": "def f():\n    from tfpipe import pipeline\n"},
        "tfpipe.pipeline (floor 2)",
    ),
    ("upward", {"tfpipe/images/png.py": "from tfpipe.order import a\n"}, "tfpipe.order (floor 1)"),
    (
        "upward",
        {"tfpipe/images/png.py": "from ..pipeline import stage\n"},
        "tfpipe.pipeline.stage (floor 2)",
    ),
    ("upward", {"tfpipe/images/png.py": "from tfpipe import Manifest\n"}, "imports tfpipe (floor 4)"),
    (
        "upward",
        {"tfpipe/pipeline/config/pipeline_config.py": "from .. import stage\n"},
        "tfpipe.pipeline.stage (floor 2)",
    ),
    ("upward", {"beam_jobs/config.py": "import beam_jobs.inputs.folder\n"}, "beam_jobs.inputs.folder (floor 2)"),
    ("upward", {"tfpipe/profiler/a.py": "import tfpipe.training.loop\n"}, "tfpipe.training.loop (floor 3)"),
    (
        "upward",
        {"tfpipe/errors.py": "if TYPE_CHECKING:\n    import tfpipe.order\n"},
        "tfpipe.order (floor 1)",
    ),
    (
        "meetings",
        {"tfpipe/profiler/a.py": "def f():\n    import beam_jobs.config\n"},
        "only tfpipe.cli names beam_jobs",
    ),
    ("meetings", {"tfpipe/pipeline/stage.py": "import beam_jobs.config\n"}, "tfpipe.pipeline and beam_jobs"),
    (
        "meetings",
        {"beam_jobs/storage/filesystem.py": "from tfpipe.pipeline.config.pipeline_config import A\n"},
        "beam_jobs and tfpipe.pipeline",
    ),
    ("heavy", {"tfpipe/profiler/diagnose/fixes.py": "import tensorflow\n"}, "may not import tensorflow"),
    (
        "heavy",
        {"tfpipe/pipeline/config/pipeline_config.py": "def f():\n    from tensorflow import io\n"},
        "may not import tensorflow",
    ),
    ("heavy", {"beam_jobs/config.py": "import apache_beam.io\n"}, "may not import apache_beam"),
    ("heavy", {"tfpipe/format/tfrecord.py": "from PIL import Image\n"}, "may not import PIL"),
    (
        "heavy",
        {"beam_jobs/storage/filesystem.py": "import importlib\nimportlib.import_module('torch')\n"},
        "may not import torch",
    ),
    (
        "cycles",
        {"tfpipe/images/png.py": "from tfpipe.images import jpeg\n"},
        "tfpipe.images.png -> tfpipe.images.jpeg",
    ),
    (
        "cycles",
        {"tfpipe/format/tfrecord.py": "from tfpipe.format import scan\n"},
        "tfpipe.format -> tfpipe.format.tfrecord",
    ),
    ("prints", {"tfpipe/cli/main.py": "print('a')\n"}, "no print"),
    ("environment", {"tfpipe/order.py": "import os\nA = os.environ.get('A')\n"}, "the environment"),
    ("environment", {"beam_jobs/process_pool.py": "from os import getenv\n"}, "the environment"),
    ("drawers", {"tfpipe/format/utils.py": ""}, "utils"),
]


def build(root: Path, files: dict[str, str]) -> House:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return House(root)


def test_a_clean_tree_passes(tmp_path: Path) -> None:
    clean = build(tmp_path, CLEAN)
    assert {check.__name__: check(clean) for check in CHECKS} == {check.__name__: [] for check in CHECKS}


@pytest.mark.parametrize(("check", "planted", "sentence"), PLANTED, ids=lambda value: str(value)[:60])
def test_a_planted_violation_is_found(tmp_path: Path, check: str, planted: dict[str, str], sentence: str) -> None:
    found = getattr(build(tmp_path, CLEAN | planted), check)()
    assert any(sentence in one for one in found), found


@pytest.mark.parametrize(
    "late",
    [
        "def f():\n    from tfpipe.images import jpeg\n",
        "if TYPE_CHECKING:\n    from tfpipe.images import jpeg\n",
    ],
)
def test_what_is_imported_later_closes_no_circle(tmp_path: Path, late: str) -> None:
    assert not build(tmp_path, CLEAN | {"tfpipe/images/png.py": late}).cycles()
