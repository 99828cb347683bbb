"""What to change: hand-made figures, exact predictions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tfpipe.profiler.diagnose import fixes as advice
from tfpipe.profiler.diagnose import fixes_cpu
from tfpipe.profiler.diagnose.bottleneck import find_bottleneck
from tfpipe.profiler.diagnose.proposal import AWAKE, REACHED
from tfpipe.profiler.types import Fix, Profile, StageTiming


def fixes(profile: Profile) -> tuple[Fix, ...]:
    return advice.find_fixes(profile, find_bottleneck(profile))


def changes(profile: Profile) -> list[dict[str, object]]:
    return [dict(fix.changes) for fix in fixes(profile)]


def the(profile: Profile, **wanted: object) -> Fix:
    return next(fix for fix in fixes(profile) if fix.changes == wanted)


STAGES_S = 3.5e-3
"""Of an image in all stages, in the profile of `conftest`. 0.3 ms are none of a stage; 4 cores are 95 % busy."""


def rate(stages_s: float) -> float:
    """Images a second when the stages need this much of a core: what is beside them, 0.3 ms, is in proportion."""
    return 0.95 * 4 / (stages_s * (1 + 0.3e-3 / STAGES_S))


def test_a_busy_accelerator_needs_no_fix(profile_with, step_of) -> None:
    assert fixes(profile_with(step=step_of(1000, 1000))) == ()


def test_predictions_follow_the_demands(profile_with) -> None:
    """A twentieth less from `parse` to `batch`, 3.29 ms; the pipeline came to 95 % of its bound, and so it will."""
    profile = profile_with(config={"image_dtype": "float32"}, what_if={"uint8": 3800.0})
    fix = the(profile, image_dtype="uint8")
    expected = rate(STAGES_S - 0.05 * 3.29e-3)
    assert fix.predicted_images_per_second == pytest.approx(expected)
    assert fix.predicted_idle_fraction == pytest.approx(1 - expected / 4000)


def test_handing_over_costs_a_small_image_what_it_costs_a_large_one(profile_with) -> None:
    """At 1 ms beside the stages' 3.5 ms, 0.16 of these are allocations, and the rest is there for every image."""
    busy = profile_with().host.cpu_fraction
    rate = busy * 4 / 4.5e-3
    profile = profile_with(images_per_second=rate, config={"image_dtype": "float32"}, what_if={"uint8": 400.0})
    demand = STAGES_S - 0.9 * 3.29e-3
    expected = busy * 4 / (1.16 * demand + 1e-3 - 0.16 * STAGES_S)
    assert the(profile, image_dtype="uint8").predicted_images_per_second == pytest.approx(expected)


def test_nothing_is_predicted_beyond_what_the_accelerator_takes(profile_with, step_of) -> None:
    profile = profile_with(step=step_of(1000, 1100), dataset={"records": 1000})
    assert the(profile, cache="decoded").predicted_images_per_second == pytest.approx(1100)
    assert the(profile, cache="decoded").predicted_idle_fraction == pytest.approx(0)


def test_a_cache_must_fit(profile_with) -> None:
    """A million images are 197 GB decoded and 100 GB encoded; 15 GB are free, of which it may take 12."""
    assert not any("cache" in one for one in changes(profile_with()))
    assert {"cache": "decoded"} in changes(profile_with(dataset={"records": 60_000}))
    few = profile_with(dataset={"records": 100_000})
    assert {"cache": "decoded"} not in changes(few)


def test_a_decoded_cache_saves_reading_too(profile_with) -> None:
    fix = the(profile_with(dataset={"records": 1000}, what_if={"cached": 2000.0}), cache="decoded")
    assert fix.predicted_images_per_second == pytest.approx(rate(3.29e-3 / 2))
    assert fix.reason == "From the second epoch on nothing is decoded: 196.6 MB of memory."


def test_what_was_not_tried_is_not_proposed(profile_with) -> None:
    profile = profile_with(dataset={"records": 1000}, what_if={"now": 0.0})
    assert {name for one in changes(profile) for name in one} == {"cache"}
    assert {"cache": "decoded"} not in changes(profile)


def test_smaller_images(profile_with) -> None:
    fix = next(fix for fix in fixes(profile_with()) if "shard" in fix.action)
    assert fix.action == "tfpipe shard INPUT OUTPUT --resize-short 256"
    assert fix.reason == "Images of 500 x 375 on average are stored for a model that sees 224."
    read = fixes_cpu.RECORD_US / 1e6 + 0.2e-3 * (256 / 375) ** 2
    assert fix.predicted_images_per_second == pytest.approx(rate(0.01e-3 + read + 3.29e-3 / 2))
    assert not any("shard" in fix.action for fix in fixes(profile_with(dataset={"short_side": None})))


def test_more_machines_come_last(profile_with) -> None:
    last = fixes(profile_with())[-1]
    assert last.action.startswith("Run `tfpipe serve` on 4 machines like this one")
    assert last.predicted_images_per_second == pytest.approx(4000)


def test_serial_decoding_is_the_first_to_change(profile_with, stage_of, step_of) -> None:
    stages = (stage_of("read", 50, max_parallelism=8), stage_of("decode", 950, max_parallelism=1))
    host, step = {"cpu_fraction": 0.25}, step_of(1000, 9000)
    first = fixes(profile_with(step=step, stages=stages, config={"num_parallel_calls": 1}, host=host))[0]
    assert first.changes == {"num_parallel_calls": None}
    assert first.predicted_images_per_second == pytest.approx(REACHED / AWAKE * 4 / 1e-3)


def test_slow_reads_want_more_of_them(profile_with, stage_of) -> None:
    """2 ms for each image: 4,000 images/s need 8 at once, and a quarter more is asked for."""
    read = stage_of("read", 100, max_parallelism=2, wait_us_per_image=1900.0)
    profile = profile_with(stages=(read,), config={"cycle_length": 2}, host={"cpu_fraction": 0.02})
    first = fixes(profile)[0]
    assert first.changes == {"cycle_length": 16, "read_parallel_calls": None}
    assert first.predicted_images_per_second == pytest.approx(4000)
    whole = replace(profile, dataset={**profile.dataset, "exact": False})
    assert fixes(whole)[0].changes == {"cycle_length": 16, "read_parallel_calls": 16}


def test_one_reader_for_all_streams(profile_with, stage_of) -> None:
    read = stage_of("read", 50, max_parallelism=1, wait_us_per_image=950.0)
    profile = profile_with(stages=(read,), config={"read_parallel_calls": 1}, host={"cpu_fraction": 0.0125, "cores": 4})
    assert fixes(profile)[0].changes == {"read_parallel_calls": None}


def test_one_file_cannot_be_read_side_by_side(profile_with, stage_of) -> None:
    """Where an evaluation reads each once, and nobody counted its records."""
    read = stage_of("read", 100, max_parallelism=8, wait_us_per_image=900.0)
    data, config = {"files": 1, "exact": False, "records": None}, {"training": False}
    profile = profile_with(stages=(read,), dataset=data, config=config, host={"cpu_fraction": 0.02})
    assert fixes(profile)[0].action == "tfpipe shard INPUT OUTPUT --num-shards 16, and set read_parallel_calls = 8."
    assert fixes(profile)[0].changes == {"read_parallel_calls": 8}
    assert fixes(profile)[0].reason == "1 file cannot be read more than 1 at a time."


def test_prefetch(profile_with, stage_of, step_of) -> None:
    """The trainer waits for 75 ms of every 100: no batch of 100 images is made faster than that."""
    config = {"prefetch_batches": 0, "inject_prefetch": False}
    profile = profile_with(stages=(stage_of("decode", 400),), config=config, host={"cpu_fraction": 0.1})
    first = fixes(profile)[0]
    assert first.changes == {"prefetch_batches": None}
    assert first.predicted_images_per_second == pytest.approx(100 / 0.075)


def test_a_first_batch_that_takes_long(profile_with, step_of) -> None:
    (fix,) = fixes(profile_with(step=step_of(1000, 1000), first_batch_s=8.0, stages=shuffled(profile_with)))
    assert (fix.changes, fix.reason) == (
        {"window_records": 128},
        "25% as much is read before the first batch, which took 8.0 s and then takes about 2; it mixes less.",
    )


def test_a_smaller_shuffle_buffer(profile_with, step_of) -> None:
    data = {"exact": False, "shuffled_records": 4000}
    stages = shuffled(profile_with)
    (fix,) = fixes(profile_with(step=step_of(1000, 1000), first_batch_s=8.0, dataset=data, stages=stages))
    assert fix.changes == {"shuffle_buffer_size": 1000}


def shuffled(profile_with) -> tuple[StageTiming, ...]:
    return (*profile_with().stages, replace(profile_with().stages[0], name="shuffle"))


def test_memory_is_taken_from_what_holds_most(profile_with, stage_of) -> None:
    """50 batches of 20 MB; 8,192 records of 100 kB are 0.8 GB."""
    prefetch = stage_of("prefetch", 1, buffer_size=50, bytes_out_per_second=200e6)
    stages = (*shuffled(profile_with), prefetch)
    host = {"peak_memory_bytes": 15 * 10**9}
    first, second = fixes(profile_with(stages=stages, host=host))[:2]
    assert (first.changes, first.reason) == (
        {"prefetch_batches": 2},
        "50 batches wait for the trainer, 1.0 GB: two are enough.",
    )
    assert second.changes == {"window_records": 128}
    assert first.predicted_images_per_second == 1000


def test_a_stage_of_python(profile_with, stage_of) -> None:
    own = stage_of("jitter", 900, python=True, max_parallelism=4)
    stages = (stage_of("decode", 500, max_parallelism=4), own)
    first = fixes(profile_with(stages=stages, dataset={"own_stages": ["jitter"]}, host={"cpu_fraction": 0.35}))[0]
    assert first.action == "Write the stage jitter with TensorFlow's operations instead of a Python function."
    assert first.predicted_images_per_second == 4000


def test_what_was_tried_without_the_python_stage_counts(profile_with, stage_of) -> None:
    """2.5 ms were counted for decoding beside it; alone it took half of that."""
    stages = (stage_of("decode", 2500, max_parallelism=4), stage_of("jitter", 900, python=True, max_parallelism=4))
    facts = {"dataset": {"own_stages": ["jitter"]}, "host": {"cpu_fraction": 0.85}}
    hindered, free = (
        fixes(profile_with(stages=stages, what_if={"now": now}, **facts))[0].predicted_images_per_second
        for now in (2500.0, 1250.0)
    )
    assert free == pytest.approx(2 * hindered)


def test_a_stage_that_waits_for_somebody(profile_with, stage_of) -> None:
    """4 ms for each image: 4,000 a second need 16 at once, a quarter more, in powers of two."""
    own = stage_of("lookup", 100, python=True, max_parallelism=4, wait_us_per_image=3900.0)
    first = fixes(profile_with(stages=(own,), dataset={"own_stages": ["lookup"]}, host={"cpu_fraction": 0.025}))[0]
    assert first.changes == {"private_threadpool_size": 32}


def test_a_serial_stage(profile_with, stage_of, step_of) -> None:
    own, step = stage_of("noise", 950, max_parallelism=1), step_of(1000, 9000)
    profile = profile_with(step=step, stages=(own,), dataset={"own_stages": ["noise"]}, host={"cpu_fraction": 0.25})
    first = fixes(profile)[0]
    assert first.action == "Give the map of the stage noise `num_parallel_calls=tf.data.AUTOTUNE`."
    assert first.predicted_images_per_second == pytest.approx(REACHED / AWAKE * 4 / 1e-3)


def test_a_cache_behind_augmentation(profile_with, stage_of) -> None:
    data = {"own_stages": ["kept"], "late_caches": ["kept"], "records": 1000}
    fix = next(
        fix
        for fix in fixes(profile_with(stages=(stage_of("kept", 3500, max_parallelism=4),), dataset=data))
        if fix.action
    )
    assert fix.changes == {"cache": "decoded"}
    assert fix.action == "Take the cache out of the stage kept, and set cache = 'decoded'."
    assert fix.predicted_images_per_second == pytest.approx(rate(1e-3))
    tried = {"cached_device": 500.0}
    fix = fixes(profile_with(stages=(stage_of("kept", 3500, max_parallelism=4),), dataset=data, what_if=tried))[0]
    assert fix.changes == {"cache": "decoded", "augment": "device", "image_dtype": "uint8"}


def test_a_batch_of_few_images(profile_with, stage_of) -> None:
    """A quarter of the work is the batches': 32 times as many images leave a hundredth of that."""
    stages = (stage_of("decode", 2100, max_parallelism=4), stage_of("batch", 80, max_parallelism=1))
    profile = profile_with(stages=stages, config={"global_batch_size": 2}, host={"trainer_us_per_step": 100e3})
    assert {"global_batch_size": 64} in changes(profile)


def test_every_change_is_an_option(profile_with, stage_of) -> None:
    from tfpipe.pipeline.config.pipeline_config import PipelineConfig

    read = stage_of("read", 100, max_parallelism=1, wait_us_per_image=900.0)
    slow = {"image_dtype": "float32", "map_fusion": False, "dct_scaling": False}
    tried = {"uint8": 3500.0, "device": 2000.0, "dct_scaling": 3000.0}
    serial = {"num_parallel_calls": 1, "prefetch_batches": 0, "inject_prefetch": False}
    short = (stage_of("decode", 200),)
    profiles = [
        profile_with(config=slow, dataset={"records": 1000}, what_if=tried),
        profile_with(stages=short, config=serial, host={"cpu_fraction": 0.1}),
        profile_with(stages=(read,), config={"cycle_length": 1}, host={"cpu_fraction": 0.02}),
    ]
    config = PipelineConfig(global_batch_size=100)
    found = [one for profile in profiles for one in changes(profile)]
    assert {name for one in found for name in one} == {
        *("augment", "cache", "cycle_length", "image_dtype", "map_fusion", "num_parallel_calls"),
        *("prefetch_batches", "read_parallel_calls", "dct_scaling"),
    }
    for one in found:
        replace(config, **one)  # type: ignore[arg-type]


def test_device_augmentation_pays_where_it_was_tried(profile_with) -> None:
    """Decoding photographs whole costs more than their augmentation does; of squared images it does not.

    What is read then meets caches that no floats have been through: of its 0.2 ms it keeps 0.72.
    """
    device = {"augment": "device", "image_dtype": "uint8"}
    assert device not in changes(profile_with())
    fix = the(profile_with(what_if={"device": 2000.0}), **device)
    assert fix.predicted_images_per_second == pytest.approx(rate(STAGES_S - 3.29e-3 / 2 - 0.28 * 0.2e-3))
