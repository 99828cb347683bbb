"""The doctor's checks of versions and of a TPU VM, with facts written by hand."""

import pytest

from tfpipe.cli.doctor_checks import TargetConfig, check_jax, check_tpu_host, check_versions
from tfpipe.cli.shared.checks import Check

HERE, LOCAL_TPU, REMOTE_TPU = TargetConfig(), TargetConfig(tpu="local"), TargetConfig(tpu="my-tpu")
PLAIN = {"tensorflow": "2.20.0", "keras": "3.10.0"}
FOR_TPU = {"tensorflow-tpu": "2.20.0", "libtpu": "0.0.21", "keras": "3.10.0"}


OTHER_SIDE = "It must be TensorFlow 2.20.0 on 'my-tpu' too, which cannot be seen from here."
PLAIN_FOUND = "TensorFlow 2.20.0, Keras 3.10.0"
TPU_FOUND = f"{PLAIN_FOUND}, libtpu 0.0.21"


@pytest.mark.parametrize(
    ("tensorflow", "installed", "target", "status", "found", "advice"),
    [
        ("2.20.0", PLAIN, HERE, "ok", f"{PLAIN_FOUND}.", ""),
        ("2.18.0rc1", PLAIN, HERE, "ok", "TensorFlow 2.18.0rc1, Keras 3.10.0.", ""),
        ("2.20.0", FOR_TPU, LOCAL_TPU, "ok", f"{TPU_FOUND}.", ""),
        ("2.20.0", FOR_TPU, REMOTE_TPU, "ok", f"{TPU_FOUND}.", OTHER_SIDE),
        ("2.20.0", PLAIN, REMOTE_TPU, "warning", f"{PLAIN_FOUND}, no libtpu on this machine.", OTHER_SIDE),
        (
            *("2.20.0", {**FOR_TPU, "tensorflow": "2.21.0"}, HERE, "failure"),
            "tensorflow 2.21.0 and tensorflow-tpu 2.20.0 are both installed, each over files of the other.",
            "pip uninstall -y tensorflow tensorflow-tpu; then install one: tensorflow-tpu for a TPU.",
        ),
        ("2.17.1", PLAIN, HERE, "failure", "TensorFlow must be 2.18 or newer, got 2.17.1.", "Install a newer one."),
        (
            *("2.20.0", {**PLAIN, "keras": "2.15.0"}, HERE, "failure"),
            *("Keras must be 3 or newer, got 2.15.0.", "pip install -U keras."),
        ),
        (
            *("2.20.0", PLAIN, LOCAL_TPU, "failure"),
            f"{PLAIN_FOUND}, but no libtpu, without which no TPU can be used.",
            "pip install tensorflow-tpu, which brings it, in place of tensorflow.",
        ),
        (
            *("2.20.0", {**PLAIN, "libtpu": "0.0.21"}, LOCAL_TPU, "warning"),
            f"{TPU_FOUND}, but a TensorFlow that may have no TPU in it.",
            "If the TPU is not found, install tensorflow-tpu in place of tensorflow.",
        ),
    ],
)
def test_versions(tensorflow: str, installed: dict[str, str], target: TargetConfig, status, found, advice):
    assert check_versions(tensorflow, installed, target) == Check("versions", status, found, advice)


CHIPS = ("/dev/accel0", "/dev/accel1", "/dev/accel2", "/dev/accel3")


@pytest.mark.parametrize(
    ("chips", "holders", "target", "status", "found", "advice"),
    [
        (CHIPS, (), {}, "ok", "4 chips, and no other process uses the TPU.", ""),
        (CHIPS, (), {"TPU_NAME": "local"}, "ok", "4 chips, and no other process uses the TPU.", ""),
        (
            *((), (), {}, "failure", "This machine has no TPU: /dev/accel* and /dev/vfio/* are not there."),
            "Run it on the TPU VM itself; on this machine the other checks still count.",
        ),
        (
            *(CHIPS, (17, 23), {}, "failure", "The TPU is in use by another process (17, 23)."),
            "End it first. Start one process on each host: it takes all chips.",
        ),
        (
            *(CHIPS, (), {"TPU_NAME": "pod-7"}, "warning"),
            "TPU_NAME is 'pod-7', so TensorFlow looks for a TPU on the network.",
            "Set it to local, or unset it, on the TPU VM itself.",
        ),
        (
            *(CHIPS, (), {"TPU_VISIBLE_CHIPS": "0"}, "warning"),
            "TPU_VISIBLE_CHIPS gives a process a part of the chips.",
            "Unset it: tfpipe starts one process on each host, which takes all chips.",
        ),
        (
            *(CHIPS, (), "pod-7", "ok", "The TPU 'pod-7' is on other machines, which this one cannot see."),
            "Run `tfpipe doctor` with `tpu` local on each of its hosts too.",
        ),
    ],
)
def test_the_host(chips, holders, target, status: str, found: str, advice: str) -> None:
    """The target is the name of a TPU, or the environment of one that is local."""
    named = target if isinstance(target, str) else "local"
    variables = () if isinstance(target, str) else tuple(target.items())
    config = TargetConfig(tpu=named, tpu_variables=variables)
    assert check_tpu_host(chips, holders, config) == Check("tpu host", status, found, advice)


@pytest.mark.parametrize(
    ("installed", "status", "found"),
    [
        ({}, "ok", "JAX is not installed; `tfpipe.JaxBatches` would need it."),
        ({"jax": "0.10.2", "jaxlib": "0.9.1"}, "failure", "JAX 0.10.2 needs jaxlib of the same version, got 0.9.1."),
        ({"jax": "0.10.2"}, "failure", "JAX 0.10.2 needs jaxlib of the same version, got none."),
        ({"jax": "0.10.2", "jaxlib": "0.10.1"}, "warning", "JAX 0.10.2 has no libtpu, without which it sees no TPU."),
        ({"jax": "0.10.2", "jaxlib": "0.10.2", "libtpu": "0.0.21"}, "ok", "JAX 0.10.2, jaxlib 0.10.2, libtpu 0.0.21."),
    ],
)
def test_jax(installed: dict[str, str], status: str, found: str) -> None:
    check = check_jax(installed)
    assert (check.name, check.status, check.found) == ("jax", status, found)


@pytest.mark.parametrize(
    ("tpu", "elsewhere"),
    [
        (None, False),
        ("local", False),
        ("grpc://localhost:8470", False),
        ("127.0.0.1", False),
        ("[::1]:8470", False),
        ("my-tpu", True),
        ("localhost-of-mine", True),
        ("grpc://10.0.0.2:8470", True),
    ],
)
def test_a_tpu_with_a_name_is_elsewhere(tpu: str | None, elsewhere: bool) -> None:
    assert TargetConfig(tpu=tpu).tpu_elsewhere == elsewhere
