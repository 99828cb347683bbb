"""The stage `shuffle`: encoded records in a new order, before they are decoded, so that what it holds is small."""

from __future__ import annotations

from tfpipe.pipeline.plan.read_plan import ReadPlan
from tfpipe.pipeline.stage import Stage
from tfpipe.system.hash_permutation import FILES, key_of
from tfpipe.system.units import human_bytes


def shuffle_buffer(plan: ReadPlan) -> Stage:
    """Draws each record from a buffer, as `tf.data` pipelines usually do."""
    records = plan.shuffle_records
    seed = key_of(FILES, plan.config.seed, plan.start_step, 1) >> 1
    reason = f"encoded records, not images: about {human_bytes(records * plan.source.record_bytes)}"
    return Stage("shuffle", lambda dataset: dataset.shuffle(records, seed=seed), {"buffer_size": records}, reason)
