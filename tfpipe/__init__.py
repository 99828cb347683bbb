"""Images in, TFRecord shards out, a tuned input pipeline, and a profiler that says why the accelerator waits.

A name loads its module at its first use, so `import tfpipe` loads neither TensorFlow nor Beam.
"""

import re
from importlib import import_module
from pathlib import Path

from tfpipe._version import __version__
from tfpipe.system import notebook
from tfpipe.system.extras import importing

# The stub beside this file says to type checkers, and here, in which module each name is.
_STUB = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
_MODULES = {name: module for module, name in re.findall(r"^from (tfpipe\.\S+) import ([A-Za-z]\w*) as ", _STUB, re.M)}

__all__ = ["__version__", "fields", *sorted(_MODULES)]


def __getattr__(name: str) -> object:
    if name == "fields":  # a module, with the kinds of values for `tfpipe.write`
        return import_module("tfpipe.fields")
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with importing(f"`tfpipe.{name}`", "TensorFlow", "tfpipe[tensorflow]"):  # readers name their own
        value = globals()[name] = getattr(import_module(module), name)  # the next access does not come here
    return value


def _draw_for_notebook(shown: object) -> str | None:
    from tfpipe.readers.thumbnails import draw_for_notebook

    return draw_for_notebook(shown)


notebook.draw = _draw_for_notebook


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
