"""Lightning, Accelerate and the Trainer of Hugging Face take `data_loader` as it is: batches, ranks, and resuming."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tfpipe
from tests.conftest import Processes
from tests.other_libraries import install_libraries
from tfpipe.readers.numpy import NumpyBatches

pytestmark = pytest.mark.slow

# Without what they depend on: the environment of the tests has it, and PyTorch would come once more.
LIBRARIES = (
    "lightning==2.6.6 pytorch_lightning==2.6.6 lightning_utilities==0.15.3 torchmetrics==1.9.0 accelerate==1.15.0 "
    "safetensors==0.8.0 transformers==5.24.0 tokenizers==0.23.3 typer shellingham annotated_doc"
).split()
OPTIONS = {"batch_size": 4, "image_size": 8, "extra_features": ("image/filename",)}
STEPS = 3  # of an epoch of 12 records

BEGIN = """
import json, logging, sys, warnings
logging.disable(logging.WARNING)
warnings.simplefilter("ignore")
import torch
from tfpipe import TorchBatches, data_loader

dataset, folder, more = sys.argv[1], sys.argv[2], sys.argv[3:]
options = dict(batch_size=4, image_size=8, extra_features=("image/filename",))


def load(split="train", **changes):
    return data_loader(TorchBatches(dataset, split, **options, **changes))


def name(batch):
    return [text.decode() for text in batch["image/filename"]]


def find_loss(layer, batch):
    return torch.nn.functional.cross_entropy(layer(batch["image"].float().mean((2, 3))), batch["label"])
"""

LIGHTNING = (
    BEGIN
    + """
import lightning
from lightning.pytorch.callbacks import ModelCheckpoint


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.names, self.validated = torch.nn.Linear(3, 3), [], 0

    def training_step(self, batch, _):
        self.names.append(name(batch))
        return find_loss(self.layer, batch)

    def validation_step(self, batch, _):
        self.validated += 1

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


limit, checkpoint = int(more[0]), more[1] if len(more) > 1 else None
model = Classifier()
saves = ModelCheckpoint(dirpath=folder, every_n_train_steps=2, save_top_k=-1, filename="{step}")
trainer = lightning.Trainer(
    accelerator="cpu", max_epochs=3, limit_train_batches=limit, num_sanity_val_steps=1, logger=False,
    enable_progress_bar=False, enable_model_summary=False, callbacks=[saves],
)
trainer.fit(model, load(), load("validation", training=False), ckpt_path=checkpoint)
print(json.dumps({"names": model.names, "validated": model.validated, "weights": model.layer.weight.tolist()}))
"""
)

ACCELERATE = (
    BEGIN
    + """
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
layer = torch.nn.Linear(3, 3)
layer, optimizer, loader = accelerator.prepare(layer, torch.optim.SGD(layer.parameters(), 0.1), load())
names = []
for _ in range(2):
    for batch in loader:
        accelerator.backward(find_loss(layer, batch))
        optimizer.step()
        names.append(name(batch))
accelerator.end_training()
print(json.dumps(names))
"""
)

HUGGING_FACE = (
    BEGIN
    + """
from transformers import Trainer, TrainerCallback, TrainingArguments


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(3, 3)

    def forward(self, **batch):
        return {"loss": find_loss(self.layer, batch)}


class ShardTrainer(Trainer):
    def get_train_dataloader(self):
        return load()

    def training_step(self, model, inputs, *rest):
        names.append(name(inputs))
        return super().training_step(model, inputs, *rest)


class GoToEpoch(TrainerCallback):
    def on_train_begin(self, args, state, control, train_dataloader, **rest):
        train_dataloader.set_epoch(state.global_step // len(train_dataloader))


names = []
arguments = TrainingArguments(
    folder, num_train_epochs=3, save_steps=4, report_to=[], use_cpu=True, remove_unused_columns=False, disable_tqdm=True
)
model = Classifier()
trainer = ShardTrainer(model=model, args=arguments, callbacks=[GoToEpoch()])
trainer.train(resume_from_checkpoint=more[0] if more else None)
print(json.dumps({"names": names, "weights": model.layer.weight.tolist()}))
"""
)


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> dict[str, str]:
    return install_libraries(tmp_path_factory.mktemp("libraries"), "--no-deps", *LIBRARIES)


@pytest.fixture(scope="module")
def expected(small_dataset: Path) -> list[list[str]]:
    batches = NumpyBatches(tfpipe.load_manifest(str(small_dataset)), "train", **OPTIONS)
    return [[text.decode() for text in batches.read(step)["image/filename"]] for step in range(4 * STEPS)]


Run = Callable[..., Any]


@pytest.fixture
def run(processes: Processes, environment: dict[str, str]) -> Run:
    """Runs a script, and returns what it prints on its last line."""

    def run(script: str, *arguments: object) -> Any:
        return processes.finish(processes.start("-c", script, *map(str, arguments), **environment), 280)

    return run


def test_lightning(small_dataset: Path, tmp_path: Path, run: Run, expected: Any) -> None:
    whole = run(LIGHTNING, small_dataset, tmp_path / "whole", STEPS)
    assert whole["names"] == expected[: 3 * STEPS]
    assert whole["validated"] == 4  # with the look before the first epoch
    for step in (2, 4, 6):  # within an epoch, and at its end
        checkpoint = tmp_path / "whole" / f"step={step}.ckpt"
        rest = run(LIGHTNING, small_dataset, tmp_path / f"rest{step}", STEPS, checkpoint)
        assert (rest["names"], rest["weights"]) == (whole["names"][step:], whole["weights"])
    limited = run(LIGHTNING, small_dataset, tmp_path / "limited", 2)
    assert limited["names"] == [*expected[:2], *expected[3:5], *expected[6:8]]  # each epoch is one of the run


def test_accelerate(small_dataset: Path, processes: Processes, environment: dict[str, str], expected: Any) -> None:
    port = str(processes.free_ports(1)[0])
    common = {**environment, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    started = [
        processes.start("-c", ACCELERATE, str(small_dataset), "", **common, RANK=rank, LOCAL_RANK=rank) for rank in "01"
    ]
    left, right = [processes.finish(process, 280) for process in started]
    assert [[*a, *b] for a, b in zip(left, right, strict=True)] == expected[: 2 * STEPS]


def test_the_trainer_of_hugging_face(small_dataset: Path, tmp_path: Path, run: Run, expected: Any) -> None:
    whole = run(HUGGING_FACE, small_dataset, tmp_path / "whole")
    assert whole["names"] == expected[: 3 * STEPS]
    rest = run(HUGGING_FACE, small_dataset, tmp_path / "rest", tmp_path / "whole" / "checkpoint-4")
    assert rest == {"names": whole["names"][4:], "weights": whole["weights"]}
