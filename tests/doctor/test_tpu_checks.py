"""The checks of a TPU VM, with facts written by hand."""

import pytest

from tfpipe.doctor.result import Check, TargetConfig
from tfpipe.doctor.tpu_checks import check_features, check_jax, check_tpu_host

CHIPS = ("/dev/accel0", "/dev/accel1", "/dev/accel2", "/dev/accel3")
FREE = (CHIPS, ())
READY = Check("tpu host", "ok", "4 chips, and no other process uses the TPU.")


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
def test_the_host(
    facts: tuple[tuple[str, ...], tuple[int, ...]], tpu: str, variables: tuple[tuple[str, str], ...], expected: Check
) -> None:
    assert check_tpu_host(*facts, TargetConfig(tpu=tpu, tpu_variables=variables)) == expected


@pytest.mark.parametrize(
    ("installed", "status", "found"),
    [
        ({}, "ok", "JAX is not installed; `tfpipe.JaxBatches` would need it."),
        ({"jax": "0.10.2", "jaxlib": "0.9.1"}, "failure", "JAX 0.10.2 needs jaxlib of the same version, got 0.9.1."),
        ({"jax": "0.10.2"}, "failure", "JAX 0.10.2 needs jaxlib of the same version, got none."),
        (
            {"jax": "0.10.2", "jaxlib": "0.10.1"},
            "warning",
            "JAX 0.10.2 has no libtpu, without which it sees no TPU.",
        ),
        (
            {"jax": "0.10.2", "jaxlib": "0.10.2", "libtpu": "0.0.21"},
            "ok",
            "JAX 0.10.2, jaxlib 0.10.2, libtpu 0.0.21.",
        ),
    ],
)
def test_jax(installed: dict[str, str], status: str, found: str) -> None:
    check = check_jax(installed)
    assert (check.name, check.status, check.found) == ("jax", status, found)


@pytest.mark.parametrize(
    ("classes", "room"), [(3, "3 logits take the room of 128."), (1000, "1,000 logits take the room of 1,024.")]
)
def test_features(classes: int, room: str) -> None:
    check = check_features(classes)
    assert (check.status, check.found) == ("ok", f"A TPU computes 128 features at once: {room}")
    assert check.advice == "Give the wide layers of a model of yours a multiple of 128 channels."
    assert check_features(None).found == "A TPU computes 128 features at once and fills up the rest."
