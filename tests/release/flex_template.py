"""The program of the Flex Template, which is not part of a package."""

import importlib.util
from types import ModuleType

from tests.conftest import ROOT

PROGRAM = ROOT / "containers" / "flex_template.py"


def load_flex_template() -> ModuleType:
    spec = importlib.util.spec_from_file_location("flex_template", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
