"""`tfpipe doctor`: finds problems of the data, the options and the machine before an accelerator is paid for."""

import os
from typing import Any

import click

from tfpipe.cli.doctor_checks import TPU_VARIABLES, TargetConfig
from tfpipe.cli.shared.checks import show_checks
from tfpipe.cli.shared.command import command, require_tensorflow
from tfpipe.cli.shared.config_option import config_options, pipeline_options, take
from tfpipe.cli.shared.inputs import load_stages, open_data, quiet_start, read_config
from tfpipe.engine.config.pipeline_config import PipelineConfig


@command(example="tfpipe doctor flowers --batch-size 256")
@click.argument("dataset")
@pipeline_options
@config_options(TargetConfig)
def doctor(dataset: str, as_json: bool, split: str | None = None, stages: str | None = None, **options: Any) -> None:
    """Check whether DATASET, the pipeline and this machine are ready for training, before it costs anything.

    DATASET is the directory or URL of a finished dataset, or a pattern such as "/data/train-*" of TFRecords that
    another tool wrote. Exit code 1 if a check fails; warnings do not count.
    """
    pipeline = read_config(options.pop("config", None), take(PipelineConfig, options))
    variables = tuple((name, os.environ[name]) for name in TPU_VARIABLES if os.environ.get(name))
    target = TargetConfig(tpu_variables=variables, **{"tpu": dict(variables).get("TPU_NAME"), **options})
    require_tensorflow("doctor")
    with quiet_start():
        from tfpipe.cli.doctor_run import count_local_replicas, run_checks

        count_local_replicas()  # here, because the libraries of devices log at the first call
    data, split = open_data(dataset, split)
    show_checks(run_checks(data, split, pipeline, target, load_stages(stages)), as_json)
