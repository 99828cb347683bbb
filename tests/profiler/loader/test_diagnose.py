"""The wall that holds a loader, its fixes, and what the report says of them, from figures written by hand."""

from dataclasses import replace
from typing import Any

import pytest

from tests.profiler.profiles import make_spread
from tfpipe.profiler.diagnose.diagnosis import make_report
from tfpipe.profiler.loader.diagnose import compute_costs, find_loader_bottleneck, list_loader_fixes
from tfpipe.profiler.report.text_json import to_text
from tfpipe.profiler.types import Activity, BatchInfo, Drive, Fix, HostUse, LoaderProfile, ProcessUse, StepTiming

BATCH = BatchInfo(10, 10 * 150_528, "uint8", (10, 224, 224, 3))
OPTIONS = {"num_workers": 2, "prefetch_factor": 2, "persistent_workers": True, "in_order": True}


def make_use(pid: int = 1, **facts: Any) -> ProcessUse:
    """Returns a worker that computes for all of 10 s, in a function of the user, and makes 50 images."""
    use = ProcessUse(
        pid,
        10.0,
        cpu_s=10.0,
        seconds={"functions": 8.0, "decoding": 2.0},
        functions=(("train.py:7 blur", "functions", 8.0), ("train.py:5 load", "decoding", 2.0)),
        record_s=(0.2,) * 50,
    )
    return replace(use, **facts)


def make_profile(*workers: ProcessUse, **facts: Any) -> LoaderProfile:
    """Returns the profile of a DataLoader with two busy workers on two cores: 10 images/s, and 20 needed.

    A step takes `step_s`, and `paced_s` is the time of ten. Other programs take `others_cores`.
    """
    uses = facts.get("workers", workers or (make_use(1), make_use(2)))
    main = facts.get("main", ProcessUse(3, 10.0, cpu_s=0.1, seconds={"handing over": 0.1, "idle": 9.9}))
    step_s, wall_s = facts.pop("step_s", 0.5), facts.pop("paced_s", 10.0)
    idle = make_spread(1 - 10 * step_s / wall_s)
    timing = StepTiming("loop" if step_s else "none", 10, 10, make_spread(step_s), wall_s, idle, idle)
    free = facts.get("free", Drive(10, 10.0))
    used_s = sum(use.cpu_s for use in (*uses, main))
    other = facts.pop("others_cores", 0.0) / 2
    profile = LoaderProfile(
        step=timing,
        host=HostUse(2, used_s / free.wall_s / 2, 10**9, 16 * 10**9, 0.0, other_cpu_fraction=other),
        images_per_second=100 / wall_s,
        first_batch_s=1.0,
        kind="PyTorch DataLoader",
        options=OPTIONS,
        batch=BATCH,
        free=free,
        workers=uses,
        main=main,
        restart_s=0.0,
        steps_per_epoch=100,
        cores=2.0,
    )
    return replace(profile, **facts)


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


SECONDS: dict[Activity, float] = {"other": 1.4, "collating": 0.6, "no core": 8.0}
FILL: tuple[tuple[str, Activity, float], ...] = (("train.py:9 fill", "collating", 3.0),)
STARVING = ProcessUse(3, 10.0, cpu_s=4.0, pool_s=2.0, seconds=SECONDS, functions=FILL)
"""PyTorch computes for 2 s in each of two threads, and waits for a core for 8 s."""


def make_starving(use: ProcessUse = STARVING, **facts: Any) -> LoaderProfile:
    facts = {"torch_threads": 2, **facts}
    return make_profile(main=use, workers=(), options=OPTIONS | {"num_workers": 0}, **facts)


def test_threads_of_pytorch_that_starve_are_named_and_their_number_proposed() -> None:
    text = to_text(make_report(make_starving()))
    assert text.startswith(
        "Bottleneck: starving threads (torch.set_num_threads)\n\n"
        "PyTorch computes in 2 threads, and this loader gets 0.4 of 2 cores: it waits for a core in 80 % of the time.\n"
    )
    assert (
        "1. Call `torch.set_num_threads(1)` (your code)\n   10 images/s, 50 % idle predicted. 50 % of the loader's "
        "processor time is in threads of a library.\n2. num_workers=2 (an option or a line of yours)\n"
    ) in text


ONE_EACH = "Give each worker one thread, by `torch.set_num_threads(1)` or `cv2.setNumThreads(0)` in `worker_init_fn`"
WORKERS = [make_use(n, cpu_s=5.0, pool_s=3.0, seconds={"no core": 8.0, "other": 2.0}) for n in (1, 2)]


@pytest.mark.parametrize(
    ("profile", "kind", "first"),
    [
        (make_starving(torch_threads=8), "starving threads", "Call `torch.set_num_threads(1)`"),
        (make_starving(torch_threads=1), "starving threads", "Give the library one thread"),
        (make_starving(replace(STARVING, pool_s=1.2)), "too few workers", "num_workers=2"),  # collating alone
        (make_starving(free=Drive(10, 2.0)), "too few workers", "num_workers=2"),  # two cores for two threads
        (make_starving(replace(STARVING, seconds={"other": 8.0, "no core": 2.0})), "too few workers", "num_workers=2"),
        (make_profile(*WORKERS), "starving threads", ONE_EACH),
    ],
)
def test_which_threads_starve(profile: LoaderProfile, kind: str, first: str) -> None:
    report = make_report(profile)
    assert report.bottleneck.stage == kind
    assert report.fixes[0].name.startswith(first)


def test_busy_neighbors_stand_in_the_first_line() -> None:
    crowded = make_report(make_starving(others_cores=1.6))
    lines = to_text(crowded).splitlines()
    assert lines[0].startswith("Busy neighbors: other programs take 80 % of 2 cores. End them and run this again: ")
    assert lines[1].startswith("Bottleneck: starving threads")
    text = to_text(make_report(make_starving(others_cores=0.1)))
    assert "Busy" not in text
    assert "   18 images/s, 10 % idle predicted. 2 workers can make batches at once, while the step runs.\n" in text


def test_an_activity_has_one_figure_in_a_report() -> None:
    """Of 10 s the loop waits for a core for 6 s; "other" is 65 % of the rest."""
    seconds, fill = {"other": 2.6, "functions": 1.4, "no core": 6.0}, ("train.py:9 fill", "functions", 1.4)
    use = replace(STARVING, pool_s=0.0, seconds=seconds, functions=(fill,))
    text = to_text(make_report(make_starving(use)))
    assert " 26 % of the time goes to other code, and 60 % to waiting for a core.\n" in text
    assert "\nother                   26 %\n" in text
    assert "\nyour functions          14 %\n" in text
    assert "\n      14 %  train.py:9 fill\n" in text
    assert "65 %" not in text
