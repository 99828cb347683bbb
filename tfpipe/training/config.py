"""TrainConfig: the options of the reference trainer. Frozen, validated, without TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from tfpipe.engine.config.augment_config import AugmentOptions
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.errors import ConfigError
from tfpipe.format.manifest import Manifest
from tfpipe.system.options import Choice, Count, Flag, Number, Text, check_options, get_names, option
from tfpipe.system.progress import Observer

Precision = Literal["auto", "float32", "bfloat16"]
TFLite = Literal["dynamic", "int8"]

MODELS = ("small_cnn", "resnet50", "mobilenet_v3_small")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The options of a training run: the data, the length, the learning rate, and the files that it keeps.

    Attributes:
        pipeline: The batch, the images, the order, and the seed of weights, order, crops and dropout. Required.
        output: The folder of the run, on a local disk or a file system that TensorFlow can write. Required.
        model: The model: small_cnn, resnet50, mobilenet_v3_small, or module:function for a function of yours from the
            number of classes and (height, width) to a Keras model from normalized images to logits.
            Default: "small_cnn".
        split: The split to train on. The evaluation reads `validation`, or else `test`. Default: "train".
        epochs: The number of epochs. None: 100 for small_cnn; 90 for the others, as Goyal et al. 2017 train ResNet-50.
            At least 1. Default: None.
        learning_rate: The learning rate for a batch of 256; it grows with the batch (Goyal et al. 2017). Above 0.
            Default: 0.1.
        warmup_epochs: The number of epochs in which the learning rate rises to its value, before it falls to 0 along a
            cosine. None: 5, but at most a tenth of all epochs. At least 0. Default: None.
        weight_decay: The factor of the weights in their own gradient, without biases and the scales of normalization.
            At least 0. Default: 1e-4.
        label_smoothing: The share of a label that is spread over all classes. At least 0 and below 1. Default: 0.0.
        precision: The type of the sums, as for `tfpipe.set_precision`. "auto": bfloat16 where the device is built for
            it. "auto", "float32" or "bfloat16". Default: "auto".
        deterministic: Whether TensorFlow uses operations that give the same bits each time, which are slower. On a
            CPU, a run that was stopped and resumed then equals one that was not. Default: False.
        steps_per_execution: The number of steps between two returns to Python. None: 50 on a TPU, where a return costs
            most, else 1. At least 1. Default: None.
        checkpoint_every_steps: The number of steps between checkpoints, which is the most that a killed run loses. At
            least 1. Default: 500.
        keep_checkpoints: The number of checkpoints that are kept; older ones are deleted. At least 1. Default: 3.
        log_every_steps: The number of steps for each line in metrics.jsonl and each point in TensorBoard. At least 1.
            Default: 20.
        tflite: The numbers of an additional export for TFLite: 8 bits for the weights ("dynamic") or for all sums
            ("int8"). None: no such export. "dynamic" or "int8". Default: None.
    """

    pipeline: PipelineConfig
    output: str = option(Text())
    model: str = "small_cnn"
    split: str = "train"
    epochs: int | None = option(Count(1), None)

    # learning
    learning_rate: float = option(Number(above=0), 0.1)
    warmup_epochs: float | None = option(Number(at_least=0), None)
    weight_decay: float = option(Number(at_least=0), 1e-4)
    label_smoothing: float = option(Number(at_least=0, below=1), 0.0)
    precision: Precision = option(Choice(get_args(Precision)), "auto")
    deterministic: bool = option(Flag(), False)

    # running
    steps_per_execution: int | None = option(Count(1), None)
    checkpoint_every_steps: int = option(Count(1), 500)
    keep_checkpoints: int = option(Count(1), 3)
    log_every_steps: int = option(Count(1), 20)
    tflite: TFLite | None = option(Choice(get_args(TFLite)), None)

    def __post_init__(self) -> None:
        if self.model not in MODELS and ":" not in self.model:
            raise ConfigError(f"`model` must be {', '.join(MODELS)} or module:function, got {self.model!r}.")
        check_options(self)
        if not 0 <= self.num_warmup_epochs < self.num_epochs:
            limit = f"at least 0 and below the {self.num_epochs} epochs"
            raise ConfigError(f"`warmup_epochs` must be {limit}, got {self.warmup_epochs!r}.")

    @property
    def num_epochs(self) -> int:
        """The value of `epochs`, or its default for the model."""
        return self.epochs or (100 if self.model == "small_cnn" else 90)

    @property
    def num_warmup_epochs(self) -> float:
        """The value of `warmup_epochs`, or its default for the number of epochs."""
        return min(5.0, self.num_epochs / 10) if self.warmup_epochs is None else self.warmup_epochs

    @property
    def peak_learning_rate(self) -> float:
        """The highest rate, after the warm-up."""
        return self.learning_rate * self.pipeline.batch_size / 256

    @property
    def training_pipeline(self) -> PipelineConfig:
        """The config for training: labels are numbers, batches are dictionaries."""
        return replace(self.pipeline, training=True, one_hot=False, as_supervised=False, extra_features=())

    @property
    def evaluation_pipeline(self) -> PipelineConfig:
        """The config for evaluating and for serving the model: the center of each image, in `image_size`.

        Images are cropped on the host, because the device's crops need whole images of one size.
        """
        augment = "host" if self.pipeline.augment == "device" else self.pipeline.augment
        no_cache: dict[str, Any] = {"cache": "none", "cache_dir": None, "cache_bytes": None}
        return replace(self.training_pipeline, training=False, augment=augment, order="auto", **no_cache)

    def get_run_options(self) -> dict[str, Any]:
        """Returns the options that decide a run's numbers. A resumed run must have the same ones."""
        names = ("learning_rate", "weight_decay", "label_smoothing", "precision")
        pipeline = [name for name in get_names(PipelineConfig, "order", "images") if "." not in name]
        return {
            "model": self.model,
            "split": self.split,
            "epochs": self.num_epochs,
            "global_batch_size": self.pipeline.batch_size,
            "warmup_epochs": self.num_warmup_epochs,
            **{name: getattr(self, name) for name in names},
            **asdict(self.pipeline.augment_options),
            **{name: getattr(self.pipeline, name) for name in pipeline},
        }


class TrainObserver(Observer):
    """An observer of a training. This one ignores every call."""

    def epoch(self, result: dict[str, Any]) -> None:
        """Receives the figures of an epoch that is done, which the command prints with --json."""


def default_pipeline(model: str) -> dict[str, Any]:
    """Returns the default options of a model's pipeline: small_cnn is for trials with few images, which are small."""
    return {"image_size": 64, "augment_options": AugmentOptions(scale=(0.5, 1.0))} if model == "small_cnn" else {}


def find_evaluation_split(manifest: Manifest, split: str) -> str | None:
    """Returns the split to evaluate a training on; None if there is no other one."""
    return next((name for name in ("validation", "test") if name in manifest.splits and name != split), None)


def format_means(means: Mapping[str, float]) -> str:
    """Returns the means of some images as the terminal shows them."""
    text = f"loss {means['loss']:.3f}, accuracy {means['accuracy']:.1%}"
    return f"{text}, top 5 {means['top5']:.1%}" if "top5" in means else text


def default_batch_size(records: int, num_replicas: int) -> int:
    """Returns a power of two for each replica, at most 128, which allows at least 4 steps an epoch."""
    largest = max(records // (4 * num_replicas), 1)
    return num_replicas * min(1 << (largest.bit_length() - 1), 128)
