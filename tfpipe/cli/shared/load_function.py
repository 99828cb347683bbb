"""`module:function` as the value of an option: a user's own change of the pipeline's stages, or a model of theirs."""

import importlib
import sys
from typing import Any

from tfpipe.errors import ConfigError


def load_function(text: str, option: str) -> Any:
    """Returns the function that `module:function` names; the module may lie in the current directory.

    Raises:
        ConfigError: There is no such module or function, or the module cannot be imported.
    """
    module_name, colon, name = text.partition(":")
    if not (module_name and colon and name.isidentifier()):
        raise ConfigError(f"{option} must be module:function, got {text!r}.")
    if "" not in sys.path:  # an installed command does not look for modules in the current directory
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise ConfigError(f"{option}: {module_name} imports {error.name}, which is not installed.") from error
        raise ConfigError(
            f"{option}: there is no module {module_name}. Run the command in the folder of the module, or install it."
        ) from None
    except Exception as error:
        raise ConfigError(f"{option}: {module_name} cannot be imported: {type(error).__name__}: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise ConfigError(f"{option}: {module_name} has no function {name}.")
    return function
