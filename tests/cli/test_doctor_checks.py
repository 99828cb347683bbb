"""The doctor's checks of versions and of a TPU VM, with facts written by hand."""

import pytest

from tfpipe.cli.doctor_checks import TargetConfig, check_jax, check_tpu_host, check_versions
from tfpipe.cli.shared.checks import Check
from tfpipe.errors import ConfigError

HERE, LOCAL_TPU, REMOTE_TPU = TargetConfig(), TargetConfig(tpu="local"), TargetConfig(tpu="my-tpu")
PLAIN = {"tensorflow": "2.20.0", "keras": "3.10.0"}
FOR_TPU = {"tensorflow-tpu": "2.20.0", "libtpu": "0.0.21", "keras": "3.10.0"}


@pytest.mark.parametrize(
    ("tensorflow", "installed", "target", "expected"),
    [
        ("2.20.0", PLAIN, HERE, Check("versions", "ok", "TensorFlow 2.20.0, Keras 3.10.0.")),
        ("2.18.0rc1", PLAIN, HERE, Check("versions", "ok", "TensorFlow 2.18.0rc1, Keras 3.10.0.")),
        ("2.20.0", FOR_TPU, LOCAL_TPU, Check("versions", "ok", "TensorFlow 2.20.0, Keras 3.10.0, libtpu 0.0.21.")),
        (
            "2.20.0",
            FOR_TPU,
            REMOTE_TPU,
            Check(
                "versions",
                "ok",
                "TensorFlow 2.20.0, Keras 3.10.0, libtpu 0.0.21.",
                "It must be TensorFlow 2.20.0 on 'my-tpu' too, which cannot be seen from here.",
            ),
        ),
        (
            "2.20.0",
            PLAIN,
            REMOTE_TPU,
            Check(
                "versions",
                "warning",
                "TensorFlow 2.20.0, Keras 3.10.0, no libtpu on this machine.",
                "It must be TensorFlow 2.20.0 on 'my-tpu' too, which cannot be seen from here.",
            ),
        ),
        (
            "2.20.0",
            {**FOR_TPU, "tensorflow": "2.21.0"},
            HERE,
            Check(
                "versions",
                "failure",
                "tensorflow 2.21.0 and tensorflow-tpu 2.20.0 are both installed, each over files of the other.",
                "pip uninstall -y tensorflow tensorflow-tpu; then install one: tensorflow-tpu for a TPU.",
            ),
        ),
        (
            "2.17.1",
            PLAIN,
            HERE,
            Check("versions", "failure", "TensorFlow must be 2.18 or newer, got 2.17.1.", "Install a newer one."),
        ),
        (
            "2.20.0",
            {**PLAIN, "keras": "2.15.0"},
            HERE,
            Check("versions", "failure", "Keras must be 3 or newer, got 2.15.0.", "pip install -U keras."),
        ),
        (
            "2.20.0",
            PLAIN,
            LOCAL_TPU,
            Check(
                "versions",
                "failure",
                "TensorFlow 2.20.0, Keras 3.10.0, but no libtpu, without which no TPU can be used.",
                "pip install tensorflow-tpu, which brings it, in place of tensorflow.",
            ),
        ),
        (
            "2.20.0",
            {**PLAIN, "libtpu": "0.0.21"},
            LOCAL_TPU,
            Check(
                "versions",
                "warning",
                "TensorFlow 2.20.0, Keras 3.10.0, libtpu 0.0.21, but a TensorFlow that may have no TPU in it.",
                "If the TPU is not found, install tensorflow-tpu in place of tensorflow.",
            ),
        ),
    ],
)
def test_versions(tensorflow: str, installed: dict[str, str], target: TargetConfig, expected: Check) -> None:
    assert check_versions(tensorflow, installed, target) == expected


CHIPS = ("/dev/accel0", "/dev/accel1", "/dev/accel2", "/dev/accel3")
FREE = (CHIPS, ())


@pytest.mark.parametrize(
    ("facts", "tpu", "variables", "expected"),
    [
        (FREE, "local", (), Check("tpu host", "ok", "4 chips, and no other process uses the TPU.")),
        (
            FREE,
            "local",
            (("TPU_NAME", "local"),),
            Check("tpu host", "ok", "4 chips, and no other process uses the TPU."),
        ),
        (
            ((), ()),
            "local",
            (),
            Check(
                "tpu host",
                "failure",
                "This machine has no TPU: /dev/accel* and /dev/vfio/* are not there.",
                "Run it on the TPU VM itself; on this machine the other checks still count.",
            ),
        ),
        (
            (CHIPS, (17, 23)),
            "local",
            (),
            Check(
                "tpu host",
                "failure",
                "The TPU is in use by another process (17, 23).",
                "End it first. Start one process on each host: it takes all chips.",
            ),
        ),
        (
            FREE,
            "local",
            (("TPU_NAME", "pod-7"),),
            Check(
                "tpu host",
                "warning",
                "TPU_NAME is 'pod-7', so TensorFlow looks for a TPU on the network.",
                "Set it to local, or unset it, on the TPU VM itself.",
            ),
        ),
        (
            FREE,
            "local",
            (("TPU_VISIBLE_CHIPS", "0"),),
            Check(
                "tpu host",
                "warning",
                "TPU_VISIBLE_CHIPS gives a process a part of the chips.",
                "Unset it: tfpipe starts one process on each host, which takes all chips.",
            ),
        ),
        (
            FREE,
            "pod-7",
            (),
            Check(
                "tpu host",
                "ok",
                "The TPU 'pod-7' is on other machines, which this one cannot see.",
                "Run `tfpipe doctor` with `tpu` local on each of its hosts too.",
            ),
        ),
    ],
)
def test_the_host(facts, tpu, variables, expected):
    assert check_tpu_host(*facts, TargetConfig(tpu=tpu, tpu_variables=variables)) == expected


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


@pytest.mark.parametrize(("name", "value"), [("num_replicas", 0), ("num_hosts", -1)])
def test_numbers_are_above_0(name: str, value: int) -> None:
    with pytest.raises(ConfigError, match=f"`{name}` must be at least 1, got {value}."):
        TargetConfig(**{name: value})
