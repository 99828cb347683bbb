"""The workflows, the forms for issues and the citation file: valid, and true of what is in the repository."""

import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT
from tests.docs.pages import find_links
from tfpipe import __version__
from tfpipe.cli.main import tfpipe as commands
from tfpipe.engine.config import toml_json

GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS = sorted(path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
PROJECT = toml_json.read(ROOT / "pyproject.toml")["project"]

# Programs of the runners' systems, and what `pip install build` and `pip install uv` bring.
SYSTEM = {"apt-get", "sudo", "uv"}
MODULES = {"build", "mypy", "pip", "pytest", "ruff", "sphinx", "venv"}


def read_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def check_command(line: str) -> list[str]:
    """Returns a sentence for each part of a shell line that is not there."""
    faults = []
    for command in re.split(r" && ", line):
        program, *words = shlex.split(command)
        if program == "tfpipe" or program.endswith("/tfpipe"):
            name = next((word for word in words if not word.startswith("-")), None)
            if name is not None and name not in commands.modules:
                faults.append(f"tfpipe has no command {name!r}.")
        elif program in ("python", "python3"):
            if words[0] != "-m" or words[1] not in MODULES:
                faults.append(f"python {words[0]} {words[1]} is not known.")
        elif "/" in program and not program.startswith("/tmp/"):
            if not os.access(ROOT / program, os.X_OK):
                faults.append(f"{program} is not a program of the repository.")
        elif program not in SYSTEM and not program.startswith("/tmp/"):
            faults.append(f"{program} is not known.")
        paths = [word for word in words if re.fullmatch(r"(\./)?(tests|docs|sample_data)(/[\w./-]+)?", word)]
        faults += [f"{path} is not there." for path in paths if not (ROOT / path).exists()]
        faults += [
            f"tfpipe has no extra {extra!r}."
            for extras in re.findall(r"\.\[([\w,-]+)\]", command)
            for extra in extras.split(",")
            if extra not in PROJECT["optional-dependencies"]
        ]
    return faults


def test_a_wrong_command_is_found() -> None:
    for line, faults in {
        "python -m pytest tests/none": ["tests/none is not there."],
        "python -m pip install '.[test,nothing]'": ["tfpipe has no extra 'nothing'."],
        "tfpipe reports": ["tfpipe has no command 'reports'."],
        ".ci/build_wheel dist": [".ci/build_wheel is not a program of the repository."],
        "python -m nothing && make": ["python -m nothing is not known.", "make is not known."],
    }.items():
        assert check_command(line) == faults


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_is_whole_runs_what_exists_and_takes_only_rights_that_it_needs(workflow: Path) -> None:
    document = read_yaml(workflow)
    assert document["name"] == workflow.stem
    assert document[True]  # YAML reads the key `on` as true
    assert document["permissions"] == {"contents": "read"}
    for name, job in document["jobs"].items():
        assert job["timeout-minutes"] <= (180 if name == "slow" else 60), name
        needs = job.get("needs", [])
        assert ({needs} if isinstance(needs, str) else set(needs)) <= set(document["jobs"]), name
        for key, right in job.get("permissions", {}).items():
            assert (key, right) in {("pages", "write"), ("id-token", "write")}, name
            assert "if" in job, name  # a pull request publishes nothing
        for step in job["steps"]:
            assert ("run" in step) != ("uses" in step), name
            assert re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|release/v1)", step.get("uses", "a/b@v1")), name
            assert "secrets." not in str(step), name
            assert [fault for line in step.get("run", "").splitlines() for fault in check_command(line)] == [], name


def test_every_python_and_both_ends_of_tensorflow_are_tested() -> None:
    matrix = read_yaml(GITHUB / "workflows" / "tests.yml")["jobs"]["tests"]["strategy"]["matrix"]
    pythons = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)]
    assert matrix["python"] == pythons
    resolved = read_yaml(GITHUB / "workflows" / "tests.yml")["jobs"]["resolve"]["strategy"]["matrix"]["python"]
    assert resolved == pythons
    (oldest,) = (line.partition(">=")[2] for line in PROJECT["optional-dependencies"]["tensorflow"])
    assert {case["tensorflow"] for case in matrix["include"]} == {"tensorflow", f"tensorflow=={oldest}.*"}
    may_fail = {case["os"] for case in matrix["include"] if case["may-fail"]}
    assert (may_fail, matrix["may-fail"]) == ({"macos-latest"}, [False])


def test_the_forms_ask_for_what_a_maintainer_needs() -> None:
    assert [form.stem for form in FORMS] == ["bug", "slow", "wish"]
    for form in FORMS:
        document = read_yaml(form)
        assert {"name", "description", "labels", "body"} == set(document)
        fields = [field for field in document["body"] if field["type"] != "markdown"]
        ids = [field["id"] for field in fields]
        assert len(set(ids)) == len(ids)
        assert all(field["attributes"]["label"] for field in fields)
        if form.stem != "wish":
            (report,) = (field for field in fields if field["id"] == "report")
            assert "`tfpipe --version --json`" in report["attributes"]["label"]
            assert report["validations"]["required"] is True
        for name in re.findall(r"`tfpipe (\w+)", form.read_text(encoding="utf-8")):
            assert name in commands.modules


def test_dependabot_watches_what_is_there() -> None:
    folders = {"docker": "Dockerfile*", "github-actions": ".github/workflows/*.yml", "pip": "pyproject.toml"}
    for update in read_yaml(GITHUB / "dependabot.yml")["updates"]:
        pattern = folders[update["package-ecosystem"]]
        assert list((ROOT / update["directory"].strip("/")).glob(pattern)), update


def test_the_citation_names_this_version() -> None:
    citation = read_yaml(ROOT / "CITATION.cff")
    assert (citation["cff-version"], citation["title"], citation["type"]) == ("1.2.0", "tfpipe", "software")
    assert (citation["version"], citation["license"]) == (__version__, PROJECT["license"])


@pytest.mark.parametrize("page", ["SECURITY.md", "CODE_OF_CONDUCT.md", ".github/PULL_REQUEST_TEMPLATE.md"])
def test_the_pages_for_contributors_name_what_exists(page: str) -> None:
    path = ROOT / page
    for link in find_links(path):
        assert (path.parent / link.partition("#")[0]).exists(), link
    for word in re.findall(r"`([\w./-]+(?:\.sh|\.md|/\w+))`", path.read_text(encoding="utf-8")):
        assert (ROOT / word).exists(), word
