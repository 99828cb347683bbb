"""The images and the Flex Template: what they name exists, and the template's parameters become a valid command."""

import fnmatch
import json
import re
import runpy
from pathlib import Path

import click
import pytest
import yaml

from tests.beam_jobs.commands import run_python
from tests.conftest import ROOT
from tfpipe.cli.main import tfpipe as commands
from tfpipe.engine.config import toml_json

CONTAINERS = ROOT / "containers"
DOCKERFILES = sorted(CONTAINERS.glob("*.Dockerfile"))
TEMPLATE = json.loads((CONTAINERS / "flex_template.json").read_text(encoding="utf-8"))
PROGRAM = CONTAINERS / "flex_template.py"
make_command = runpy.run_path(str(PROGRAM))["make_command"]
INSTRUCTIONS = set("ARG CMD COPY ENTRYPOINT ENV FROM RUN SHELL USER WORKDIR".split())


def read_instructions(path: Path) -> list[tuple[str, str]]:
    text = re.sub(r"^#.*\n", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in lines if line)]


def is_sent(path: str) -> bool:
    """Whether .dockerignore lets a path of the repository into the build."""
    sent = True
    for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            pattern = line.removeprefix("!")
            names = [path, *map(str, Path(path).parents)][: len(Path(path).parts)]
            if pattern.startswith("**/"):
                pattern, names = pattern.removeprefix("**/"), [*Path(path).parts]
            if any(fnmatch.fnmatch(name, pattern) for name in names):
                sent = line.startswith("!")
    return sent


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_a_dockerfile_names_what_exists(path: Path) -> None:
    instructions = read_instructions(path)
    names = {name for name, _ in instructions}
    assert names <= INSTRUCTIONS
    assert {"FROM", "ENTRYPOINT"} <= names
    stages = [rest.split(" AS ")[1] for name, rest in instructions if name == "FROM" and " AS " in rest]
    for name, rest in instructions:
        if name in ("ENTRYPOINT", "CMD", "SHELL"):
            assert isinstance(json.loads(rest), list)
        if name == "COPY" and (stage := re.match(r"--from=(\S+)", rest)):
            assert stage[1] in stages
        elif name == "COPY":
            for source in rest.split()[:-1]:
                assert source == "." or ((ROOT / source).is_file() and is_sent(source)), source
    extras = set(toml_json.read(ROOT / "pyproject.toml")["project"]["optional-dependencies"])
    named = re.findall(r"(?:\.|/source)\[([\w,]+)\]", path.read_text(encoding="utf-8"))
    assert named
    assert {extra for group in named for extra in group.split(",")} <= extras


def test_what_the_package_is_built_from_is_sent_and_nothing_else() -> None:
    needed = ["pyproject.toml", "README.md", "LICENSE", "tfpipe/__init__.py", "beam_jobs/graph.py"]
    native = ["hatch_build.py", "tfpipe/native/csrc/crc32c.c", "tfpipe/native/csrc/tfpipe_native.h"]
    assert [path for path in needed + native if not is_sent(path) or not (ROOT / path).exists()] == []
    left_out = [
        *(".git/config", "tests/conftest.py", "tfpipe/__pycache__/x.pyc", ".venv/bin/python"),
        *("docs/conf.py", "tfpipe/native/x.so"),
    ]
    assert [path for path in left_out if is_sent(path)] == []


def test_the_image_has_a_beam_that_pyproject_allows() -> None:
    (version,) = re.findall(r"^ARG BEAM=(\S+)$", (CONTAINERS / "dataflow.Dockerfile").read_text(), re.MULTILINE)
    (oldest,) = (
        line.partition(">=")[2]
        for line in toml_json.read(ROOT / "pyproject.toml")["project"]["optional-dependencies"]["beam"]
        if line.startswith("apache-beam>=")
    )
    oldest_numbers, numbers = (tuple(map(int, text.split("."))) for text in (oldest, version))
    assert oldest_numbers <= numbers


def test_each_parameter_is_an_option_with_a_pattern_that_is_valid() -> None:
    assert set(TEMPLATE) == {"name", "description", "parameters"}
    names = {param.name for param in commands.get_command(None, "shard").params}
    for parameter in TEMPLATE["parameters"]:
        assert parameter["name"] in names
        assert (
            {"name", "label", "helpText"}
            <= set(parameter)
            <= {*("name", "label", "helpText", "isOptional", "regexes", "paramType")}
        )
        for pattern in parameter.get("regexes", []):
            re.compile(pattern)
    required = [parameter["name"] for parameter in TEMPLATE["parameters"] if not parameter.get("isOptional")]
    assert required == ["input", "output"]


def test_the_parameters_become_a_command() -> None:
    given = ["--input=gs://in", "--project=p", "--output=gs://out", "--resize_short=256", "--square=", "--runner=R"]
    words = make_command(given)
    assert words == [*("shard", "gs://in", "gs://out", "--resize-short=256", "--", "--project=p", "--runner=R")]
    with click.Context(commands.get_command(None, "shard")) as context:
        options, _, _ = commands.get_command(None, "shard").make_parser(context).parse_args(words[1:5])
    assert options["resize_short"] == "256"
    values = {"splits": "train=1", "num_shards": "4", "encoding": "raw", "square": "8", "seed": "1", "max_bad": "1%"}
    every = make_command([f"--{name}={value}" for name, value in values.items()])
    assert every[3:-1] == [f"--{name.replace('_', '-')}={value}" for name, value in values.items()]


def test_an_image_for_the_workers_is_used_as_it_is() -> None:
    words = make_command(["--input=a", "--output=b", "--sdk_container_image=registry/image"])
    assert words == [*("shard", "a", "b", "--"), *("--sdk_container_image=registry/image", "--sdk_location=container")]


@pytest.mark.slow
def test_the_program_runs_as_the_launcher_starts_it(tmp_path: Path) -> None:
    """On this machine, since no parameter names Dataflow."""
    arguments = [f"--input={ROOT / 'sample_data'}", f"--output={tmp_path / 'out'}", "--square=32", "--encoding=raw"]
    done = run_python(PROGRAM, *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[0] == "150 images, 575.2 KB, 1 shard (train)"  # a slow machine adds its progress
    assert done.stdout.splitlines()[0].startswith("train: 149 records, 1 shard")


def test_workers_on_kubernetes_fit_each_other_and_the_command() -> None:
    service, workers = yaml.safe_load_all((CONTAINERS / "kubernetes.yaml").read_text(encoding="utf-8"))
    spec, labels = workers["spec"], {"app": "tfpipe-worker"}
    assert service["spec"]["selector"] == spec["selector"]["matchLabels"] == labels
    assert spec["template"]["metadata"]["labels"] == labels
    assert (service["spec"]["clusterIP"], spec["serviceName"]) == ("None", service["metadata"]["name"])
    (container,) = spec["template"]["spec"]["containers"]
    (port,) = service["spec"]["ports"]
    assert container["ports"] == [{"name": port["targetPort"], "containerPort": port["port"]}]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["tcpSocket"] == {"port": port["targetPort"]}
    command, *arguments = container["command"][1:]
    assert commands.get_command(None, command).make_context(command, arguments).params["port"] == port["port"] == 5050


@pytest.mark.slow
def test_the_schemas_of_kubernetes_accept_the_workers() -> None:
    validate = pytest.importorskip("kubernetes_validate")
    for document in yaml.safe_load_all((CONTAINERS / "kubernetes.yaml").read_text(encoding="utf-8")):
        validate.validate(document, validate.latest_version(), strict=True)
