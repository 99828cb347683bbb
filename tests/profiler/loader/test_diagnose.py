"""The wall that holds a loader, and its fixes, from figures written by hand."""

from dataclasses import replace

import pytest

from tests.profiler.loader.profiles import BATCH, OPTIONS, make_profile, make_use
from tfpipe.profiler.diagnose.diagnosis import make_report
from tfpipe.profiler.loader.diagnose import compute_costs, find_loader_bottleneck, list_loader_fixes
from tfpipe.profiler.types import Drive, Fix, LoaderProfile, ProcessUse

IDLE = make_use(2, cpu_s=1.0, seconds={"functions": 1.0, "idle": 9.0}, record_s=(0.02,) * 50)
PAD, LOAD = ("train.py:9 pad", "functions", 9.0), ("train.py:5 load", "reading", 9.0)
BUSY_MAIN = ProcessUse(3, 10.0, cpu_s=9.0, seconds={"functions": 9.0}, functions=(PAD,))
LATE = make_use(1, cpu_s=1.0, seconds={"reading": 1.0, "storage": 9.0}, bytes=10**6, functions=(LOAD,))
ALONE = ProcessUse(3, 10.0, cpu_s=10.0, seconds={"decoding": 10.0}, functions=(("train.py:5 load", "decoding", 10.0),))
ASKS = make_use(1, cpu_s=0.1, seconds={"waiting": 10.0}, functions=(("train.py:3 ask", "waiting", 10.0),))
CROWD = [make_use(n, cpu_s=2.0, seconds={"functions": 2.0, "no core": 8.0}) for n in range(10)]
PACKERS = [make_use(n, seconds={"handing over": 9.0}) for n in range(2)]

CASES: dict[str, tuple[LoaderProfile, str, str, str]] = {
    "cores": (make_profile(), "cores", "train.py:7 blur", "Make train.py:7 blur faster"),
    "fed": (make_profile(step_s=1.0), "accelerator", "", ""),
    "nearly fed": (make_profile(step_s=0.95, free=Drive(30, 10.0)), "accelerator", "", ""),
    "zero workers": (
        make_profile(main=ALONE, options=OPTIONS | {"num_workers": 0}, workers=()),
        "too few workers", "train.py:5 load", "num_workers=2",
    ),
    "one worker": (
        make_profile(make_use(1), options=OPTIONS | {"num_workers": 1}),
        "too few workers", "train.py:7 blur", "num_workers=2",
    ),
    "many workers": (
        make_profile(*CROWD, options=OPTIONS | {"num_workers": 10}),
        "too many workers", "train.py:7 blur", "num_workers=2",
    ),
    "lock": (
        make_profile(make_use(1, seconds={"functions": 8.0, "lock": 12.0})),
        "lock", "train.py:7 blur", "num_workers=2",
    ),
    "slow record": (
        make_profile(make_use(1, record_s=(0.01,) * 49 + (6.0,), slowest="17"), make_use(2, record_s=(0.01,) * 50)),
        "slow record", "record 17", "in_order=False",
    ),
    "slow worker": (make_profile(make_use(1), IDLE), "slow worker", "process 1", "in_order=False"),
    "storage latency": (
        make_profile(LATE, replace(LATE, pid=2)), "storage latency", "train.py:5 load", "num_workers=4",
    ),
    "storage bytes": (
        make_profile(replace(LATE, bytes=10**10)), "storage bytes", "train.py:5 load", "num_workers=2",
    ),
    "main process": (
        make_profile(IDLE, replace(IDLE, pid=4), main=BUSY_MAIN),
        "main process", "train.py:9 pad", "Move train.py:9 pad",
    ),
    "objects": (
        make_profile(*PACKERS, batch=replace(BATCH, objects=5000)),
        "hand-over", "", "Hand over tensors or arrays",
    ),
    "float64": (
        make_profile(*PACKERS, batch=replace(BATCH, dtype="float64")),
        "hand-over", "", "Hand over uint8 in place of float64",
    ),
    "waits": (make_profile(ASKS), "waits", "train.py:3 ask", "num_workers=2"),
    "restarts": (
        make_profile(
            IDLE, replace(IDLE, pid=4), options=OPTIONS | {"persistent_workers": False}, steps_per_epoch=2,
            free=Drive(10, 10.0, 8.0, 5), restart_s=1.6,
        ),
        "restarts", "", "persistent_workers=True",
    ),
}  # fmt: skip


def get_gain(profile: LoaderProfile, fix: Fix) -> float:
    return fix.predicted_images_per_second / profile.images_per_second


@pytest.mark.parametrize("name", CASES)
def test_the_wall_and_the_first_fix(name: str) -> None:
    profile, kind, where, first = CASES[name]
    wall = find_loader_bottleneck(profile)
    assert (wall.stage, wall.where) == (kind, where), wall.reason
    fixes = list_loader_fixes(profile, wall)
    if not first:
        assert fixes == ()
        return
    assert fixes[0].name.startswith(first), [(fix.name, fix.predicted_images_per_second) for fix in fixes]
    assert all(get_gain(profile, fix) >= 1 for fix in fixes)


def test_the_sentence_of_a_wall() -> None:
    assert find_loader_bottleneck(CASES["zero workers"][0]).reason == (
        "No worker process makes batches: the loop does it itself, and the step waits meanwhile. 100 % of the time "
        "goes to decoding, most of it in train.py:5 load."
    )


def test_many_slow_records_are_no_exception() -> None:
    uses = [make_use(n, record_s=(0.01,) * 44 + (1.0,) * 6) for n in range(2)]
    assert find_loader_bottleneck(make_profile(*uses)).stage == "cores"


def test_workers_of_several_epochs_are_not_more_workers() -> None:
    uses = [replace(make_use(n), wall_s=2.0) for n in range(10)]
    assert make_profile(*uses).num_workers == compute_costs(make_profile(*uses)).num_workers == 2
    assert make_profile(*uses, options={}).num_workers == 10


def test_costs() -> None:
    costs = compute_costs(make_profile())
    moved = costs.save(-0.1)  # work that moves takes no lock
    assert (moved.worker_s, moved.lock_s) == (pytest.approx(0.3), 0.0)
    assert (costs.num_workers, costs.worker_s, costs.stall_s, costs.restart_s, costs.step_s) == (2, 0.2, 0.0, 0.0, 0.05)
    assert (costs.cpu_s, costs.main_s) == (pytest.approx(0.201), pytest.approx(0.001))
    assert costs.rate == pytest.approx(1 / 0.1005)  # the cores
    assert replace(costs, cores=4.0).rate == pytest.approx(10.0)  # the workers
    assert replace(costs, cores=4.0, num_workers=8).rate == pytest.approx(1 / 0.051)  # the step
    assert replace(costs, num_workers=0).rate == pytest.approx(1 / 0.25)  # all one after another


def test_no_fix_gives_more_than_the_trainer_takes() -> None:
    """Without workers a batch takes 0.1 s, and so does a step, which the loop has at 0.19 s; it is idle for 0.09 s."""
    use = make_use(1, cpu_s=0.5, seconds={"waiting": 10.0}, functions=())
    options = {**OPTIONS, "num_workers": 0}
    profile = make_profile(workers=(), main=use, free=Drive(100, 10.0), paced_s=1.9, step_s=0.1, options=options)
    assert profile.step.idle == pytest.approx(0.09 / 0.19)
    assert get_gain(profile, make_report(profile).fixes[0]) == pytest.approx(1.9)


@pytest.mark.parametrize(("draft_s", "gain"), [(None, None), (0.16, None), (0.1, 20 / 14), (0.08, 20 / 12)])
def test_a_faster_way_of_pillow(draft_s: float | None, gain: float | None) -> None:
    """Each image takes 0.2 s, of which 0.16 s are reading, decoding, and what the same line does with the pixels."""
    places = (
        ("train.py:5 load", "decoding", 5.0),
        ("train.py:4 load", "reading", 1.0),
        ("train.py:5 load", "functions", 2.0),
        ("train.py:6 load", "functions", 2.0),
    )
    seconds = {"decoding": 5.0, "reading": 1.0, "functions": 4.0}
    profile = make_profile(*[make_use(n, seconds=seconds, functions=places) for n in range(2)], draft_s=draft_s)
    fixes = make_report(profile).fixes
    drafts = [fix for fix in fixes if "image.draft" in fix.instruction]
    assert [get_gain(profile, fix) for fix in drafts] == ([] if gain is None else [pytest.approx(gain, rel=0.01)])


def test_objects_cost_the_process_that_unpacks_them_too() -> None:
    """Half of the work of two workers, and all of the main process, which takes as much as one of them.

    Arrays are written twice, for a second each in all.
    """
    uses = [make_use(n, seconds={"functions": 5.0, "handing over": 5.0}) for n in range(2)]
    main = ProcessUse(3, 10.0, cpu_s=10.0, seconds={"handing over": 8.0, "other": 2.0})
    profile = make_profile(*uses, main=main, batch=replace(BATCH, objects=5000), step_s=0.0, hop_s=0.1)
    fix = make_report(profile).fixes[0]
    assert fix.instruction == "Hand over tensors or arrays in place of lists, dictionaries and other objects"
    assert get_gain(profile, fix) == pytest.approx(30 / (20 - 10 + 2 + 10 - 10))


def test_objects_that_are_not_kept_need_not_be_looked_through_for_garbage() -> None:
    """Of each 10 s a worker packs for 4 s, computes for 3 s, and looks for garbage for 1 s within its functions.

    For 2 s the loader walks over the objects, and looks for garbage for as large a part of it.
    """
    seconds = {"functions": 4.0, "handing over": 4.0, "other": 2.0}
    uses = [make_use(n, seconds=seconds, collecting_s=1.5) for n in range(2)]
    profile = make_profile(*uses, main=ProcessUse(3, 10.0), batch=replace(BATCH, objects=5000), step_s=0.0)
    fix = list_loader_fixes(profile, replace(find_loader_bottleneck(profile), stage="hand-over"))[0]
    assert get_gain(profile, fix) == pytest.approx(10 / (10 - 4 - 2 - 1))


def test_floats_are_written_before_they_are_collated() -> None:
    """Of each 10 s a worker collates floats for 4 s, and writes them for about half as long."""
    uses = [make_use(n, seconds={"functions": 6.0, "collating": 4.0}) for n in range(2)]
    main = ProcessUse(3, 10.0, cpu_s=0.8, seconds={"idle": 9.2})  # it frees their memory
    profile = make_profile(*uses, main=main, batch=replace(BATCH, dtype="float64"), step_s=0.0)
    fix = next(fix for fix in make_report(profile).fixes if "uint8" in fix.instruction)
    assert get_gain(profile, fix) == pytest.approx(20.8 / (8 + 12 / 8 + 0.8 / 8))
