"""The choice between the engine and the textbook pipeline. It loads no TensorFlow."""

from dataclasses import replace

from tfpipe.engine.config.pipeline_config import PipelineConfig, TfDataOptions
from tfpipe.engine.features import BatchFeature
from tfpipe.engine.plan import BatchPlan
from tfpipe.engine.source import Source
from tfpipe.errors import ConfigError, DataError
from tfpipe.storage import file_io, stores
from tfpipe.storage.stores import TensorFlowStore
from tfpipe.system.options import list_changes


def is_by_engine(source: Source, config: PipelineConfig) -> bool:
    """Returns whether the engine makes the batches; if not, the textbook pipeline does."""
    return explain_textbook(source, config) is None


def explain_textbook(source: Source, config: PipelineConfig) -> str | None:
    """Returns why the textbook pipeline reads these records, as the rest of a sentence; None if the engine does."""
    if config.order == "throughput":
        return "`order` is throughput"
    if source.shard_records is None:
        return source.why_sequential
    if not source.is_split:
        return f"{source.name} are files that are read without their manifest"
    if any(map(file_io.is_url, source.files)) and not all(map(stores.can_read, source.files)):
        return f"{source.files[0]} is read by TensorFlow only"
    return None


def check_engine(config: PipelineConfig) -> None:
    """Refuses options that only the textbook pipeline has."""
    if changed := ", ".join(list_changes(TfDataOptions(), config.tf_data)):
        raise ConfigError(
            f"`tf_data` is for the textbook pipeline, and batches are made by their steps here, got {changed}. Leave "
            "it out, or set order='throughput'."
        )


def check_textbook(plan: BatchPlan, reason: str) -> None:
    """Refuses options that the textbook pipeline does not have, and files that it cannot read."""
    config, source = plan.config, plan.source
    if config.order == "exact":
        advice = "Use order='throughput'"
        if source.compression and source.shard_records is None:
            advice += ", or write the files anew by `tfpipe reshard --opaque`"
        raise ConfigError(f"`order` exact must know where each record lies, and {reason}. {advice}.")
    columns = () if source.manifest is None else source.manifest.columns
    added = {name for column in columns for name in column.schema.names}
    asked: dict[str, object] = {
        "augment": "device" if config.augment == "device" else None,
        "augment_options.dct_scaling": config.augment_options.dct_scaling,
        "service": ", ".join(config.service.workers),
        "cache_dir": config.cache_dir,
        "cache_bytes": config.cache_bytes,
        "max_bad_records": config.max_bad_records,
        "epochs": plan.host.epochs,
    }
    refused = [
        *([f"{source.name} is a view"] if source.chosen is not None else []),
        *(f"The feature {one.name!r} lies in a column beside the shards" for one in plan.features if one.name in added),
        *([f"A record of {source.name} has several images"] if source.per_record is not None else []),
        *(f"The feature {one.name!r} is {kind}" for one in plan.features if (kind := _name_kind(one))),
        *(f"`{option}` is {value}" for option, value in asked.items() if value),
    ]
    if refused:
        if explain_textbook(source, replace(config, order="auto")) is None:
            advice = "Use order='exact', in which stages of your own get whole batches."
        elif source.compression and source.shard_records is None:
            advice = "Write the files anew by `tfpipe reshard --opaque FILES OUTPUT`, and read OUTPUT."
        elif source.is_split:
            advice = "Copy the dataset to a local disk."
        else:
            advice = "Run `tfpipe index FILES --output INDEX`, and read INDEX: the engine makes its batches."
        raise ConfigError(f"{refused[0]}: that is for batches by their steps, and {reason}. {advice}")
    if not config.training and plan.host.num_hosts > 1 and source.shard_records is None:
        raise ConfigError(
            f"Evaluation on {plan.host.num_hosts} hosts needs to know where each record lies, and "
            f"{source.why_sequential}. Evaluate on one host."
        )
    source.check()
    if file_io.is_url(first := source.files[0]):
        try:
            TensorFlowStore(first)
        except DataError as error:
            if not stores.can_read(first):
                raise
            raise ConfigError(
                f"TensorFlow must read {first}, because {reason}, and it cannot. Leave that out, or copy "
                "the dataset to a local disk."
            ) from error


def _name_kind(feature: BatchFeature) -> str:
    """Returns the kind of a feature that the textbook pipeline cannot batch; empty for any other feature."""
    if feature.spec.kind in ("mask", "tensor"):
        return f"a {feature.spec.kind}"
    if feature.multi_hot:
        return "a list of classes"
    return "a list of any length" if feature.spec.shape is None else ""
