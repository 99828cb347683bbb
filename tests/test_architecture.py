"""The rules that keep the modules in order, checked by reading the source.

`python tests/test_architecture.py` prints the table of floors that the page about the architecture shows.
"""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TypeGuard

import pytest

REPOSITORY = Path(__file__).parent.parent
PACKAGES = ("tfpipe", "beam_jobs")

# Imports run downwards, or sideways inside a room: one package below `tfpipe`, or `beam_jobs` as a whole. A module
# belongs to the longest name here that is its own or a package around it, so a new file in a folder needs no line.
# `tfpipe` and `beam_jobs` stand for their `__init__` alone.
FLOORS = {
    4: ("tfpipe", "tfpipe.__main__", "tfpipe.cli", "beam_jobs.__main__"),
    3: (
        *("tfpipe.distribution", "tfpipe.export", "tfpipe.profiler", "tfpipe.training", "tfpipe.views"),
        *("tfpipe.columns", "tfpipe.layers", "tfpipe.lookups", "beam_jobs", "beam_jobs.append_job"),
        *("beam_jobs.graph", "beam_jobs.opaque_job", "beam_jobs.read_records", "beam_jobs.write_records"),
        *("beam_jobs.part_job", "beam_jobs.runners", "beam_jobs.shard_job"),
    ),
    2: (
        *("tfpipe.integrity", "tfpipe.pipeline", "tfpipe.readers", "tfpipe.service"),
        *("beam_jobs.estimate", "beam_jobs.inputs", "beam_jobs.plan", "beam_jobs.shards"),
    ),
    1: (
        *("tfpipe.engine", "tfpipe.images", "tfpipe.dataset", "tfpipe.writer", "tfpipe.fields"),
        *("beam_jobs.config", "beam_jobs.process_pool"),
        "beam_jobs.job_stores",
    ),
    0: ("tfpipe._version", "tfpipe.errors", "tfpipe.format", "tfpipe.native", "tfpipe.storage", "tfpipe.system"),
}

# Rooms on one floor of which the left may import the right.
NEIGHBORS = {
    ("tfpipe.format", "tfpipe.errors"),
    ("tfpipe.format", "tfpipe.system"),  # its options
    ("tfpipe.system", "tfpipe.errors"),
    ("tfpipe.native", "tfpipe.errors"),
    ("tfpipe.storage", "tfpipe.errors"),
    ("tfpipe.storage", "tfpipe.system"),  # what to install
    ("tfpipe.__main__", "tfpipe.cli"),
    ("beam_jobs.__main__", "tfpipe.cli"),
    ("tfpipe.readers", "tfpipe.service"),  # their batches may come from its workers
    ("tfpipe.pipeline", "tfpipe.service"),
    ("tfpipe.engine", "tfpipe.images"),
    ("tfpipe.engine", "tfpipe.dataset"),
    ("tfpipe.writer", "tfpipe.images"),
    ("tfpipe.writer", "tfpipe.dataset"),
    ("tfpipe.writer", "tfpipe.fields"),
    ("tfpipe.layers", "tfpipe.views"),  # names are looked up in the same record info
    ("tfpipe.columns", "tfpipe.views"),  # a table is joined with the record info that conditions ask for
    ("tfpipe.training", "tfpipe.lookups"),  # a run notes what decides its batches
    ("tfpipe.training", "tfpipe.distribution"),  # the trainer runs under a strategy
    ("tfpipe.training", "tfpipe.profiler"),  # and measures its idle time
}

# Rooms that never import each other, whatever their floors: the left one does not import the right one.
APART = (
    ("tfpipe.pipeline", "beam_jobs"),
    ("beam_jobs", "tfpipe.engine"),
    ("beam_jobs", "tfpipe.pipeline"),
    ("beam_jobs", "tfpipe.readers"),
    ("beam_jobs", "tfpipe.integrity"),
)
# Imports between rooms apart that have a reason: records with their columns and views are read in one place.
ALLOWED = (
    ("beam_jobs.read_records", "tfpipe.engine.record_reader"),
    ("beam_jobs.shards.dataset_records", "tfpipe.engine.record_reader"),
)
IMPORT_BEAM_JOBS = ("tfpipe.cli", "beam_jobs")

# The second: the address of an emulator stands in a variable of Google's, which its own library would read.
READ_THE_ENVIRONMENT = ("tfpipe.cli", "tfpipe.storage.buckets")

# Libraries that cost seconds or hundreds of megabytes, or that are extras, and the modules that may import them. These
# do it in a function where the command line or a Beam worker could do without; tests/test_imports.py measures that.
HEAVY = {
    "tensorflow": (
        *("tfpipe.cli.doctor_run", "tfpipe.distribution", "tfpipe.pipeline.build", "tfpipe.pipeline.device"),
        *("tfpipe.pipeline.stage", "tfpipe.pipeline.stages", "tfpipe.pipeline.steps", "tfpipe.pipeline.textbook"),
        *("tfpipe.profiler.live", "tfpipe.profiler.measure", "tfpipe.storage.stores", "tfpipe.training"),
    ),
    "keras": ("tfpipe.readers.keras",),
    "apache_beam": (
        *("beam_jobs.graph", "beam_jobs.read_records", "beam_jobs.write_records"),
        *("beam_jobs.job_stores", "beam_jobs.runners"),
    ),
    "torch": ("tfpipe.readers.sampler", "tfpipe.readers.torch"),
    "jax": ("tfpipe.readers.jax",),
    "PIL": ("tfpipe.images",),
    "pyarrow": (
        *("beam_jobs.inputs.parquet_images", "beam_jobs.inputs.parquet_rows", "beam_jobs.inputs.parquet_tensors"),
        *("beam_jobs.inputs.table_files", "beam_jobs.plan.image_table", "tfpipe.columns.join_table"),
        *("tfpipe.export.parquet", "tfpipe.service", "tfpipe.views.choose", "tfpipe.writer.record_info"),
    ),
    "duckdb": ("tfpipe.columns.join_table", "tfpipe.views.choose"),
    "obstore": ("tfpipe.storage",),
    "huggingface_hub": ("tfpipe.storage.hugging_face",),
    "array_record": ("tfpipe.export.run",),
    "jinja2": ("tfpipe.profiler.report.html",),
    "tensorflow_datasets": (),
}


@dataclass(frozen=True)
class Module:
    name: str
    path: Path

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(ast.parse(self.path.read_text(encoding="utf-8"), str(self.path))))

    @cached_property
    def package(self) -> str:
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]


class Source:
    """All modules of a source tree. Each check returns a sentence for every broken rule."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.modules: dict[str, Module] = {}
        for package in PACKAGES:
            for path in sorted((root / package).rglob("*.py")):
                parts = path.relative_to(root).with_suffix("").parts
                name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
                self.modules[name] = Module(name, path)

    @cached_property
    def imports(self) -> list[tuple[Module, str, int]]:
        """All imports, those in functions and for type checkers included: the module, the full name, and the line."""
        return [(module, *target) for module in self.modules.values() for target in self._read_imports(module)]

    def _read_imports(self, module: Module) -> Iterator[tuple[str, int]]:
        for node in module.nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield alias.name, node.lineno
            elif isinstance(node, ast.ImportFrom):
                for name in self._resolve(module, node):
                    yield name, node.lineno
            elif isinstance(node, ast.Call) and (name := get_name_in_call(node)):
                yield name, node.lineno

    def _resolve(self, module: Module, node: ast.ImportFrom) -> Iterator[str]:
        """Yields a.b for `from a import b` where that is a module of ours, else a."""
        base = node.module or ""
        if node.level:
            above = module.package.split(".")
            base = ".".join(above[: len(above) - node.level + 1] + ([base] if base else []))
        for alias in node.names:
            full = f"{base}.{alias.name}"
            is_module = full in self.modules or (base in PACKAGES and any(full in names for names in FLOORS.values()))
            yield full if is_module else base

    def find_modules_without_floor(self) -> list[str]:
        return [
            f"{name} has no floor: give it a line in FLOORS at the top of {Path(__file__).name}."
            for name in self.modules
            if get_floor(name) is None
        ]

    def find_upward_imports(self) -> list[str]:
        faults = []
        for module, target, line in self.imports:
            here, there = get_floor(module.name), get_floor(target)
            if here is None or there is None or there < here:
                continue
            may = get_room(module.name) == get_room(target) or any(
                lies_in(module.name, left) and lies_in(target, right) for left, right in NEIGHBORS
            )
            if there > here or not may:
                faults.append(f"{module.path}:{line}: {module.name} ({here}) imports {target} ({there}).")
        return faults

    def find_imports_between_rooms_apart(self) -> list[str]:
        faults = []
        for module, target, line in self.imports:
            for left, right in APART:
                is_allowed = (module.name, target) in ALLOWED
                if lies_in(module.name, left) and lies_in(target, right) and not is_allowed:
                    faults.append(f"{module.path}:{line}: {left} does not import {right}.")
            if lies_in(target, "beam_jobs") and not any(lies_in(module.name, name) for name in IMPORT_BEAM_JOBS):
                faults.append(f"{module.path}:{line}: only {' and '.join(IMPORT_BEAM_JOBS)} import beam_jobs.")
        return faults

    def find_heavy_imports(self) -> list[str]:
        faults = []
        for module, target, line in self.imports:
            library = target.split(".")[0]
            if library in HEAVY and not any(lies_in(module.name, allowed) for allowed in HEAVY[library]):
                faults.append(f"{module.path}:{line}: {module.name} may not import {library}.")
        return faults

    def find_circles(self) -> list[str]:
        edges: dict[str, set[str]] = {name: set() for name in self.modules}
        for module, target, _ in self.imports:
            if target in edges:
                edges[module.name].add(target)
        try:
            TopologicalSorter(edges).prepare()
        except CycleError as error:
            return [" -> ".join(reversed(error.args[1]))]
        return []

    def find_reads_of_the_environment(self) -> list[str]:
        names = {"environ", "environb", "getenv", "getenvb"}
        faults = []
        for module in self.modules.values():
            for node in [] if any(lies_in(module.name, name) for name in READ_THE_ENVIRONMENT) else module.nodes:
                is_attribute = isinstance(node, ast.Attribute) and node.attr in names
                is_import = isinstance(node, ast.ImportFrom) and node.module == "os"
                if is_attribute or (is_import and names & {alias.name for alias in node.names}):
                    faults.append(f"{module.path}:{node.lineno}: only tfpipe.cli reads the environment.")
        return faults

    def find_threads_of_arrow(self) -> list[str]:
        """Threads that still free Python's buffers when a command ends can abort it."""
        calls = [(module, node) for module in self.modules.values() for node in module.nodes if is_read_by_arrow(node)]
        return [
            f"{module.path}:{node.lineno}: Arrow reads with use_threads=False."
            for module, node in calls
            if "use_threads" not in {keyword.arg for keyword in node.keywords}
        ]

    def find_modules_named_utils(self) -> list[str]:
        return [
            f"{module.path}: name it for what is in it; `utils` says nothing."
            for module in self.modules.values()
            if module.path.stem in {"util", "utils"}
        ]


Check = Callable[[Source], list[str]]

CHECKS: list[Check] = [check for name, check in vars(Source).items() if name.startswith("find_")]


def is_read_by_arrow(node: ast.AST) -> TypeGuard[ast.Call]:
    names = {"iter_batches", "read_row_group", "read_row_groups", "read_table"}
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in names


def lies_in(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


@cache
def get_floor(name: str) -> int | None:
    """Returns the floor of one of our modules, or of a name in it; None for other libraries."""
    floors = {package: floor for floor, packages in FLOORS.items() for package in packages}
    if name in floors:
        return floors[name]
    around = [package for package in floors if package not in PACKAGES and lies_in(name, package)]
    return floors[max(around, key=len)] if around else None


def get_room(name: str) -> str:
    """Returns the package inside which imports may run sideways."""
    parts = name.split(".")
    return "beam_jobs" if parts[0] == "beam_jobs" else ".".join(parts[:2])


def get_name_in_call(node: ast.Call) -> str | None:
    """Returns "tensorflow" for `import_module("tensorflow")` and `__import__("tensorflow")`."""
    function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if function in {"import_module", "__import__"} and node.args and isinstance(node.args[0], ast.Constant):
        return str(node.args[0].value)
    return None


def render_floors() -> str:
    """Returns FLOORS as the table of the page."""
    rows = [f"| {floor} | {', '.join(f'`{name}`' for name in names)} |" for floor, names in FLOORS.items()]
    return "\n".join(["| floor | modules and packages |", "|---|---|", *rows])


@pytest.fixture(scope="module")
def source() -> Source:
    return Source(REPOSITORY)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_source_keeps_the_rule(source: Source, check: Check) -> None:
    assert len(source.modules) > 20
    faults = check(source)
    assert not faults, "\n" + "\n".join(faults)


def test_every_name_in_the_tables_is_a_module_or_a_package(source: Source) -> None:
    names = {name for packages in FLOORS.values() for name in packages}
    names |= {name for pair in (*APART, *ALLOWED, *NEIGHBORS) for name in pair}
    names |= {name for allowed in HEAVY.values() for name in allowed}
    assert names <= set(source.modules)


def test_every_exception_is_needed(source: Source) -> None:
    imports = {(module.name, target) for module, target, _ in source.imports}
    assert {(left, right) for left, right in NEIGHBORS if any_import(imports, left, right)} == NEIGHBORS
    assert imports.issuperset(ALLOWED)
    for library, packages in HEAVY.items():
        assert [package for package in packages if not any_import(imports, package, library)] == [], library


def any_import(imports: set[tuple[str, str]], left: str, right: str) -> bool:
    return any(lies_in(importer, left) and lies_in(imported, right) for importer, imported in imports)


def test_the_floors_are_shown_on_their_page() -> None:
    shown = (REPOSITORY / "docs" / "understand" / "design.md").read_text(encoding="utf-8")
    assert render_floors() in shown, f"Run `python {Path(__file__).relative_to(REPOSITORY)}` and paste what it prints."


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
    "tfpipe/engine/config/pipeline_config.py": "",
    "tfpipe/pipeline/stage.py": "import tensorflow as tf\nfrom tfpipe.engine.config.pipeline_config import A\n",
    "tfpipe/profiler/measure/profile.py": "import tensorflow as tf\nfrom tfpipe.pipeline import stage\n",
    "beam_jobs/config.py": "from tfpipe.errors import ConfigError\n",
    "beam_jobs/job_stores.py": "def f():\n    import apache_beam\n",
    "beam_jobs/graph.py": "import apache_beam as beam\nfrom beam_jobs import job_stores\n",
}

PNG, APART_CHECK = "tfpipe/images/png.py", "find_imports_between_rooms_apart"
PLANTED = [
    ("find_modules_without_floor", "tfpipe/new.py", "", "tfpipe.new has no floor"),
    ("find_modules_without_floor", "beam_jobs/new.py", "", "beam_jobs.new has no floor"),
    ("find_upward_imports", "tfpipe/errors.py", "from tfpipe.images.png import a\n", "tfpipe.images.png (1)"),
    ("find_upward_imports", PNG, "def f():\n    from tfpipe import pipeline\n", "tfpipe.pipeline (2)"),
    ("find_upward_imports", PNG, "from ..pipeline import stage\n", "tfpipe.pipeline.stage (2)"),
    ("find_upward_imports", PNG, "from tfpipe import Manifest\n", "imports tfpipe (4)"),
    ("find_upward_imports", "beam_jobs/config.py", "import beam_jobs.inputs.folder\n", "beam_jobs.inputs.folder (2)"),
    ("find_upward_imports", "tfpipe/profiler/a.py", "import tfpipe.training.train\n", "tfpipe.training.train (3)"),
    ("find_upward_imports", "tfpipe/errors.py", "if A:\n    import tfpipe.engine.order\n", "tfpipe.engine.order (1)"),
    (APART_CHECK, "tfpipe/profiler/a.py", "def f():\n    import beam_jobs.config\n", "only tfpipe.cli and beam_jobs "),
    (APART_CHECK, "beam_jobs/a.py", "from tfpipe.engine.order import A\n", "beam_jobs does not import tfpipe.engine"),
    ("find_heavy_imports", "tfpipe/engine/a.py", "def f():\n    from tensorflow import io\n", "not import tensorflow"),
    ("find_heavy_imports", "beam_jobs/config.py", "import apache_beam.io\n", "may not import apache_beam"),
    ("find_heavy_imports", "beam_jobs/config.py", "importlib.import_module('torch')\n", "may not import torch"),
    ("find_circles", PNG, "from tfpipe.images import jpeg\n", "png -> tfpipe.images.jpeg"),
    ("find_circles", "tfpipe/format/tfrecord.py", "from tfpipe.format import scan\n", "-> tfpipe.format.tfrecord"),
    ("find_circles", PNG, "def f():\n    from . import jpeg\n", "images.jpeg -> tfpipe.images.png"),
    ("find_reads_of_the_environment", "tfpipe/errors.py", "A = os.environ.get('A')\n", "reads the environment"),
    ("find_reads_of_the_environment", "tfpipe/errors.py", "from os import getenv\n", "reads the environment"),
    ("find_threads_of_arrow", "beam_jobs/config.py", "for a in b.iter_batches(9): pass\n", "use_threads=False"),
    ("find_modules_named_utils", "tfpipe/format/utils.py", "", "utils"),
]


def write_source(root: Path, files: dict[str, str]) -> Source:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Source(root)


def test_a_clean_tree_passes(tmp_path: Path) -> None:
    clean = write_source(tmp_path, CLEAN)
    assert {check.__name__: check(clean) for check in CHECKS} == {check.__name__: [] for check in CHECKS}


@pytest.mark.parametrize(("check", "path", "text", "sentence"), PLANTED, ids=lambda value: str(value)[:60])
def test_a_planted_violation_is_found(tmp_path: Path, check: str, path: str, text: str, sentence: str) -> None:
    faults = getattr(write_source(tmp_path, {**CLEAN, path: text}), check)()
    assert any(sentence in fault for fault in faults), faults


def test_every_check_has_a_planted_violation() -> None:
    assert {check for check, *_ in PLANTED} == {check.__name__ for check in CHECKS}


if __name__ == "__main__":
    print(render_floors())
