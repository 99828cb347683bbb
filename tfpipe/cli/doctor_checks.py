"""The doctor's checks of versions and of a TPU VM, and the target accelerator. This module loads no TensorFlow."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tfpipe.cli.shared.checks import Check
from tfpipe.system.options import Count, Text, check_options, option
from tfpipe.system.units import human_count

OLDEST_TENSORFLOW = (2, 18)
_ORDINARY = ("tensorflow", "tensorflow-cpu", "tf-nightly")

# With one of these variables, a process uses only some of the chips of its host.
CHIP_VARIABLES = ("TPU_CHIPS_PER_PROCESS_BOUNDS", "TPU_PROCESS_BOUNDS", "TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES")
TPU_VARIABLES = ("TPU_NAME", *CHIP_VARIABLES)
_THIS_MACHINE = re.compile(r"local|(grpc://)?(localhost|127(\.\d+){3}|\[::1\])(:\d+)?")


@dataclass(frozen=True, kw_only=True)
class TargetConfig:
    """The accelerator that the pipeline feeds.

    Attributes:
        tpu: The TPU for which to check, without starting it: local for that of this machine, the name of a node, or
            grpc://address:port. None: that of TPU_NAME in the environment, or there is none. Default: None.
        num_replicas: The number of replicas of all hosts together. None: one on each accelerator of this machine, on
            each host. At least 1. Default: None.
        num_hosts: The number of hosts that read. At least 1. Default: 1.
        tpu_variables: The variables about a TPU in the environment that trains: pairs of a name and a value.
            Default: ().

    Raises:
        ConfigError: A number is too low.
    """

    tpu: str | None = option(Text(), None, metavar="NAME")
    num_replicas: int | None = option(Count(1), None)
    num_hosts: int = option(Count(1), 1)
    tpu_variables: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def tpu_elsewhere(self) -> bool:
        """Whether the TPU is on other machines, which then read the files: it has a name or an address."""
        return self.tpu is not None and not _THIS_MACHINE.fullmatch(self.tpu)


def check_versions(tensorflow: str, installed: Mapping[str, str], target: TargetConfig) -> Check:
    """Checks that TensorFlow, Keras and the TPU's library are compatible."""
    name, keras, libtpu = "versions", installed.get("keras"), installed.get("libtpu")
    tpu_package = installed.get("tensorflow-tpu")
    finding = f"TensorFlow {tensorflow}, Keras {keras}" + (f", libtpu {libtpu}" if libtpu else "")
    if tpu_package and (ordinary := next((package for package in _ORDINARY if package in installed), None)):
        both = f"{ordinary} {installed[ordinary]} and tensorflow-tpu {tpu_package}"
        advice = f"pip uninstall -y {ordinary} tensorflow-tpu; then install one: tensorflow-tpu for a TPU."
        return Check(name, "failure", f"{both} are both installed, each over files of the other.", advice)
    if _parse_version(tensorflow) < OLDEST_TENSORFLOW:
        return Check(name, "failure", f"TensorFlow must be 2.18 or newer, got {tensorflow}.", "Install a newer one.")
    if keras is None or _parse_version(keras) < (3,):
        return Check(name, "failure", f"Keras must be 3 or newer, got {keras or 'none'}.", "pip install -U keras.")
    if target.tpu is None:
        return Check(name, "ok", f"{finding}.")
    if target.tpu_elsewhere:
        advice = f"It must be TensorFlow {tensorflow} on {target.tpu!r} too, which cannot be seen from here."
        if libtpu is None:
            return Check(name, "warning", f"{finding}, no libtpu on this machine.", advice)
        return Check(name, "ok", f"{finding}.", advice)
    if libtpu is None:
        advice = "pip install tensorflow-tpu, which brings it, in place of tensorflow."
        return Check(name, "failure", f"{finding}, but no libtpu, without which no TPU can be used.", advice)
    if tpu_package is None:
        advice = "If the TPU is not found, install tensorflow-tpu in place of tensorflow."
        return Check(name, "warning", f"{finding}, but a TensorFlow that may have no TPU in it.", advice)
    return Check(name, "ok", f"{finding}.")


def check_tpu_host(chips: Sequence[str], pids: Sequence[int], target: TargetConfig) -> Check:
    """Checks that this machine has a TPU, and that one process can take all its chips."""
    name = "tpu host"
    if target.tpu_elsewhere:
        advice = "Run `tfpipe doctor` with `tpu` local on each of its hosts too."
        return Check(name, "ok", f"The TPU {target.tpu!r} is on other machines, which this one cannot see.", advice)
    if not chips:
        advice = "Run it on the TPU VM itself; on this machine the other checks still count."
        return Check(name, "failure", "This machine has no TPU: /dev/accel* and /dev/vfio/* are not there.", advice)
    variables = dict(target.tpu_variables)
    if pids:
        numbers = ", ".join(map(str, pids))
        advice = "End it first. Start one process on each host: it takes all chips."
        return Check(name, "failure", f"The TPU is in use by another process ({numbers}).", advice)
    if (named := variables.get("TPU_NAME", "local")) != "local":
        advice = "Set it to local, or unset it, on the TPU VM itself."
        return Check(name, "warning", f"TPU_NAME is {named!r}, so TensorFlow looks for a TPU on the network.", advice)
    if limiting := [variable for variable in CHIP_VARIABLES if variable in variables]:
        advice = "Unset it: tfpipe starts one process on each host, which takes all chips."
        return Check(name, "warning", f"{limiting[0]} gives a process a part of the chips.", advice)
    count = human_count(len(chips), "chip")
    return Check(name, "ok", f"{count}, and no other process uses the TPU.")


def _parse_version(text: str) -> tuple[int, ...]:
    """Parses `2.18.0rc1` to (2, 18)."""
    return tuple(int(number) for number in re.findall(r"\d+", text)[:2])
