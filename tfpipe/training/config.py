"""TrainConfig: everything that can be asked of the reference trainer. Frozen, validated, without TensorFlow."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from tfpipe.errors import ConfigError
from tfpipe.pipeline.config import validators as checks
from tfpipe.pipeline.config.augment_config import AugmentOptions
from tfpipe.pipeline.config.pipeline_config import PipelineConfig

Precision = Literal["auto", "float32", "bfloat16"]
TFLite = Literal["dynamic", "int8"]

MODELS = ("small_cnn", "resnet50", "mobilenet_v3_small")

MOMENTUM = 0.9
"""Of Nesterov's SGD (Goyal et al. 2017, "Accurate, large minibatch SGD", who use it without Nesterov's look ahead)."""

_BATCH_OF_RATE = 256
_MAX_BATCH, _FEWEST_STEPS = 128, 4

_ORDER_AND_IMAGES = (
    *("image_size", "augment", "decoded_size", "dct_scaling", "image_dtype"),
    *("seed", "order", "num_streams", "run_records", "window_records"),
)


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """What is trained, for how long, how fast it learns, and what is kept.

    A ConfigError says which value cannot be used.
    """

    pipeline: PipelineConfig
    """Batch, images, order, and the seed of everything: weights, order, crops and dropout. Whether it trains and in
    which form it hands its batches over is the trainer's choice."""
    output: str
    """Folder of the run, on any file system that TensorFlow can write."""
    model: str = "small_cnn"
    """small_cnn, resnet50, mobilenet_v3_small, or `module:function` for a model of the user's own."""
    split: str = "train"
    """What is trained on. Evaluated is `validation`, or else `test`, where there is one."""
    epochs: int | None = None
    """None: 100 for small_cnn; 90 for the others, as Goyal et al. 2017 train ResNet-50."""

    # learning
    learning_rate: float | None = None
    """For a global batch of 256, and in proportion for any other: the linear scaling rule of Goyal et al. 2017. None:
    their 0.1; 0.5 for small_cnn, tried on the sample images."""
    warmup_epochs: float | None = None
    """The rate rises evenly over so many epochs, then falls to 0 along a cosine (Loshchilov and Hutter 2016, "SGDR").
    None: 5, as in Goyal et al. 2017, but at most a tenth of all epochs."""
    weight_decay: float = 1e-4
    """Factor of the weights in their own gradient, biases and the scales of normalisation left out (Goyal et al.
    2017)."""
    label_smoothing: float = 0.0
    """Share of a label that is spread over all classes. Szegedy et al. 2015 use 0.1, Goyal et al. 2017 none."""
    precision: Precision = "auto"
    """As for `tfpipe.set_precision`: "auto" is bfloat16 where the device is built for it."""
    deterministic: bool = False
    """Take only operations that give the same bits each time, where TensorFlow has them; slower. On a CPU a run that
    was stopped and went on then equals one that was not."""

    # running
    steps_per_execution: int | None = None
    """Steps that run one after the other without a return to Python. None: 50 on a TPU, where the return costs most,
    else 1."""
    checkpoint_every_steps: int = 500
    """A run that is killed loses at most so many steps. The end of the training is always saved."""
    keep_checkpoints: int = 3
    """The older ones are deleted."""
    log_every_steps: int = 20
    """Steps of a line in metrics.jsonl, and of a point in TensorBoard."""
    tflite: TFLite | None = None
    """Export for TFLite too, with weights ("dynamic") or all sums ("int8") in 8 bits."""

    def __post_init__(self) -> None:
        if self.model not in MODELS and ":" not in self.model:
            raise ConfigError(f"`model` must be {', '.join(MODELS)} or module:function, got {self.model!r}.")
        checks.check_text("output", self.output)
        for name in ("epochs", "steps_per_execution"):
            if getattr(self, name) is not None:
                checks.check_count(name, getattr(self, name), 1)
        for name in ("checkpoint_every_steps", "keep_checkpoints", "log_every_steps"):
            checks.check_count(name, getattr(self, name), 1)
        checks.check_choice("precision", self.precision, get_args(Precision))
        if self.tflite is not None:
            checks.check_choice("tflite", self.tflite, get_args(TFLite))
        checks.check_flag("deterministic", self.deterministic)
        self._check_rates()

    @property
    def num_epochs(self) -> int:
        """`epochs`, or what stands for it."""
        return self.epochs or (100 if self.model == "small_cnn" else 90)

    @property
    def base_learning_rate(self) -> float:
        """`learning_rate`, or what stands for it: for a global batch of 256."""
        if self.learning_rate is not None:
            return self.learning_rate
        return 0.5 if self.model == "small_cnn" else 0.1

    @property
    def num_warmup_epochs(self) -> float:
        """`warmup_epochs`, or what stands for it."""
        return min(5.0, self.num_epochs / 10) if self.warmup_epochs is None else self.warmup_epochs

    def peak_learning_rate(self, global_batch_size: int) -> float:
        """The highest rate, after the warm-up."""
        return self.base_learning_rate * global_batch_size / _BATCH_OF_RATE

    @property
    def training_pipeline(self) -> PipelineConfig:
        """For the training: labels as numbers, batches as dictionaries."""
        return replace(self.pipeline, training=True, one_hot=False, as_supervised=False, extra_features=())

    @property
    def evaluation_pipeline(self) -> PipelineConfig:
        """For the evaluation, and for who serves the model: images of `image_size`, the middle of each.

        They are cropped on the host: what the device does in training needs whole images of one size.
        """
        augment = "host" if self.pipeline.augment == "device" else self.pipeline.augment
        return replace(
            self.training_pipeline,
            training=False,
            augment=augment,
            cache="none",
            cache_dir=None,
            order="auto",
            num_streams=None,
        )

    def asked(self, global_batch_size: int) -> dict[str, Any]:
        """What decides the numbers of a run, plain values: a run that goes on must ask for the same."""
        pipeline = asdict(self.pipeline)
        options = {**pipeline.pop("augment_options"), **{name: pipeline[name] for name in _ORDER_AND_IMAGES}}
        return {
            "model": self.model,
            "split": self.split,
            "epochs": self.num_epochs,
            "global_batch_size": global_batch_size,
            "learning_rate": self.base_learning_rate,
            "warmup_epochs": self.num_warmup_epochs,
            "weight_decay": self.weight_decay,
            "label_smoothing": self.label_smoothing,
            "precision": self.precision,
            **options,
        }

    def _check_rates(self) -> None:
        if self.learning_rate is not None and not 0 < self.learning_rate < float("inf"):
            raise ConfigError(f"`learning_rate` must be above 0, got {self.learning_rate!r}.")
        if not 0 <= self.num_warmup_epochs < self.num_epochs:
            raise ConfigError(
                f"`warmup_epochs` must be at least 0 and below the {self.num_epochs} epochs, got "
                f"{self.warmup_epochs!r}."
            )
        if not 0 <= self.weight_decay < float("inf"):
            raise ConfigError(f"`weight_decay` must be at least 0, got {self.weight_decay!r}.")
        if not 0 <= self.label_smoothing < 1:
            raise ConfigError(f"`label_smoothing` must be at least 0 and below 1, got {self.label_smoothing!r}.")


def default_pipeline(model: str) -> dict[str, Any]:
    """Options of the pipeline where nobody asks for others.

    small_cnn is for trying things out, on few images: they are small, and crops show at least half of one.
    """
    if model != "small_cnn":
        return {}
    return {"image_size": 64, "augment_options": AugmentOptions(scale=(0.5, 1.0))}


def default_batch_size(records: int, num_replicas: int) -> int:
    """Images of a replica where nobody says how many: a power of two, at most 128, for at least 4 steps an epoch.

    Args:
        records: Of the split.
        num_replicas: That share the global batch.
    """
    most = max(records // (_FEWEST_STEPS * num_replicas), 1)
    return min(1 << (most.bit_length() - 1), _MAX_BATCH)
