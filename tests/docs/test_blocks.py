"""Every block of the README and of the site runs, with other libraries where it needs them, or says why it does not."""

import ast
import os
import re
import shlex
import shutil
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import tfpipe
from tests.conftest import PATH_OF_REPOSITORY, ROOT
from tests.docs.pages import DOCS, PAGES, SHELL, Block, copy_samples, find_blocks, find_output, run_blocks
from tests.other_libraries import make_environment
from tests.other_libraries import other_libraries as other_libraries
from tfpipe.cli.main import tfpipe as commands

BLOCKS = [block for page in PAGES for block in find_blocks(page)]

# These take some seconds each.
FAST = {"docs/howto/clusters.md", "docs/start/install.md"}


def name_page(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=name_page(page), marks=() if name_page(page) in FAST else pytest.mark.slow)
        for page in PAGES
        if any(not block.reason for block in BLOCKS if block.page == page)
    ],
)
def test_the_blocks_of_a_page_run(page: Path, tmp_path: Path) -> None:
    copy_samples(tmp_path / "images")
    for name in ("photos", "sample_data"):
        shutil.copytree(ROOT / "sample_data", tmp_path / name)
    environment = {
        **os.environ,
        "PYTHONPATH": f"{tmp_path}{os.pathsep}{PATH_OF_REPOSITORY}",  # modules that a page writes can be imported
        "CUDA_VISIBLE_DEVICES": "",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    blocks = [block for block in BLOCKS if block.page == page and not block.reason]
    run_blocks(blocks, tmp_path, sys.executable, environment)


def test_each_block_is_valid() -> None:
    faults = []
    for block in BLOCKS:
        try:
            if block.kind == "python" or (block.kind == "cell" and not block.code.startswith("!")):
                ast.parse(re.sub(r"\A%%writefile .*", "", block.code))
        except SyntaxError as error:
            faults.append(f"{block.place}: {error}")
    assert not faults, "\n".join(faults)


def test_each_command_has_the_options_that_the_pages_give_it() -> None:
    faults = [fault for block in BLOCKS for fault in check_commands(block)]
    assert not faults, "\n".join(faults)


def test_the_page_for_machines_names_options_that_exist() -> None:
    text = (ROOT / "docs" / "llms.txt").read_text(encoding="utf-8")
    lines = re.sub(r"[\[\]|]", " ", "\n".join(re.findall(r"`(tfpipe [^`]+)`", text)))
    assert lines.count("\n") > 10
    assert check_commands(Block(ROOT / "docs" / "llms.txt", 1, "sh", lines, None)) == []


def test_the_skill_for_agents_names_what_exists() -> None:
    page = ROOT / "skills" / "tfpipe" / "SKILL.md"
    text = page.read_text(encoding="utf-8")
    assert re.match(r"---\nname: tfpipe\ndescription: (.{1,1024})\n---\n", text) is not None
    blocks = list(find_blocks(page))
    assert len(blocks) == 5
    assert [fault for block in blocks for fault in check_commands(block)] == []
    known = {
        flag for name in commands.modules for param in commands.get_command(None, name).params for flag in param.opts
    }
    for option in re.findall(r"`(--[a-z-]+)", text):
        assert option in known, option
    for name in re.findall(r"`tfpipe\.(\w+)[`(]", text):
        assert name in tfpipe.__all__, name
    for name in ("docs/llms.txt", "tfpipe/readers/torch.py", "tfpipe/readers/jax.py"):
        assert (ROOT / name).exists(), name


HELP = {"--help", "--help-all"}


def check_commands(block: Block) -> list[str]:
    if block.kind == "python":
        return []
    faults = []
    for line in re.sub(r"\\\n\s*", " ", block.code).splitlines():
        for text in re.findall(r"(?:^|[!$;&|]\s*|/)tfpipe ([a-z]+(?: .*)?)$", line):
            name, *words = shlex.split(re.split(r" (?:-- |&& |\|\| |\| |2>)", text)[0], comments=True)
            command = commands.get_command(None, name)
            if command is None:
                faults.append(f"{block.place}: tfpipe has no command {name!r}.")
                continue
            options = {flag for param in command.params if isinstance(param, click.Option) for flag in param.opts}
            given = {word.partition("=")[0] for word in words if word.startswith("--") and len(word) > 2}
            unknown = given - options - {flag for p in command.params for flag in p.secondary_opts} - HELP
            faults += [f"{block.place}: tfpipe {name} has no option {option}." for option in sorted(unknown)]
    return faults


def test_a_wrong_command_is_found() -> None:
    for code, faults in (
        ("tfpipe shard a b --num-shards 3", []),
        ("tfpipe shard a b --num-shard 3", ["tfpipe shard has no option --num-shard."]),
        ("tfpipe shards a b", ["tfpipe has no command 'shards'."]),
        ("cd x && .venv/bin/tfpipe shard a b \\\n  --nothing   # a comment", ["tfpipe shard has no option --nothing."]),
        ("tfpipe shard a b -- --nothing", []),
    ):
        block = Block(ROOT / "README.md", 1, "sh", code, None)
        assert check_commands(block) == [f"README.md:1: {fault}" for fault in faults]


def test_a_block_that_is_not_run_says_why(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    fences = "% not run: needs a TPU\n```sh\ntrue\n```\n\n<!-- not run: needs a bucket -->\n\n```sh\ntrue\n```\n"
    page.write_text(fences + "\ntext\n```python\nx = 1\n```\n```text\nno code\n```\n")
    found = [(block.language, block.reason) for block in find_blocks(page)]
    assert found == [("sh", "needs a TPU"), ("sh", "needs a bucket"), ("python", None)]


OTHER_TRAINERS = DOCS / "howto" / "other-trainers.md"
TF_MODELS = DOCS / "compare.md"
BOXES = DOCS / "howto" / "boxes-and-masks.md"

# The first batches of the dataset of the page, and then those that the trainer takes, which is MaxText's own.
MAXTEXT = """
import os
import sys
from absl import app
from pathlib import Path
import maxtext
from maxtext.trainers.pre_train import train

texts = RecordSource("texts", "train", features=("tokens",))
order = iter(make_dataset(texts, shift, 4, 0, 1, seed=1))
for _ in range(25):  # more than two epochs of 40 records
    print("dataset", next(order)["inputs"][:, :4].tolist())


class Recorder(MultiHostDataLoadIterator):
    def __next__(self):
        batch = super().__next__()
        print("trainer", batch["inputs"][:, :4].tolist(), flush=True)
        return batch


loader, _ = create_data_iterator(type("Config", (), {"global_batch_size_to_load": 4}), jax.make_mesh((2,), ("data",)))
for _ in range(2):
    print("reset", next(loader)["inputs"][:, :4].tolist())
    loader.reset()
MultiHostDataLoadIterator = Recorder  # which create_data_iterator finds by its name
config = Path(maxtext.__file__).with_name("configs") / "base.yml"
options = {
    "run_name": "small",
    "hardware": "cpu",
    "dataset_type": "grain",
    "grain_train_files": "unused",
    "per_device_batch_size": 2,
    "max_target_length": 16,
    "eval_interval": -1,
    "vocab_size": 64,
    "base_emb_dim": 8,
    "base_mlp_dim": 8,
    "base_num_query_heads": 1,
    "base_num_kv_heads": 1,
    "base_num_decoder_layers": 1,
    "head_dim": 8,
    "attention": "dot_product",
    "scan_layers": False,
    "tokenizer_path": "",
    "checkpoint_period": 2,
    "async_checkpointing": False,
    "enable_goodput_recording": False,
    "monitor_goodput": False,
    "skip_jax_distributed_system": True,
    "base_output_directory": os.environ["OUTPUT"],
    "steps": os.environ["STEPS"],
}
arguments = ["train", str(config), *(f"{name}={value}" for name, value in options.items())]
try:
    app.run(train.main, argv=arguments)
except SystemExit as end:
    print("end", end.code)
"""

MAXTEXT_LIBRARIES = (
    *("absl-py", "aqtp==0.9.0", "cloud-accelerator-diagnostics", "datasets", "drjax", "etils", "flax==0.12.12"),
    *("google-cloud-mldiagnostics", "grain==0.2.18", "jax==0.12.0.1", "jaxtyping", "jinja2", "ml-collections"),
    *("ml-goodput-measurement", "omegaconf", "optax", "orbax-checkpoint==0.12.8", "pathwaysutils", "pydantic", "qwix"),
    *("sentencepiece", "sympy", "tensorboardx", "tiktoken", "tokamax", "transformers"),
)
"""What MaxText's trainer imports. Its own lists, which are extras, bring libraries for TPUs or for CUDA."""

# An evaluation by the Garden's reader, the labels of the block of the page, and the Garden's decoder of boxes.
GARDEN = """
import tensorflow as tf
import tfpipe

stored = [record.label for record in tfpipe.data_source("imagenet", "train")]
print(sorted(set(labels.numpy().tolist())), sorted(set(stored)), len(stored))
data = DataConfig(input_path="imagenet/train-*", is_training=False, global_batch_size=8, drop_remainder=False)
reader = input_reader_factory.input_reader_generator(
    data,
    dataset_fn=dataset_fn.pick_dataset_fn("tfrecord"),
    decoder_fn=decoder.decode,
    parser_fn=parser.parse_fn(data.is_training),
)
batches = list(reader.read())
print([tuple(images.shape) for images, _ in batches])
print([label for _, labels in batches for label in labels.numpy()] == stored)

from official.vision.dataloaders import tf_example_decoder

records = list(tf.data.TFRecordDataset(tf.io.gfile.glob("detection/train-*")))
try:
    tf_example_decoder.TfExampleDecoder().decode(records[0])
except tf.errors.InvalidArgumentError as error:
    print("Feature: image/source_id (data type: string) is required" in error.message)
box_decoder = tf_example_decoder.TfExampleDecoder(regenerate_source_id=True)
boxes = []
for example in map(box_decoder.decode, records):
    sides = example["groundtruth_boxes"].numpy().astype(float).round(2).tolist()
    boxes.append((example["groundtruth_classes"].numpy().tolist(), sides))
for line in sorted(boxes):
    print(*line)
"""

GARDEN_PRINTS = """\
[0, 1, 2] [0, 1, 2] 23
[(8, 224, 224, 3), (8, 224, 224, 3), (7, 224, 224, 3)]
True
True
[] []
[0] [[0.2, 0.1, 0.7, 0.6]]
[1, 1] [[0.2, 0.1, 0.6, 0.4], [0.5, 0.5, 0.8, 0.9]]
[2] [[0.0, 0.0, 0.5, 1.0]]
"""


def find(page: Path, reason: str) -> Block:
    return next(block for block in find_blocks(page) if block.reason == reason)


def find_shell(page: Path) -> Block:
    return next(block for block in find_blocks(page) if block.language in SHELL)


@pytest.fixture
def environment_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for an environment, which is removed afterwards: it takes gigabytes."""
    yield tmp_path / "environment"
    shutil.rmtree(tmp_path / "environment")


def test_the_blocks_say_what_they_print() -> None:
    assert find_output(find(OTHER_TRAINERS, "needs kauldron")) == "(8, 32, 32, 3) (8,)\n"
    assert find_output(find(OTHER_TRAINERS, "needs Grain")) == "(4, 32, 32, 3) True\n"
    assert find_output(find(OTHER_TRAINERS, "needs MaxText")) == ""
    assert find_output(find(TF_MODELS, "needs tf-models-official")) == "(256, 224, 224, 3) (256,)\n"


@pytest.mark.slow
def test_kauldron_takes_the_source(environment_folder: Path, tmp_path: Path) -> None:
    libraries = ("kauldron==1.4.0", "jax==0.8.3", "jaxlib==0.8.3")
    python, environment = make_environment(environment_folder, (3, 11), *libraries)
    copy_samples(tmp_path / "images")
    block = find(OTHER_TRAINERS, "needs kauldron")
    printed = run_blocks([find_shell(OTHER_TRAINERS), block], tmp_path, python, environment)
    assert printed.endswith(f"--- {block.place}\n{find_output(block)}")


@pytest.mark.slow
def test_maxtext_trains_and_goes_on_after_a_checkpoint(environment_folder: Path, tmp_path: Path) -> None:
    python, environment = make_environment(
        environment_folder, (3, 12), *MAXTEXT_LIBRARIES, without_dependencies=["maxtext==0.2.5"]
    )
    first, second = find(OTHER_TRAINERS, "needs Grain"), find(OTHER_TRAINERS, "needs MaxText")
    blocks = [find_shell(OTHER_TRAINERS), first, second, Block(OTHER_TRAINERS, 0, "python", MAXTEXT, None)]
    environment |= {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "OUTPUT": str(tmp_path / "output")}
    batches = []
    for steps in ("3", "6"):  # the second run goes on where the first one has stopped
        folder = tmp_path / steps
        folder.mkdir()
        copy_samples(folder / "images")
        printed = run_blocks(blocks, folder, python, {**environment, "STEPS": steps})
        assert f"--- {first.place}\n{find_output(first)}--- {second.place}\n" in printed
        dataset, trainer, reset = (find_lines(printed, word) for word in ("dataset", "trainer", "reset"))
        assert reset == [dataset[0], dataset[0]]
        batches += trainer
        assert find_lines(printed, "end") == ["None"]
    assert batches == dataset[:6]
    assert sorted(path.name for path in (tmp_path / "output/small/checkpoints").iterdir()) == ["0", "2", "4", "5"]


@pytest.mark.slow
def test_the_reader_of_tf_models_takes_the_shards(environment_folder: Path, tmp_path: Path) -> None:
    python, environment = make_environment(environment_folder, (3, 10), "tf-models-official==2.20.0")
    copy_samples(tmp_path / "images")
    make_imagenet(tmp_path / "images", tmp_path / "ILSVRC2012_img_train.tar")
    block = find(TF_MODELS, "needs tf-models-official")
    check = Block(TF_MODELS, block.line, "python", GARDEN, None)
    shards = [find(TF_MODELS, "needs ImageNet"), find_shell(BOXES)]
    printed = run_blocks([*shards, block, check], tmp_path, python, environment)
    assert f"--- {block.place}\n{find_output(block)}" in printed
    assert printed.endswith(f"--- {check.place}\n{GARDEN_PRINTS}")


def find_lines(printed: str, word: str) -> list[str]:
    """Returns what stands behind a word at the beginning of lines."""
    return [line.removeprefix(f"{word} ") for line in printed.splitlines() if line.startswith(f"{word} ")]


def make_imagenet(images: Path, tar: Path) -> None:
    with tarfile.open(tar, "w") as outer:
        for folder in sorted(path for path in images.iterdir() if path.is_dir()):
            inner = tar.with_name(f"{folder.name}.tar")
            with tarfile.open(inner, "w") as opened:
                for path in sorted(folder.iterdir()):
                    opened.add(path, path.name)
            outer.add(inner, inner.name)
            inner.unlink()


# Grain and Hugging Face's `datasets`


REASONS = ("needs Grain", "needs datasets")
PAGES_OF_OTHERS = [page for page in PAGES if any(block.reason in REASONS for block in find_blocks(page))]

# The batches of the page's own dataset with and without worker processes, beyond the end of an epoch of 23 records.
WORKERS = """
plain = iter(make_dataset(source, resize, 4, 0, 1, seed=1))
workers = iter(make_dataset(source, resize, 4, 0, 1, seed=1, num_workers=2))
print([np.array_equal(next(plain)["images"], next(workers)["images"]) for _ in range(7)])
workers.close()
"""


def test_the_pages_with_such_blocks_are_known() -> None:
    names = {"docs/howto/jax.md", "docs/howto/other-trainers.md"}
    assert {name_page(page) for page in PAGES_OF_OTHERS} == names


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES_OF_OTHERS, ids=name_page)
def test_blocks_run_with_other_libraries(page: Path, tmp_path: Path, other_libraries: dict[str, str]) -> None:
    copy_samples(tmp_path / "images")
    blocks = [block for block in find_blocks(page) if block.reason in REASONS or block.language in SHELL]
    printed = run_blocks(blocks, tmp_path, sys.executable, other_libraries)
    for block in blocks:
        assert find_output(block) in printed, block.place


@pytest.mark.slow
def test_worker_processes_give_the_same_batches(tmp_path: Path, other_libraries: dict[str, str]) -> None:
    copy_samples(tmp_path / "images")
    workers = Block(OTHER_TRAINERS, 0, "python", WORKERS, None)
    blocks = [find_shell(OTHER_TRAINERS), find(OTHER_TRAINERS, "needs Grain"), workers]
    assert run_blocks(blocks, tmp_path, sys.executable, other_libraries).endswith(f"\n{[True] * 7}\n")
