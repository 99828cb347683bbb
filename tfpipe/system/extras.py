"""Optional packages: a missing one is named together with the extra of tfpipe that installs it."""

import contextlib
import importlib.util
from collections.abc import Iterable, Iterator

from tfpipe.errors import MissingDependencyError

_PLACE, _WHERE = ".", " in a checkout of tfpipe"
"""The words for what pip installs, and where: "tfpipe" and "" once tfpipe is released. A test compares the docs."""

TENSORFLOW = ("tensorflow", "tensorflow-cpu", "tf-nightly", "tensorflow-tpu", "keras", "libtpu")
"""The packages that hold TensorFlow or belong to it."""

LIBRARIES = (
    *TENSORFLOW,
    *("apache-beam", "pyarrow", "obstore", "boto3"),
    *("torch", "jax", "jaxlib", "numpy", "pillow", "google-crc32c"),
)
"""The packages whose version may change what tfpipe does."""


@contextlib.contextmanager
def importing(user: str, package: str, requirement: str) -> Iterator[None]:
    """Turns an `ImportError` of the block into a `MissingDependencyError`, which says what to install.

    `user` is the part of tfpipe that needs the package, and `requirement` the argument for `pip install`.
    """
    try:
        yield
    except MissingDependencyError:
        raise
    except ImportError as error:
        raise _missing(user, package, requirement) from error


def check_installed(module: str, user: str, package: str, requirement: str) -> None:
    """Checks that a module is installed, without loading it; the other arguments are those of `importing`."""
    if importlib.util.find_spec(module) is None:
        raise _missing(user, package, requirement)


def name_install(requirement: str) -> str:
    """Returns the command that installs a requirement such as "tfpipe[beam]", and says where to run it."""
    own = requirement.removeprefix("tfpipe")
    return f"pip install '{requirement}'" if own == requirement else f"pip install '{_PLACE}{own}'{_WHERE}"


def _missing(user: str, package: str, requirement: str) -> MissingDependencyError:
    return MissingDependencyError(f"{user} needs {package}. Install it with: {name_install(requirement)}.")


def get_versions(packages: Iterable[str]) -> dict[str, str]:
    """Returns the versions of those packages that are installed."""
    from importlib import metadata  # takes more time than the rest of `import tfpipe`

    versions: dict[str, str] = {}
    for package in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return versions
