"""Hides what the extras in ONLY_EXTRAS do not install, as in an environment made by `pip install '.[EXTRAS]'`."""

import os
import re
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from types import ModuleType

from packaging.requirements import Requirement


def _name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def list_installed(name: str, extras: Sequence[str]) -> set[str]:
    """Returns the distributions that pip installs with one, and itself."""
    seen = set[tuple[str, str]]()
    waiting = [(_name(name), extra) for extra in ("", *extras)]
    while waiting:
        item = waiting.pop()
        if item in seen:
            continue
        seen.add(item)
        try:
            lines = requires(item[0]) or ()
        except PackageNotFoundError:
            continue
        for requirement in map(Requirement, lines):
            if requirement.marker is None or requirement.marker.evaluate({"extra": item[1]}):
                waiting += [(_name(requirement.name), extra) for extra in ("", *requirement.extras)]
    return {name for name, _ in seen}


class _Finder:
    """Finds what Python finds on its path, but no module of a distribution that is not installed."""

    find_distributions = staticmethod(PathFinder.find_distributions)
    invalidate_caches = staticmethod(PathFinder.invalidate_caches)

    def __init__(self, installed: set[str]) -> None:
        owners = packages_distributions()
        self._hidden = {module for module, names in owners.items() if not installed & {*map(_name, names)}}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return None if name.partition(".")[0] in self._hidden else PathFinder.find_spec(name, path, target)


if "ONLY_EXTRAS" in os.environ:
    sys.meta_path[sys.meta_path.index(PathFinder)] = _Finder(
        list_installed("tfpipe", os.environ["ONLY_EXTRAS"].split(","))
    )
