"""The options that change how a step computes: `compile`, `precision` and the memory format do what they say."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tfpipe.dataset.load import load_manifest  # noqa: E402
from tfpipe.errors import DataError  # noqa: E402
from tfpipe.training.config import TrainConfig  # noqa: E402
from tfpipe.training.learner import RunFacts  # noqa: E402
from tfpipe.training.torch.processes import Place  # noqa: E402
from tfpipe.training.torch.train import TorchLearner  # noqa: E402

OPTIONS = ("--framework", "torch", "--batch-size", "8", "--image-size", "16", "--workers", "0")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Computes on one thread, and forgets what was compiled."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    torch.compiler.reset()


@pytest.fixture
def make_learner(colors: Path, make_config: Callable[..., TrainConfig]) -> Callable[..., TorchLearner]:
    def make(**options: Any) -> TorchLearner:
        facts = RunFacts(load_manifest(str(colors)), make_config(framework="torch", **options), 8, 6)
        return TorchLearner(facts, Place(torch.device("cpu")))

    return make


def make_batch(rows: int = 8) -> dict[str, torch.Tensor]:
    images = torch.randint(0, 256, (rows, 16, 16, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return {"image": images.permute(0, 3, 1, 2), "label": torch.arange(rows) % 6}


def replace_backend(monkeypatch: pytest.MonkeyPatch, backend: Callable[..., Any]) -> None:
    """Lets `torch.compile` give its graphs to another backend than inductor, which would call a C++ compiler."""
    compile_with = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model: compile_with(model, backend=backend))


def test_compile_makes_one_graph_of_known_shapes(
    make_learner: Callable[..., TorchLearner], monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes: list[list[tuple[Any, ...]]] = []

    def record(graph: Any, inputs: list[Any]) -> Any:
        shapes.append([tuple(value.shape) for value in inputs])
        return graph.forward

    replace_backend(monkeypatch, record)
    compiled, plain = make_learner(compile=True), make_learner()
    sums = [[learner.read_sums(learner._train(make_batch())) for _ in range(3)] for learner in (compiled, plain)]
    assert len(shapes) == 1  # for all steps
    assert (8, 3, 16, 16) in shapes[0]
    assert all(type(side) is int for shape in shapes[0] for side in shape)  # none is a symbol
    for by_graph, expected in zip(*sums, strict=True):
        assert by_graph.tolist() == pytest.approx(expected.tolist(), rel=1e-6)


def test_a_compiler_that_fails_is_one_sentence(
    make_learner: Callable[..., TorchLearner], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(graph: Any, inputs: Any) -> Any:
        raise ValueError("no compiler was found")

    replace_backend(monkeypatch, fail)
    with pytest.raises(DataError) as caught:
        make_learner(compile=True)._train(make_batch())
    sentence = str(caught.value)
    assert sentence.startswith("torch.compile cannot compile the model here: ")
    assert "no compiler was found" in sentence
    assert sentence.endswith(". Mend that, or leave `compile` out.")
    assert "\n" not in sentence


def test_an_error_of_the_model_itself_is_not_the_compiler_s(make_learner: Callable[..., TorchLearner]) -> None:
    learner = make_learner()
    with pytest.raises(RuntimeError, match=r"^Given groups=1, weight of size"):
        learner._train({"image": torch.zeros((8, 4, 16, 16)), "label": torch.arange(8) % 6})


@pytest.mark.parametrize(("precision", "dtype"), [("bfloat16", torch.bfloat16), ("float32", torch.float32)])
def test_a_step_computes_in_its_precision_and_memory_format(
    make_learner: Callable[..., TorchLearner], precision: str, dtype: torch.dtype
) -> None:
    learner, seen = make_learner(precision=precision), []

    def record(layer: Any, inputs: Any, output: torch.Tensor) -> None:
        seen.append((output.dtype, output.is_contiguous(memory_format=torch.channels_last)))

    for convolution in learner.model.net.convolutions:
        convolution.register_forward_hook(record)
        assert convolution.weight.is_contiguous(memory_format=torch.channels_last)
    heads: list[torch.dtype] = []
    learner.model.net.head.register_forward_hook(lambda layer, inputs, output: heads.append(output.dtype))
    learner._train(make_batch())
    assert seen == [(dtype, True)] * 3
    assert heads == [torch.float32]  # the last layer, in any precision
    assert {weight.dtype for weight in learner.model.parameters()} == {torch.float32}
    assert {weight.grad.dtype for weight in learner.model.parameters()} == {torch.float32}


def read_lines(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_a_compiled_run_of_two_processes_goes_on_in_one_and_learns_the_same(
    processes: Any, colors: Path, tmp_path: Path
) -> None:
    import torch._inductor.cpp_builder as builder

    try:
        builder.get_cpp_compiler()
    except RuntimeError:
        pytest.skip("no C++ compiler")

    def run(output: Path, count: int, *more: str) -> None:
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(processes.free_ports(1)[0]), "WORLD_SIZE": str(count)}
        shared.update(OMP_NUM_THREADS="1", TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache"))
        options = (*OPTIONS, "--epochs", "2", "--checkpoint-every-steps", "4")
        command = ("-m", "tfpipe", "train", str(colors), *options, "--output", str(output), *more)
        started = [processes.start(*command, **shared, RANK=str(i), LOCAL_RANK=str(i)) for i in range(count)]
        for process in started:
            _, err = process.communicate(timeout=500)
            assert process.returncode == 0, err

    run(tmp_path / "plain", 1)
    run(tmp_path / "compiled", 2, "--compile")
    (tmp_path / "compiled" / "model" / "model.pt2").unlink()
    (tmp_path / "compiled" / "checkpoints" / "ckpt-000002-000000000.npz").unlink()
    run(tmp_path / "compiled", 1, "--compile")  # goes on from the checkpoint before
    lines, expected = read_lines(tmp_path / "compiled"), read_lines(tmp_path / "plain")
    assert [(line["kind"], line["step"]) for line in lines] == [(line["kind"], line["step"]) for line in expected]
    for line, plain in zip(lines, expected, strict=True):
        assert line["loss"] == pytest.approx(plain["loss"], rel=1e-3)
    assert lines[-1]["evaluation"]["images"] == 27
    assert (tmp_path / "compiled" / "model" / "model.pt2").exists()
