"""What to change: hand-made figures, exact predictions."""

from __future__ import annotations

import pytest

from tfpipe.profiler import advice
from tfpipe.profiler.analysis import find_bottleneck
from tfpipe.profiler.model import Fix, Profile


def fixes(profile: Profile) -> tuple[Fix, ...]:
    return advice.find_fixes(profile, find_bottleneck(profile))


def changes(profile: Profile) -> list[dict[str, object]]:
    return [dict(fix.changes) for fix in fixes(profile)]


def the(profile: Profile, **wanted: object) -> Fix:
    return next(fix for fix in fixes(profile) if fix.changes == wanted)


STAGES_S = 3.5e-3
"""Of an image in all stages, in the profile of `conftest`. 0.3 ms are none of a stage; 4 cores are 95 % busy."""


def rate(stages_s: float) -> float:
    """Images a second when the stages need this much of a core: of 0.3 ms beside them, 0.3 stay whatever they do."""
    other = 0.3e-3 * (0.3 + 0.7 * stages_s / STAGES_S)
    return 0.95 * 4 / (stages_s + other)


def test_a_busy_accelerator_needs_no_fix(profile_with, step_of) -> None:
    assert fixes(profile_with(step=step_of(1000, 1000))) == ()


def test_predictions_follow_the_demands(profile_with) -> None:
    """Floats cost 15 % of 700 us; the pipeline came to 95 % of its bound, and so it will."""
    profile = profile_with(config={"image_dtype": "float32"})
    fix = the(profile, image_dtype="uint8")
    expected = rate(STAGES_S - 0.15 * 0.7e-3)
    assert fix.predicted_images_per_second == pytest.approx(expected)
    assert fix.predicted_idle_fraction == pytest.approx(1 - expected / 4000)


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


def test_a_decoded_cache_saves_all_but_crop_and_batch(profile_with) -> None:
    fix = the(profile_with(dataset={"records": 1000}), cache="decoded")
    left = 0.1e-3 + 0.7e-3 + 50e-6 + 75e-6  # batch, augment, the crop, the fetch
    assert fix.predicted_images_per_second == pytest.approx(rate(left))
    assert fix.reason == "From the second epoch on nothing is decoded: 196.6 MB of memory."


def test_smaller_images(profile_with) -> None:
    fix = next(fix for fix in fixes(profile_with()) if "shard" in fix.action)
    assert fix.action == "tfpipe shard INPUT OUTPUT --resize-short 256"
    assert fix.reason == "Images of 500 x 375 on average are stored for a model that sees 224."
    ratio = (256 / 375) ** 2
    saved = 2.4e-3 * (1 - advice.DECODE_FLOOR) * (1 - ratio) + 0.2e-3 * 0.5 * (1 - ratio)
    assert fix.predicted_images_per_second == pytest.approx(rate(STAGES_S - saved))
    assert not any("shard" in fix.action for fix in fixes(profile_with(dataset={"mean_size": (256.0, 256.0)})))


def test_more_machines_come_last(profile_with) -> None:
    last = fixes(profile_with())[-1]
    assert last.action.startswith("Run `tfpipe serve` on 4 machines like this one")
    assert last.predicted_images_per_second == pytest.approx(4000)


def test_serial_decoding_is_the_first_to_change(profile_with, stage_of) -> None:
    stages = (stage_of("read", 50), stage_of("decode", 950))
    profile = profile_with(stages=stages, config={"num_parallel_calls": 1}, host={"cpu_fraction": 0.25})
    first = fixes(profile)[0]
    assert first.changes == {"num_parallel_calls": None}
    assert first.predicted_images_per_second == pytest.approx(0.9 * 4 / 1e-3)


def test_slow_reads_want_more_of_them(profile_with, stage_of) -> None:
    """2 ms for each image: 4,000 images/s need 8 at once, and a quarter more is asked for."""
    read = stage_of("read", 100, parallelism=2, blocked_fraction=0.95)
    profile = profile_with(stages=(read,), config={"cycle_length": 2}, host={"cpu_fraction": 0.02})
    first = fixes(profile)[0]
    assert first.changes == {"cycle_length": 16, "read_parallel_calls": None}
    assert first.predicted_images_per_second == pytest.approx(4000)


def test_one_file_cannot_be_read_side_by_side(profile_with, stage_of) -> None:
    read = stage_of("read", 100, parallelism=1, blocked_fraction=0.95)
    data = {"files": 1, "exact": False}
    profile = profile_with(stages=(read,), config={"cycle_length": 8}, dataset=data, host={"cpu_fraction": 0.02})
    assert fixes(profile)[0].action == "tfpipe shard INPUT OUTPUT --num-shards 16"


def test_prefetch(profile_with, stage_of) -> None:
    config = {"prefetch_batches": 0, "inject_prefetch": False}
    profile = profile_with(stages=(stage_of("decode", 400),), config=config, host={"cpu_fraction": 0.1})
    assert fixes(profile)[0].changes == {"prefetch_batches": None}


def test_a_first_batch_that_takes_long(profile_with, step_of) -> None:
    (fix,) = fixes(profile_with(step=step_of(1000, 1000), first_batch_s=8.0))
    assert (fix.changes, fix.reason) == (
        {"window_records": 128},
        "Less is read before the first batch, which took 8.0 s; it mixes less.",
    )


def test_every_change_is_an_option(profile_with, stage_of) -> None:
    from dataclasses import replace

    from tfpipe.pipeline.config import PipelineConfig

    read = stage_of("read", 100, blocked_fraction=0.95)
    slow = {"image_dtype": "float32", "map_fusion": False}
    serial = {"num_parallel_calls": 1, "prefetch_batches": 0, "inject_prefetch": False}
    short = (stage_of("decode", 200),)
    profiles = [
        profile_with(config=slow, dataset={"records": 1000, "stored_size": (256, 256)}),
        profile_with(stages=short, config=serial, host={"cpu_fraction": 0.1}),
        profile_with(stages=(read,), config={"cycle_length": 1}, host={"cpu_fraction": 0.02}),
    ]
    config = PipelineConfig(global_batch_size=100)
    found = [one for profile in profiles for one in changes(profile)]
    assert {name for one in found for name in one} == {
        *("augment", "cache", "cycle_length", "image_dtype", "map_fusion", "num_parallel_calls"),
        *("prefetch_batches", "read_parallel_calls"),
    }
    for one in found:
        replace(config, **one)  # type: ignore[arg-type]


def test_device_augmentation_pays_for_squared_images_only(profile_with) -> None:
    """Decoding photographs whole costs more than their augmentation does."""
    device = {"augment": "device", "image_dtype": "uint8"}
    assert device not in changes(profile_with())
    fix = the(profile_with(dataset={"stored_size": (256, 256)}), **device)
    assert fix.predicted_images_per_second == pytest.approx(rate(STAGES_S - 0.7e-3 + 0.05 * 2.4e-3))
