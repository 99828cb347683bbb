"""What every Python that a test starts does first: it keeps TensorFlow and Keras from loading what no test needs.

They look for JAX and matplotlib as they load, and TensorFlow loads Keras, which takes a third of the time. Everybody
else can load them, and `tf.keras` does when it is first used. Garbage is collected more rarely, since loading makes
much that is no garbage.
"""

import gc
import os
import re
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

_NOT_NEEDED_BY = {
    "jax": re.compile(r"(tensorflow|keras)\..*"),
    "matplotlib": re.compile(r"(tensorflow|keras)\..*"),
    "keras": re.compile("tensorflow"),  # itself, as it ends loading: not what loads `tf.keras` later
}
"""The modules that ask for a package that they can do without, by the package."""

if os.environ.get("KERAS_BACKEND") == "jax":
    del _NOT_NEEDED_BY["jax"]

gc.set_threshold(50_000)


class _Refuse:
    """Refuses packages to the modules that can do without them."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name in _NOT_NEEDED_BY:
            frame = sys._getframe(1)
            while frame is not None and "importlib" in frame.f_code.co_filename:
                frame = frame.f_back
            if frame is not None and _NOT_NEEDED_BY[name].fullmatch(frame.f_globals.get("__name__", "")):
                raise ModuleNotFoundError(f"No module named {name!r} for TensorFlow and Keras", name=name)
        return None


sys.meta_path.insert(0, _Refuse())
