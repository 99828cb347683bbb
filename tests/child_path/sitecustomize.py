"""What every Python that a test starts does first: it keeps TensorFlow and Keras from loading JAX and matplotlib.

They look for both as they load, which takes a quarter of the time, and no test needs what they do with them. Everybody
else can load them.
"""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

_NOT_NEEDED = ("jax", "matplotlib")
_BY = ("tensorflow.", "keras.")


class _Refuse:
    """Refuses imports that come from the modules of some packages."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name in _NOT_NEEDED:
            frame = sys._getframe(1)
            while frame is not None and "importlib" in frame.f_code.co_filename:
                frame = frame.f_back
            if frame is not None and frame.f_globals.get("__name__", "").startswith(_BY):
                raise ModuleNotFoundError(f"No module named {name!r} for TensorFlow and Keras", name=name)
        return None


sys.meta_path.insert(0, _Refuse())
