"""The versions of installed packages, found without loading them."""

from collections.abc import Iterable
from importlib import metadata

TENSORFLOW = ("tensorflow", "tensorflow-cpu", "tf-nightly", "tensorflow-tpu", "keras", "libtpu")
"""The packages that hold TensorFlow or belong to it."""

LIBRARIES = (
    *TENSORFLOW,
    *("apache-beam", "pyarrow", "obstore", "boto3"),
    *("torch", "jax", "jaxlib", "numpy", "pillow", "google-crc32c"),
)
"""The packages whose version may change what tfpipe does."""


def get_version(package: str) -> str | None:
    """Returns the version of an installed package; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def get_versions(packages: Iterable[str]) -> dict[str, str]:
    """Returns the version of each of the packages that is installed."""
    versions = {package: get_version(package) for package in packages}
    return {package: version for package, version in versions.items() if version is not None}
