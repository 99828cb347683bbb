"""TrainConfig: the options of the reference trainer. Frozen, validated, without TensorFlow."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from tfpipe.engine.config.augment_config import AugmentOptions
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.errors import ConfigError
from tfpipe.system.options import Choice, Count, Flag, Number, Text, check_options, get_names, option

Precision = Literal["auto", "float32", "bfloat16"]
TFLite = Literal["dynamic", "int8"]

MODELS = ("small_cnn", "resnet50", "mobilenet_v3_small")

SMALL_CHANNELS, SMALL_GROUPS, SMALL_EPSILON = (32, 64, 128), 8, 1e-3
"""The channels of small_cnn, the groups of its normalization, and the number that this adds to a variance."""

MOMENTUM = 0.9
"""The momentum of Nesterov's SGD (Goyal et al. 2017, "Accurate, large minibatch SGD", without look ahead)."""

_SMALLEST_SIDE = 32  # the last feature maps of the large models have no pixels for smaller images

_REFERENCE_BATCH_SIZE = 256
_MAX_BATCH_SIZE, _MIN_STEPS = 128, 4


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The options of a training run: the data, the length, the learning rate, and the files that it keeps.

    Attributes:
        pipeline: The batch, the images, the order, and the seed of weights, order, crops and dropout. The trainer
            itself sets `training` and the form of batches. Required.
        output: The folder of the run, on a local disk or a file system that TensorFlow can write. Required.
        model: The model: small_cnn, resnet50, mobilenet_v3_small, or `module:function` for a model of the user.
            Default: "small_cnn".
        split: The split to train on. The evaluation reads `validation`, or else `test`, if there is one.
            Default: "train".
        epochs: The number of epochs. None: 100 for small_cnn; 90 for the others, as Goyal et al. 2017 train ResNet-50.
            At least 1. Default: None.
        learning_rate: The rate for a global batch of 256. It grows in proportion with the batch: the linear scaling
            rule of Goyal et al. 2017, as their 0.1 is. Above 0. Default: 0.1.
        warmup_epochs: The number of epochs in which the rate rises evenly, before it falls to 0 along a cosine
            (Loshchilov and Hutter 2016, "SGDR"). It must be below `epochs`. None: 5, as in Goyal et al. 2017, but at
            most a tenth of all epochs. At least 0. Default: None.
        weight_decay: The factor of the weights in their own gradient, without biases and the scales of normalization
            (Goyal et al. 2017). At least 0. Default: 1e-4.
        label_smoothing: The share of a label that is spread over all classes. Szegedy et al. 2015 use 0.1, Goyal et
            al. 2017 none. At least 0 and below 1. Default: 0.0.
        precision: The type of the sums, as for `tfpipe.set_precision`. "auto": bfloat16 where the device is built for
            it. "auto", "float32" or "bfloat16". Default: "auto".
        deterministic: Whether TensorFlow uses operations that give the same bits each time, which are slower. On a
            CPU, a run that was stopped and resumed then equals one that was not. Default: False.
        steps_per_execution: The number of steps between two returns to Python. None: 50 on a TPU, where
            a return costs most, else 1. At least 1. Default: None.
        checkpoint_every_steps: The number of steps between checkpoints, which is the most that a killed run loses. The
            end of the training is always saved. At least 1. Default: 500.
        keep_checkpoints: The number of checkpoints that are kept; older ones are deleted. At least 1. Default: 3.
        log_every_steps: The number of steps for each line in metrics.jsonl and each point in TensorBoard. At least 1.
            Default: 20.
        tflite: The numbers of an additional export for TFLite: 8 bits for the weights ("dynamic") or for all sums
            ("int8"). None: no such export. "dynamic" or "int8". Default: None.

    Raises:
        ConfigError: A value cannot be used.
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
            raise ConfigError(
                f"`warmup_epochs` must be at least 0 and below the {self.num_epochs} epochs, got "
                f"{self.warmup_epochs!r}."
            )

    @property
    def num_epochs(self) -> int:
        """The value of `epochs`, or its default for the model."""
        return self.epochs or (100 if self.model == "small_cnn" else 90)

    @property
    def num_warmup_epochs(self) -> float:
        """The value of `warmup_epochs`, or its default for the number of epochs."""
        return min(5.0, self.num_epochs / 10) if self.warmup_epochs is None else self.warmup_epochs

    def peak_learning_rate(self, global_batch_size: int) -> float:
        """Returns the highest rate, after the warm-up."""
        return self.learning_rate * global_batch_size / _REFERENCE_BATCH_SIZE

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
        return replace(
            self.training_pipeline,
            training=False,
            augment=augment,
            cache="none",
            cache_dir=None,
            cache_bytes=None,
            order="auto",
        )

    def get_run_options(self, global_batch_size: int) -> dict[str, Any]:
        """Returns the options that decide a run's numbers. A resumed run must have the same ones."""
        names = [name for name in get_names(PipelineConfig, "order", "images") if "." not in name]
        pipeline = {name: getattr(self.pipeline, name) for name in names}
        return {
            "model": self.model,
            "split": self.split,
            "epochs": self.num_epochs,
            "global_batch_size": global_batch_size,
            "learning_rate": self.learning_rate,
            "warmup_epochs": self.num_warmup_epochs,
            "weight_decay": self.weight_decay,
            "label_smoothing": self.label_smoothing,
            "precision": self.precision,
            **asdict(self.pipeline.augment_options),
            **pipeline,
        }


def default_pipeline(model: str) -> dict[str, Any]:
    """Returns the default options of a model's pipeline.

    small_cnn is for trials with few images: its images are small, and a crop shows at least half of one.
    """
    if model != "small_cnn":
        return {}
    return {"image_size": 64, "augment_options": AugmentOptions(scale=(0.5, 1.0))}


def check_side(model: str, size: tuple[int, int]) -> None:
    """Checks that a large model can take images of a (height, width), in pixels."""
    if min(size) < _SMALLEST_SIDE:
        height, width = size
        raise ConfigError(f"{model} needs images of at least {_SMALLEST_SIDE} pixels a side, got {height} x {width}.")


def default_batch_size(records: int, num_replicas: int) -> int:
    """Returns the default size of a batch of all replicas: for each of them a power of two, at most 128.

    It allows at least 4 steps an epoch.
    """
    largest = max(records // (_MIN_STEPS * num_replicas), 1)
    return num_replicas * min(1 << (largest.bit_length() - 1), _MAX_BATCH_SIZE)
