"""The checks of a TPU VM: its chips, who holds them, the environment, and JAX. Pure: plain values in, a `Check` out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tfpipe.doctor.result import Check, TargetConfig
from tfpipe.system.units import human_count

# A process to which one of these is given takes a part of the chips of its host.
PART_OF_THE_CHIPS = ("TPU_CHIPS_PER_PROCESS_BOUNDS", "TPU_PROCESS_BOUNDS", "TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES")
TPU_VARIABLES = ("TPU_NAME", *PART_OF_THE_CHIPS)

JAX_PACKAGES = ("jax", "jaxlib", "libtpu")

_LANES = 128


def check_tpu_host(chips: Sequence[str], holders: Sequence[int], target: TargetConfig) -> Check:
    """Checks that this machine has a TPU that one process can take as a whole.

    Args:
        chips: The device files of its chips.
        holders: The numbers of other processes that have them open.
        target: The accelerator of the run.
    """
    name = "tpu host"
    if target.tpu_elsewhere:
        advice = "Run `tfpipe doctor` with `tpu` local on each of its hosts too."
        return Check(name, "ok", f"The TPU {target.tpu!r} is on other machines, which this one cannot see.", advice)
    if not chips:
        advice = "Run it on the TPU VM itself; on this machine the other checks still count."
        return Check(name, "failure", "This machine has no TPU: /dev/accel* and /dev/vfio/* are not there.", advice)
    variables = dict(target.tpu_variables)
    if holders:
        numbers = ", ".join(map(str, holders))
        advice = "End it first. Start one process on each host: it takes all chips."
        return Check(name, "failure", f"The TPU is in use by another process ({numbers}).", advice)
    if (named := variables.get("TPU_NAME", "local")) != "local":
        advice = "Set it to local, or unset it, on the TPU VM itself."
        return Check(name, "warning", f"TPU_NAME is {named!r}, so TensorFlow looks for a TPU on the network.", advice)
    if parts := [variable for variable in PART_OF_THE_CHIPS if variable in variables]:
        advice = "Unset it: tfpipe starts one process on each host, which takes all chips."
        return Check(name, "warning", f"{parts[0]} gives a process a part of the chips.", advice)
    count = human_count(len(chips), "chip")
    return Check(name, "ok", f"{count}, and no other process uses the TPU.")


def check_jax(installed: Mapping[str, str]) -> Check:
    """Checks that JAX, its library and the TPU's fit together.

    Args:
        installed: Versions of the installed packages by name.
    """
    name, jax, jaxlib = "jax", installed.get("jax"), installed.get("jaxlib")
    if jax is None:
        return Check(name, "ok", "JAX is not installed; `tfpipe.JaxBatches` would need it.")
    advice = "pip install -U 'jax[tpu]', in an environment without TensorFlow."
    if jaxlib is None or jax.split(".")[:2] != jaxlib.split(".")[:2]:
        return Check(name, "failure", f"JAX {jax} needs jaxlib of the same version, got {jaxlib or 'none'}.", advice)
    if "libtpu" not in installed:
        return Check(name, "warning", f"JAX {jax} has no libtpu, without which it sees no TPU.", advice)
    return Check(name, "ok", f"JAX {jax}, jaxlib {jaxlib}, libtpu {installed['libtpu']}.")


def check_features(num_classes: int | None) -> Check:
    """Tells how the number of classes fills the lanes of a TPU."""
    name, advice = "features", f"Give the wide layers of a model of yours a multiple of {_LANES} channels."
    if num_classes is None:
        return Check(name, "ok", f"A TPU computes {_LANES} features at once and fills up the rest.", advice)
    filled = -(-num_classes // _LANES) * _LANES
    finding = f"A TPU computes {_LANES} features at once: {num_classes:,} logits take the room of {filled:,}."
    return Check(name, "ok", finding, advice)
