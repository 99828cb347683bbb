"""TrainConfig: the options of the reference trainer. Frozen, validated, without TensorFlow."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from tfpipe.engine.config.augment_config import AugmentOptions
from tfpipe.engine.config.pipeline_config import PipelineConfig, TfDataOptions
from tfpipe.errors import ConfigError
from tfpipe.format.manifest import Manifest
from tfpipe.system.options import Choice, Count, Flag, Number, Text, Unchecked, check_options, get_names, option

Precision = Literal["auto", "float32", "bfloat16"]

MODELS = ("small_cnn", "resnet50")
_TRAINING, _OUTPUT = "Training", "Output"


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The options of a training run.

    Attributes:
        pipeline: The batch, the images, the order, and the seed of weights, order, crops and dropout. Required.
        output: The folder of the run, on a local disk or a file system that TensorFlow can write. Required.
        model: The model: small_cnn, resnet50, or module:function for a function of yours from the number of classes
            and (height, width) to a Keras model from normalized images to logits. Default: "small_cnn".
        split: The split to train on. The evaluation reads `validation`, or else `test`. Default: "train".
        epochs: The number of epochs. None: 100 for small_cnn, else 90. At least 1. Default: None.
        learning_rate: The highest rate for a batch of 256; it grows with the batch. Above 0. Default: 0.1.
        weight_decay: The factor of weights in their own gradient, without biases and scales. At least 0. Default: 1e-4.
        label_smoothing: The share of a label that is spread over all classes. At least 0 and below 1. Default: 0.0.
        precision: The type of the sums, as for `tfpipe.set_precision`. "auto": bfloat16 where the device is built for
            it. "auto", "float32" or "bfloat16". Default: "auto".
        deterministic: Whether TensorFlow uses operations that give the same bits each time, which are slower. On a
            CPU, a run that was stopped and resumed then equals one that was not. Default: False.
        checkpoint_every_steps: The number of steps between checkpoints. At least 1. Default: 500.
        log_every_steps: The steps for a line in metrics.jsonl and a point in TensorBoard. At least 1. Default: 20.
        tflite: Whether to export a TFLite model too, which computes in 8 bits. Default: False.
    """

    pipeline: PipelineConfig
    output: str = option(Text(), group=_OUTPUT, metavar="RUN")
    model: str = option(Unchecked(), "small_cnn", group=_TRAINING, metavar="NAME")
    split: str = option(Unchecked(), "train", group="Data", metavar="NAME")
    epochs: int | None = option(Count(1), None, group=_TRAINING)
    learning_rate: float = option(Number(above=0), 0.1, group=_TRAINING, metavar="R")
    weight_decay: float = option(Number(at_least=0), 1e-4, group=_TRAINING, rare=True, metavar="W")
    label_smoothing: float = option(Number(at_least=0, below=1), 0.0, group=_TRAINING, rare=True, metavar="SHARE")
    precision: Precision = option(Choice(get_args(Precision)), "auto", group=_TRAINING)
    deterministic: bool = option(Flag(), False, group=_TRAINING, rare=True)
    checkpoint_every_steps: int = option(Count(1), 500, group=_OUTPUT)
    log_every_steps: int = option(Count(1), 20)
    tflite: bool = option(Flag(), False, group=_OUTPUT)

    def __post_init__(self) -> None:
        if self.model not in MODELS and ":" not in self.model:
            raise ConfigError(f"`model` must be {', '.join(MODELS)} or module:function, got {self.model!r}.")
        if self.pipeline.augment == "device":
            raise ConfigError("`augment` must be host or none for this trainer, got device.")
        check_options(self)

    @property
    def num_epochs(self) -> int:
        """The value of `epochs`, or its default for the model."""
        return self.epochs or (100 if self.model == "small_cnn" else 90)

    @property
    def training_pipeline(self) -> PipelineConfig:
        """The config for training: labels are numbers, batches are dictionaries."""
        features: dict[str, Any] = {"extra_features": (), "multi_hot": (), "pad_to": {}}
        return replace(self.pipeline, training=True, one_hot=False, as_supervised=False, **features)

    @property
    def evaluation_pipeline(self) -> PipelineConfig:
        """The config for evaluating and for serving the model: the center of each image, in `image_size`."""
        reading: dict[str, Any] = {"order": "auto", "tf_data": TfDataOptions(), "cache": "none"}
        return replace(self.training_pipeline, training=False, cache_dir=None, cache_bytes=None, **reading)

    def get_run_options(self) -> dict[str, Any]:
        """Returns the options that decide a run's numbers. A resumed run must have the same ones."""
        mine = ("model", "split", "learning_rate", "weight_decay", "label_smoothing", "precision")
        pipeline = [name for name in get_names(PipelineConfig, "order", "images") if "." not in name]
        return {
            "epochs": self.num_epochs,
            **{name: getattr(self, name) for name in mine},
            **asdict(self.pipeline.augment_options),
            **{name: getattr(self.pipeline, name) for name in ("batch_size", *pipeline)},
        }


def find_evaluation_split(manifest: Manifest, split: str) -> str | None:
    """Returns the split that evaluates a training: `validation`, else `test`; None if no other one has classes."""
    others = (name for name in ("validation", "test") if name in manifest.splits and name != split)
    return next((name for name in others if any(manifest.splits[name].class_counts)), None)


def default_pipeline(model: str | None, records: int, num_replicas: int) -> dict[str, Any]:
    """Returns the default options of the pipeline. small_cnn is for trials with few images, which are small."""
    is_small = model in (None, TrainConfig.model)
    options = {"image_size": 64, "augment_options": AugmentOptions(scale=(0.5, 1.0))} if is_small else {}
    largest = max(records // (4 * num_replicas), 1)  # a power of two for each replica, and 4 steps an epoch
    return {**options, "batch_size": num_replicas * min(1 << (largest.bit_length() - 1), 128)}
